"""A value that fits a JSON Schema, for mocked answers."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from treadle.core.types import Json

_MAX_DEPTH = 20
_FORMATS = {
    "date": "2026-01-31",
    "time": "12:00:00Z",
    "date-time": "2026-01-31T12:00:00Z",
    "duration": "P1D",
    "email": "user@example.org",
    "uri": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "hostname": "example.org",
}


Fill: TypeAlias = Callable[[str, Mapping[str, Json]], Json]
"""A function of a property's name and schema that returns its value; `None` leaves it to `make_instance`."""


def make_instance(schema: Json, text: str = "text", fill: Fill | None = None) -> Json:
    """Return a value that fits `schema`, with `text` as its free strings.

    Only types, choices, lengths and ranges are respected; other keywords, such as `pattern`, are ignored. `fill` is
    asked for the value of each property first.
    """
    return _Maker(schema, text, fill).make(schema, 0)


def only_required(schema: dict[str, Json]) -> dict[str, Json]:
    """Return the schema of an object without its optional properties."""
    known, required = schema.get("properties"), schema.get("required")
    if not isinstance(known, dict) or not isinstance(required, list):
        return {**schema, "properties": {}}
    return {**schema, "properties": {name: known[name] for name in known if name in required}}


class _Maker:
    def __init__(self, root: Json, text: str, fill: Fill | None) -> None:
        self._root = root
        self._text = text
        self._fill = fill

    def make(self, schema: Json, depth: int, name: str = "") -> Json:
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return None if depth > _MAX_DEPTH else self._text
        if self._fill is not None and name and (filled := self._fill(name, schema)) is not None:
            return filled
        for key in ("const", "default"):
            if key in schema:
                return schema[key]
        for key in ("enum", "examples"):
            choices = schema.get(key)
            if isinstance(choices, list) and choices:
                return choices[0]
        if isinstance(reference := schema.get("$ref"), str):
            return self.make(_follow(reference, self._root), depth + 1, name)
        for key in ("anyOf", "oneOf"):
            choices = schema.get(key)
            if isinstance(choices, list) and choices:
                return self.make(choices[0], depth + 1, name)
        if isinstance(parts := schema.get("allOf"), list):
            schema = _join(schema, [_follow_all(part, self._root) for part in parts])
        return self._make_typed(schema, depth, name)

    def _make_typed(self, schema: dict[str, Json], depth: int, name: str) -> Json:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = kind[0] if kind else None
        if kind == "object" or "properties" in schema:
            return self._make_object(schema, depth)
        if kind == "array":
            count = schema.get("minItems")
            length = max(1, count if isinstance(count, int) else 1)
            return [self.make(schema.get("items", True), depth + 1, name) for _ in range(length)]
        if kind in ("integer", "number"):
            return _make_number(schema)
        if kind in ("boolean", "null"):
            return True if kind == "boolean" else None
        return _make_string(schema, self._text)

    def _make_object(self, schema: dict[str, Json], depth: int) -> Json:
        properties = schema.get("properties")
        wanted = schema.get("required")
        known = properties if isinstance(properties, dict) else {}
        names = [*known]
        if isinstance(wanted, list):
            names += [name for name in wanted if name not in known]
            if depth > _MAX_DEPTH // 2:
                names = wanted  # a schema that contains itself ends here, if it can end
        return {str(name): self.make(known.get(str(name), True), depth + 1, str(name)) for name in names}


def _make_number(schema: dict[str, Json]) -> Json:
    number: float = 1
    for key, step in (("minimum", 0), ("exclusiveMinimum", 1)):
        bound = schema.get(key)
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            number = max(number, bound + step)
    for key, step in (("maximum", 0), ("exclusiveMaximum", 1)):
        bound = schema.get(key)
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            number = min(number, bound - step)
    factor = schema.get("multipleOf")
    if isinstance(factor, int | float) and factor > 0:
        number = -(-number // factor) * factor
    return int(number) if schema.get("type") == "integer" else number


def _make_string(schema: dict[str, Json], text: str) -> str:
    made = _FORMATS.get(str(schema.get("format")), text)
    low, high = schema.get("minLength"), schema.get("maxLength")
    if isinstance(low, int):
        made = made.ljust(low, ".")
    return made[:high] if isinstance(high, int) else made


def _follow_all(schema: Json, root: Json) -> Json:
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    return _follow(reference, root) if isinstance(reference, str) else schema


def _follow(reference: str, root: Json) -> Json:
    """Return the schema that `reference` points to in `root`; True, which any value fits, if nothing is there."""
    found = root
    for name in reference.removeprefix("#").strip("/").split("/") if reference.startswith("#") else ():
        if name:
            found = (
                found.get(name.replace("~1", "/").replace("~0", "~"), True)
                if isinstance(found, dict)
                else True
            )
    return found if reference.startswith("#") else True


def _join(schema: dict[str, Json], parts: list[Json]) -> dict[str, Json]:
    """Return one schema for an `allOf`, with the properties of all its parts."""
    joined = dict(schema)
    properties: dict[str, Json] = {}
    for part in [schema, *parts]:
        if isinstance(part, dict):
            joined = {**part, **joined}
            if isinstance(own := part.get("properties"), dict):
                properties |= own
    return joined | ({"properties": properties, "type": "object"} if properties else {})
