"""Tool definitions in the formats of other systems, read and written.

A file is a list of tools, an object with such a list under `tools`, or one tool. Each tool's format is recognised
by its fields. Everything that cannot be represented is reported and never silently dropped. Source: OpenAI
function tools; Model Context Protocol 2025-11-25; DeepFabric 4.13 tool files.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.core.texts.documents import UNREADABLE, decode_document, is_yaml_name
from treadle.core.texts.json_text import decode_json
from treadle.core.types import Effect, Json, ToolSpec
from treadle.journal.named_files import read_named
from treadle.tools.schema.validation import ArgumentChecker, check_spec, read_effect

MOCK_FIELDS = frozenset(("fixtures", "response", "responses", "mockResponse", "template"))
"""The fields of a mock that a tool in a file may have in addition to its definition."""


class Shape(StrEnum):
    """A format of tool definitions."""

    TREADLE = "treadle"
    """Every field of a `ToolSpec`."""
    OPENAI = "openai"
    """A list of functions. The flat form of the Responses API can be read too."""
    MCP = "mcp"
    """The answer of an MCP server to `tools/list`."""
    DEEPFABRIC = "deepfabric"
    """Parameters as a list, with Python's names for types."""


class DefinitionLoss(Struct, frozen=True):
    """A part of the definitions that was not converted."""

    tool: str
    """The tool's name; empty for a field outside the tools."""
    what: str
    """A description of the part."""


class Definitions(Struct, frozen=True):
    """The result of reading definitions."""

    shape: Shape
    """The format of most tools; if several are equally frequent, the one that occurs first."""
    tools: tuple[ToolSpec, ...]
    raw: tuple[dict[str, Json], ...]
    """The definition of each tool, unchanged."""
    rest: dict[str, Json]
    """The other fields of the document, outside the list of tools."""
    lost: tuple[DefinitionLoss, ...]
    """What a `ToolSpec` cannot represent."""


def read_definitions(path: str | Path) -> Definitions:
    """Read the tools of a JSON file, or a YAML file if PyYAML is installed. Raises: `ConfigError`."""
    file = Path(path).expanduser()
    data = read_named("the tools of ", path)
    return parse_definitions(
        decode_document(data, repr(str(path)), is_yaml=is_yaml_name(file.name)), repr(str(path))
    )


def parse_definitions(value: Json, origin: str) -> Definitions:
    """Read the tools of a decoded value in any format. Raises: `ConfigError` that names the tool and the field."""
    items, rest = _find_tools(value, origin)
    tools: dict[str, ToolSpec] = {}
    shapes: list[Shape] = []
    lost = [DefinitionLoss("", key) for key, item in rest.items() if item is not None]
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise ConfigError(f"{origin}: tool {number} is not an object")
        shape = _shape_of(item)
        label = f"{origin}: tool {number}{_named(item)}"
        left_out: list[str] = []
        tool = _READERS[shape](item, label, left_out)
        _check(tool, label)
        if tool.name in tools:
            raise ConfigError(f"{origin}: two tools are called {tool.name!r}")
        tools[tool.name] = tool
        shapes.append(shape)
        lost += [DefinitionLoss(tool.name, what) for what in left_out]
    return Definitions(max(shapes, key=shapes.count), tuple(tools.values()), tuple(items), rest, tuple(lost))


def write_definitions(tools: Sequence[ToolSpec], shape: Shape) -> tuple[Json, tuple[DefinitionLoss, ...]]:
    """Return the tools in a format, as JSON values, and what the format cannot represent."""
    written, lost = [], []
    for tool in tools:
        item = _WRITERS[shape](tool)
        written.append(item)
        # The losses are found by reading the result back, so that no format needs a list of them.
        lost += [
            DefinitionLoss(tool.name, what)
            for what in find_losses(tool, _READERS[shape](item, tool.name, []))
        ]
    return (written if shape is Shape.OPENAI else {"tools": written}), tuple(lost)


def _find_tools(value: Json, origin: str) -> tuple[list[Json], dict[str, Json]]:
    """Return the list of tools and the other fields of the document."""
    if isinstance(value, dict) and "tools" not in value and isinstance(value.get("result"), dict):
        value = value["result"]
    if isinstance(value, dict) and "tools" not in value:
        if "name" not in value and "function" not in value:
            raise ConfigError(f"{origin}: it has no list 'tools', only {', '.join(map(repr, value))}")
        value = [value]
    rest = {key: item for key, item in value.items() if key != "tools"} if isinstance(value, dict) else {}
    items = value["tools"] if isinstance(value, dict) else value
    if not isinstance(items, list) or not items:
        raise ConfigError(f"{origin}: 'tools' must be a list of at least one tool")
    return items, rest


def _named(item: dict[str, Json]) -> str:
    inner = item.get("function")
    name = inner.get("name") if isinstance(inner, dict) else item.get("name")
    return f" ({name!r})" if isinstance(name, str) else ""


def _shape_of(item: dict[str, Json]) -> Shape:
    if "inputSchema" in item or "input_schema" in item:
        return Shape.MCP
    if "function" in item or item.get("type") == "function":
        return Shape.OPENAI
    if isinstance(item.get("parameters"), list) or item.keys() & {"returns", "category", "component"}:
        return Shape.DEEPFABRIC
    return Shape.TREADLE


def _check(tool: ToolSpec, label: str) -> None:
    if not tool.name:
        raise ConfigError(f"{label} has no name")
    kind = tool.parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise ConfigError(f"{label}: its parameters are of the type {kind!r}, and arguments are an object")
    for field, schema in (("parameters", tool.parameters), ("output schema", tool.output_schema or {})):
        try:
            ArgumentChecker(schema).find_fault({})
        except ConfigError as error:
            raise ConfigError(
                f"{label}: its {field} is not a valid JSON Schema: {error.__cause__}"
            ) from error
    check_spec(tool, label)


def _text(item: dict[str, Json], key: str, label: str) -> str:
    value = item.get(key, "")
    if value is None or isinstance(value, str):
        return value or ""
    raise ConfigError(f"{label}: {key!r} is {value!r}; it must be a string")


def _object(item: dict[str, Json], key: str, label: str) -> dict[str, Json]:
    """Return the object under `key`, or an empty one if there is none. Raises: `ConfigError`."""
    value = item.get(key)
    if value is None or isinstance(value, dict):
        return value or {}
    raise ConfigError(f"{label}: {key!r} is {value!r}; it must be an object")


def _schema(item: dict[str, Json], key: str, label: str) -> dict[str, Json]:
    return _object(item, key, label) or {"type": "object", "properties": {}}


def _effect(value: Json, label: str) -> Effect:
    return Effect.ONCE if value is None else read_effect(value, f"{label}: 'effect'")


def _unknown(item: dict[str, Json], *known: str, below: str = "") -> list[str]:
    return [f"{below}{key}" for key in item if key not in known and item[key] not in (None, False)]


def _read_treadle(item: dict[str, Json], label: str, lost: list[str]) -> ToolSpec:
    fields = ToolSpec.__struct_fields__
    for key in item.keys() - {*fields, *MOCK_FIELDS}:
        hint = did_you_mean(key, fields, f"the fields are {', '.join(fields)}")
        raise ConfigError(f"{label} has an unknown field {key!r}{hint}")
    lost += [key for key in item if key in MOCK_FIELDS]
    known = {key: value for key, value in item.items() if key not in MOCK_FIELDS and value is not None}
    empty = {"description": "", "parameters": {"type": "object", "properties": {}}}
    try:
        return msgspec.convert({**empty, **known}, ToolSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{label}: {error}") from error


def _read_openai(item: dict[str, Json], label: str, lost: list[str]) -> ToolSpec:
    function = _object(item, "function", label) or item
    if function is not item:
        lost += _unknown(item, "type", "function", "effect")
    lost += _unknown(function, "type", "name", "description", "parameters", "effect")
    return ToolSpec(
        _text(function, "name", label),
        _text(function, "description", label),
        _schema(function, "parameters", label),
        _effect(item.get("effect", function.get("effect")), label),
    )


def _read_mcp(item: dict[str, Json], label: str, lost: list[str]) -> ToolSpec:
    hints = _object(item, "annotations", label)
    for key in ("readOnlyHint", "idempotentHint"):
        if hints.get(key) not in (None, True, False):
            raise ConfigError(f"{label}: {key!r} is {hints[key]!r}; it must be true or false")
    effect = Effect.IDEMPOTENT if hints.get("idempotentHint") else Effect.ONCE
    description = _text(item, "description", label)
    lost += _unknown(
        item,
        *("name", "description", "inputSchema", "input_schema", "outputSchema", "annotations"),
        *(() if description else ("title",)),
    )
    lost += _unknown(hints, "readOnlyHint", "idempotentHint", below="annotations.")
    return ToolSpec(
        _text(item, "name", label),
        description or _text(item, "title", label),
        _schema(item, "inputSchema" if "inputSchema" in item else "input_schema", label),
        Effect.PURE if hints.get("readOnlyHint") else effect,
        output_schema=_object(item, "outputSchema", label) or None,
    )


_PYTHON_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
_JSON_TYPES = {value: key for key, value in _PYTHON_TYPES.items()}
_RETURNS = "\n\nReturns: "


def _read_deepfabric(item: dict[str, Json], label: str, lost: list[str]) -> ToolSpec:
    lost += _unknown(item, "name", "description", "parameters", "returns", "effect")
    if item.get("category") == "general":
        lost.remove("category")
    if isinstance(item.get("parameters"), list):
        parameters = _read_parameters(item["parameters"], label, lost)
    else:
        parameters = _schema(item, "parameters", label)
    description, returns = _text(item, "description", label), _text(item, "returns", label)
    if returns:
        description = f"{description}{_RETURNS}{returns}" if description else _RETURNS.lstrip() + returns
    return ToolSpec(_text(item, "name", label), description, parameters, _effect(item.get("effect"), label))


def _read_parameters(given: list[Json], label: str, lost: list[str]) -> dict[str, Json]:
    properties: dict[str, Json] = {}
    required = []
    for number, item in enumerate(given, 1):
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise ConfigError(f"{label}: parameter {number} has no 'name': {item!r}")
        name, kind = item["name"], item.get("type", "str")
        if name in properties:
            raise ConfigError(f"{label}: two parameters are called {name!r}")
        if not isinstance(kind, str) or (kind not in _PYTHON_TYPES and kind not in _JSON_TYPES):
            known = ", ".join(_PYTHON_TYPES)
            raise ConfigError(f"{label}: parameter {name!r} has the type {kind!r}; the types are {known}")
        schema: dict[str, Json] = {"type": _PYTHON_TYPES.get(kind, kind)}
        if description := _text(item, "description", f"{label}, parameter {name!r}"):
            schema["description"] = description
        default = item.get("default")
        if default not in (None, ""):
            value = _read_default(default, schema["type"])
            if value is None:
                lost.append(f"the default {default!r} of {name!r}")
            else:
                schema["default"] = value
        unknown = _unknown(item, "name", "type", "description", "required", "default")
        lost += [f"{key} of {name!r}" for key in unknown]
        properties[name] = schema
        if item.get("required", True):
            required.append(name)
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _read_default(value: Json, json_type: str) -> Json:
    """Return a default, written as JSON or Python, as a value. Return `None` if it does not have the type."""
    if isinstance(value, str) and json_type != "string":
        try:
            value = decode_json(value)
        except UNREADABLE:
            try:
                value = ast.literal_eval(value)
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                return None
    is_fit = ArgumentChecker({"properties": {"v": {"type": json_type}}}).find_fault({"v": value}) is None
    return value if is_fit else None


def _write_treadle(tool: ToolSpec) -> Json:
    head = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {**head, "effect": tool.effect.value, **msgspec.to_builtins(tool)}


def _write_openai(tool: ToolSpec) -> Json:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _write_mcp(tool: ToolSpec) -> Json:
    written: dict[str, Json] = {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": {"type": "object", **tool.parameters},
        "annotations": {
            "readOnlyHint": tool.effect is Effect.PURE,
            "idempotentHint": tool.effect is not Effect.ONCE,
        },
    }
    return written if tool.output_schema is None else {**written, "outputSchema": tool.output_schema}


def _write_deepfabric(tool: ToolSpec) -> Json:
    required = tool.parameters.get("required", ())
    text, _, returns = tool.description.partition(_RETURNS)
    if not text or not returns:
        text, returns = tool.description, ""
    parameters = []
    for name, schema in tool.parameters.get("properties", {}).items():
        known = schema if isinstance(schema, dict) else {}
        kinds = known.get("type")
        kind = next(
            (item for item in (kinds if isinstance(kinds, list) else [kinds]) if item != "null"), None
        )
        default = known.get("default")
        is_text = default is None or isinstance(default, str)
        parameters.append(
            {
                "name": name,
                "type": _JSON_TYPES.get(str(kind), "str"),
                "description": known.get("description", ""),
                "required": name in required,
                "default": default if is_text else msgspec.json.encode(default).decode(),
            }
        )
    about = {"name": tool.name, "description": text, "parameters": parameters}
    return {**about, "returns": returns, "category": "general"}


_Reader: TypeAlias = Callable[[dict[str, Json], str, list[str]], ToolSpec]
_READERS: dict[Shape, _Reader] = {
    Shape.TREADLE: _read_treadle,
    Shape.OPENAI: _read_openai,
    Shape.MCP: _read_mcp,
    Shape.DEEPFABRIC: _read_deepfabric,
}
_WRITERS: dict[Shape, Callable[[ToolSpec], Json]] = {
    Shape.TREADLE: _write_treadle,
    Shape.OPENAI: _write_openai,
    Shape.MCP: _write_mcp,
    Shape.DEEPFABRIC: _write_deepfabric,
}


def find_losses(tool: ToolSpec, back: ToolSpec) -> Iterator[str]:
    """Yield a text for each difference between `tool` and `back`, the definition that was read back."""
    for field in ToolSpec.__struct_fields__:
        if field != "parameters" and getattr(tool, field) != getattr(back, field):
            yield field
    mine, theirs = _normalize(tool.parameters), _normalize(back.parameters)
    for key in {**mine, **theirs}:
        if key != "properties" and not _is_same(mine.get(key), theirs.get(key)):
            yield f"{key} of the parameters"
    for name, schema in mine["properties"].items():
        known = theirs["properties"].get(name)
        if isinstance(schema, dict) and isinstance(known, dict):
            for key in {**schema, **known}:
                is_empty = key == "description" and not schema.get(key)
                if not is_empty and not _is_same(schema.get(key, ...), known.get(key, ...)):
                    yield f"{key} of {name!r}"
        elif not _is_same(schema, known):
            yield f"the schema of {name!r}"


def _normalize(parameters: dict[str, Json]) -> dict[str, Json]:
    required = sorted(parameters.get("required", ()))
    return {"type": "object", "properties": {}, **parameters, "required": required}


def _is_same(one: Json, other: Json) -> bool:
    if ... in (one, other):
        return one is other
    return msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")
