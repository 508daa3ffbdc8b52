"""Differences between a tool's definition and the same definition read back from another format."""

from collections.abc import Iterator

import msgspec

from treadle.core.types import Json, ToolSpec


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
