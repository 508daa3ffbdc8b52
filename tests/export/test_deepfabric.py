"""Rows of DeepFabric: their shape, and the rows of DeepFabric 4.x that contradict themselves."""

import json
import re
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace
from tests.export.test_files import example
from tests.export.test_formats import turn, write

from treadle import ExportError
from treadle.core.types import Message, Role, ToolCall
from treadle.export import FORMATS, Loss, Row, find_losses, read_row
from treadle.export.rows import SampleInfo

DEEPFABRIC = find_spec("deepfabric")
KEYS = [
    "messages",
    "metadata",
    "reasoning",
    "tool_context",
    "tools",
    "agent_context",
    "question",
    "final_answer",
]


def read(raw: dict[str, Any]) -> Row:
    return read_row(raw, FORMATS.load("deepfabric"))


def call(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    text = json.dumps(arguments, separators=(",", ":"))
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def execution(name: str, result: str, **arguments: Any) -> dict[str, Any]:
    return {"function_name": name, "arguments": json.dumps(arguments), "reasoning": "Now.", "result": result}


def step(number: int, *actions: str) -> dict[str, Any]:
    action = "; ".join(actions) or "Ready to respond to user"
    return {"step_number": number, "thought": f"Thought {number}.", "action": action}


def foreign() -> dict[str, Any]:
    """Return a row as DeepFabric writes it, with two steps and an answer."""
    return {
        "messages": [
            {"role": "system", "content": "Help."},
            {"role": "user", "content": "Compare a and b."},
            {"role": "assistant", "content": "", "tool_calls": [call("tWoq5lKNL", "read_file", path="a")]},
            {"role": "tool", "content": "A", "tool_call_id": "tWoq5lKNL"},
            {"role": "assistant", "content": "", "tool_calls": [call("xWoq5lKN2", "read_file", path="b")]},
            {"role": "tool", "content": "B", "tool_call_id": "xWoq5lKN2"},
            {"role": "assistant", "content": "They differ."},
        ],
        "metadata": {"conversation_type": "chain_of_thought", "react_steps": 3},
        "reasoning": {
            "style": "agent",
            "content": [step(1, 'read_file({"path": "a"})'), step(2, 'read_file({"path": "b"})'), step(3)],
        },
        "tool_context": {
            "executions": [execution("read_file", "A", path="a"), execution("read_file", "B", path="b")]
        },
        "tools": [
            {"type": "function", "function": {"name": "read_file", "description": "Reads.", "parameters": {}}}
        ],
        "agent_context": {"mode": "single_turn"},
        "question": "",
        "final_answer": "They differ.",
    }


def test_a_row_has_the_keys_in_order_and_short_ids() -> None:
    raw = write(example(), "deepfabric")
    assert list(raw) == KEYS
    calls = [item for message in raw["messages"] for item in message.get("tool_calls", ())]
    assert all(re.fullmatch("[A-Za-z0-9]{9}", item["id"]) for item in calls)
    assert len({item["id"] for item in calls}) == 3
    assert raw["messages"] == write(example(), "deepfabric")["messages"]
    assert calls[1]["function"]["arguments"] == '{"a":"b","n":null}'
    answered = [message["tool_call_id"] for message in raw["messages"] if message["role"] == "tool"]
    assert answered == [item["id"] for item in calls]
    assert raw["reasoning"]["style"] == "agent"
    assert raw["reasoning"]["content"][0] == {
        "step_number": 1,
        "thought": "First look.",
        "action": 'read({"a": 1}); write({"a": "b", "n": null})',
    }
    assert raw["reasoning"]["content"][-1]["action"] == "Ready to respond to user"
    assert raw["agent_context"] == {"mode": "single_turn"}
    assert (raw["question"], raw["final_answer"]) == ("go", "done")
    assert raw["metadata"]["react_steps"] == 3


def full() -> Row:
    """Return the example without a result or an argument that is empty."""
    row = example()
    calls = (row.messages[2].tool_calls[0], ToolCall("c2", "write", '{"a": "b"}'))
    said, result = replace(row.messages[2], tool_calls=calls), replace(row.messages[3], content="one")
    return replace(row, messages=(*row.messages[:2], said, result, *row.messages[4:]))


def test_a_repeated_call_has_its_own_result() -> None:
    """Rules out that a call which repeats an earlier one is skipped, so that later results move to other calls."""
    executions = write(full(), "deepfabric")["tool_context"]["executions"]
    assert [(item["function_name"], item["result"]) for item in executions] == [
        ("read", "one"),
        ("write", "no"),
        ("read", "two"),
    ]


def test_results_are_joined_by_id_and_not_by_position() -> None:
    """Rules out that results are given to calls by counting."""
    row = full()
    third, fourth = row.messages[3], row.messages[4]
    swapped = replace(row, messages=(*row.messages[:3], fourth, third, *row.messages[5:]))
    executions = FORMATS.load("deepfabric").write(swapped, with_reasoning=True)["tool_context"]["executions"]
    assert [item["result"] for item in executions] == ["one", "no", "two"]


def test_empty_results_and_arguments_are_kept() -> None:
    """Rules out that a sample is lost because a tool returned an empty text, or an argument is empty."""
    row = example()
    messages = list(row.messages)
    messages[2] = replace(
        messages[2], tool_calls=(ToolCall("c1", "read", '{"a":""}'), messages[2].tool_calls[1])
    )
    row = replace(row, messages=tuple(messages))
    assert set(find_losses(row, turn(row, "deepfabric"))) <= {Loss.ARGUMENTS, Loss.TOOL_LIMITS}


def several_turns() -> Row:
    return replace(
        full(), messages=(*full().messages, Message(Role.USER, "And?"), Message(Role.ASSISTANT, "No."))
    )


ROWS = {"one turn": full, "empty texts": example, "several turns": several_turns}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_only_what_deepfabric_accepts(name: str) -> None:
    """Compare rows with the rules of DeepFabric 4.13."""
    raw = write(ROWS[name](), "deepfabric")
    assert raw.get("agent_context") in (None, {"mode": "single_turn"})
    executions = raw["tool_context"]["executions"]
    assert bool(executions) is (name != "empty texts")
    for item in executions:
        assert item["result"]
        assert item["reasoning"]
        assert not {None, ""} & set(json.loads(item["arguments"]).values())
    assert turn(ROWS[name](), "deepfabric").messages[-1] == ROWS[name]().messages[-1]


@pytest.mark.skipif(DEEPFABRIC is None, reason="needs deepfabric")
@pytest.mark.parametrize("name", ROWS)
def test_deepfabric_reads_the_rows(name: str) -> None:
    """Rules out that the newest DeepFabric refuses a row. Only its schemas are loaded, not the whole package."""
    assert DEEPFABRIC is not None
    package = ModuleType("deepfabric")
    package.__path__ = list(DEEPFABRIC.submodule_search_locations or ())
    sys.modules.setdefault("deepfabric", package)
    from deepfabric.schemas import Conversation

    Conversation.model_validate(write(ROWS[name](), "deepfabric"))


def test_a_row_names_its_origin() -> None:
    """Rules out that a row does not say its id, its topic, its model and its seed."""
    sample = SampleInfo(sample_id="s000001", dataset="d", topic=("root", "leaf"), seed=7)
    row = replace(example(), lineage=replace(example().lineage, sample=sample))
    raw = write(row, "deepfabric")
    assert raw["metadata"]["topic"] == "root -> leaf"
    assert raw["metadata"]["lineage"]["sample"]["sample_id"] == "s000001"
    assert turn(row, "deepfabric").lineage == row.lineage


def test_an_answer_without_calls_has_its_reasoning_as_one_text() -> None:
    row = replace(
        example(),
        messages=(Message(Role.USER, "2+2?"), Message(Role.ASSISTANT, "4", reasoning="Two and two.")),
    )
    raw = write(row, "deepfabric")
    assert raw["reasoning"] == {"style": "freetext", "content": "Two and two."}
    assert "tool_context" not in raw
    assert "agent_context" not in raw
    assert not set(find_losses(row, turn(row, "deepfabric"))) - set(FORMATS.load("deepfabric").losses)


def test_rows_of_deepfabric_are_read() -> None:
    row = read(foreign())
    assert [message.role.value for message in row.messages] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert row.messages[2].reasoning == "Thought 1."
    assert row.messages[2].tool_calls[0].arguments == '{"path": "a"}'
    assert row.messages[-1].reasoning == "Thought 3."
    assert row.lineage.run_id.startswith("row-")
    assert row.lineage.run_id == read(foreign()).lineage.run_id
    again = write(row, "deepfabric")
    assert again["messages"] == foreign()["messages"]
    assert again["reasoning"] == foreign()["reasoning"]


def test_the_skipped_call_of_a_row_is_found() -> None:
    """Rules out that a row is taken in which a repeated call was skipped, so that calls moved to earlier steps."""
    raw = foreign()
    raw["messages"][4:6] = [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [call("xWoq5lKN2", "read_file", path="b"), call("yWoq5lKN3", "list_files")],
        },
        {"role": "tool", "content": "B", "tool_call_id": "xWoq5lKN2"},
        {"role": "tool", "content": "[]", "tool_call_id": "yWoq5lKN3"},
    ]
    raw["tool_context"]["executions"].append(execution("list_files", "[]"))
    raw["reasoning"]["content"] = [
        step(1, 'read_file({"path": "a"})'),
        step(2, 'read_file({"path": "a"})', 'read_file({"path": "b"})'),
        step(3),
    ]
    with pytest.raises(ExportError, match="step 2 of the reasoning calls read_file, read_file, and"):
        read(raw)
    raw["reasoning"]["content"].insert(2, step(3, "list_files({})"))
    with pytest.raises(ExportError, match="the reasoning has 3 steps with calls, and the messages have 2"):
        read(raw)


def test_calls_that_are_only_in_the_reasoning_are_found() -> None:
    """Rules out that a row is taken whose last step made calls which were dropped."""
    raw = foreign()
    raw["reasoning"]["content"][2]["action"] = 'write_file({"path": "c", "content": "x"})'
    with pytest.raises(ExportError, match="the reasoning has 3 steps with calls, and the messages have 2"):
        read(raw)


def test_an_empty_list_of_calls_is_found() -> None:
    """Rules out that a row is taken in which a step lost all of its calls."""
    raw = foreign()
    raw["messages"].insert(6, {"role": "assistant", "content": "", "tool_calls": []})
    with pytest.raises(ExportError, match="message 6 has an empty list of tool_calls"):
        read(raw)
    del raw["reasoning"], raw["messages"][6]["tool_calls"]
    with pytest.raises(ExportError, match="two assistant messages in a row"):
        read(raw)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda found: found.pop(), "1 executions in tool_context for 2 calls"),
        (
            lambda found: found.reverse(),
            "execution 1 of tool_context has other arguments than the call",
        ),
        (lambda found: found[0].update(result="B"), "execution 1 of tool_context has another result"),
        (lambda found: found[1].update(function_name="x"), "execution 2 of tool_context is of 'x'"),
    ],
)
def test_executions_that_are_not_those_of_the_messages_are_found(change: Any, match: str) -> None:
    """Rules out that executions which were cut, or moved to other calls, are taken."""
    raw = foreign()
    change(raw["tool_context"]["executions"])
    with pytest.raises(ExportError, match=match):
        read(raw)


def test_nulls_that_deepfabric_left_out_of_messages_are_no_contradiction() -> None:
    raw = foreign()
    raw["tool_context"]["executions"][0]["arguments"] = '{"path": "a", "limit": null}'
    assert read(raw).messages[2].tool_calls[0].arguments == '{"path": "a", "limit": null}'


def test_an_action_in_words_is_no_contradiction() -> None:
    raw = foreign()
    raw["reasoning"]["content"][0]["action"] = "I will call read_file"
    assert read(raw).messages[2].reasoning == "Thought 1."


def test_tools_in_the_place_of_older_versions_are_read() -> None:
    raw = foreign()
    raw["tool_context"]["available_tools"] = raw.pop("tools")
    assert [tool.name for tool in read(raw).tools] == ["read_file"]
