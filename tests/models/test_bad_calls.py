"""Calls that servers refuse: those that the model has just written, and those in the history."""

import re

import msgspec
import pytest
from tests.models.answers import answer, error
from tests.models.server import Received, Reply, serve, sse, stream

from treadle import Agent, Policy, model, tool
from treadle.core.log import Log
from treadle.core.prompts.foreign import let_in
from treadle.core.types import Json, Message, Request, Role, StopReason, ToolCall, ToolErrorKind
from treadle.models.dialects.anthropic.request import AnthropicModel
from treadle.models.dialects.gemini.request import GeminiModel
from treadle.models.dialects.ollama import OllamaModel
from treadle.models.dialects.openai_chat.request import OpenAIChatModel
from treadle.models.dialects.openai_responses.request import OpenAIResponsesModel
from treadle.models.wire.http_model import HttpModel
from treadle.models.wire.provider import Quirks


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


WRITTEN = '<function=add{"a": 1, "b": </function>'
GROQ = error(
    "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details.",
    type="invalid_request_error",
    code="tool_use_failed",
    failed_generation=WRITTEN,
)
UNPARSED = '<tool_call>\n{"name": "add", "arguments": {"a": 1}} and {"b": 2}}\n</tool_call>'
REFUSALS = {
    "vllm, whose parser passes it on as text": (Reply(answer(UNPARSED)), UNPARSED),
    "groq": (Reply(GROQ, 400), WRITTEN),
    "groq, in a stream": (stream(sse(GROQ)), WRITTEN),
    "groq, an unknown tool": (
        Reply(
            error(
                "Tool call validation failed: tool call validation failed: attempted to call tool 'plus' which was "
                "not in request.tools",
                code="tool_use_failed",
                failed_generation='{"name": "plus", "arguments": {}}',
            ),
            400,
        ),
        '{"name": "plus", "arguments": {}}',
    ),
    "groq, an object": (
        Reply(error("no", code="tool_use_failed", failed_generation={"a": 1}), 400),
        '{"a":1}',
    ),
    "llama.cpp": (
        Reply(error("Failed to parse input at pos 12: <tool_call>{", type="server_error", code=500), 500),
        "<tool_call>{",
    ),
    "ollama": (
        Reply({"error": "error parsing tool call: raw='{\"a\":', err=unexpected end of JSON input"}, 500),
        '{"a":',
    ),
    "ollama, XML": (
        Reply({"error": "XML syntax error on line 3: unexpected EOF"}, 500),
        "XML syntax error on line 3",
    ),
    "a gateway": (
        Reply({"detail": "litellm.BadRequestError: Failed to parse tool call"}, 400),
        "litellm.BadRequ",
    ),
}


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", REFUSALS)
async def test_a_call_that_the_server_cannot_read_goes_back_to_the_model(name, is_streamed):
    refusal, written = REFUSALS[name]
    good = stream(sse(answer("I see."))) if is_streamed else Reply(answer("I see."))
    if refusal.pieces is not None and not is_streamed:
        refusal = Reply(GROQ)
    async with serve([refusal, good]) as server:
        agent = Agent(
            model("openai:m", base_url=server.base_url, api_key="k"), tools=[add], journal="memory:"
        )
        run = await agent.run("What is 1 + 2?", on_event=(lambda _: None) if is_streamed else None)
    assert (run.stop_reason, run.output, run.steps) == ("completed", "I see.", 2), run.error
    (call,) = run.messages[1].tool_calls
    assert call.arguments.startswith(written)
    (result,) = run.results
    assert (result.is_error, result.error_kind) == (True, ToolErrorKind.INVALID_JSON)
    assert result.content.startswith("The call could not be read (")
    assert [message.role for message in run.messages] == [
        Role.USER,
        Role.ASSISTANT,
        Role.TOOL,
        Role.ASSISTANT,
    ]
    sent = server.requests[1].json()["messages"]
    (call,) = sent[1]["tool_calls"]
    kept = run.messages[1].tool_calls[0].arguments
    is_object = kept.endswith("}")
    arguments = kept if is_object else msgspec.json.encode({"INVALID_JSON": kept}).decode()
    assert call["function"] == {"name": "unreadable_call", "arguments": arguments}
    assert sent[2] == {"role": "tool", "tool_call_id": call["id"], "content": let_in(run.messages[2]).content}


async def test_gemini_throws_a_call_away():
    thrown = {
        "finishReason": "MALFORMED_FUNCTION_CALL",
        "finishMessage": "Malformed function call: print(add(",
    }
    good = {"content": {"role": "model", "parts": [{"text": "I see."}]}, "finishReason": "STOP"}
    async with serve([Reply({"candidates": [item]}) for item in (thrown, good)]) as server:
        agent = Agent(
            model("gemini:m", base_url=server.base_url, api_key="k"), tools=[add], journal="memory:"
        )
        run = await agent.run("What is 1 + 2?")
    assert (run.stop_reason, run.output) == ("completed", "I see."), run.error
    assert run.messages[1].tool_calls[0].arguments == "Malformed function call: print(add("
    assert run.results[0].content.startswith("The call could not be read (MALFORMED_FUNCTION_CALL)")


async def test_a_model_that_writes_only_such_calls_is_stopped_by_its_budget_or_by_their_number():
    async with serve([Reply(GROQ, 400)]) as server:
        asked = model("openai:m", base_url=server.base_url, api_key="k")
        run = await Agent(asked, tools=[add], policy=Policy(max_steps=2), journal="memory:").run("Add")
        assert run.stop_reason is StopReason.ERROR or run.stop_reason == "max_steps"
        run = await Agent(asked, tools=[add], journal="memory:").run("Add")
        assert (run.stop_reason, run.steps) == ("error", 4)
        assert "could not read a call" in run.error
        assert "the 5th time in a row" in run.error


async def test_such_a_call_counts_in_the_budgets():
    async with serve([Reply(GROQ, 400), Reply(answer("done"))]) as server:
        priced = {"input_usd_per_million": 1.0, "output_usd_per_million": 1.0}
        asked = model("openai:m", base_url=server.base_url, api_key="k", price=priced)
        run = await Agent(asked, tools=[add], policy=Policy(max_cost_usd=1.0), journal="memory:").run("Add")
        assert run.stop_reason == "completed", run.error
        assert run.cost_usd > 0
        assert run.usage.input_tokens > 50


async def test_without_tools_it_is_an_error():
    async with serve([Reply(GROQ, 400)]) as server:
        run = await Agent(model("openai:m", base_url=server.base_url, api_key="k"), journal="memory:").run(
            "Hi"
        )
        assert (run.stop_reason, run.fault) == ("error", "user")
        assert len(server.requests) == 1


# The history

NAMES = [
    "multi_tool_use.parallel",
    "functions.add",
    "add numbers",
    "größe",
    "工具",
    "x" * 65,
    "x" * 300,
    "",
    "add\n",
    "a/b:c",
    "<|call|>add",
    "'); --",
    "\ud800",
]
IDS = ["call-1", "c" * 41, "c" * 65, "c" * 500, "call 1", "functions.add:0", "ü", "a\nb"]
ARGUMENTS = [
    "",
    " ",
    "{",
    '{"a": 1',
    "[1]",
    '"x"',
    "null",
    "1",
    '{"a":1}x',
    "not JSON",
    '{"a":"\ud800"}',
    "{'a': 1}",
]
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ID = re.compile(r"[a-zA-Z0-9_-]+")


class Wire(msgspec.Struct):
    """What a dialect sent: the calls as name, id and arguments, and the ids and names of the results."""

    calls: list[tuple[str, str, Json]]
    results: list[tuple[str | None, str | None]]


def read_chat(body: Json) -> Wire:
    """Return the calls and results of a request for chat completions."""
    wire = Wire([], [])
    for message in body["messages"]:
        for call in message.get("tool_calls", ()):
            arguments = msgspec.json.decode(call["function"]["arguments"])
            wire.calls.append((call["function"]["name"], call["id"], arguments))
        if message["role"] == "tool":
            wire.results.append((message["tool_call_id"], None))
    return wire


def read_responses(body: Json) -> Wire:
    """Return the calls and results of a request for responses."""
    wire = Wire([], [])
    for item in body["input"]:
        if item.get("type") == "function_call":
            wire.calls.append((item["name"], item["call_id"], msgspec.json.decode(item["arguments"])))
        elif item.get("type") == "function_call_output":
            wire.results.append((item["call_id"], None))
    return wire


def read_anthropic(body: Json) -> Wire:
    """Return the calls and results of a request for messages."""
    wire = Wire([], [])
    for message in body["messages"]:
        for block in message["content"]:
            if block["type"] == "tool_use":
                wire.calls.append((block["name"], block["id"], block["input"]))
            elif block["type"] == "tool_result":
                wire.results.append((block["tool_use_id"], None))
    return wire


def read_gemini(body: Json) -> Wire:
    """Return the calls and results of a request for generateContent."""
    wire = Wire([], [])
    for turn in body["contents"]:
        for part in turn["parts"]:
            if call := part.get("functionCall"):
                wire.calls.append((call["name"], call["id"], call["args"]))
            elif result := part.get("functionResponse"):
                wire.results.append((result["id"], result["name"]))
    return wire


def read_ollama(body: Json) -> Wire:
    """Return the calls and results of a request for Ollama."""
    wire = Wire([], [])
    for message in body["messages"]:
        for call in message.get("tool_calls", ()):
            wire.calls.append((call["function"]["name"], call["id"], call["function"]["arguments"]))
        if message["role"] == "tool":
            wire.results.append((message["tool_call_id"], message["tool_name"]))
    return wire


MISTRAL = re.compile(r"[a-zA-Z0-9]{9}")
DIALECTS = {
    "openai_chat": (lambda: OpenAIChatModel("m"), read_chat, re.compile(r".{1,40}", re.DOTALL)),
    "mistral": (lambda: OpenAIChatModel("m", quirks=Quirks(has_short_ids=True)), read_chat, MISTRAL),
    "openai_responses": (lambda: OpenAIResponsesModel("m"), read_responses, re.compile(r"[\w-]{1,64}")),
    "anthropic": (lambda: AnthropicModel("m"), read_anthropic, ID),
    "gemini": (lambda: GeminiModel("m"), read_gemini, re.compile(r".+", re.DOTALL)),
    "ollama": (lambda: OllamaModel("m"), read_ollama, re.compile(r".+", re.DOTALL)),
}


def sent(make: HttpModel, calls: list[ToolCall]) -> Json:
    """Return the request body with a step that made these calls."""
    results = [
        Message(Role.TOOL, "no", call_id=call.call_id, name=call.name, is_error=True) for call in calls
    ]
    log = Log([Message(Role.USER, "go"), Message(Role.ASSISTANT, "", tuple(calls)), *results])
    return msgspec.json.decode(make._body(Request(log), is_stream=False))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_made_up_names_ids_and_arguments_are_sent_in_a_form_that_the_api_takes(dialect):
    make, read, ids = DIALECTS[dialect]
    calls = [ToolCall(f"call_{index}", name, "{}") for index, name in enumerate(NAMES)]
    calls += [ToolCall(call_id, "add", "{}") for call_id in IDS if dialect not in ("gemini", "ollama")]
    calls += [ToolCall(f"call__{index}", "add", text) for index, text in enumerate(ARGUMENTS)]
    wire = read(sent(make(), calls))
    assert len(wire.calls) == len(wire.results) == len(calls)
    assert len({call_id for _, call_id, _ in wire.calls}) == len(calls)
    for call, (name, call_id, arguments), (result_id, result_name) in zip(
        calls, wire.calls, wire.results, strict=True
    ):
        assert NAME.fullmatch(name), call
        assert ids.fullmatch(call_id), call
        assert isinstance(arguments, dict), call
        assert result_id == call_id
        assert result_name in (None, name)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_the_api_takes_is_sent_as_it_is(dialect):
    make, read, _ = DIALECTS[dialect]
    call = ToolCall("abcdefghi", "read-file_2", '{"a": 1.50}')
    body = sent(make(), [call])
    assert read(body).calls == [("read-file_2", "abcdefghi", {"a": 1.5})]
    if dialect == "openai_chat":
        assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1.50}'


async def test_the_journal_keeps_what_the_model_wrote():
    call = {
        "id": "c" * 50,
        "type": "function",
        "function": {"name": "multi_tool_use.parallel", "arguments": "{"},
    }

    def reply(received: Received) -> Reply:
        return Reply(
            answer("ok") if len(received.json()["messages"]) > 1 else answer(None, tool_calls=[call])
        )

    async with serve(reply) as server:
        agent = Agent(
            model("openai:m", base_url=server.base_url, api_key="k"), tools=[add], journal="memory:"
        )
        run = await agent.run("go")
    kept = run.messages[1].tool_calls[0]
    assert (kept.call_id, kept.name, kept.arguments) == ("c" * 50, "multi_tool_use.parallel", "{")
    assert "There is no tool 'multi_tool_use.parallel'" in run.results[0].content
    (wire,) = server.requests[1].json()["messages"][1]["tool_calls"]
    assert wire["function"] == {"name": "multi_tool_use_parallel", "arguments": '{"INVALID_JSON":"{"}'}
