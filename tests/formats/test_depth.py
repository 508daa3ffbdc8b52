"""The limit of nesting is that of a call's arguments, whatever a format puts around them."""

import json

import pytest

from treadle.core.errors import FormatError
from treadle.core.texts.json_text import MAX_DEPTH
from treadle.core.types import Message, Role, ToolCall, ToolSpec
from treadle.formats import parse, render
from treadle.formats.parsing import FORMATS

SPEC = ToolSpec("f", "", {"type": "object", "properties": {"a": {}}})


def nest(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def answer(levels: int) -> Message:
    call = ToolCall("1", "f", nest(levels), json.loads(nest(levels)))
    return Message(Role.ASSISTANT, tool_calls=(call,))


@pytest.mark.parametrize("name", FORMATS.names())
def test_arguments_may_be_as_deep_in_every_format(name: str) -> None:
    found = parse(render(answer(MAX_DEPTH), name, [SPEC]), name, [SPEC])
    assert [call.arguments for call in found.tool_calls] == [json.loads(nest(MAX_DEPTH))], found.errors
    with pytest.raises(FormatError, match="nested more than 100 levels deep"):
        render(answer(MAX_DEPTH + 1), name, [SPEC])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"id": "1", "function": {"name": "f", "arguments": %s}}\n</tool_call>'),
        ("llama3_json", '{"name": "f", "parameters": %s}'),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": %s}]'),
        ("xlam", '[{"name": "f", "arguments": %s}]'),
    ],
)
def test_deeper_arguments_are_an_error_for_the_model(name: str, text: str) -> None:
    assert len(parse(text % nest(MAX_DEPTH), name, [SPEC]).tool_calls) == 1
    (error,) = parse(text % nest(MAX_DEPTH + 1), name, [SPEC]).errors
    assert error.reason.endswith("nested more than 100 levels deep")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3_pythonic", "[f(a=%s)]"),
        (
            "qwen3_coder",
            "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>",
        ),
    ],
)
def test_values_that_stand_alone_are_as_deep_as_within_arguments(name: str, text: str) -> None:
    (call,) = parse(text % nest(MAX_DEPTH - 1), name, [SPEC]).tool_calls
    assert call.arguments == json.loads(nest(MAX_DEPTH))
    (error,) = parse(text % nest(MAX_DEPTH), name, [SPEC]).errors
    assert error.reason.endswith("nested more than 100 levels deep")
