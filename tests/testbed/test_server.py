"""The oracle over HTTP answers as it does in the process, complete or streamed, and explains what it refuses."""

import asyncio
import json
from itertools import islice

import pytest

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.journal.memory import MemoryJournal
from treadle.models.dialects.openai_chat.request import OpenAIChatModel
from treadle.models.wrappers.retry import RetryModel
from treadle.tasks.files import TASK_SET, find_solver
from treadle.testbed.oracle import OracleModel
from treadle.testbed.server import ServerSettings, serve
from treadle.testbed.server.oracle_app import OracleApp

TASK = TASK_SET.get("limit_rule-0002")
TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {}}}]


def body_of(**fields: object) -> dict[str, object]:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TASK.input}]
    return {"model": "oracle", "messages": messages, "tools": TOOLS, **fields}


def ask(body: object, **settings: float) -> tuple[int, dict]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = OracleApp(ServerSettings(**settings)).answer("POST", "/v1/chat/completions", data)
    return reply.status, json.loads(b"".join(reply.pieces))


def events_of(body: object) -> list[dict]:
    reply = OracleApp(ServerSettings()).answer("POST", "/v1/chat/completions", json.dumps(body).encode())
    assert reply.pieces[-1] == b"data: [DONE]\n\n"
    assert all(piece.startswith(b"data: ") and piece.endswith(b"\n\n") for piece in reply.pieces)
    return [json.loads(piece[6:]) for piece in reply.pieces[:-1]]


def parts_of(messages) -> list[tuple]:
    return [(m.role, m.content, m.tool_calls, m.call_id, m.reasoning) for m in messages]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.4])
async def test_does_the_same_as_in_the_process(start, is_streamed, rate):
    server = await start(mistake_rate=rate)
    journal = MemoryJournal()
    here = Agent(OracleModel(find_solver, mistake_rate=rate), journal=journal)
    there = Agent(OpenAIChatModel("oracle", base_url=server.url, api_key="any"), journal=journal)
    listen = (lambda event: None) if is_streamed else None

    async def compare(task) -> None:
        one = await here.run(task)
        two = await there.run(task, on_event=listen)
        assert one.reward == two.reward == 1.0, task.task_id
        assert parts_of(one.state.messages) == parts_of(two.state.messages)

    await asyncio.gather(*[compare(task) for task in islice(TASK_SET, 44)])


async def test_a_client_that_tries_again_gets_through(start):
    server = await start(failure_rate=0.4, seed=7)
    inner = OpenAIChatModel("oracle", base_url=server.url, api_key="any")
    retrying = RetryModel(inner, max_attempts=30, min_delay_seconds=0.0, max_delay_seconds=0.001)
    agent = Agent(retrying, journal=MemoryJournal())
    for run in await asyncio.gather(*[agent.run(task) for task in islice(TASK_SET, 22)]):
        assert run.reward == 1.0


def test_failures_come_at_the_rate_and_follow_from_the_seed():
    def statuses(seed: int) -> list[int]:
        app = OracleApp(ServerSettings(failure_rate=0.5, seed=seed))
        bodies = [json.dumps(body_of(user=str(index % 40))).encode() for index in range(400)]
        replies = [app.answer("POST", "/v1/chat/completions", body) for body in bodies]
        assert all(("Retry-After" in reply.headers) is (reply.status == 429) for reply in replies)
        return [reply.status for reply in replies]

    one = statuses(7)
    assert set(one) == {200, 429, 503}
    assert 0.3 < 1 - one.count(200) / len(one) < 0.7
    assert one == statuses(7) != statuses(8)


def test_a_whole_answer():
    status, answer = ask(body_of())
    assert (status, answer["object"], answer["model"]) == (200, "chat.completion", "oracle")
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "read_file")
    usage = answer["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"] > 0


def test_without_tools_it_answers_with_text():
    for fields in ({"tools": []}, {"tools": None}, {"tool_choice": "none"}):
        _, answer = ask(body_of(**fields))
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["choices"][0]["message"]["content"]
        assert "tool_calls" not in answer["choices"][0]["message"]


def next_turn(answer: dict, content: object) -> list[dict]:
    message = answer["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": content} for call in message["tool_calls"]
    ]
    return [message, *results]


def test_parallel_calls_can_be_turned_off():
    limits = next(text.decode() for path, text in TASK.files.items() if path.endswith("limits.json"))
    messages = body_of()["messages"]
    _, answer = ask(body_of())
    messages = [
        *messages,
        *next_turn(answer, limits),
    ]
    _, answer = ask(body_of(messages=messages))
    messages = [*messages, *next_turn(answer, json.dumps(list(TASK.files)))]
    _, many = ask(body_of(messages=messages))
    _, one = ask(body_of(messages=messages, parallel_tool_calls=False))
    assert len(one["choices"][0]["message"]["tool_calls"]) == 1
    assert len(many["choices"][0]["message"]["tool_calls"]) > 1
    events = events_of(body_of(messages=messages, stream=True))
    deltas = [call for e in events for c in e["choices"] for call in c["delta"].get("tool_calls", ())]
    for index, call in enumerate(many["choices"][0]["message"]["tool_calls"]):
        parts = [delta for delta in deltas if delta["index"] == index]
        assert (parts[0]["id"], parts[0]["function"]["name"]) == (call["id"], call["function"]["name"])
        text = "".join([part["function"]["arguments"] for part in parts])
        assert text == call["function"]["arguments"]
        assert all("id" not in part for part in parts[1:])


def test_a_stream_ends_with_its_reason_and_with_usage_if_asked():
    events = events_of(body_of(stream=True))
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert all(event["usage"] is None for event in events)
    asked = events_of(body_of(stream=True, stream_options={"include_usage": True}))
    assert len(asked) == len(events) + 1
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"] == ask(body_of())[1]["usage"]


def test_content_may_come_in_parts():
    # Parts are lines of one text, as in vLLM and in the gateway.
    said = ["Hello", "world"]
    parts = [{"type": "text", "text": text} for text in said]
    messages = [{"role": "developer", "content": "x"}, {"role": "user", "content": parts, "name": "me"}]
    answer = ask(body_of(model="echo", messages=messages))[1]
    assert answer["choices"][0]["message"]["content"].startswith("You said: Hello\nworld\n")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "not a chat completion request"),
        (b"{", 400, "not a chat completion request"),
        (b"\xff\xfe", 400, "not a chat completion request"),
        (b"[]", 400, "Expected `object`"),
        (b"[" * 100_000, 400, "not a chat completion request"),
        (b'{"model":"oracle","messages":[' + b'{"role":' * 3000, 400, "not a chat completion request"),
        ({"messages": []}, 400, "`model`"),
        ({"model": "oracle"}, 400, "`messages`"),
        (body_of(messages=[{"role": "wizard", "content": "x"}]), 400, "'wizard' is not a role"),
        (body_of(messages=[{"role": "user", "content": 5}]), 400, "messages"),
        (body_of(messages=[{"role": "user", "content": "Hello!"}]), 400, "word for word"),
        (body_of(messages=[]), 400, "missing or empty"),
        (body_of(n=2), 400, "n is 2"),
        (body_of(model="oracle:2"), 404, "'oracle:2'"),
        (body_of(model="oracle:nan"), 404, "oracle:nan"),
        (body_of(model="oracle:x"), 404, "oracle:x"),
        (body_of(model="oracle:"), 404, "'oracle:'"),
    ],
)
def test_a_wrong_request_is_told_why(body, status, words):
    found, answer = ask(body)
    assert found == status
    assert words in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["code"]


def test_the_models_name_sets_the_rate():
    names = set()
    for seed in range(8):
        task = TASK_SET.get(f"pointer_chase-{seed:04d}")
        messages = [{"role": "user", "content": task.input}]
        right = ask(body_of(messages=messages, model="oracle:0"), mistake_rate=1.0)[1]
        wrong = ask(body_of(messages=messages, model="oracle:1"))[1]
        calls = [item["choices"][0]["message"]["tool_calls"][0]["function"] for item in (right, wrong)]
        assert calls[0] != calls[1]
        names.add(wrong["model"])
    assert names == {"oracle:1"}


def test_routes():
    app = OracleApp(ServerSettings())
    assert json.loads(app.answer("GET", "/v1/models", b"").pieces[0])["data"][0]["id"] == "oracle"
    assert app.answer("GET", "/health", b"").status == 200
    wrong = app.answer("GET", "/v1/chat/completions", b"")
    assert (wrong.status, wrong.headers["Allow"]) == (405, "POST")
    assert app.answer("DELETE", "/health", b"").status == 405
    unknown = app.answer("POST", "/v1/embeddings", b"{}")
    assert unknown.status == 404
    assert b"/v1/chat/completions" in unknown.pieces[0]


@pytest.mark.parametrize(
    "settings",
    [{"mistake_rate": 2}, {"failure_rate": -1}, {"latency_seconds": -1}, {"chunk_seconds": float("nan")}],
)
def test_settings_are_checked(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ServerSettings(**settings)


async def test_listens_where_it_is_told(start):
    server = await start()
    assert server.url == f"http://127.0.0.1:{server.port}/v1"
    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1"):
        await serve(port=server.port)


async def test_a_slow_stream_comes_in_pieces_and_the_next_request_after_it(start, connect):
    server = await start(chunk_seconds=0.001, latency_seconds=0.001)
    data = json.dumps(body_of(stream=True)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data)
    async with connect(server.port) as raw:
        raw.send((head + data) * 2 + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(2):
            status, headers, body = await raw.read()
            assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            assert body.endswith(b"data: [DONE]\n\n")
        assert (await raw.read())[2] == b'{"status":"ok"}'
    async with connect(server.port) as raw:
        raw.send(head.replace(b"HTTP/1.1", b"HTTP/1.0") + data)
        status, headers, body = await raw.read()
        assert "transfer-encoding" not in headers
        assert body.endswith(b"data: [DONE]\n\n")


async def test_closing_drops_waiting_clients(connect):
    server = await serve(settings=ServerSettings(latency_seconds=60.0))
    data = json.dumps(body_of()).encode()
    async with connect(server.port) as raw:
        raw.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data))
        raw.send(data)
        await asyncio.sleep(0)
        async with connect(server.port) as other:
            other.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await other.read())[0] == 200
        await server.close()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await raw.read()
