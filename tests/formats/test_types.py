"""The values of parameters that are written as plain text: the tool's schema says which types they may have."""

import json

import pytest

from treadle.core.types import ToolSpec
from treadle.formats.parsing import parse

SHARED = {"Count": {"type": "integer"}, "Word": {"type": "string", "enum": ["1", "x"]}}
CALL = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "5", "5"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, '"quoted"', '"quoted"'),
        ({"type": ["string", "integer"]}, "5", 5),
        ({"type": ["string", "integer"]}, "5.5", "5.5"),
        ({"type": ["string", "number"]}, "5", 5),
        ({"type": ["string", "boolean"]}, "true", True),
        ({"type": ["string", "boolean"]}, "1", "1"),
        ({"enum": ["a", "1"]}, "1", "1"),
        ({"enum": [1, 2.5, None]}, "2.5", 2.5),
        ({"const": True}, "true", True),
        ({"const": [1]}, "[1]", [1]),
        ({"$ref": "#/$defs/Count"}, "7", 7),
        ({"$ref": "#/$defs/Word"}, "1", "1"),
        ({"$ref": "#/$defs/Absent"}, "1", 1),
        ({}, "{broken", "{broken"),
    ],
)
def test_a_value_has_a_type_of_its_schema(schema, text, value):
    tool = ToolSpec("f", "", {"type": "object", "properties": {"a": schema}, "$defs": SHARED})
    found = parse(CALL.format(text), "qwen3_coder", (tool,))
    assert not found.errors
    assert json.dumps(found.tool_calls[0].arguments) == json.dumps({"a": value})


def test_a_value_that_can_have_no_type_of_its_schema_is_an_error():
    schema = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    tool = ToolSpec("f", "", {"type": "object", "properties": {"a": schema}})
    (error,) = parse(CALL.format("five"), "qwen3_coder", (tool,)).errors
    assert error.reason.startswith("the value of 'a' must be integer or null, but is not valid JSON")
