"""A value that fits a JSON Schema, for mocked answers."""

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


def make_instance(schema: Json, text: str = "text") -> Json:
    """Return a value that fits `schema`, with `text` as its free strings.

    Only types, choices, lengths and ranges are respected; other keywords, such as `pattern`, are ignored.
    """
    return _make(schema, schema, text, 0)


def _make(schema: Json, root: Json, text: str, depth: int) -> Json:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None if depth > _MAX_DEPTH else text
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        choices = schema.get(key)
        if isinstance(choices, list) and choices:
            return choices[0]
    if isinstance(reference := schema.get("$ref"), str):
        return _make(_follow(reference, root), root, text, depth + 1)
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        if isinstance(choices, list) and choices:
            return _make(choices[0], root, text, depth + 1)
    if isinstance(parts := schema.get("allOf"), list):
        schema = _join(schema, [_follow_all(part, root) for part in parts])
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind == "object" or "properties" in schema:
        return _make_object(schema, root, text, depth)
    if kind == "array":
        count = schema.get("minItems")
        item = _make(schema.get("items", True), root, text, depth + 1)
        return [item] * max(1, count if isinstance(count, int) else 1)
    if kind in ("integer", "number"):
        return _make_number(schema)
    return (
        {"boolean": True, "null": None}[kind] if kind in ("boolean", "null") else _make_string(schema, text)
    )


def _make_object(schema: dict[str, Json], root: Json, text: str, depth: int) -> Json:
    properties = schema.get("properties")
    wanted = schema.get("required")
    known = properties if isinstance(properties, dict) else {}
    names = (
        [*known, *(name for name in wanted if name not in known)] if isinstance(wanted, list) else [*known]
    )
    if depth > _MAX_DEPTH // 2 and isinstance(wanted, list):
        names = wanted  # a schema that contains itself ends here, if it can end
    return {str(name): _make(known.get(str(name), True), root, text, depth + 1) for name in names}


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
    """Return the schema that `reference` points to within `root`; True, which any value fits, if there is none."""
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
