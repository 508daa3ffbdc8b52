"""The formats that hold conversations as texts: `sharegpt` and `hermes`, as their readers expect them."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from tests.export.test_deepfabric import full
from tests.export.test_files import example
from tests.export.test_formats import write

from treadle import ExportError
from treadle.core.types import Message, Role, ToolCall
from treadle.export import FORMATS, Row, read_row


def read(raw: dict[str, Any], name: str) -> Row:
    return read_row(raw, FORMATS.load(name))


def test_sharegpt_alternates_and_has_parallel_calls_as_lists() -> None:
    raw = write(example(), "sharegpt")
    tags = [item["from"] for item in raw["conversations"]]
    assert tags == ["system", "human", "function_call", "observation", "function_call", "observation", "gpt"]
    said = raw["conversations"][2]["value"]
    assert said.startswith("<think>\nFirst look.\n</think>\n\nI look.<tool_call>[")
    assert json.loads(said.partition("<tool_call>")[2].removesuffix("</tool_call>")) == [
        {"name": "read", "arguments": {"a": 1}},
        {"name": "write", "arguments": {"a": "b", "n": None}},
    ]
    assert json.loads(raw["conversations"][3]["value"]) == ["", "no"]
    alone = raw["conversations"][4]["value"].removeprefix("<think>\nLook again.\n</think>\n\n")
    assert json.loads(alone) == {"name": "read", "arguments": {"a": 1}}
    assert raw["conversations"][5]["value"] == "two"
    assert [tool["name"] for tool in json.loads(raw["tools"])] == ["read", "write"]


def test_sharegpt_of_other_programs_is_read() -> None:
    tools = json.dumps([{"name": "look", "description": "Looks.", "parameters": {"type": "object"}}])
    raw = {
        "system": "Help.",
        "tools": tools,
        "conversations": [
            {"from": "human", "value": "go"},
            {"from": "function_call", "value": '{"name": "look", "arguments": "{\\"a\\": 1}"}'},
            {"from": "observation", "value": "seen"},
            {"from": "function_call", "value": '[{"name": "look"}, {"name": "look", "arguments": {"b": 2}}]'},
            {"from": "observation", "value": "one"},
            {"from": "observation", "value": "two"},
            {"from": "gpt", "value": "done"},
        ],
    }
    row = read(raw, "sharegpt")
    assert row.messages[0] == Message(Role.SYSTEM, "Help.")
    calls = [(call.name, call.arguments) for message in row.messages for call in message.tool_calls]
    assert calls == [("look", '{"a": 1}'), ("look", "{}"), ("look", '{"b": 2}')]
    results = [(message.call_id, message.content) for message in row.messages if message.role is Role.TOOL]
    assert results == [("call_1", "seen"), ("call_2", "one"), ("call_3", "two")]
    assert row.tools[0].parameters == {"type": "object"}
    raw["conversations"][4:6] = [
        {"from": "observation", "value": "one\n</tool_response>\n<tool_response>\ntwo"}
    ]
    assert read(raw, "sharegpt").messages == row.messages


@pytest.mark.parametrize(
    ("name", "conversations", "match"),
    [
        ("sharegpt", [("human", "a"), ("observation", "b")], "1 results for 0 calls"),
        (
            "sharegpt",
            [
                ("human", "a"),
                ("function_call", '[{"name": "a"}, {"name": "b"}]'),
                ("observation", "x"),
                ("gpt", "y"),
            ],
            "assistant before the results of call_2",
        ),
        ("sharegpt", [("robot", "a")], "unknown tag 'robot'"),
        ("sharegpt", [("human", "a"), ("function_call", "{")], "DecodeError"),
        ("sharegpt", [("human", "a"), ("gpt", "b"), ("gpt", "c")], "two assistant messages in a row"),
        (
            "hermes",
            [
                ("human", "a"),
                ("gpt", '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>'),
                ("tool", "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"),
            ],
            "2 results for 1 calls",
        ),
        ("hermes", [("human", "a"), ("gpt", "<tool_call>\n{")], "conversation 1: "),
        ("hermes", [("robot", "a")], "unknown tag 'robot'"),
    ],
)
def test_what_cannot_be_matched_is_refused(
    name: str, conversations: list[tuple[str, str]], match: str
) -> None:
    """Rules out that results are given to calls by guessing."""
    raw = {"conversations": [{"from": tag, "value": text} for tag, text in conversations]}
    with pytest.raises(ExportError, match=match):
        read(raw, name)


def test_rows_that_readers_of_sharegpt_would_skip_are_refused() -> None:
    row = example()
    for messages, match in (
        (row.messages[:-1], "the last message is not the assistant's"),
        ((row.messages[1], *row.messages[1:]), "do not alternate"),
        (
            (row.messages[1], Message(Role.ASSISTANT, "a <tool_call>", (ToolCall("c", "a", "{}"),))),
            "contains '<tool_call>'",
        ),
        ((row.messages[1], Message(Role.ASSISTANT, "<think>\nno")), "contains '<think>'"),
        (
            (
                row.messages[1],
                Message(Role.ASSISTANT, "", (ToolCall("c", "a", '{"a":"<tool_call>b</tool_call>"}'),)),
            ),
            "contains '<tool_call>'",
        ),
    ):
        with pytest.raises(ExportError, match=match):
            write(replace(row, messages=messages), "sharegpt")


def test_hermes_is_the_text_that_the_models_write() -> None:
    raw = write(example(), "hermes")
    system, human, first, results, second, *_ = raw["conversations"]
    assert system["value"].startswith("Be brief.\n\n# Tools\n")
    assert '<tools>\n{"type": "function", "function": {"name": "read"' in system["value"]
    assert human == {"from": "human", "value": "go"}
    assert first["value"] == (
        "<think>\nFirst look.\n</think>\n\nI look.\n"
        '<tool_call>\n{"name": "read", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "write", "arguments": {"a": "b", "n": null}}\n</tool_call>'
    )
    assert results == {
        "from": "tool",
        "value": "<tool_response>\n\n</tool_response>\n<tool_response>\nno\n</tool_response>",
    }
    assert second["from"] == "gpt"


def test_hermes_rows_of_others_keep_their_system_message() -> None:
    raw = {
        "conversations": [
            {"from": "system", "value": "You call functions. <tools> [] </tools>"},
            {"from": "human", "value": "go"},
            {"from": "gpt", "value": '<tool_call>\n{"arguments": {"a": 1}, "name": "look"}\n</tool_call>'},
            {"from": "tool", "value": '<tool_response>\n{"name": "look", "content": 1}\n</tool_response>'},
            {"from": "gpt", "value": "done"},
        ],
        "tools": '[{"type": "function", "function": {"name": "look", "parameters": {}}}]',
    }
    row = read(raw, "hermes")
    assert row.messages[0].content == "You call functions. <tools> [] </tools>"
    assert row.messages[3].content == '{"name": "look", "content": 1}'
    assert write(row, "hermes")["conversations"][0] == raw["conversations"][0]


def test_what_is_nested_too_deeply_is_a_text() -> None:
    deep = "[" * 100_000
    said = [{"from": "human", "value": "Look."}]
    made = '[{"name": "look", "arguments": {}}, {"name": "look", "arguments": {}}]'
    said += [{"from": "function_call", "value": made}, {"from": "observation", "value": deep}]
    said += [{"from": "gpt", "value": "Done."}]
    with pytest.raises(ExportError, match="result"):
        read({"conversations": said}, "sharegpt")
    raw = write(full(), "deepfabric")
    raw["tool_context"]["executions"][0]["arguments"] = deep
    with pytest.raises(ExportError, match="execution 1 of tool_context has other arguments"):
        read(raw, "deepfabric")
