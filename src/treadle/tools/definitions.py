"""Tool definitions in the shapes of others: read whatever there is, write what is asked for.

Shapes: `treadle` (every field of a `ToolSpec`), `openai` (a list of functions, also the flat one of Responses),
`mcp` (as `tools/list` answers), `deepfabric` (parameters as a list).
Source: OpenAI function tools; Model Context Protocol 2025-11-25; DeepFabric 4.13 tool files.
"""

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.types import Effect, Json, ToolSpec
from treadle.registry import require
from treadle.tools.validation import ArgumentChecker

_DEEPFABRIC_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
_JSON_TYPES = {value: key for key, value in _DEEPFABRIC_TYPES.items()}
_TREADLE_FIELDS = frozenset(ToolSpec.__struct_fields__)


class Definitions(Struct, frozen=True):
    """What was read."""

    shape: str
    tools: tuple[ToolSpec, ...]
    raw: tuple[dict[str, Json], ...]
    """Each tool as it was written."""
    rest: dict[str, Json]
    """What stands beside the tools."""


def read_definitions(path: str | Path) -> Definitions:
    """The tools of a file: JSON, or YAML where PyYAML is installed. Raises: `ConfigError`."""
    file = Path(path).expanduser()
    try:
        data = file.read_bytes()
    except OSError as error:
        known = [item.name for item in file.parent.glob("*")] if file.parent.is_dir() else []
        near = difflib.get_close_matches(file.name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"cannot read the tools of {str(path)!r}: {error.strerror}{hint}") from error
    return parse_definitions(decode(data, file.suffix, repr(str(path))), repr(str(path)))


def decode(data: bytes, suffix: str, origin: str) -> Json:
    """The value of a JSON or YAML file. Raises: `ConfigError`."""
    if suffix in (".yaml", ".yml"):
        yaml = require("yaml", "yaml")
        try:
            return yaml.safe_load(data)
        except yaml.YAMLError as error:
            raise ConfigError(f"{origin} is not valid YAML: {error}") from error
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{origin} is not valid JSON: {error}") from error


def parse_definitions(value: Json, origin: str) -> Definitions:
    """The tools of a decoded value, in whatever shape. Raises: `ConfigError`."""
    rest: dict[str, Json] = {}
    items = value
    if isinstance(value, dict):
        rest = {key: item for key, item in value.items() if key != "tools"}
        items = value.get("tools", [value] if "name" in value or "function" in value else None)
        if items is None:
            raise ConfigError(f"{origin}: there is no list 'tools' in it, but {', '.join(map(repr, value))}")
        rest = {} if "tools" not in value else rest
    if not isinstance(items, list) or not items:
        raise ConfigError(f"{origin}: 'tools' must be a list of at least one tool")
    shapes, tools = [], []
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise ConfigError(f"{origin}: tool {number} is no object")
        shape = _shape_of(item)
        label = f"{origin}: tool {number}{_named(item)}"
        tools.append(_check(_READERS[shape](item, label), label))
        shapes.append(shape)
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{origin}: two tools are called {name!r}")
    return Definitions(max(set(shapes), key=shapes.count), tuple(tools), tuple(items), rest)


def write_definitions(tools: Sequence[ToolSpec], shape: str) -> tuple[Json, tuple[str, ...]]:
    """The tools in a shape, and what it cannot hold of them, told. Raises: `ConfigError` for an unknown shape."""
    if shape not in _WRITERS:
        raise ConfigError(f"there is no shape {shape!r}; the shapes are {', '.join(_WRITERS)}")
    lost: list[str] = []
    written = [_WRITERS[shape](tool, lost) for tool in tools]
    return (written if shape == "openai" else {"tools": written}), tuple(lost)


def _named(item: dict[str, Json]) -> str:
    inner = item.get("function")
    name = inner.get("name") if isinstance(inner, dict) else item.get("name")
    return f" ({name!r})" if isinstance(name, str) else ""


def _shape_of(item: dict[str, Json]) -> str:
    if "inputSchema" in item or "input_schema" in item:
        return "mcp"
    if "function" in item or item.get("type") == "function":
        return "openai"
    if isinstance(item.get("parameters"), list) or "returns" in item or "category" in item:
        return "deepfabric"
    return "treadle"


def _check(tool: ToolSpec, label: str) -> ToolSpec:
    if not tool.name:
        raise ConfigError(f"{label} has no name")
    if not isinstance(tool.parameters, dict):
        raise ConfigError(f"{label}: its parameters are no JSON Schema of an object")
    try:
        ArgumentChecker(tool.parameters).find_fault({})
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}") from error
    return tool


def _text(item: dict[str, Json], key: str, label: str, default: str | None = None) -> str:
    value = item.get(key, default)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise ConfigError(f"{label}: {key!r} is {value!r}; it must be a text")
    return value


def _read_treadle(item: dict[str, Json], label: str) -> ToolSpec:
    unknown = (
        item.keys() - _TREADLE_FIELDS - {"fixtures", "responses", "response", "mockResponse", "template"}
    )
    if unknown:
        near = difflib.get_close_matches(min(unknown), _TREADLE_FIELDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{label} has an unknown field {min(unknown)!r}{hint}")
    known = {key: value for key, value in item.items() if key in _TREADLE_FIELDS}
    try:
        return msgspec.convert({"description": "", "parameters": {"type": "object"}, **known}, ToolSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{label}: {error}") from error


def _read_openai(item: dict[str, Json], label: str) -> ToolSpec:
    function = item.get("function", item)
    if not isinstance(function, dict):
        raise ConfigError(f"{label}: 'function' is no object")
    return ToolSpec(
        _text(function, "name", label),
        _text(function, "description", label, ""),
        function.get("parameters") or {"type": "object", "properties": {}},
        _effect(item.get("effect", function.get("effect")), label),
    )


def _read_mcp(item: dict[str, Json], label: str) -> ToolSpec:
    hints = item.get("annotations") or {}
    effect = Effect.ONCE
    if hints.get("readOnlyHint"):
        effect = Effect.PURE
    elif hints.get("idempotentHint"):
        effect = Effect.IDEMPOTENT
    return ToolSpec(
        _text(item, "name", label),
        _text(item, "description", label, "") or str(item.get("title") or ""),
        item.get("inputSchema", item.get("input_schema")) or {"type": "object"},
        effect,
        output_schema=item.get("outputSchema"),
    )


def _read_deepfabric(item: dict[str, Json], label: str) -> ToolSpec:
    properties: dict[str, Json] = {}
    required = []
    given = item.get("parameters") or []
    if isinstance(given, dict):
        properties, required = given.get("properties", {}), list(given.get("required", []))
        given = []
    for parameter in given:
        if not isinstance(parameter, dict) or not isinstance(parameter.get("name"), str):
            raise ConfigError(f"{label}: a parameter has no name: {parameter!r}")
        name, kind = parameter["name"], parameter.get("type", "str")
        json_type = _DEEPFABRIC_TYPES.get(kind, kind if kind in _JSON_TYPES else None)
        if json_type is None:
            known = ", ".join(_DEEPFABRIC_TYPES)
            raise ConfigError(f"{label}: parameter {name!r} has the type {kind!r}; the types are {known}")
        schema: dict[str, Json] = {"type": json_type}
        if parameter.get("description"):
            schema["description"] = parameter["description"]
        if parameter.get("default") is not None:
            schema["default"] = _read_default(parameter["default"], json_type)
        properties[name] = schema
        if parameter.get("required", True):
            required.append(name)
    returns = item.get("returns")
    description = _text(item, "description", label, "")
    if isinstance(returns, str) and returns:
        description = f"{description}\n\nReturns: {returns}".strip()
    parameters: dict[str, Json] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    return ToolSpec(_text(item, "name", label), description, parameters, _effect(item.get("effect"), label))


def _read_default(value: Json, json_type: str) -> Json:
    """Defaults are written as texts."""
    if not isinstance(value, str) or json_type == "string":
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return {"True": True, "False": False}.get(value, value)


def _effect(value: Json, label: str) -> Effect:
    try:
        return Effect.ONCE if value is None else Effect(value)
    except ValueError:
        raise ConfigError(f"{label}: the effect {value!r} is none of {', '.join(Effect)}") from None


def _write_treadle(tool: ToolSpec, lost: list[str]) -> Json:
    return msgspec.to_builtins(tool)


def _write_openai(tool: ToolSpec, lost: list[str]) -> Json:
    _tell_lost(
        tool, lost, "openai", ("effect", "output_schema", "timeout_seconds", "max_calls", "max_concurrent")
    )
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _write_mcp(tool: ToolSpec, lost: list[str]) -> Json:
    _tell_lost(tool, lost, "mcp", ("timeout_seconds", "max_calls", "max_concurrent"))
    hints = {
        "readOnlyHint": tool.effect is Effect.PURE,
        "idempotentHint": tool.effect is not Effect.ONCE,
    }
    written: dict[str, Json] = {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.parameters,
        "annotations": hints,
    }
    if tool.output_schema is not None:
        written["outputSchema"] = tool.output_schema
    return written


def _write_deepfabric(tool: ToolSpec, lost: list[str]) -> Json:
    _tell_lost(tool, lost, "deepfabric", ("effect", "output_schema", "timeout_seconds", "max_calls"))
    required = tool.parameters.get("required", [])
    text, _, returns = tool.description.partition("\n\nReturns: ")
    parameters = []
    for name, schema in tool.parameters.get("properties", {}).items():
        kind = schema.get("type") if isinstance(schema, dict) else None
        if isinstance(kind, list):
            kind = next((item for item in kind if item != "null"), None)
        more = (
            schema.keys() - {"type", "description", "default", "title"}
            if isinstance(schema, dict)
            else {"schema"}
        )
        if kind not in _JSON_TYPES or more:
            lost.append(
                f"{tool.name}: the shape deepfabric cannot hold {', '.join(sorted(more)) or kind} of {name!r}"
            )
        default = schema.get("default") if isinstance(schema, dict) else None
        parameters.append(
            {
                "name": name,
                "type": _JSON_TYPES.get(str(kind), "str"),
                "description": schema.get("description", "") if isinstance(schema, dict) else "",
                "required": name in required,
                "default": default
                if default is None or isinstance(default, str)
                else msgspec.json.encode(default).decode(),
            }
        )
    return {
        "name": tool.name,
        "description": text,
        "parameters": parameters,
        "returns": returns or "str",
        "category": "general",
    }


def _tell_lost(tool: ToolSpec, lost: list[str], shape: str, fields: Sequence[str]) -> None:
    plain = ToolSpec(tool.name, "", {})
    for name in fields:
        if getattr(tool, name) != getattr(plain, name):
            lost.append(f"{tool.name}: the shape {shape} cannot hold {name}")


_READERS: dict[str, Callable[[dict[str, Json], str], ToolSpec]] = {
    "treadle": _read_treadle,
    "openai": _read_openai,
    "mcp": _read_mcp,
    "deepfabric": _read_deepfabric,
}
_WRITERS: dict[str, Callable[[ToolSpec, list[str]], Any]] = {
    "treadle": _write_treadle,
    "openai": _write_openai,
    "mcp": _write_mcp,
    "deepfabric": _write_deepfabric,
}
SHAPES = tuple(_WRITERS)
