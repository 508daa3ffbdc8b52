"""The endpoints of the mock engines, with the field names of the real ones."""

import asyncio
import json

import pytest
from tests.testbed.engines.asking import ask, chat, prompt_of

from treadle.testbed.engines import (
    ENGINES,
    EngineApp,
    EngineKind,
    EngineSettings,
    SglangApp,
    VllmApp,
    logprobs_of,
)
from treadle.testbed.server import serve


def check_log(app: EngineApp) -> None:
    """Check that all logprobs in the engine's own log can be computed again."""
    assert app.sampled
    for answer in app.sampled:
        versions = [version for count, version in answer.versions for _ in range(count)]
        again = logprobs_of(
            answer.model,
            answer.prompt_ids,
            answer.token_ids,
            versions,
            mistake_rate=app.settings.mistake_rate,
        )
        assert again == pytest.approx(answer.logprobs)


def test_vllm_chat():
    app = VllmApp()
    body = ask(app, "/v1/chat/completions", chat(logprobs=True, return_token_ids=True))
    choice, answer = body["choices"][0], app.sampled[0]
    assert body["id"] == answer.request_id
    assert body["prompt_token_ids"] == prompt_of(app) == list(answer.prompt_ids)
    assert choice["token_ids"] == list(answer.token_ids)
    assert [item["logprob"] for item in choice["logprobs"]["content"]] == list(answer.logprobs)
    assert bytes(choice["logprobs"]["content"][-1]["bytes"]) == b"<|im_end|>"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "list_files", "arguments": "{}"}
    assert choice["finish_reason"] == "tool_calls"
    assert body["usage"]["completion_tokens"] == len(answer.token_ids)
    plain = ask(app, "/v1/chat/completions", chat())
    assert "prompt_token_ids" not in plain
    assert plain["choices"][0]["token_ids"] is plain["choices"][0]["logprobs"] is None
    check_log(app)


def test_vllm_chat_streamed_says_the_same():
    app = VllmApp()
    options = {"logprobs": True, "return_token_ids": True, "return_tokens_as_token_ids": True, "seed": 3}
    whole = ask(app, "/v1/chat/completions", chat(**options))["choices"][0]
    events = ask(
        app, "/v1/chat/completions", chat(**options, stream=True, stream_options={"include_usage": True})
    )
    choices = [event["choices"][0] for event in events if event["choices"]]
    assert events[0]["prompt_token_ids"] == prompt_of(app)
    assert [number for item in choices for number in item.get("token_ids") or ()] == whole["token_ids"]
    told = [item for choice in choices for item in (choice.get("logprobs") or {"content": ()})["content"]]
    assert told == whole["logprobs"]["content"]
    assert [item["token"] for item in told] == [f"token_id:{number}" for number in whole["token_ids"]]
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert events[-1]["usage"]["prompt_tokens"] == len(prompt_of(app))


@pytest.mark.parametrize("is_streamed", [False, True])
def test_vllm_completions_and_generate(is_streamed):
    app = VllmApp()
    prompt = prompt_of(app)
    fields = {"prompt": prompt, "model": "oracle", "max_tokens": 99, "logprobs": 0, "return_token_ids": True}
    body = ask(app, "/v1/completions", {**fields, "stream": is_streamed, "seed": 1})
    events = body if is_streamed else [body]
    choices = [event["choices"][0] for event in events if event["choices"]]
    answer = app.sampled[-1]
    assert choices[0]["prompt_token_ids"] == prompt
    assert tuple(number for item in choices for number in item["token_ids"]) == answer.token_ids
    found = tuple(value for item in choices for value in item["logprobs"]["token_logprobs"])
    assert found == answer.logprobs
    assert "".join(item["text"] for item in choices).startswith("<tool_call>")
    assert choices[-1]["finish_reason"] == "stop"

    sampling = {"max_tokens": 5, "logprobs": 0, "seed": 1}
    told = {"token_ids": prompt, "sampling_params": sampling, "stream": is_streamed, "request_id": "mine"}
    body = ask(app, "/inference/v1/generate", told)
    choices = [event["choices"][0] for event in (body if is_streamed else [body])]
    ids = tuple(number for item in choices for number in item["token_ids"])
    assert ids == app.sampled[-1].token_ids == answer.token_ids[:5]
    found = tuple(item["logprob"] for choice in choices for item in choice["logprobs"]["content"])
    assert found == answer.logprobs[:5]
    assert choices[-1]["finish_reason"] == "length"
    check_log(app)


def test_sglang_generate_and_chat():
    app = SglangApp()
    prompt = prompt_of(app)
    asked = {"input_ids": prompt, "sampling_params": {"sampling_seed": 2}, "return_logprob": True}
    body = ask(app, "/generate", asked)
    answer = app.sampled[-1]
    assert tuple(body["output_ids"]) == answer.token_ids
    meta = body["meta_info"]
    assert [(value, number) for value, number, _ in meta["output_token_logprobs"]] == list(
        zip(answer.logprobs, answer.token_ids, strict=True)
    )
    assert meta["finish_reason"] == {"type": "stop", "matched": app.policy("oracle").template.end}
    assert meta["weight_version"] == "0"
    events = ask(app, "/generate", {**asked, "stream": True})
    assert events[-1]["output_ids"] == body["output_ids"]
    assert events[0]["output_ids"] == body["output_ids"][:4]
    assert events[0]["meta_info"]["finish_reason"] is None

    fields = {"logprobs": True, "return_token_ids": True, "return_meta_info": True}
    body = ask(app, "/v1/chat/completions", chat(**fields))
    choice = body["choices"][0]
    assert choice["prompt_token_ids"] == prompt
    assert tuple(choice["response_token_ids"]) == app.sampled[-1].token_ids
    assert [item["logprob"] for item in choice["logprobs"]["content"]] == list(app.sampled[-1].logprobs)
    assert choice["meta_info"]["weight_version"] == body["metadata"]["weight_version"] == "0"
    refused = app.answer("POST", "/v1/chat/completions", json.dumps(chat(**fields, stream=True)).encode())
    assert refused.status == 400
    check_log(app)


@pytest.mark.parametrize("kind", list(EngineKind))
def test_what_the_engines_say_of_themselves(kind):
    app = ENGINES[kind](EngineSettings(model="teacher"))
    assert ask(app, "/v1/models")["data"][0]["id"] == "teacher"
    assert (
        ask(app, "/tokenize", {"prompt": "<|im_start|>user\nhi"})["tokens"][0]
        == app.policy("x").template.start
    )
    assert ask(app, "/tokenize", chat())["tokens"] == prompt_of(app)
    if kind is EngineKind.VLLM:
        assert ask(app, "/version") == {"version": "0.20.0"}
        ask(app, "/finish_weight_update", {"weight_version": "7"})
        assert ask(app, "/weight_info") == {"weight_version": "7"}
    else:
        assert ask(app, "/get_server_info")["version"] == "0.5.23"
        ask(app, "/update_weights_from_disk", {"model_path": "x", "weight_version": "7"})
        assert ask(app, "/get_model_info")["weight_version"] == "7"


@pytest.mark.parametrize("kind", list(EngineKind))
def test_mistakes_depend_on_the_seed_and_cut_answers_say_so(kind):
    app = ENGINES[kind](EngineSettings(mistake_rate=0.5, cut_rate=0.3, abort_rate=0.3))
    bodies = [ask(app, "/v1/chat/completions", chat(seed=seed)) for seed in range(30)]
    assert bodies[3] != ask(app, "/v1/chat/completions", chat(seed=4))
    reasons = {body["choices"][0]["finish_reason"] for body in bodies}
    assert {"tool_calls", "length", "abort"} <= reasons
    assert len({answer.token_ids for answer in app.sampled}) > 10
    check_log(app)


@pytest.mark.parametrize("rate", [0.5, 1.0])
@pytest.mark.parametrize("kind", list(EngineKind))
def test_the_same_prompt_is_not_aborted_for_ever_without_an_id(kind, rate):
    """A client with a seed got the same empty answer each time that it asked again."""
    app = ENGINES[kind](EngineSettings(abort_rate=rate))
    for seed in range(20):
        for _ in range(20):
            ask(app, "/v1/chat/completions", chat(seed=seed))
        assert any(answer.token_ids for answer in app.sampled[-20:]), seed
        assert rate == 1.0 or any(answer.finish != "abort" for answer in app.sampled[-20:])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "no turn"}),
        ("/v1/completions", {"prompt": [1] * 50_000}),
        ("/inference/v1/generate", {"sampling_params": {}}),
        ("/v1/chat/completions", {"model": "oracle", "messages": [{"role": "user", "content": "hi"}]}),
        ("/inference/v1/generate", {"token_ids": [5000], "sampling_params": {}}),
    ],
)
def test_what_cannot_be_answered_is_refused(path, body):
    reply = VllmApp().answer("POST", path, json.dumps(body).encode())
    assert reply.status == 400
    assert json.loads(reply.pieces[0])["error"]["message"]


class Client:
    """Requests to a running server, on connections of their own."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def post(self, path: str, body: object = None) -> dict:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = json.dumps(body or {}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: {len(data)}"
        writer.write(f"{head}\r\n\r\n".encode() + data)
        answer = await reader.read()
        writer.close()
        body = answer.partition(b"\r\n\r\n")[2]
        return json.loads(body) if body else {}


async def until_running(app: EngineApp) -> None:
    async with asyncio.timeout(60):
        while not app._running:
            await asyncio.sleep(0.001)


async def half_done(app: EngineApp) -> None:
    """Let half of the time of all running answers pass."""
    await until_running(app)
    for work in app._running.values():
        work.stop()
        work._spent = work.seconds / 2
        work.go()


async def test_an_aborted_answer_goes_on_from_its_partial_ids():
    app = VllmApp(EngineSettings(latency_seconds=600))
    server = await serve(app=app)
    client = Client(server.port)
    prompt = prompt_of(app)
    sampling = {"max_tokens": 99, "logprobs": 0, "seed": 5}
    asked = asyncio.create_task(
        client.post("/inference/v1/generate", {"token_ids": prompt, "sampling_params": sampling})
    )
    await half_done(app)
    await client.post("/pause?mode=abort")
    first = (await asked)["choices"][0]
    assert first["finish_reason"] == "abort"
    assert 0 < len(first["token_ids"]) < 10
    await client.post("/finish_weight_update", {"weight_version": "1"})
    rest = asyncio.create_task(
        client.post(
            "/inference/v1/generate", {"token_ids": prompt + first["token_ids"], "sampling_params": sampling}
        )
    )
    await until_running(app)
    await client.post("/resume")
    app._running.popitem()[1]._deliver()
    second = (await rest)["choices"][0]
    assert second["finish_reason"] == "stop"
    text = app.policy("oracle").template.bpe.decode(first["token_ids"] + second["token_ids"])
    assert text.strip().endswith("</tool_call><|im_end|>") or text.endswith("</tool_call>\n<|im_end|>")
    assert [answer.version for answer in app.sampled] == ["0", "1"]
    check_log(app)
    await server.close()


async def test_kept_answers_go_on_with_the_new_weights():
    app = SglangApp(EngineSettings(latency_seconds=600))
    server = await serve(app=app)
    client = Client(server.port)
    asked = asyncio.create_task(
        client.post("/generate", {"input_ids": prompt_of(app), "return_logprob": True, "rid": "a"})
    )
    await half_done(app)
    await client.post("/pause_generation", {"mode": "in_place"})
    await client.post("/update_weight_version", {"new_version": "1", "abort_all_requests": False})
    await client.post("/continue_generation")
    app._running["a"]._deliver()
    meta = (await asked)["meta_info"]
    first, second = meta["weight_versions"]
    assert (first["version"], second["version"], meta["weight_version"]) == ("0", "1", "1")
    assert 0 < first["end"] == second["start"] < second["end"] == meta["completion_tokens"]
    check_log(app)
    await server.close()


async def test_a_client_that_goes_away_aborts_its_answer():
    app = VllmApp(EngineSettings(latency_seconds=600))
    server = await serve(app=app)
    asked = asyncio.create_task(Client(server.port).post("/v1/chat/completions", chat()))
    await until_running(app)
    await server.close()
    await asyncio.gather(asked, return_exceptions=True)
    assert not app._running
    assert app.sampled[0].finish == "abort"


async def test_an_update_can_wait_for_running_answers():
    app = VllmApp(EngineSettings(latency_seconds=600))
    server = await serve(app=app)
    client = Client(server.port)
    asked = asyncio.create_task(client.post("/v1/chat/completions", chat()))
    await until_running(app)
    paused = asyncio.create_task(client.post("/pause?mode=wait"))
    while not app.is_paused:
        await asyncio.sleep(0.001)
    assert not paused.done()
    next(iter(app._running.values()))._deliver()
    assert (await paused) == {"status": "paused"}
    assert (await asked)["choices"][0]["finish_reason"] == "tool_calls"
    await server.close()
