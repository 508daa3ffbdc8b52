"""The loop with a model that writes calls as text: the prompt, the parsed calls, and exact round trips."""

import pytest

from treadle import Agent, tool
from treadle.core.errors import ConfigError
from treadle.core.events import ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.log import Log
from treadle.core.types import FinishReason, Message, Request, Role, StopReason, ToolErrorKind
from treadle.formats import FORMATS, parse, render
from treadle.journal.memory import MemoryJournal
from treadle.models import (
    CompletionsModel,
    FormatModel,
    HttpResponse,
    InProcessTransport,
    ScriptedModel,
    Watch,
    model,
)


@tool(effect="pure")
def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return str(a + b)


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
THOUGHT = "<think>\nI must add.\n</think>\n\n"


async def run(answers, *, instructions="Be brief.", format="hermes", events=None, **options):
    inner = ScriptedModel(answers)
    agent = Agent(
        FormatModel(inner, format, **options), instructions=instructions, tools=[add], journal=MemoryJournal()
    )
    done = await agent.run("What is 1 + 2?", on_event=None if events is None else events.append)
    return done, inner.requests, agent


async def test_the_hermes_loop():
    done, requests, agent = await run([f"{THOUGHT}{CALL}\n{CALL}", f"{THOUGHT}It is 3."])
    assert (done.output, done.stop_reason) == ("It is 3.", StopReason.COMPLETED)
    first, second = requests
    assert (first.tools, second.tools) == ((), ())
    system = first.messages[0]
    assert system.role is Role.SYSTEM
    assert system.content.startswith("Be brief.\n\n# Tools")
    assert '<tools>\n{"type": "function", "function": {"name": "add"' in system.content
    said, results = second.messages[2], second.messages[3]
    # The prompt has the exact text that the model wrote, and both results in one message, in order.
    assert said.content == f"{THOUGHT}{CALL}\n{CALL}"
    assert (results.role, results.content) == (
        Role.USER,
        "<tool_response>\n3\n</tool_response>\n<tool_response>\n3\n</tool_response>",
    )
    completions = [event.body.completion for event in done.events if event.type == "inference_completed"]
    assert [item.finish_reason for item in completions] == [FinishReason.TOOL_CALLS, FinishReason.STOP]
    assert completions[0].message.reasoning == "I must add."
    assert completions[0].message.content == ""
    assert [call.arguments for call in completions[0].message.tool_calls] == ['{"a": 1, "b": 2}'] * 2
    replay = await agent.replay(done.run_id)
    assert replay.is_exact, replay.divergence


async def test_without_instructions_the_tools_are_a_message_of_their_own():
    _, requests, _ = await run(["3"], instructions=None)
    assert [message.role for message in requests[0].messages] == ["system", "user"]
    assert requests[0].messages[0].content.startswith("# Tools")


async def test_the_model_is_told_of_the_place_of_the_conversation():
    """Its seed depends on it."""
    inner = ScriptedModel(["3"])
    asked = Request(Log([Message(Role.USER, "add")]), (add.spec,), place="1.0")
    await FormatModel(inner, "hermes").infer(asked, Watch())
    assert (inner.requests[0].place, inner.requests[0].tools) == ("1.0", ())


async def test_a_session_is_told_of_its_tools_once():
    inner = ScriptedModel([RuntimeError("down"), "2", "3"])
    agent = Agent(FormatModel(inner, "hermes"), tools=[add], journal=MemoryJournal())
    async with agent.session() as session:
        for text in ("one", "two", "three"):
            await session.send(text)
    roles = [[message.role.value for message in request.messages] for request in inner.requests]
    assert roles[1] == ["system", "user", "user"]
    assert roles[2] == ["system", "user", "user", "assistant", "user"]


async def test_a_call_that_cannot_be_read_is_told_to_the_model():
    bad = '<tool_call>\n{"name": "add", "arguments": {"a": 1,}}\n</tool_call>'
    done, requests, _ = await run([f"{bad}\n{CALL}", "3"])
    results = [message.content for message in done.state.messages if message.role is Role.TOOL]
    assert [result.error_kind for result in done.results if result.is_error] == [ToolErrorKind.INVALID_JSON]
    assert "not valid JSON" in results[0]
    assert results[1] == "3"
    assert "not valid JSON" in requests[1].messages[-1].content


async def test_one_whose_name_cannot_be_read_too():
    done, _, _ = await run(["<tool_call>\noops\n</tool_call>", "3"])
    (result,) = done.results
    assert result.error_kind is ToolErrorKind.INVALID_JSON
    assert "The call could not be read" in result.content
    assert done.output == "3"


async def test_a_quoted_call_is_text():
    text = f"Write it so: `{CALL.replace(chr(10), '')}`"
    done, requests, _ = await run([text])
    assert (done.output, len(requests)) == (text, 1)


@pytest.mark.parametrize("chunk_chars", [1, 5, 1000])
async def test_a_stream_tells_what_is_read(chunk_chars):
    inner = ScriptedModel([f"{THOUGHT}{CALL}", "It is 3."], chunk_chars=chunk_chars)
    agent = Agent(FormatModel(inner, "hermes"), tools=[add], journal=MemoryJournal())
    events = []
    done = await agent.run("1 + 2?", on_event=events.append)
    deltas = [event.body for event in events if event.seq is None]
    assert "".join(item.text for item in deltas if isinstance(item, TextDelta)) == "It is 3."
    assert "".join(item.text for item in deltas if isinstance(item, ReasoningDelta)) == "I must add."
    assert [item for item in deltas if isinstance(item, ToolCallDelta)] == [
        ToolCallDelta(0, done.results[0].call_id, "add", '{"a": 1, "b": 2}')
    ]
    assert done.output == "It is 3."


@pytest.mark.parametrize("format", FORMATS.names())
async def test_a_run_in_every_format(format):
    from treadle.core.types import Message, ToolCall

    call = Message(Role.ASSISTANT, "", (ToolCall("", "add", '{"a": 1, "b": 2}'),))
    text = render(call, format, [add.spec])
    answer = render(Message(Role.ASSISTANT, "It is 3."), format)
    done, requests, _ = await run([text, answer], format=format)
    assert done.output == "It is 3."
    assert [result.content for result in done.results] == ["3"]
    assert "add" in requests[0].messages[0].content
    assert requests[1].messages[2].content == text
    assert "3" in requests[1].messages[3].content


async def test_a_history_of_another_model_is_rendered():
    """This happens after a fallback: the messages contain no text of this model."""
    from treadle.core.log import Log
    from treadle.core.types import Message, Request, ToolCall

    said = Message(Role.ASSISTANT, "I add.", (ToolCall("c", "add", '{"a": 1, "b": 2}'),), reasoning="hm")
    log = Log([Message(Role.USER, "1 + 2?"), said, Message(Role.TOOL, "3", call_id="c", name="add")])
    inner = ScriptedModel(["3"])
    await FormatModel(inner, "hermes").infer(Request(log, (add.spec,)), Watch())
    text = inner.requests[0].messages[2].content
    assert parse(text, "hermes").tool_calls[0].arguments == {"a": 1, "b": 2}
    assert parse(text, "hermes").reasoning == "hm"


async def test_over_a_completions_server_the_prompt_is_the_transcript():
    texts = [f"{THOUGHT}{CALL}", "3"]

    def serve(request):
        choice = {"index": 0, "text": texts.pop(0), "finish_reason": "stop"}
        return HttpResponse({"choices": [choice]})

    transport = InProcessTransport(serve)
    made = model("completions:Hermes-3", base_url="http://h/v1", format="auto", transport=transport)
    done = await Agent(made, tools=[add], journal=MemoryJournal()).run("1 + 2?")
    assert done.output == "3"
    first, second = [request.json() for request in transport.requests]
    assert first["stop"] == ["<tool_response>", "<|im_end|>"]
    # The second prompt continues the first prompt and the sampled tokens.
    assert second["prompt"].startswith(first["prompt"] + f"{THOUGHT}{CALL}<|im_end|>\n")
    assert second["prompt"].endswith(
        "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("format", ["qwen3_coder", "glm45", "minimax", "deepseek_v32"])
async def test_a_call_that_the_limit_cut_off_is_not_run(format):
    """The arguments that arrived are complete, but more could have followed. If the model had ended by
    itself, the call would be run."""
    from treadle.core.types import Message, ToolCall

    whole = render(
        Message(Role.ASSISTANT, "", (ToolCall("", "add", '{"a": 1, "b": 2}'),)), format, [add.spec]
    )
    closers = ("</function>", "</tool_call>", "</invoke>", "</｜DSML｜invoke>")
    text = whole[: min(at for item in closers if (at := whole.find(item)) != -1)]
    for finish, kind in (("length", ToolErrorKind.TRUNCATED), ("stop", None)):
        answers = [(text, finish), ("3", "stop")]

        def serve(request, answers=answers):
            said, reason = answers.pop(0)
            return HttpResponse({"choices": [{"index": 0, "text": said, "finish_reason": reason}]})

        made = model(
            "completions:m", base_url="http://h/v1", format=format, transport=InProcessTransport(serve)
        )
        done = await Agent(made, tools=[add], journal=MemoryJournal()).run("1 + 2?")
        assert [result.error_kind for result in done.results] == [kind]
    assert [call.is_closed for call in parse(text, format).tool_calls] == [False]


async def test_a_model_that_repeats_itself_is_told_once():
    broken = "<tool_call>{</tool_call>"
    done, _, _ = await run([broken * 500 + CALL, "It is 3."])
    assert done.output == "It is 3."
    results = done.results
    assert len(results) == 16 + 1 + 1
    assert [result.content for result in results if not result.is_error] == ["3"]
    assert "483 more" in str([event.body for event in done.events])


async def test_a_broken_call_is_told_of_though_its_text_is_quoted():
    text = "It begins with `<tool_call>{`.\n<tool_call>{"
    done, requests, _ = await run([text, "I see."])
    assert (done.output, len(requests)) == ("I see.", 2)


def test_formats_are_known():
    inner = ScriptedModel([], name="openai:gpt-x")
    with pytest.raises(ConfigError, match="unknown format 'hermes2'; did you mean 'hermes'"):
        FormatModel(inner, "hermes2")
    with pytest.raises(ConfigError, match="cannot tell which format the model 'openai:gpt-x' writes"):
        FormatModel(inner, "auto")
    assert FormatModel(ScriptedModel([], name="vllm:Qwen/Qwen3-Coder-30B"), "auto").format == "qwen3_coder"
    assert FormatModel(CompletionsModel("m", base_url="http://h"), "hermes").output_mode == "text"
