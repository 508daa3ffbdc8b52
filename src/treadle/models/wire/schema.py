"""Checks of JSON Schemas against the requirements of providers."""

from collections.abc import Iterator

from treadle.core.types import Json


def is_strict(schema: Json) -> bool:
    """Return whether OpenAI accepts `schema` with `strict`: objects are closed, and all properties required."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return False
    for item in _subschemas(schema):
        if item.get("type") == "object" or "properties" in item:
            properties = item.get("properties", {})
            if item.get("additionalProperties") is not False:
                return False
            if set(item.get("required", ())) != set(properties):
                return False
    return True


def is_closed(schema: Json) -> bool:
    """Return whether every object in `schema` forbids properties other than those named."""
    return all(
        item.get("additionalProperties") is False
        for item in _subschemas(schema)
        if item.get("type") == "object" or "properties" in item
    )


def _subschemas(schema: Json) -> Iterator[dict[str, Json]]:
    """Yield every object in `schema` that may be a schema, itself first."""
    if isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            if key in ("properties", "$defs", "definitions") and isinstance(value, dict):
                for item in value.values():
                    yield from _subschemas(item)
            elif key not in ("enum", "const", "default", "examples", "required"):
                yield from _subschemas(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _subschemas(item)
