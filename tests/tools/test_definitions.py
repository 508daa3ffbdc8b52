"""Tool definitions in the forms of other libraries: reading, writing, and reporting what is lost."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.texts.documents import decode_document, is_yaml_name
from treadle.core.types import Effect, ToolSpec
from treadle.tools.schema.tool_definitions import (
    DefinitionLoss,
    Shape,
    parse_definitions,
    read_definitions,
    write_definitions,
)

names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_-]{0,20}", fullmatch=True)
values = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "x", "true", "None", "[1]"])
kinds = st.sampled_from(["string", "integer", "number", "boolean", "array", "object"])
plain = st.fixed_dictionaries({"type": kinds}, optional={"description": st.text()})
rich = st.fixed_dictionaries(
    {},
    optional={
        "type": kinds | st.lists(kinds | st.just("null"), min_size=1, unique=True),
        "description": st.text(),
        "default": values,
        "enum": st.lists(values, min_size=1),
        "minimum": st.integers(0, 3),
        "anyOf": st.just([{"type": "string"}, {"type": "null"}]),
    },
)
texts = st.text() | st.sampled_from(["A.\n\nReturns: a text", "Returns: x", "\n\nReturns: ", "\n\n"])


@st.composite
def specs(draw: st.DrawFn, schemas: st.SearchStrategy[Any]) -> ToolSpec:
    properties = draw(st.dictionaries(names, schemas, max_size=4))
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    required = [name for name in properties if draw(st.booleans())]
    if required:
        parameters["required"] = draw(st.permutations(required))
    return ToolSpec(draw(names), draw(texts), parameters, draw(st.sampled_from(Effect)))


@st.composite
def rich_specs(draw: st.DrawFn) -> ToolSpec:
    spec = draw(specs(rich | st.booleans()))
    return replace(
        spec,
        parameters=spec.parameters
        | draw(st.sampled_from([{}, {"additionalProperties": False}, {"$defs": {}}])),
        timeout_seconds=draw(st.none() | st.floats(0.1, 5)),
        is_concurrent=draw(st.booleans()),
        max_result_chars=draw(st.sampled_from([100_000, 5])),
        max_calls=draw(st.none() | st.just(3)),
        max_concurrent=draw(st.none() | st.just(2)),
        output_schema=draw(st.none() | st.just({"type": "integer"})),
        may_differ=draw(st.sampled_from([(), ("order", "a+")])),
    )


def sort_required(tool: ToolSpec) -> ToolSpec:
    required = {"required": sorted(tool.parameters["required"])} if "required" in tool.parameters else {}
    return replace(tool, parameters={**tool.parameters, **required})


def through(tool: ToolSpec, shape: Shape) -> tuple[ToolSpec, list[str]]:
    written, lost = write_definitions([tool], shape)
    read = parse_definitions(json.loads(json.dumps(written)), "here")
    assert {item.tool for item in lost} <= {tool.name}
    return read.tools[0], [item.what for item in lost]


@given(specs(plain), st.sampled_from(Shape))
def test_what_is_plain_goes_through_every_shape(tool: ToolSpec, shape: Shape) -> None:
    back, lost = through(tool, shape)
    assert set(lost) <= {"effect"}
    if shape in (Shape.TREADLE, Shape.MCP):
        assert not lost
    if shape is Shape.DEEPFABRIC:
        for schema in tool.parameters["properties"].values():
            if not schema.get("description"):
                schema.pop("description", None)
    assert sort_required(replace(back, effect=tool.effect)) == sort_required(tool)


@given(rich_specs(), st.sampled_from(Shape))
def test_nothing_is_lost_without_a_word(tool: ToolSpec, shape: Shape) -> None:
    back, lost = through(tool, shape)
    if shape is Shape.TREADLE:
        assert (back, lost) == (tool, [])
    if not lost:
        assert (
            json.dumps(
                back.parameters["properties"].keys() ^ tool.parameters["properties"].keys(), default=list
            )
            == "[]"
        )
        assert replace(back, parameters={}) == replace(tool, parameters={})
    for name, schema in tool.parameters["properties"].items():
        found = back.parameters["properties"].get(name)
        is_told = any(what.endswith(f" of {name!r}") for what in lost)
        empty = {"description": ""} if isinstance(schema, dict) and schema.get("description") == "" else {}
        is_same = isinstance(found, dict) and json.dumps({**found, **empty}, sort_keys=True) == json.dumps(
            schema, sort_keys=True
        )
        assert is_told is not (is_same or found is schema)


def test_the_shapes_as_others_write_them() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    openai = {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}
    flat = {"type": "function", "name": "f", "description": "d", "parameters": schema}
    mcp = {"name": "f", "description": "d", "inputSchema": schema, "annotations": {"readOnlyHint": True}}
    anthropic = {"name": "f", "description": "d", "input_schema": schema}
    parameter = {"name": "a", "type": "str", "description": "", "required": True}
    deepfabric = {
        "name": "f",
        "description": "d",
        "parameters": [parameter],
        "returns": "",
        "category": "general",
    }
    treadle = {"name": "f", "description": "d", "parameters": schema, "effect": "pure"}
    for value, shape in (
        ([openai], Shape.OPENAI),
        (openai, Shape.OPENAI),
        ({"tools": [flat]}, Shape.OPENAI),
        ({"tools": [mcp]}, Shape.MCP),
        ({"jsonrpc": "2.0", "id": 1, "result": {"tools": [mcp]}}, Shape.MCP),
        (anthropic, Shape.MCP),
        ({"tools": [deepfabric]}, Shape.DEEPFABRIC),
        (treadle, Shape.TREADLE),
    ):
        read = parse_definitions(value, "here")
        (tool,) = read.tools
        assert (read.shape, tool.name, tool.description, tool.parameters) == (shape, "f", "d", schema)
        effect = Effect.PURE if shape is Shape.TREADLE or "annotations" in repr(value) else Effect.ONCE
        assert (tool.effect, read.lost) == (effect, ())
    mixed = parse_definitions([treadle, {**openai["function"], "name": "g", "inputSchema": {}}], "here")  # type: ignore[dict-item]
    assert mixed.shape is Shape.TREADLE


def test_defaults_of_deepfabric_are_written_as_texts() -> None:
    given = {
        "n": ("int", "5", 5),
        "b": ("bool", "True", True),
        "c": ("bool", "false", False),
        "s": ("str", "5", "5"),
        "l": ("list", "[1]", [1]),
        "p": ("list", "['markdown']", ["markdown"]),
        "d": ("dict", {"a": 1}, {"a": 1}),
        "f": ("float", "1", 1),
        "none": ("list", "None", None),
        "empty": ("str", "", None),
        "wrong": ("int", "five", None),
        "text": ("int", "'5'", None),
    }
    parameters = [
        {"name": name, "type": kind, "required": False, "default": default}
        for name, (kind, default, _) in given.items()
    ]
    read = parse_definitions({"tools": [{"name": "f", "parameters": parameters, "returns": "x"}]}, "h")
    properties = read.tools[0].parameters["properties"]
    assert {name: schema.get("default") for name, schema in properties.items()} == {
        name: expected for name, (_, _, expected) in given.items()
    }
    assert "required" not in read.tools[0].parameters
    assert read.tools[0].description == "Returns: x"
    assert [item.what for item in read.lost] == [
        "the default 'None' of 'none'",
        "the default 'five' of 'wrong'",
        "the default \"'5'\" of 'text'",
    ]


def test_what_a_definition_has_no_place_for_is_told() -> None:
    schema = {"type": "object", "properties": {}}
    function = {"name": "f", "parameters": schema, "strict": True}
    mcp = {
        "name": "g",
        "inputSchema": schema,
        "title": "G",
        "description": "d",
        "annotations": {"title": "x"},
    }
    deepfabric = {"name": "h", "parameters": [{"name": "a", "enum": ["x"]}], "category": "files"}
    value = {
        "tools": [{"type": "function", "function": function}, mcp, deepfabric],
        "nextCursor": "more",
        "_meta": None,
    }
    assert parse_definitions(value, "here").lost == (
        DefinitionLoss("", "nextCursor"),
        DefinitionLoss("f", "strict"),
        DefinitionLoss("g", "title"),
        DefinitionLoss("g", "annotations.title"),
        DefinitionLoss("h", "category"),
        DefinitionLoss("h", "enum of 'a'"),
    )


def test_what_a_shape_cannot_hold_is_told() -> None:
    schema = {"a": {"type": "string", "enum": ["x"]}, "b": {"type": ["string", "null"]}, "c": {}}
    parameters = {"type": "object", "properties": schema, "additionalProperties": False}
    spec = ToolSpec("f", "d", parameters, Effect.PURE, timeout_seconds=3, may_differ=("order",))
    assert through(spec, Shape.TREADLE)[1] == []
    assert through(spec, Shape.MCP)[1] == ["timeout_seconds", "may_differ"]
    assert through(spec, Shape.OPENAI)[1] == ["effect", "timeout_seconds", "may_differ"]
    assert through(spec, Shape.DEEPFABRIC)[1] == [
        "effect",
        "timeout_seconds",
        "may_differ",
        "additionalProperties of the parameters",
        "enum of 'a'",
        "type of 'b'",
        "type of 'c'",
    ]


def tool(**fields: Any) -> Any:
    return {"tools": [{"name": "f", **fields}]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "must be a list of at least one tool"),
        (None, "must be a list of at least one tool"),
        ({"tool": []}, "it has no list 'tools', only 'tool'"),
        ({"tools": ["x"]}, "tool 1 is not an object"),
        (tool(efect="pure"), r"tool 1 \('f'\) has an unknown field 'efect'; did you mean 'effect'"),
        (tool(effect="twice"), "Invalid enum value 'twice'"),
        (
            tool(type="function", effect=["x"]),
            r"'effect' is \['x'\]; use one of 'pure', 'idempotent', 'once'",
        ),
        ({"tools": [{"name": "f"}, {"name": "f"}]}, "two tools are called 'f'"),
        (tool(inputSchema={"type": "nonsense"}), "its parameters are of the type 'nonsense'"),
        (
            tool(inputSchema={"type": "array"}),
            "its parameters are of the type 'array', and arguments are an object",
        ),
        (
            tool(inputSchema={"required": 5}),
            r"tool 1 \('f'\): its parameters is not a valid JSON Schema: 5 is not",
        ),
        (tool(inputSchema={}, outputSchema={"type": 5}), "its output schema is not a valid JSON Schema"),
        (tool(inputSchema=[]), r"'inputSchema' is \[\]; it must be an object"),
        (tool(inputSchema={}, annotations=["x"]), r"'annotations' is \['x'\]; it must be an object"),
        (
            tool(inputSchema={}, annotations={"readOnlyHint": "no"}),
            "'readOnlyHint' is 'no'; it must be true or false",
        ),
        (tool(function=5), "'function' is 5; it must be an object"),
        (tool(description=5, category="x"), "'description' is 5; it must be a string"),
        ({"tools": [{"inputSchema": {}}]}, "tool 1 has no name"),
        ({"tools": [{"name": 5, "inputSchema": {}}]}, "'name' is 5; it must be a string"),
        (tool(parameters=[{"name": "a", "type": "set"}]), "has the type 'set'; the types are str"),
        (tool(parameters=[{"name": "a", "type": ["str"]}]), r"has the type \['str'\]"),
        (tool(parameters=[{"name": "a"}, {"name": "a"}]), "two parameters are called 'a'"),
        (tool(parameters=[{}]), "parameter 1 has no 'name'"),
        (tool(max_calls=0), "max_calls is 0; it must be at least 1"),
        (tool(may_differ=["("]), "which is not a regular expression"),
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
    (tmp_path / "bom.json").write_bytes(b'\xef\xbb\xbf[{"name": "f"}]')
    assert read_definitions(str(tmp_path / "bom.json")).shape is Shape.TREADLE
    with pytest.raises(ConfigError, match=r"cannot read the tools of .*: Is a directory$"):
        read_definitions(tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("b.json", b"{", "'b.json' is not valid JSON"),
        ("b.json", b'"\xff"', "'b.json' is not valid JSON"),
        ("b.json", b"[" * 100_000, "'b.json' is nested too deeply"),
        ("b.yaml", b"a: [", "'b.yaml' is not valid YAML"),
        ("b.yaml", b"a: &a [*a]", "'b.yaml' is nested too deeply"),
        ("b.yaml", b"? [a]\n: b", "'b.yaml' is not valid YAML"),
        ("b.yaml", b"on: 1", "'b.yaml': the key True is not a text; put it in quotes"),
    ],
)
def test_files_that_cannot_be_read(name: str, data: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode_document(data, repr(name), is_yaml=is_yaml_name(name))


def test_yaml_becomes_json() -> None:
    value = decode_document(b"at: 2020-01-01\n1: {200: x}", "here", is_yaml=is_yaml_name("t.YML"))
    assert value == {"at": "2020-01-01", "1": {"200": "x"}}
