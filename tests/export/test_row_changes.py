"""Turns that are not trained on, Treadle's own messages, and options of rows."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from treadle import Agent, ConfigError, ExportError, Policy, ScriptedModel, open_journal
from treadle.core.events import MessageInjected
from treadle.core.state import fold
from treadle.core.types import Effect, Message, Role, ToolCall, ToolSpec
from treadle.export import FORMATS, Lineage, Row, encode_row, find_losses, load_row, read_row
from treadle.export.exporter import Loss
from treadle.export.row_changes import RowOptions, split_calls, without_untrained
from treadle.export.row_files import open_writer
from treadle.export.rows import row_of
from treadle.models import call
from treadle.models.scripted import Answer

TOOLS = tuple([ToolSpec(name, "", {"type": "object"}, Effect.PURE) for name in "abcdef"])
MARKED = {"treadle", "axolotl", "openai", "hf_trace", "atif"}
"""The formats with a place for what is not trained on."""
WEIGHED = {"treadle", "trl", "hf_trace", "atif"}
"""The formats with a place for the weight of a row."""


def make_row(**changes: Any) -> Row:
    """Return a row with a step of two calls of which one failed, and a whole one after it."""
    row = Row(
        (
            Message(Role.USER, "go"),
            Message(Role.ASSISTANT, "Both.", (ToolCall("1", "a", "{}"), ToolCall("2", "b", '{"x":1}'))),
            Message(Role.TOOL, "A", (), "1", "a"),
            Message(Role.TOOL, "x is unknown", (), "2", "b", True),
            Message(Role.ASSISTANT, "", (ToolCall("3", "b", "{}"),)),
            Message(Role.TOOL, "B", (), "3", "b"),
            Message(Role.ASSISTANT, "A and B."),
        ),
        TOOLS,
        Lineage("r", "m", "completed", "h", tool_errors=("2",)),
        untrained=(0,),
    )
    return replace(row, **changes)


def again(row: Row, name: str) -> Row:
    row_format = FORMATS.load(name)
    raw = encode_row(row, row_format)
    if row_format.has_own_files:
        return read_row({"lines": [json.loads(line) for line in raw.split(b"\n")]}, row_format)
    return read_row(json.loads(raw), row_format)


@pytest.mark.parametrize("name", [name for name in FORMATS.names() if name not in ("custom", "xlam")])
def test_a_format_marks_what_is_not_trained_on_or_leaves_it_out(name: str) -> None:
    row = make_row()
    back = again(row, name)
    if name in MARKED:
        assert (back.untrained, len(back.messages)) == ((0,), len(row.messages))
        assert Loss.UNTRAINED not in find_losses(row, back)
        return
    assert back.untrained == ()
    assert [[item.name for item in message.tool_calls] for message in back.messages[1::2]] == [
        ["a"],
        ["b"],
        [],
    ]
    assert not any(message.is_error for message in back.messages)
    assert Loss.UNTRAINED in find_losses(row, back)
    assert Loss.CONVERSATION not in find_losses(row, back)


def test_openai_and_axolotl_have_the_mark_that_their_readers_know() -> None:
    for name, key, marks in (
        ("openai", "weight", [0, None, None]),
        ("axolotl", "train", [False, True, True]),
    ):
        messages = json.loads(encode_row(make_row(), FORMATS.load(name)))["messages"]
        assert [item.get(key) for item in messages if item["role"] == "assistant"] == marks
        assert not any(key in item for item in messages if item["role"] != "assistant")


def test_a_call_that_no_reader_takes_is_left_out_where_it_could_be_marked() -> None:
    row = make_row()
    wrong = replace(row.messages[1], tool_calls=(ToolCall("1", "a", "{}"), ToolCall("2", "nobody", "{")))
    row = replace(row, messages=(row.messages[0], wrong, *row.messages[2:]))
    for name in ("openai", "axolotl", "atif"):
        assert [item.name for item in again(row, name).messages[1].tool_calls] == ["a"]
    for name in ("treadle", "hf_trace"):
        assert [item.name for item in again(row, name).messages[1].tool_calls] == ["a", "nobody"]


def test_a_row_of_which_nothing_is_left_to_train_on_is_refused() -> None:
    row = make_row()
    failed = (
        row.messages[0],
        replace(row.messages[1], tool_calls=row.messages[1].tool_calls[1:]),
        row.messages[3],
    )
    with pytest.raises(ExportError, match="no answer is left"):
        encode_row(replace(row, messages=failed), FORMATS.load("trl"))
    told = (Message(Role.USER, "go"), Message(Role.ASSISTANT, "no"), Message(Role.USER, "so?"))
    with pytest.raises(ExportError, match="stands before others"):
        without_untrained(replace(row, messages=(*told, Message(Role.ASSISTANT, "yes")), untrained=(0,)))


class Sum(Struct):
    """An answer with a schema."""

    a: int


async def run_of(*answers: Answer, **options: Any) -> Row:
    journal = open_journal("memory:")
    agent = Agent(ScriptedModel(answers), tools=["files"], journal=journal, **options)
    return load_row(journal, (await agent.run("go")).run_id)


async def test_calls_that_failed_through_the_models_own_fault_are_not_trained_on() -> None:
    wrong = [
        call("nobody", {}),
        call("read_file", "{"),
        call("read_file", {"path": 1}),
        call("list_files", {}),
    ]
    row = await run_of(*[[item] for item in wrong], [call("read_file", {"file_path": "none"})], "done")
    assert row.untrained == (0, 1, 2)
    assert sum(message.is_error for message in row.messages) == 4


async def test_messages_of_treadle_are_not_in_rows() -> None:
    row = await run_of("", "done")
    assert [message.content for message in row.messages] == ["go", "done"]
    assert row.untrained == ()
    misnamed = await run_of([call("nobody", {})], [call("nobody", {})], [call("nobody", {})], "done")
    assert [message.role for message in misnamed.messages].count(Role.USER) == 1
    limited = await run_of([call("list_files", {})], "Not finished.", policy=Policy(max_steps=1))
    assert [message.content for message in limited.messages if message.role is Role.USER] == ["go"]
    assert limited.untrained == (1,)


async def test_an_answer_that_was_rejected_is_left_out_with_the_message_that_says_so() -> None:
    row = await run_of("no JSON", '{"a": 1}', schema=Sum)
    assert [message.content for message in row.messages if message.role is not Role.SYSTEM] == [
        "go",
        '{"a": 1}',
    ]


def test_tools_can_be_those_that_are_used_and_others() -> None:
    for others, count in (("used", 2), ("used+2", 4), ("used+9", 6)):
        row = RowOptions(tools=others).change(make_row())
        assert len(row.tools) == count
        assert {"a", "b"} <= {tool.name for tool in row.tools}
        assert row == RowOptions(tools=others).change(make_row())
        assert row.lineage.tools_hash != "h"
    with pytest.raises(ConfigError, match="give 'used'"):
        RowOptions(tools="few")


def test_parallel_calls_can_be_split() -> None:
    row = split_calls(make_row())
    roles = [message.role.value for message in row.messages]
    assert roles == ["user", *["assistant", "tool"] * 3, "assistant"]
    assert [message.content for message in row.messages] == [
        "go",
        "Both.",
        "A",
        "",
        "x is unknown",
        "",
        "B",
        "A and B.",
    ]
    assert row.untrained == (1,)
    assert split_calls(row) is row


@pytest.mark.parametrize("name", [name for name in FORMATS.names() if name not in ("custom", "xlam")])
def test_a_format_keeps_the_weight_of_a_row_or_counts_it_as_lost(name: str, tmp_path: Path) -> None:
    row = make_row(untrained=(), weight=0.5)
    back = again(row, name)
    assert back.weight == (0.5 if name in WEIGHED else 1)
    assert (Loss.WEIGHT in find_losses(row, back)) is (name not in WEIGHED)
    with open_writer(name, tmp_path / "rows.jsonl") as writer:
        writer.write(row)
    assert writer.unweighted == (name not in WEIGHED)
    whole = again(make_row(untrained=()), name)
    assert whole.weight == 1
    assert b'"weight"' not in encode_row(whole, FORMATS.load("treadle"))


@pytest.mark.parametrize("name", ["openai", "axolotl", "trl", "sharegpt"])
def test_a_row_of_weight_0_is_marked_or_left_out(name: str) -> None:
    row = make_row(untrained=(0, 1, 2), weight=0.0)
    if name in MARKED:
        back = again(row, name)
        assert back.untrained == (0, 1, 2)
        assert Loss.WEIGHT not in find_losses(row, back)
    else:
        with pytest.raises(ExportError, match="its weight is 0"):
            again(row, name)


def test_changes_of_a_row_keep_its_weight() -> None:
    row = make_row(weight=0.5)
    assert split_calls(row).weight == 0.5
    assert without_untrained(row).weight == 0.5


async def test_the_row_of_a_state_on_the_way_is_that_of_all_events(tmp_path: Path) -> None:
    with open_journal(tmp_path / "j.db") as journal:
        agent = Agent(
            ScriptedModel([[call("write_file", {"file_path": "a", "content": "b"})], "one", "two"]),
            tools=["files"],
            policy=Policy(max_steps=1),  # so that there is a message of Treadle's, which rows do not show
            journal=journal,
        )
        async with agent.session("s") as session:
            await session.send("go")
            await session.send("go on")
        bodies = [event.body for event in journal.read("s")]
        known = load_row(journal, "s")
        assert any(isinstance(body, MessageInjected) for body in bodies)
        for seq in range(len(bodies) + 1):
            assert row_of("s", bodies, fold(bodies[:seq])) == known
        others = [event.body for event in journal.read("s")]
        assert row_of("s", bodies, fold(others)) == known
        assert row_of("s", bodies, fold(others[:3])) == known
