"""The oracle keeps no state, makes mistakes and corrects them, and always comes to an end."""

import json
from itertools import islice

import pytest

from treadle.core.errors import ConfigError, RequestError
from treadle.core.events import ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.log import Log
from treadle.core.types import Completion, FinishReason, Message, Request, Role, ToolCall, ToolSpec
from treadle.models.protocol import Watch
from treadle.tasks.files import TASK_SET, find_solver
from treadle.tasks.files.file_calls import delete_file, edit_file, list_files, read_file, write_file
from treadle.tasks.solver import MAX_STALLS, Pursuit, Step
from treadle.testbed.built_in import BuiltInRequest
from treadle.testbed.oracle import OracleModel, oracle_for
from treadle.testbed.play import misspell, spoil

TASK = TASK_SET.get("csv_sum-0003")


def oracle(rate: float = 0.0) -> OracleModel:
    return OracleModel(find_solver, mistake_rate=rate)


def answer(
    model: OracleModel, messages: list[Message], *, has_tools: bool, max_calls: int | None = None
) -> Completion:
    tools = (ToolSpec("any", "", {}),) if has_tools else ()
    return model.answer(BuiltInRequest(messages, tools, max_calls))


def user(text: str) -> Message:
    return Message(Role.USER, text)


def answered(message: Message, content: str, *, is_error: bool = False) -> list[Message]:
    results = [
        Message(Role.TOOL, content, call_id=call.call_id, name=call.name, is_error=is_error)
        for call in message.tool_calls
    ]
    return [message, *results]


async def test_a_mistake_is_told_apart_and_put_right(play):
    kinds = set()
    for task in islice(TASK_SET, 44):
        messages, _ = await play(task, oracle(1.0))
        for index, message in enumerate(messages):
            if message.is_error:
                kinds.add(message.content.split("'")[0][:24])
                later = [item for item in messages[index:] if item.role is Role.ASSISTANT]
                assert later[0].tool_calls, "an error is answered by another call"
    assert any(kind.startswith("There is no tool") for kind in kinds)
    assert any(kind.startswith("The arguments are not") for kind in kinds)
    assert any(kind.startswith("The call was not run") for kind in kinds)
    assert any(kind.startswith("there is no file") for kind in kinds)


@pytest.mark.sets(0)
async def test_mistakes_come_at_the_rate(play):
    def steps_of(messages):
        return sum(message.role is Role.ASSISTANT for message in messages)

    made = {}
    for rate in (0.0, 0.3, 1.0):
        made[rate] = sum([steps_of((await play(task, oracle(rate)))[0]) for task in islice(TASK_SET, 66)])
    calling = made[0.0] - 66
    assert made[1.0] == made[0.0] + calling
    assert 0.2 < (made[0.3] - made[0.0]) / calling < 0.4


async def test_call_ids_are_unique_and_results_are_joined_by_them(play):
    messages, _ = await play(TASK_SET.get("limit_rule-0001"), oracle(0.5))
    ids = [call.call_id for message in messages for call in message.tool_calls]
    assert len(set(ids)) == len(ids) > 4
    completions = [await oracle().infer(Request(Log([user(TASK.input)]), ()), Watch()) for _ in range(2)]
    assert completions[0] == completions[1]


async def test_streams_what_it_answers():
    tools = (ToolSpec("read_file", "", {}),)
    for rate in (0.0, 1.0):
        for task in islice(TASK_SET, 30):
            deltas = []
            watch = Watch(deltas.append)
            message = (await oracle(rate).infer(Request(Log([user(task.input)]), tools), watch)).message
            reasoning = "".join([item.text for item in deltas if isinstance(item, ReasoningDelta)])
            assert reasoning == (message.reasoning or "")
            assert "".join([item.text for item in deltas if isinstance(item, TextDelta)]) == message.content
            for index, call in enumerate(message.tool_calls):
                parts = [d for d in deltas if isinstance(d, ToolCallDelta) and d.index == index]
                assert (parts[0].call_id, parts[0].name) == (call.call_id, call.name)
                assert "".join([part.arguments for part in parts]) == call.arguments


async def test_says_why_now_and_then(play):
    said = total = 0
    for task in islice(TASK_SET, 44):
        messages, _ = await play(task, oracle(0.3))
        calling = [message for message in messages if message.tool_calls]
        total += len(calling)
        said += sum(bool(message.reasoning) for message in calling)
    assert 0.4 < said / total < 0.8


async def test_without_tools_it_answers_from_what_it_has(play):
    done = 0
    for task in islice(TASK_SET, 66):
        messages, files = await play(task, oracle())
        for index, message in enumerate(messages):
            if message.role is not Role.ASSISTANT or not message.tool_calls:
                continue
            asked = [*messages[:index], user("You have reached the limit of this run (max_steps).")]
            completion = answer(oracle(), asked, has_tools=False)
            assert completion.finish_reason is FinishReason.STOP
            assert completion.message.content
            assert not completion.message.tool_calls
        # Before the last step, almost every solver knows its answer.
        done += task.check(completion.message.content, files).reward == 1.0
    assert done >= 40


async def test_a_finished_task_stays_finished(play):
    messages, _ = await play(TASK, oracle())
    again = answer(oracle(), [*messages, user("Thank you! Could you say it once more?")], has_tools=True)
    assert again.message.content == messages[-1].content
    other = TASK_SET.get("pointer_chase-0001")
    following = answer(oracle(), [*messages, user(other.input)], has_tools=True)
    assert [call.name for call in following.message.tool_calls] == ["read_file"]


def test_a_tool_that_never_works_ends_it():
    for wording in ("the disk is gone", "The outcome of this call is unknown: it was started."):
        messages = [user(TASK.input)]
        for _ in range(4 * MAX_STALLS):
            message = answer(oracle(1.0), messages, has_tools=True).message
            if not message.tool_calls:
                break
            messages += answered(message, wording, is_error=True)
        assert "could not finish" in message.content
        assert wording[:10] in message.content


def test_calls_may_be_limited_to_one():
    task = TASK_SET.get("invoice_total-0000")
    messages = [user(task.input)]
    for _ in range(40):
        message = answer(oracle(), messages, has_tools=True, max_calls=1).message
        if not message.tool_calls:
            break
        (call,) = message.tool_calls
        if call.name == "list_files":
            content = json.dumps(list(task.files))
        else:
            content = task.files.get(call.parsed["file_path"], b"wrote it").decode()
        messages += answered(message, content)
    assert "Answer: " in message.content
    assert len([item for item in messages if item.tool_calls]) == 7


def test_goes_on_from_calls_that_are_spaced_otherwise():
    first = answer(oracle(), [user(TASK.input)], has_tools=True).message
    spaced = [ToolCall(call.call_id, call.name, " { } ") for call in first.tool_calls]
    message = Message(Role.ASSISTANT, tool_calls=tuple(spaced))
    messages = [user(TASK.input), *answered(message, json.dumps(list(TASK.files)))]
    following = answer(oracle(), messages, has_tools=True).message
    assert {call.name for call in following.tool_calls} == {"read_file"}


def test_a_strange_step_in_the_transcript_is_passed_over():
    strange = Message(Role.ASSISTANT, tool_calls=(ToolCall("x", "shell", '{"command":"ls"}'),))
    messages = [user(TASK.input), *answered(strange, "README.md")]
    following = answer(oracle(), messages, has_tools=True).message
    assert [call.name for call in following.tool_calls] == ["list_files"]
    unanswered = [user(TASK.input), following, user("go on")]
    again = answer(oracle(), unanswered, has_tools=True).message
    assert [call.name for call in again.tool_calls] == ["list_files"]


def test_refuses_what_is_no_task():
    with pytest.raises(RequestError, match="word for word") as caught:
        answer(oracle(), [user("What is the weather like?")], has_tools=True)
    assert caught.value.status == 400
    with pytest.raises(RequestError):
        answer(oracle(), [], has_tools=True)
    with pytest.raises(RequestError):
        answer(oracle(), [Message(Role.SYSTEM, TASK.input)], has_tools=True)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_is_between_0_and_1(rate):
    with pytest.raises(ConfigError, match="0 to 1"):
        OracleModel(find_solver, mistake_rate=rate)


def test_names_itself_after_its_rate():
    assert (oracle().name, oracle(0.25).name) == ("oracle", "oracle:0.25")


def test_counts_tokens():
    usage = answer(oracle(), [user(TASK.input)], has_tools=True).usage
    assert usage.is_reported
    assert 0.7 < usage.input_tokens / (len(TASK.input) / 4) < 1.5
    assert 0 < usage.output_tokens < 60
    assert usage.reasoning_tokens < usage.output_tokens


@pytest.mark.parametrize(
    "call",
    [
        list_files(),
        read_file("a/b.txt"),
        write_file("a/b.txt", "text"),
        edit_file("a/b.txt", "one", "one", "two"),
        delete_file("week-1/12.csv"),
    ],
)
def test_a_spoilt_call_can_do_no_harm(call):
    """A spoilt call either does not run, or does not touch a file other than the intended one."""
    for key in range(200):
        name, arguments = spoil(call, str(key))
        if name != call.name:
            continue
        try:
            parsed = json.loads(arguments)
        except ValueError:
            continue
        assert parsed != call.arguments
        path = parsed.get("file_path")
        if isinstance(path, str) and name == "write_file":
            assert "content" not in parsed or not isinstance(parsed["content"], str)
        elif isinstance(path, str) and path != call.arguments["file_path"]:
            assert len(path) == len(call.arguments["file_path"]) + 1


def test_a_slip_of_a_path_never_hits_a_neighbour():
    for key in range(50):
        assert misspell("logs/week-1.txt", str(key)) not in {f"logs/week-{n}.txt" for n in range(200)}
    assert misspell("1/2", "k") == "1/2x"


def test_a_pursuit_asks_again_for_what_failed_only():
    pursuit = Pursuit(Step([read_file("a"), write_file("b", "text")]))
    calls = (ToolCall("1", "read_file", '{"file_path":"a"}'), ToolCall("2", "write_file", "{"))
    results = {
        "1": Message(Role.TOOL, "text of a", call_id="1"),
        "2": Message(Role.TOOL, "The arguments are not valid JSON", call_id="2", is_error=True),
    }
    pursuit.observe(Message(Role.ASSISTANT, tool_calls=calls), results)
    assert [call.name for call in pursuit.wanted()] == ["write_file"]
    assert not pursuit.is_looking
    assert pursuit.error == "The arguments are not valid JSON"
    write = ToolCall("3", "write_file", '{"file_path":"b","content":"text"}')
    doubt = Message(Role.TOOL, "The outcome of this call is unknown", call_id="3")
    pursuit.observe(Message(Role.ASSISTANT, tool_calls=(write,)), {"3": doubt})
    assert [call.name for call in pursuit.wanted()] == ["read_file"]
    assert pursuit.is_looking
    look = ToolCall("4", "read_file", '{"file_path":"b"}')
    seen = Message(Role.TOOL, "text", call_id="4")
    pursuit.observe(Message(Role.ASSISTANT, tool_calls=(look,)), {"4": seen})
    assert pursuit.is_over
    assert pursuit.results == ["text of a", ""]


def test_equal_calls_of_a_step_have_a_result_each():
    pursuit = Pursuit(Step([read_file("a"), read_file("a")]))
    calls = tuple([ToolCall(name, "read_file", '{"file_path":"a"}') for name in "12"])
    results = {name: Message(Role.TOOL, f"text {name}", call_id=name) for name in "12"}
    pursuit.observe(Message(Role.ASSISTANT, tool_calls=calls), results)
    assert pursuit.results == ["text 1", "text 2"]


def test_a_task_whose_set_has_no_solver_has_no_oracle():
    class Plain:
        input = TASK.input

    assert oracle_for(Plain()) is None
    assert oracle_for(TASK, mistake_rate=0.25).name == "oracle:0.25"
