"""Tests of the dialect `ollama` alone. Tests for all dialects are in tests/contract."""

import json

import msgspec
import pytest
from tests.models.answers import Listener
from tests.models.server import Reply, serve
from tests.models.wire import ollama as wire

from treadle import Agent, tool
from treadle.core.errors import ConfigError, RequestError, ServerError, TransportError
from treadle.core.log import Log
from treadle.core.tokens.packed import unpack_logprobs
from treadle.core.types import (
    UNREPORTED,
    FinishReason,
    Message,
    Request,
    Role,
    Settings,
    ToolCall,
    ToolSpec,
    Usage,
)
from treadle.models import HttpResponse, HttpTransport, InProcessTransport, OllamaModel, Watch, model
from treadle.models.dialects.ollama import read_host

SPEC = ToolSpec("look_up", "Looks a word up.", {"type": "object"})
USER = Message(Role.USER, "Hello?")
QUESTION = Request(Log([USER]))
CALL = {"function": {"name": "look_up", "arguments": {"word": "a"}}}


def answer(content="I look.", *, calls=(), done="stop", message=(), **more):
    said = {"role": "assistant", "content": content, **dict(message)}
    if calls:
        said["tool_calls"] = list(calls)
    return {
        "model": "m-1",
        "created_at": "2026-01-01T00:00:00Z",
        "message": said,
        "done": True,
        "done_reason": done,
        "prompt_eval_count": 10,
        "eval_count": 5,
        **more,
    }


def stream(raw):
    return Reply(headers={"content-type": wire.CONTENT_TYPE}, pieces=wire.events(raw))


async def ask(replies, request=QUESTION, *, is_streamed=False, **options):
    """Return the completion, and the bodies of the requests."""
    async with serve(replies) as server:
        transport = HttpTransport(timeout_seconds=5.0)
        asked = OllamaModel("llama", base_url=server.base_url, transport=transport, **options)
        completion = await asked.infer(request, Listener().watch if is_streamed else Watch())
        return completion, [item.json() for item in server.requests]


async def test_settings_are_options():
    settings = Settings(0.5, 0.9, 7, 3, ("x",), True, extra={"options": {"top_k": 5}, "raw": False})
    _, (body,) = await ask([Reply(answer())], settings=settings, num_ctx=4096, think="high", keep_alive="10m")
    assert body == {
        "model": "llama",
        "options": {
            "num_ctx": 4096,
            "num_predict": 7,
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 3,
            "stop": ["x"],
            "top_k": 5,
        },
        "logprobs": True,
        "raw": False,
        "think": "high",
        "keep_alive": "10m",
        "stream": False,
        "messages": [{"role": "user", "content": "Hello?"}],
    }
    with pytest.raises(ConfigError, match="has no return_token_ids"):
        OllamaModel("m", settings=Settings(return_token_ids=True))


async def test_a_schema_is_the_format():
    schema = {"type": "object"}
    _, (body,) = await ask([Reply(answer())], Request(QUESTION.messages, (), schema))
    assert body["format"] == schema


async def test_results_are_joined_by_name_and_by_id():
    calls = (ToolCall("a", "look_up", '{"word": "ü"}'), ToolCall("b", "look_up", "{half"))
    said = Message(Role.ASSISTANT, "", calls, reasoning="I think.")
    log = Log([USER, said, Message(Role.TOOL, "1", call_id="a", name="look_up")])
    _, (body,) = await ask([Reply(answer())], Request(log, (SPEC,)))
    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": "",
            "thinking": "I think.",
            "tool_calls": [
                {"id": "a", "function": {"name": "look_up", "arguments": {"word": "ü"}}},
                {"id": "b", "function": {"name": "look_up", "arguments": {"INVALID_JSON": "{half"}}},
            ],
        },
        {"role": "tool", "content": "1", "tool_name": "look_up", "tool_call_id": "a"},
    ]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_what_is_not_known_is_kept(is_streamed):
    raw = answer(message={"mood": "good"}, calls=[{**CALL, "kind": "x"}], load_duration=7)
    completion, _ = await ask([stream(raw) if is_streamed else Reply(raw)], is_streamed=is_streamed)
    assert completion.opaque == {"load_duration": 7}
    assert completion.message.tool_calls[0].opaque == {"ollama": {"kind": "x"}}
    if not is_streamed:
        assert completion.message.opaque == {"ollama": {"mood": "good"}}
        again = msgspec.json.decode(msgspec.json.encode(completion.message), type=Message)
        _, (body,) = await ask([Reply(answer())], Request(Log([USER, again])))
        assert body["messages"][1]["mood"] == "good"


@pytest.mark.parametrize(
    ("done", "reason", "opaque"),
    [
        ("stop", FinishReason.STOP, None),
        ("length", FinishReason.LENGTH, None),
        ("unload", FinishReason.STOP, {"finish_reason": "unload"}),
    ],
)
async def test_finish_reasons(done, reason, opaque):
    completion, _ = await ask([Reply(answer(done=done))])
    assert (completion.finish_reason, completion.opaque) == (reason, opaque)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_counts_that_are_not_told_are_not_known(is_streamed):
    raw = answer()
    del raw["prompt_eval_count"]
    completion, _ = await ask([stream(raw) if is_streamed else Reply(raw)], is_streamed=is_streamed)
    assert completion.usage == UNREPORTED


async def test_a_prompt_that_filled_the_context_is_pointed_out():
    completion, _ = await ask([Reply(answer())], num_ctx=15)
    assert completion.usage == Usage(10, 5)
    assert completion.opaque == {"prompt_may_be_cut": True}
    completion, _ = await ask([Reply(answer())], num_ctx=16)
    assert completion.opaque is None


async def test_logprobs_are_recorded():
    found = [{"token": "I", "logprob": -0.5}]
    for is_streamed in (False, True):
        raw = answer(logprobs=found)
        completion, _ = await ask([stream(raw) if is_streamed else Reply(raw)], is_streamed=is_streamed)
        assert (unpack_logprobs(completion.tokens.logprobs), completion.tokens.tokens) == ((-0.5,), ("I",))


async def test_a_missing_model_says_how_to_get_it():
    reply = Reply({"error": "model 'llama' not found"}, 404)
    with pytest.raises(RequestError, match="ollama pull llama"):
        await ask([reply])


async def test_an_error_within_a_stream():
    pieces = [*wire.events(answer())[:1], b'{"error":"out of memory"}\n']
    with pytest.raises(ServerError, match="out of memory"):
        await ask([Reply(headers={"content-type": wire.CONTENT_TYPE}, pieces=pieces)], is_streamed=True)


async def test_a_stream_without_its_last_line_is_cut():
    pieces = wire.events(answer())[:-1]
    with pytest.raises(TransportError, match="before it was complete"):
        await ask([Reply(headers={"content-type": wire.CONTENT_TYPE}, pieces=pieces)], is_streamed=True)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("localhost", "http://localhost:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        (":8080", "http://localhost:8080"),
        ("https://ollama.example", "https://ollama.example"),
        ("https://ollama.example/sub/", "https://ollama.example/sub/"),
        ("example:1/x", "http://example:1/x"),
        ("[::1]:7", "http://[::1]:7"),
        ("http://me:pass@0.0.0.0/x", "http://me:pass@127.0.0.1/x"),
    ],
)
def test_hosts_are_read_as_ollamas_client_does(host, url):
    assert read_host(host) == url


def test_the_environment_says_where(monkeypatch):
    monkeypatch.setenv("OLLAMA_HOST", "0.0.0.0:8080")
    asked = model("ollama:llama3.2:3b", num_ctx=8192)
    assert (asked.inner.model, asked.inner.server.base_url) == ("llama3.2:3b", "http://127.0.0.1:8080")


async def test_a_run_without_ids():
    @tool(effect="pure")
    def look_up(word: str) -> str:
        """Looks a word up."""
        return f"{word} is a word"

    bodies = []

    async def respond(request):
        bodies.append(json.loads(request.body))
        return HttpResponse(answer("", calls=[CALL, CALL]) if len(bodies) == 1 else answer())

    agent = Agent(OllamaModel("llama", transport=InProcessTransport(respond)), tools=[look_up])
    run = await agent.run("What is a?")
    assert run.output == "I look."
    said, first, second = bodies[1]["messages"][1:]
    ids = [call["id"] for call in said["tool_calls"]]
    assert len(set(ids)) == 2
    assert ids == [first["tool_call_id"], second["tool_call_id"]]
    assert (first["content"], first["tool_name"]) == ("a is a word", "look_up")
