"""Tests of the dialect `gemini` alone. Tests for all dialects are in tests/contract."""

import json

import msgspec
import pytest
from tests.models.answers import Listener
from tests.models.server import Reply, serve, sse
from tests.models.wire import gemini as wire

from treadle import Agent, tool
from treadle.core.errors import (
    AuthenticationError,
    ConfigError,
    RateLimitError,
    RefusedError,
    RequestError,
    ServerError,
)
from treadle.core.events import ServerCallDelta, TextDelta
from treadle.core.log import Log
from treadle.core.tokens.packed import unpack_logprobs
from treadle.core.types import FinishReason, Message, Request, Role, Settings, ToolCall, ToolSpec, Usage
from treadle.models import GeminiModel, HttpResponse, HttpTransport, InProcessTransport, Watch

SPEC = ToolSpec("look_up", "Looks a word up.", {"type": "object"})
USER = Message(Role.USER, "Hello?")
QUESTION = Request(Log([USER]))

TEXT = {"text": "I look."}
THOUGHT = {"text": "I think.", "thought": True}
CALL = {"functionCall": {"name": "look_up", "args": {"word": "a"}, "id": "f1"}}
SIGNED = {**CALL, "thoughtSignature": "c2ln"}
LAST = {"text": "", "thoughtSignature": "bGFzdA=="}
CODE = {"executableCode": {"language": "PYTHON", "code": "print(1)"}}
RAN = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}}
FAILED = {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "no"}}


def answer(*parts, finish="STOP", **more):
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": finish, "index": 0}
    return {
        "candidates": [{**candidate, **more.pop("candidate", {})}],
        "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5},
        "modelVersion": "gemini-x",
        **more,
    }


def stream(raw):
    return Reply(headers={"content-type": "text/event-stream"}, pieces=wire.events(raw))


def make(server, model="gemini-2.5-pro", **options):
    return GeminiModel(
        model, base_url=server.base_url, transport=HttpTransport(timeout_seconds=5.0), **options
    )


async def ask(replies, request=QUESTION, *, is_streamed=False, **options):
    """Return the completion, and the bodies of the requests."""
    async with serve(replies) as server:
        watch = Listener().watch if is_streamed else Watch()
        completion = await make(server, **options).infer(request, watch)
        return completion, [item.json() for item in server.requests]


SHAPES = {
    "signed call": (TEXT, SIGNED, CALL),
    "signed text": (TEXT, LAST),
    "signed whole text": ({**TEXT, "thoughtSignature": "c2ln"},),
    "thought with a signature": ({**THOUGHT, "thoughtSignature": "c2ln"}, TEXT),
    "text after a call": (CALL, TEXT),
    "code": (TEXT, CODE, RAN, {"text": "It is 1."}),
    "failed code": (CODE, FAILED, TEXT, SIGNED),
    "unknown": ({"brandNew": {"x": [1]}}, TEXT),
    "image": ({"inlineData": {"mimeType": "image/png", "data": "eA=="}}, TEXT),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_parts_are_sent_back_as_they_came(name, is_streamed):
    raw = answer(*SHAPES[name])
    completion, _ = await ask([stream(raw) if is_streamed else Reply(raw)], is_streamed=is_streamed)
    message = msgspec.json.decode(msgspec.json.encode(completion.message), type=Message)
    _, (body,) = await ask([Reply(answer(TEXT))], Request(Log([USER, message, USER]), (SPEC,)))
    assert body["contents"][1] == {"role": "model", "parts": list(SHAPES[name])}


async def test_thoughts_are_told_and_not_sent_back():
    for reply in (Reply(answer(THOUGHT, TEXT, CALL)), stream(answer(THOUGHT, TEXT, CALL))):
        completion, _ = await ask([reply], is_streamed=reply.pieces is not None)
        assert completion.message == Message(
            Role.ASSISTANT,
            "I look.",
            (ToolCall("f1", "look_up", '{"word": "a"}' if reply.pieces is None else '{"word":"a"}'),),
            reasoning="I think.",
        )
    _, (body,) = await ask([Reply(answer(TEXT))], Request(Log([USER, completion.message])))
    assert body["contents"][1]["parts"] == [TEXT, CALL]


async def test_what_the_server_ran_is_told():
    completion, _ = await ask([Reply(answer(CODE, RAN, CODE, FAILED, TEXT))])
    good, bad = completion.message.server_calls
    assert (good.name, json.loads(good.arguments)["code"]) == ("code_execution", "print(1)")
    assert (good.result, good.is_error, bad.result, bad.is_error) == ("1\n", False, "no", True)
    assert completion.message.content == "I look."


async def test_what_the_server_does_is_told_while_it_streams():
    listener = Listener()
    async with serve([stream(answer(TEXT, CODE, RAN, CODE, FAILED, TEXT))]) as server:
        completion = await make(server).infer(QUESTION, listener.watch)
    made = completion.message.server_calls
    told = [item for item in listener.deltas if isinstance(item, ServerCallDelta)]
    assert [(item.index, item.is_done) for item in told] == [(0, False), (0, True), (1, False), (1, True)]
    assert tuple(item.call for item in told if item.is_done) == made
    assert isinstance(listener.deltas[0], TextDelta)
    assert isinstance(listener.deltas[-1], TextDelta)


async def test_an_edited_message_is_sent_as_it_now_is():
    completion, _ = await ask([Reply(answer(CODE, RAN, TEXT))])
    edited = msgspec.structs.replace(completion.message, content="Edited.")
    _, (body,) = await ask([Reply(answer(TEXT))], Request(Log([USER, edited])))
    assert body["contents"][1]["parts"] == [{"text": "Edited."}]


async def test_results_of_a_step_are_one_content():
    calls = (ToolCall("a", "look_up", "{}"), ToolCall("b", "look_up", "{}"))
    log = Log(
        [
            Message(Role.SYSTEM, "Be brief."),
            USER,
            Message(Role.ASSISTANT, "", calls),
            Message(Role.TOOL, "1", call_id="a", name="look_up"),
            Message(Role.TOOL, "2", call_id="b", name="look_up", is_error=True),
            Message(Role.USER, "And?"),
        ]
    )
    _, (body,) = await ask([Reply(answer(TEXT))], Request(log, (SPEC,)))
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert body["contents"][2:] == [
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "look_up", "response": {"output": "1"}, "id": "a"}},
                {"functionResponse": {"name": "look_up", "response": {"error": "2"}, "id": "b"}},
            ],
        },
        {"role": "user", "parts": [{"text": "And?"}]},
    ]


async def test_calls_of_other_models_have_a_mark_where_a_signature_is_wanted():
    calls = (ToolCall("a", "look_up", "{}"), ToolCall("b", "look_up", "{half"))
    log = Log([USER, Message(Role.ASSISTANT, "", calls)])
    for model, marks in [
        ("gemini-3-pro-preview", ["skip_thought_signature_validator", None]),
        ("gemini-2.5-pro", [None, None]),
    ]:
        _, (body,) = await ask([Reply(answer(TEXT))], Request(log), model=model)
        parts = body["contents"][1]["parts"]
        assert [part.get("thoughtSignature") for part in parts] == marks
        assert parts[1]["functionCall"]["args"] == {"INVALID_JSON": "{half"}
    # A part that has only a signature is enough.
    completion, _ = await ask([Reply(answer(CALL, SIGNED))])
    _, (body,) = await ask(
        [Reply(answer(TEXT))], Request(Log([USER, completion.message])), model="gemini-3-pro"
    )
    assert body["contents"][1]["parts"] == [CALL, SIGNED]


async def test_settings_and_schemas_are_sent():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    extra = {
        "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
        "safetySettings": [],
        "toolConfig": {"includeServerSideToolInvocations": True},
    }
    settings = Settings(0.5, 0.9, 7, 3, ("x",), True, extra=extra)
    request = Request(QUESTION.messages, (SPEC,), schema, "look_up")
    _, (body,) = await ask(
        [Reply(answer(TEXT))], request, settings=settings, server_tools=[{"googleSearch": {}}]
    )
    assert body["generationConfig"] == {
        "temperature": 0.5,
        "topP": 0.9,
        "maxOutputTokens": 7,
        "seed": 3,
        "stopSequences": ["x"],
        "responseLogprobs": True,
        "responseMimeType": "application/json",
        "responseJsonSchema": schema,
        "thinkingConfig": {"includeThoughts": True},
    }
    assert body["safetySettings"] == []
    assert body["toolConfig"] == {
        "includeServerSideToolInvocations": True,
        "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look_up"]},
    }
    assert body["tools"][0] == {"googleSearch": {}}
    with pytest.raises(ConfigError, match="has no return_token_ids"):
        GeminiModel("m", settings=Settings(return_token_ids=True))


async def test_models_have_their_own_addresses():
    async with serve(lambda _: Reply(answer(TEXT))) as server:
        await make(server, "gemini-x").infer(QUESTION, Watch())
        await make(server, "tunedModels/mine").infer(QUESTION, Watch())
        paths = [request.path for request in server.requests]
    assert paths == ["/v1/models/gemini-x:generateContent", "/v1/tunedModels/mine:generateContent"]
    async with serve([stream(answer(TEXT))]) as server:
        await make(server, "gemini-x").infer(QUESTION, Listener().watch)
        assert server.requests[0].path == "/v1/models/gemini-x:streamGenerateContent?alt=sse"
    async with serve([Reply({"name": "models/gemini-x", "inputTokenLimit": 1_048_576})]) as server:
        assert await make(server, "gemini-x").find_context_tokens() == 1_048_576


@pytest.mark.parametrize(
    ("finish", "parts", "reason", "opaque"),
    [
        ("STOP", (TEXT,), FinishReason.STOP, None),
        ("STOP", (CALL,), FinishReason.TOOL_CALLS, None),
        ("MAX_TOKENS", (TEXT,), FinishReason.LENGTH, None),
        ("SAFETY", (), FinishReason.CONTENT_FILTER, {"finish_reason": "SAFETY"}),
        ("RECITATION", (TEXT,), FinishReason.CONTENT_FILTER, {"finish_reason": "RECITATION"}),
        ("BRAND_NEW", (TEXT,), FinishReason.STOP, {"finish_reason": "BRAND_NEW"}),
        (
            "MALFORMED_FUNCTION_CALL",
            (CALL,),
            FinishReason.TOOL_CALLS,
            {"finish_reason": "MALFORMED_FUNCTION_CALL"},
        ),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_finish_reasons(finish, parts, reason, opaque, is_streamed):
    raw = answer(*parts, finish=finish)
    completion, _ = await ask([stream(raw) if is_streamed else Reply(raw)], is_streamed=is_streamed)
    assert (completion.finish_reason, completion.opaque) == (reason, opaque)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_answer_that_the_server_threw_away_is_an_error_and_no_answer(is_streamed):
    for reason, kind in (("OTHER", ServerError), ("MALFORMED_FUNCTION_CALL", RequestError)):
        raw = answer(finish=reason, candidate={"finishMessage": "Malformed: print(look_up("})
        with pytest.raises(kind, match=r"discarded the model's answer .*print\(look_up\("):
            await ask([stream(raw) if is_streamed else Reply(raw)], is_streamed=is_streamed)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_blocked_prompt_is_refused(is_streamed):
    raw = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 3}}
    event = Reply(headers={"content-type": "text/event-stream"}, pieces=[sse(raw, is_done=False)])
    with pytest.raises(RefusedError, match="blocked the prompt: PROHIBITED_CONTENT"):
        await ask([event if is_streamed else Reply(raw)], is_streamed=is_streamed)


async def test_usage_counts_thoughts_as_output():
    usage = {
        "promptTokenCount": 10,
        "toolUsePromptTokenCount": 100,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 7,
        "cachedContentTokenCount": 4,
    }
    for more in ({}, {"unusual": 1}):
        completion, _ = await ask([Reply(answer(TEXT, usageMetadata=usage, **more))])
        assert completion.usage == Usage(110, 12, 4, 7)


async def test_logprobs_and_grounding_are_kept():
    chosen = [{"token": "I", "logProbability": -0.5, "tokenId": 7}]
    more = {"logprobsResult": {"chosenCandidates": chosen}, "groundingMetadata": {"webSearchQueries": ["a"]}}
    for is_streamed in (False, True):
        raw = answer(TEXT, candidate=more)
        completion, _ = await ask([stream(raw) if is_streamed else Reply(raw)], is_streamed=is_streamed)
        assert (unpack_logprobs(completion.tokens.logprobs), completion.tokens.tokens) == ((-0.5,), ("I",))
        assert completion.opaque == {"groundingMetadata": {"webSearchQueries": ["a"]}}


def fault(code, status, text, *details):
    return {"error": {"code": code, "message": text, "status": status, "details": list(details)}}


RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "17.5s"}
QUOTA = "You exceeded your current quota, please check your plan and billing details."


@pytest.mark.parametrize(
    ("status", "raw", "kind", "retry_after"),
    [
        (429, fault(429, "RESOURCE_EXHAUSTED", QUOTA, RETRY), RateLimitError, 17.5),
        (429, fault(429, "RESOURCE_EXHAUSTED", QUOTA), RequestError, None),
        (
            400,
            fault(400, "INVALID_ARGUMENT", "API key not valid. Please pass one."),
            AuthenticationError,
            None,
        ),
        (503, [fault(503, "UNAVAILABLE", "The model is overloaded.")], ServerError, None),
    ],
)
async def test_errors_are_told_apart(status, raw, kind, retry_after):
    for is_streamed in (False, True):
        with pytest.raises(kind) as caught:
            await ask([Reply(raw, status)], is_streamed=is_streamed)
        assert caught.value.retry_after_seconds == retry_after
        assert "no message" not in str(caught.value)


async def test_an_error_within_a_stream():
    pieces = [wire.events(answer(TEXT))[0], sse(fault(503, "UNAVAILABLE", "later"), is_done=False)]
    with pytest.raises(ServerError, match="later"):
        await ask([Reply(headers={"content-type": "text/event-stream"}, pieces=pieces)], is_streamed=True)


async def test_a_run_keeps_its_signatures():
    @tool(effect="pure")
    def look_up(word: str) -> str:
        """Looks a word up."""
        return f"{word} is a word"

    bodies = []
    # Older models send no ids.
    calls = [{"functionCall": {"name": "look_up", "args": {"word": word}}} for word in "ab"]
    calls[0]["thoughtSignature"] = "c2ln"

    async def respond(request):
        bodies.append(json.loads(request.body))
        return HttpResponse(answer(*calls) if len(bodies) == 1 else answer(TEXT, LAST))

    agent = Agent(GeminiModel("gemini-3-pro", transport=InProcessTransport(respond)), tools=[look_up])
    run = await agent.run("What are a and b?")
    assert run.output == "I look."
    sent, results = bodies[1]["contents"][1:]
    assert [part.get("thoughtSignature") for part in sent["parts"]] == ["c2ln", None]
    answers = [part["functionResponse"] for part in results["parts"]]
    assert [item["response"]["output"] for item in answers] == ["a is a word", "b is a word"]
    assert [item["id"] for item in answers] == [part["functionCall"]["id"] for part in sent["parts"]]
