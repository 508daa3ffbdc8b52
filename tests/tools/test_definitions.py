"""Tool definitions in every shape: read, written, and what a shape cannot hold told."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.errors import ConfigError
from treadle.core.types import Effect, ToolSpec
from treadle.tools.definitions import SHAPES, parse_definitions, read_definitions, write_definitions

names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_-]{0,20}", fullmatch=True)
plain_types = st.sampled_from(["string", "integer", "number", "boolean", "array", "object"])
properties = st.dictionaries(
    names,
    st.builds(lambda kind, text: {"type": kind, "description": text}, plain_types, st.text(min_size=1)),
    max_size=4,
)


@st.composite
def specs(draw: st.DrawFn) -> ToolSpec:
    given = draw(properties)
    parameters: dict[str, Any] = {"type": "object", "properties": given}
    required = [name for name in given if draw(st.booleans())]
    if required:
        parameters["required"] = required
    return ToolSpec(draw(names), draw(st.text().map(str.strip)), parameters, draw(st.sampled_from(Effect)))


@given(st.lists(specs(), min_size=1, max_size=4, unique_by=lambda spec: spec.name), st.sampled_from(SHAPES))
def test_what_is_written_is_read_again(tools: list[ToolSpec], shape: str) -> None:
    written, _ = write_definitions(tools, shape)
    read = parse_definitions(json.loads(json.dumps(written)), "here")
    assert [(tool.name, tool.parameters) for tool in read.tools] == [
        (tool.name, tool.parameters) for tool in tools
    ]
    if shape in ("treadle", "mcp"):
        assert [tool.effect for tool in read.tools] == [tool.effect for tool in tools]
    if shape == "treadle":
        assert list(read.tools) == tools


def test_the_shapes_as_others_write_them() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    openai = {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}
    flat = {"type": "function", "name": "f", "description": "d", "parameters": schema}
    mcp = {"name": "f", "description": "d", "inputSchema": schema, "annotations": {"readOnlyHint": True}}
    deepfabric = {
        "name": "f",
        "description": "d",
        "parameters": [{"name": "a", "type": "str", "description": "", "required": True}],
        "returns": "",
        "category": "general",
    }
    for value, shape in (
        ([openai], "openai"),
        ({"tools": [flat]}, "openai"),
        ({"tools": [mcp]}, "mcp"),
        (mcp, "mcp"),
    ):
        read = parse_definitions(value, "here")
        assert (read.shape, read.tools[0].name, read.tools[0].parameters) == (shape, "f", schema)
    read = parse_definitions({"tools": [deepfabric]}, "here")
    assert (read.shape, read.tools[0].parameters) == ("deepfabric", schema)
    assert parse_definitions(mcp, "here").tools[0].effect is Effect.PURE


def test_defaults_of_deepfabric_are_written_as_texts() -> None:
    parameters = [
        {"name": "n", "type": "int", "required": False, "default": "5"},
        {"name": "b", "type": "bool", "required": False, "default": "True"},
        {"name": "s", "type": "str", "required": False, "default": "5"},
        {"name": "l", "type": "list", "required": False, "default": "[1]"},
    ]
    (tool,) = parse_definitions(
        {"tools": [{"name": "f", "parameters": parameters, "returns": "x"}]}, "h"
    ).tools
    found = {name: schema["default"] for name, schema in tool.parameters["properties"].items()}
    assert found == {"n": 5, "b": True, "s": "5", "l": [1]}
    assert "required" not in tool.parameters
    assert tool.description == "Returns: x"


def test_what_a_shape_cannot_hold_is_told() -> None:
    spec = ToolSpec(
        "f",
        "d",
        {"type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}, "b": {"anyOf": []}}},
        Effect.PURE,
        timeout_seconds=3,
    )
    assert write_definitions([spec], "treadle")[1] == ()
    assert write_definitions([spec], "openai")[1] == (
        "f: the shape openai cannot hold effect",
        "f: the shape openai cannot hold timeout_seconds",
    )
    lost = write_definitions([spec], "deepfabric")[1]
    assert "f: the shape deepfabric cannot hold enum of 'a'" in lost
    assert "f: the shape deepfabric cannot hold anyOf of 'b'" in lost
    with pytest.raises(ConfigError, match="there is no shape 'xml'; the shapes are treadle, openai"):
        write_definitions([spec], "xml")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "must be a list of at least one tool"),
        ({"tool": []}, "there is no list 'tools' in it, but 'tool'"),
        ({"tools": ["x"]}, "tool 1 is no object"),
        (
            {"tools": [{"name": "f", "efect": "pure"}]},
            r"tool 1 \('f'\) has an unknown field 'efect'; did you mean 'effect'",
        ),
        ({"tools": [{"name": "f", "effect": "twice"}]}, "Invalid enum value 'twice'"),
        ({"tools": [{"name": "f"}, {"name": "f"}]}, "two tools are called 'f'"),
        ({"tools": [{"name": "f", "inputSchema": {"type": "nonsense"}}]}, "not a valid JSON Schema"),
        ({"tools": [{"inputSchema": {}}]}, "'name' is None; it must be a text"),
        (
            {"tools": [{"name": "f", "parameters": [{"name": "a", "type": "set"}]}]},
            "has the type 'set'; the types are str",
        ),
        ({"tools": [{"name": "f", "parameters": [{}]}]}, "a parameter has no name"),
    ],
)
def test_definitions_that_cannot_be_read(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_definitions(value, "here")


def test_files_of_json_and_yaml(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("tools:\n- name: f\n  description: d\n  inputSchema: {type: object}\n")
    assert read_definitions(tmp_path / "t.yaml").tools[0].name == "f"
    with pytest.raises(ConfigError, match=r"did you mean 't.yaml'"):
        read_definitions(tmp_path / "t.yml")
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(ConfigError, match="is not valid JSON"):
        read_definitions(tmp_path / "b.json")
    (tmp_path / "b.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        read_definitions(tmp_path / "b.yaml")
