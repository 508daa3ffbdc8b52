"""Row formats: what each keeps, says that it loses, and refuses."""

import itertools
import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from treadle import ExportError
from treadle.core.texts.json_text import MAX_DEPTH
from treadle.core.types import Artifact, Effect, Message, Role, ServerCall, ToolCall, ToolSpec
from treadle.export import FORMATS, Lineage, Row, encode_row, find_losses, read_row
from treadle.export.exporter import Loss, decode_rows
from treadle.export.rows import make_row
from treadle.tools.schema.validation import check_spec

NAMES = FORMATS.names()
PARTIAL = ("custom", "xlam")
"""The formats that have only a part of the conversation."""
WHOLE = [name for name in NAMES if name not in PARTIAL]
FULL = bool(os.environ.get("TREADLE_FULL"))
SLOW = (HealthCheck.filter_too_much, HealthCheck.too_slow)
MARKS = [
    "<think>\n", "\n</think>\n\n", "</think>", "<tool_call>", "</tool_call>", '<tool_call>\n{"name": "a"}',
    "<tools>", "<tool_response>\n", "\n</tool_response>", "\n</tool_response>\n<tool_response>\n", '["a", "b"]',
    "; read({})", "Ready to respond to user", "treadle/1", "lineage", "\n", " ",
]  # fmt: skip
"""Texts that formats give a meaning to."""
plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
texts = plain | st.lists(plain | st.sampled_from(MARKS), max_size=3).map("".join)
some = texts.filter(bool)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def calls(draw: st.DrawFn, step: int) -> tuple[ToolCall, ...]:
    made = []
    for index in range(draw(st.integers(1, 3))):
        arguments = draw(st.dictionaries(texts, json_values, max_size=3))
        text = json.dumps(arguments, ensure_ascii=False, indent=draw(st.sampled_from([None, 1])))
        made.append(
            ToolCall(
                draw(st.sampled_from(["c{}{}", "call_{}/{}", "abcdefg{}{}"])).format(step, index),
                draw(st.sampled_from(["read", "write"])),
                text,
            )
        )
    return tuple(made)


@st.composite
def transcripts(draw: st.DrawFn) -> tuple[Message, ...]:
    messages = [Message(Role.SYSTEM, draw(some))] if draw(st.booleans()) else []
    step = 0
    for _ in range(draw(st.integers(1, 2))):
        messages.append(Message(Role.USER, draw(texts)))
        for _ in range(draw(st.integers(0, 2))):
            made = draw(calls(step := step + 1))
            messages.append(Message(Role.ASSISTANT, draw(texts), made, reasoning=draw(st.none() | some)))
            messages += [
                Message(Role.TOOL, draw(texts), (), item.call_id, item.name, draw(st.booleans()))
                for item in made
            ]
        messages.append(Message(Role.ASSISTANT, draw(texts), reasoning=draw(st.none() | some)))
    return tuple(messages)


TOOLS = tuple(
    [
        ToolSpec(
            name, f"Runs {name}.", {"type": "object", "properties": {"a": {"enum": [1, "b", None]}}}, effect
        )
        for name, effect in (("read", Effect.PURE), ("write", Effect.ONCE))
    ]
)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    messages = draw(transcripts())
    errors = tuple([item.call_id for item in messages if item.is_error and item.call_id])
    return Row(
        messages, draw(st.sampled_from([(), TOOLS])), Lineage("r", "m", "completed", "h", tool_errors=errors)
    )


def write(row: Row, name: str, **options: Any) -> dict[str, Any]:
    """Return a row as a reader of the file gets it."""
    row_format = FORMATS.load(name)
    lines = encode_row(row, row_format, **options).split(b"\n")
    ((_, raw),) = decode_rows(lines, row_format)
    return raw


def turn(row: Row, name: str, **options: Any) -> Row:
    """Return a row after it was written and read in a format."""
    return read_row(write(row, name, **options), FORMATS.load(name))


def can_hold(row: Row, name: str) -> bool:
    try:
        return bool(write(row, name))
    except ExportError:
        return False


@pytest.mark.parametrize("name", WHOLE)
@settings(max_examples=1000 if FULL else 25, suppress_health_check=SLOW)
@given(row=rows())
def test_a_format_loses_only_what_it_says(name: str, row: Row) -> None:
    assume(can_hold(row, name))
    losses = set(find_losses(row, turn(row, name, with_reasoning=True)))
    assert losses <= set(FORMATS.load(name).losses) - {Loss.REASONING}


@pytest.mark.sets(2)
@pytest.mark.parametrize("names", [*itertools.permutations(WHOLE, 2)])
@settings(max_examples=100 if FULL else 5, suppress_health_check=SLOW)
@given(row=rows())
def test_a_row_that_came_from_a_format_keeps_in_another_what_both_keep(
    names: tuple[str, str], row: Row
) -> None:
    first, second = names
    assume(can_hold(row, first) and can_hold(row, second))
    once = turn(row, first, with_reasoning=True)
    twice = turn(once, second, with_reasoning=True)
    assert set(find_losses(once, twice)) <= set(FORMATS.load(second).losses) - {Loss.REASONING}
    both = {*FORMATS.load(first).losses, *FORMATS.load(second).losses} - {Loss.REASONING}
    assert set(find_losses(row, twice)) <= both


@given(row=rows())
def test_the_format_treadle_loses_nothing(row: Row) -> None:
    assert turn(row, "treadle") == row


@pytest.mark.parametrize("name", sorted(set(FORMATS.names()) - {"custom"}))
def test_what_is_nested_as_deeply_as_tools_accept_is_read_again(name: str) -> None:
    levels = MAX_DEPTH - (2 if name in ("hermes", "xlam") else 0)  # their calls are JSON around the arguments
    deep = f'{{"a":{"[" * (levels - 1)}{"]" * (levels - 1)}}}'
    spec = ToolSpec("f", "", {"type": "object", "properties": {"a": {"const": json.loads(deep)["a"][0][0]}}})
    check_spec(spec, "f")
    call, result = ToolCall("c1", "f", deep), Message(Role.TOOL, "ok", call_id="c1", name="f")
    asked = Message(Role.ASSISTANT, tool_calls=(call,))
    row = make_row([Message(Role.USER, "go"), asked, result, Message(Role.ASSISTANT, "done")], (spec,), None)
    again = turn(row, name)
    assert [item.parsed for message in again.messages for item in message.tool_calls] == [json.loads(deep)]
    assert again.tools[0].parameters["properties"] == spec.parameters["properties"]


def test_each_loss_that_a_format_declares_is_one() -> None:
    """Write a row that has everything, and compare what is lost with what the formats say."""
    call = ToolCall("c1", "read", '{ "a": 1.50 }', {"seen": 1})
    row = Row(
        (
            Message(Role.USER, "go", parts=(Artifact("link", uri="http://x/a.png"),)),
            Message(
                Role.ASSISTANT, "", (call,), reasoning="Look.", server_calls=(ServerCall("s", "search"),)
            ),
            Message(Role.TOOL, "no", (), "c1", "read", True),
            Message(Role.ASSISTANT, "", (replace(call, call_id="c2", name="raed"),)),
            Message(Role.TOOL, "There is no such tool.", (), "c2", "raed", True),
            Message(Role.ASSISTANT, '{"b": 1.50}'),
        ),
        TOOLS,
        Lineage("r", "m", "completed", "h", tool_errors=("c1", "c2")),
        untrained=(1,),
        weight=0.5,
    )
    for name in WHOLE:
        losses = set(FORMATS.load(name).losses)
        if name in ("sharegpt", "hermes", "openai", "deepfabric"):
            # They keep the text of arguments, except for the white space around it and for an empty text.
            losses -= {Loss.ARGUMENTS}
        assert set(find_losses(row, turn(row, name))) == losses
    assert set(find_losses(row, turn(row, "custom"))) == {Loss.CONVERSATION, Loss.TOOLS, Loss.WEIGHT}
    one = replace(row, untrained=(1,), messages=row.messages)
    assert set(find_losses(one, turn(one, "xlam"))) == {
        Loss.CONVERSATION,
        Loss.TOOLS,
        Loss.LINEAGE,
        Loss.WEIGHT,
    }


def test_xlam_has_the_request_and_its_calls_as_json_texts() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    tool = ToolSpec("read", "Reads.", {**parameters, "required": ["a"]}, Effect.PURE)
    calls = (ToolCall("1", "read", '{"a": "x"}'), ToolCall("2", "read", '{"a": "y", "b": 1}'))
    results = [Message(Role.TOOL, "", (), item.call_id, "read") for item in calls]
    messages = (Message(Role.USER, "go"), Message(Role.ASSISTANT, "", calls), *results)
    row = Row((*messages, Message(Role.ASSISTANT, "done")), (tool,), Lineage("r", "m", "completed", "h"))
    raw = write(row, "xlam")
    assert json.loads(raw["answers"]) == [{"name": "read", "arguments": item.parsed} for item in calls]
    (written,) = json.loads(raw["tools"])
    assert [item["type"] for item in written["parameters"].values()] == ["str", "int, optional"]
    assert turn(row, "xlam").tools[0].parameters == tool.parameters
    twice = replace(row, messages=(*messages, *row.messages))
    with pytest.raises(ExportError, match="more than one message of the user"):
        write(twice, "xlam")


@pytest.mark.parametrize(
    ("written", "schema"),
    [
        ("List[int]", {"type": "array", "items": {"type": "integer"}}),
        ("list[Dict[str, List[float]]]", None),
        ("Tuple[float, float]", {"type": "array", "items": {"type": "number"}}),
        ("Tuple[int, ...]", {"type": "array", "items": {"type": "integer"}}),
        ("Tuple[int, str]", {"type": "array"}),
        ("Dict[str, int]", {"type": "object", "additionalProperties": {"type": "integer"}}),
        ("Union[int, str]", {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ("Optional[str]", {"type": "string"}),
        ("set", {"type": "array"}),
        ("dict", {"type": "object"}),
        ("Callable[[float], float]", {}),
        ("List[", {"type": "array"}),
        ("any", {}),
    ],
)
def test_xlam_types_in_the_words_of_python_are_read(written: str, schema: dict[str, Any] | None) -> None:
    """Source: the columns of xlam-function-calling-60k."""
    given = {"a": {"type": written, "description": "An a."}, "b": {"type": f"{written}, optional"}}
    tools = json.dumps([{"name": "f", "description": "", "parameters": {**given, "c": {"default": ""}}}])
    raw = {"query": "go", "answers": '[{"name": "f", "arguments": {}}]', "tools": tools}
    found = read_row(raw, FORMATS.load("xlam")).tools[0].parameters
    inner = {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "number"}}}
    schema = {"type": "array", "items": inner} if schema is None else schema
    assert found["properties"] == {"a": {**schema, "description": "An a."}, "b": schema, "c": {"default": ""}}
    assert found["required"] == ([] if written.startswith("Optional") else ["a"])


def test_openai_refuses_what_its_service_refuses() -> None:
    call = ToolCall("1", "read", "{}")
    messages = (
        Message(Role.USER, "go"),
        Message(Role.ASSISTANT, "", (call,)),
        Message(Role.TOOL, "", (), "1", "read"),
        Message(Role.ASSISTANT, "done"),
    )
    row = Row(messages, TOOLS, Lineage("r", "m", "completed", "h"))
    assert can_hold(row, "openai")
    many = tuple([replace(TOOLS[0], name=f"t{number}") for number in range(128)])
    odd = replace(TOOLS[0], name="a.b")
    empty = replace(messages[3], content=" ")
    for wrong, why in (
        (replace(row, tools=(*many, TOOLS[0])), "129 tools"),
        (replace(row, tools=(*TOOLS, odd)), "has a name"),
        (replace(row, tools=TOOLS[1:]), "not among the tools"),
        (replace(row, tools=(replace(TOOLS[0], description="x" * 1025),)), "has 1,025 characters"),
        (replace(row, tools=(replace(TOOLS[0], parameters={"type": "string"}),)), "not of the type 'object'"),
        (replace(row, messages=messages[:3]), "last message"),
        (replace(row, messages=(*messages[:3], empty)), "empty"),
        (replace(row, messages=(*messages[:2], *messages[3:])), "no result"),
    ):
        with pytest.raises(ExportError, match=why):
            write(wrong, "openai")


def test_ids_that_repeat_in_each_step_are_separated() -> None:
    def step(text: str) -> list[dict[str, Any]]:
        call = {"id": "call_0", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_0", "content": text},
        ]

    messages = [{"role": "user", "content": "go"}, *step("a"), *step("b"), *step("c")]
    row = read_row({"messages": messages}, FORMATS.load("openai"))
    found = [(item.call_id, item.content) for item in row.messages if item.call_id]
    assert found == [("call_0", "a"), ("call_0-2", "b"), ("call_0-3", "c")]
    assert [call.call_id for item in row.messages for call in item.tool_calls] == [
        "call_0",
        "call_0-2",
        "call_0-3",
    ]
    twice = [{**step("a")[0], "tool_calls": step("a")[0]["tool_calls"] * 2}, step("a")[1], step("b")[1]]
    with pytest.raises(ExportError, match="the call id 'call_0' is used twice"):
        read_row({"messages": twice}, FORMATS.load("openai"))


def test_an_empty_text_of_arguments_becomes_an_object() -> None:
    call = ToolCall("c1", "read", "")
    messages = (
        Message(Role.USER, "go"),
        Message(Role.ASSISTANT, "", (call,)),
        Message(Role.TOOL, "", (), "c1", "read"),
    )
    row = Row((*messages, Message(Role.ASSISTANT, "done")), (), Lineage("r", "m", "completed", "h"))
    for name in ("trl", "sharegpt", "hermes"):
        assert turn(row, name).messages[1].tool_calls[0].arguments == "{}"
        assert find_losses(row, turn(row, name)) == (Loss.ARGUMENTS,)
