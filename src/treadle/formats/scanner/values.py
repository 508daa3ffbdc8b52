"""Arguments as text: values are read as the types in the tool's schema, and written."""

from collections.abc import Iterator, Mapping

import msgspec

from treadle.core.errors import FormatError
from treadle.core.types import Json, ToolCall
from treadle.formats.scanner.json_body import NoCall, decode
from treadle.formats.scanner.parsed import ToolSchemas, to_json

_MAX_REFS = 8

TEXT = frozenset(("string",))


def types_of(schemas: ToolSchemas, name: str, key: str) -> frozenset[str]:
    """Return the types that a parameter's values may have.

    The set is empty if the parameter's schema does not say. A parameter without a schema is a string.
    """
    types = schemas.types.get((name, key))
    if types is None:
        root = schemas.get(name, {})
        properties = root.get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        types = TEXT if schema is None else frozenset(_types_of(schema, root, _MAX_REFS))
        if name in schemas:
            schemas.types[name, key] = types
    return types


def read_value(text: str, types: frozenset[str], name: str, key: str) -> Json:
    """Convert `text` to a value of one of `types`.

    Raises: `NoCall` if the text is not valid JSON and a string is not allowed.
    """
    if types == TEXT:
        return text
    stripped = text.strip()
    try:
        value = decode(stripped)
    except ValueError as error:
        if "string" in types or not types:
            return text
        wanted = " or ".join(sorted(types))
        raise NoCall(f"the value of {key!r} must be {wanted}, but is not valid JSON: {error}", name) from None
    if isinstance(value, str) and ("string" in types or not types):
        # Templates write strings without quotes, so these quotes are part of the string.
        return text
    if "string" in types and not _is_of(value, types - TEXT):
        return text
    return value


def _types_of(schema: Json, root: Mapping[str, Json], depth: int) -> Iterator[str]:
    """Yield every type that a value may have; nothing if the schema does not say."""
    if not isinstance(schema, Mapping) or not depth:
        return
    kind = schema.get("type")
    if isinstance(kind, str):
        yield kind
    elif isinstance(kind, list):
        yield from (item for item in kind if isinstance(item, str))
    elif "const" in schema:
        yield _type_of(schema["const"])
    elif isinstance(schema.get("enum"), list):
        yield from (_type_of(item) for item in schema["enum"])
    else:
        for word in ("anyOf", "oneOf", "allOf"):
            for item in schema.get(word) or ():
                yield from _types_of(item, root, depth - 1)
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            target: Json = root
            for part in reference[2:].split("/"):
                target = target.get(part) if isinstance(target, Mapping) else None
            yield from _types_of(target, root, depth - 1)


def _type_of(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    names = {str: "string", float: "number", dict: "object", list: "array"}
    return names.get(type(value), "null")


def _is_of(value: Json, types: frozenset[str]) -> bool:
    kind = _type_of(value)
    if kind == "number" and "integer" in types and float(value).is_integer():
        return True
    return kind in types or (kind == "integer" and "number" in types)


def arguments_of(call: ToolCall) -> dict[str, Json]:
    """Return the arguments as a value. Raises: `FormatError` if they are not a JSON object."""
    try:
        value = decode(call.arguments) if call.arguments.strip() else {}
    except ValueError as error:
        raise FormatError(f"the arguments of {call.name!r} are not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"the arguments of {call.name!r} are not a JSON object: {call.arguments[:80]!r}")
    return value


def write_arguments(call: ToolCall) -> str:
    """Return the arguments as the JSON that the model wrote. Raises: `FormatError` if they are no JSON object."""
    arguments_of(call)
    return call.arguments.strip() or "{}"


def write_call(call: ToolCall) -> str:
    """Return the call as a JSON object, with the arguments as the model wrote them."""
    return f'{{"name": {to_json(call.name)}, "arguments": {write_arguments(call)}}}'


def write_parameters(call: ToolCall, pattern: str) -> str:
    """Return the arguments of a call, each as `pattern` with its `key`, its `value` and whether this `is_text`."""
    return "".join(
        pattern.format(
            key=key,
            value=value if isinstance(value, str) else to_json(value),
            is_text=str(isinstance(value, str)).lower(),
        )
        for key, value in arguments_of(call).items()
    )


encode = msgspec.json.Encoder().encode
