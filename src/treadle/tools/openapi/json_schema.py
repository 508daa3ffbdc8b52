"""The schemas of an OpenAPI document as complete JSON Schemas: references are included in `$defs`.

Source: OpenAPI 3.0.4 and 3.1.1.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from treadle.core.texts.documents import read_data
from treadle.core.types import Json

MAX_REFERENCES = 50
"""How many references are followed in a row."""
_WORDS = read_data(__package__, "words")


class CannotBeToolError(Exception):
    """Raised if an operation cannot be a tool. The message is the reason."""


class Schemas:
    """A reader of one document's schemas. Its methods raise `CannotBeToolError` for invalid references."""

    def __init__(self, raw: Mapping[str, Json], *, is_old: bool) -> None:
        """Make a reader. `is_old` is true for a document of version 3.0, whose schemas differ from JSON Schema."""
        self._raw = raw
        self._is_old = is_old
        self._names: dict[str, str] = {}
        self._references: dict[str, str] = {}
        self._definitions: dict[tuple[str, bool], dict[str, Json]] = {}

    def resolve(self, item: Json) -> dict[str, Json]:
        """Return the object behind references within the document."""
        for _ in range(MAX_REFERENCES):
            if not isinstance(item, dict):
                raise CannotBeToolError(f"{item!r} stands in a place where an object is needed"[:200])
            if "$ref" not in item:
                return item
            item = self._look_up(item["$ref"])
        raise CannotBeToolError("a reference refers to itself")

    def read(self, schema: Json, *, is_input: bool) -> dict[str, Json]:
        """Return a schema of the document as JSON Schema, without its definitions.

        An input has no read-only properties, and an output no write-only ones.
        """
        if not isinstance(schema, dict):
            return {"not": {}} if schema is False else {}
        made: dict[str, Json] = {}
        if "$ref" in schema:
            made["$ref"] = f"#/$defs/{self._name_of(str(schema['$ref']))}"
            if self._is_old:
                return made
        hidden = self._hidden(schema.get("properties"), is_input=is_input)
        for key, value in schema.items():
            if key in _WORDS["dropped"] or key == "$ref" or key.startswith("x-"):
                continue
            if key in _WORDS["named"] and isinstance(value, dict):
                made[key] = {
                    name: self.read(item, is_input=is_input)
                    for name, item in value.items()
                    if key != "properties" or name not in hidden
                }
            elif key in _WORDS["one"] and isinstance(value, dict):
                made[key] = self.read(value, is_input=is_input)
            elif key in _WORDS["several"] and isinstance(value, list):
                made[key] = [self.read(item, is_input=is_input) for item in value]
            else:
                made[key] = value
        if hidden and isinstance(made.get("required"), list):
            made["required"] = [name for name in made["required"] if name not in hidden]
        return _modernize(made, is_nullable=bool(schema.get("nullable"))) if self._is_old else made

    def complete(self, schema: dict[str, Json], *, is_input: bool) -> dict[str, Json]:
        """Return a schema that `read` returned with all definitions that it refers to. Cycles remain references."""
        definitions: dict[str, Json] = {}
        pending = list(_references(schema))
        while pending:
            name = pending.pop()
            if name not in definitions:
                definitions[name] = self._define(name, is_input=is_input)
                pending += _references(definitions[name])
        return {**schema, "$defs": {**schema.get("$defs", {}), **definitions}} if definitions else schema

    def flatten(self, schema: Json, depth: int = 0) -> dict[str, Json] | None:
        """Return a schema as the schema of one object, with references and `allOf` merged.

        Return `None` if the properties do not describe it completely.
        """
        if not isinstance(schema, dict) or depth > MAX_REFERENCES:
            return None
        own = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
        parts: list[Json] = [] if "$ref" not in schema else [self._look_up(schema["$ref"])]
        parts += schema["allOf"] if isinstance(schema.get("allOf"), list) else []
        is_plain = all(key in _WORDS["plain"] or key.startswith("x-") for key in own)
        if not is_plain or own.get("type", "object") != "object" or own.get("additionalProperties"):
            return None
        properties: dict[str, Json] = dict(own.get("properties") or {})
        required: list[str] = list(own.get("required") or ())
        for part in parts:
            flat = self.flatten(part, depth + 1)
            if flat is None:
                return None
            for name, item in flat["properties"].items():
                if properties.setdefault(name, item) != item:
                    return None
            required += flat["required"]
        if not parts and "properties" not in own:
            return None
        return {"properties": properties, "required": list(dict.fromkeys(required))}

    def _define(self, name: str, *, is_input: bool) -> dict[str, Json]:
        key = name, is_input
        if key not in self._definitions:
            self._definitions[key] = self.read(self._look_up(self._references[name]), is_input=is_input)
        return self._definitions[key]

    def _hidden(self, properties: Json, *, is_input: bool) -> set[str]:
        flag = "readOnly" if is_input else "writeOnly"
        if not isinstance(properties, dict):
            return set()
        return {name for name, item in properties.items() if isinstance(item, dict) and self._has(item, flag)}

    def _has(self, schema: dict[str, Json], flag: str) -> bool:
        return bool(schema.get(flag) or ("$ref" in schema and self.resolve(schema).get(flag)))

    def _name_of(self, reference: str) -> str:
        """Return a unique name in `$defs`, without special characters, for the target of `reference`."""
        if reference not in self._names:
            stem = (
                re.sub(r"[^\w.-]+", "_", reference.removeprefix("#/components/schemas/")).strip("_") or "it"
            )
            name, number = stem, 2
            while name in self._references:
                name, number = f"{stem}_{number}", number + 1
            self._names[reference] = name
            self._references[name] = reference
        return self._names[reference]

    def _look_up(self, reference: Json) -> Json:
        if not isinstance(reference, str) or not reference.startswith("#/"):
            raise CannotBeToolError(
                f"it refers to {reference!r}, outside the document; bundle all into one document"
            )
        value: Any = self._raw
        for part in unquote(reference[2:]).split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            elif isinstance(value, dict) and part in value:
                value = value[part]
            else:
                raise CannotBeToolError(f"the reference {reference!r} has no target")
        return value


def _modernize(made: dict[str, Json], *, is_nullable: bool) -> dict[str, Json]:
    """Rewrite what version 3.0 expresses differently from JSON Schema."""
    for limit, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(made.get(limit), bool) and made.pop(limit) and plain in made:
            made[limit] = made.pop(plain)
    if not is_nullable:
        return made
    if not isinstance(made.get("type"), str):
        return {"anyOf": [made, {"type": "null"}]} if made else made
    made["type"] = [made["type"], "null"]
    if isinstance(made.get("enum"), list) and None not in made["enum"]:
        made["enum"] = [*made["enum"], None]
    return made


def _references(value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/$defs/"):
            yield reference.removeprefix("#/$defs/")
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)
