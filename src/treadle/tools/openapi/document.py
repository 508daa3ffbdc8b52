"""Reading an OpenAPI document: its operations, with their schemas whole.

Source: OpenAPI 3.0.4 and 3.1.1.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.types import Effect, Json

METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_EFFECTS = {
    "get": Effect.PURE,
    "head": Effect.PURE,
    "options": Effect.PURE,
    "put": Effect.IDEMPOTENT,
    "delete": Effect.IDEMPOTENT,
}
_STYLES = {"query": "form", "cookie": "form", "path": "simple", "header": "simple"}
_BODY_KINDS = (
    ("application/json", "json"),
    ("application/x-www-form-urlencoded", "form"),
    ("multipart/form-data", "multipart"),
    ("text/plain", "text"),
    ("application/octet-stream", "binary"),
)


class Parameter(Struct, frozen=True):
    """Where one argument goes."""

    name: str
    """In the request."""
    argument: str
    """In the tool's arguments; another where two parameters share a name."""
    place: str
    """`path`, `query`, `header` or `cookie`."""
    style: str
    is_exploded: bool


class Operation(Struct, frozen=True):
    """One operation, ready to be a tool."""

    name: str
    method: str
    path: str
    description: str
    parameters: dict[str, Json]
    """The JSON Schema of the tool's arguments."""
    places: tuple[Parameter, ...]
    body_kind: str | None
    """`json`, `form`, `multipart`, `text`, `binary`, or `None`."""
    body_type: str | None
    """The media type."""
    body_arguments: tuple[str, ...]
    """The arguments that are the body's properties; empty if the body is one argument, `body`."""
    effect: Effect
    security: tuple[str, ...]
    """The security schemes of which one request uses all."""
    output_schema: dict[str, Json] | None


class Document:
    """A document of version 3.0 or 3.1."""

    def __init__(self, raw: Json, origin: str) -> None:
        """Raises: `ConfigError`."""
        self._origin = origin
        if not isinstance(raw, dict):
            raise ConfigError(f"{origin} is no OpenAPI document: it is no object")
        version = str(raw.get("openapi", ""))
        if "swagger" in raw:
            raise ConfigError(
                f"{origin} is a Swagger {raw['swagger']} document; only OpenAPI 3.0 and 3.1 are read: convert it"
            )
        if not version.startswith(("3.0", "3.1")):
            raise ConfigError(f"{origin} says openapi {version or 'nothing'!r}; 3.0 and 3.1 are read")
        self.raw = raw
        self._is_old = version.startswith("3.0")
        self.notes: list[str] = []
        """Operations that were left out, and why."""

    @property
    def title(self) -> str:
        """The document's name for itself."""
        return str(self.raw.get("info", {}).get("title", "api"))

    @property
    def servers(self) -> tuple[str, ...]:
        """The URLs of the servers, their variables at their defaults."""
        found = []
        for server in self.raw.get("servers") or []:
            url = str(server.get("url", ""))
            for name, variable in (server.get("variables") or {}).items():
                url = url.replace(f"{{{name}}}", str(variable.get("default", "")))
            found.append(url)
        return tuple(found)

    @property
    def security_schemes(self) -> Mapping[str, Json]:
        """By name."""
        schemes = self.raw.get("components", {}).get("securitySchemes", {})
        return {name: self._resolve(item) for name, item in schemes.items()}

    def operations(self) -> tuple[Operation, ...]:
        """All operations that can be tools. Raises: `ConfigError` for a reference that leads nowhere."""
        found: dict[str, Operation] = {}
        for path, method, item, shared in self._walk():
            try:
                operation = self._read(path, method, item, shared)
            except _CannotBeToolError as error:
                self.notes.append(f"{method.upper()} {path}: {error}")
                continue
            name = operation.name
            number = 2
            while name in found:
                name = f"{operation.name[:60]}_{number}"
                number += 1
            found[name] = replace(operation, name=name)
        return tuple(found.values())

    def _walk(self) -> Iterator[tuple[str, str, dict[str, Json], list[Json]]]:
        for path, given in (self.raw.get("paths") or {}).items():
            item = self._resolve(given)
            for method in METHODS:
                if isinstance(item.get(method), dict):
                    yield path, method, item[method], item.get("parameters") or []

    def _read(self, path: str, method: str, item: dict[str, Json], shared: list[Json]) -> Operation:
        properties: dict[str, Json] = {}
        required: list[str] = []
        places: list[Parameter] = []
        given = {
            (parameter["name"], parameter["in"]): parameter
            for parameter in map(self._resolve, [*shared, *(item.get("parameters") or [])])
        }
        for (name, place), parameter in given.items():
            if place == "header" and name.lower() in ("accept", "content-type", "authorization"):
                continue
            argument = name if name not in properties else f"{place}_{name}"
            schema = dict(self._schema_of(parameter))
            if parameter.get("description") and "description" not in schema:
                schema["description"] = parameter["description"]
            properties[argument] = schema
            if parameter.get("required") or place == "path":
                required.append(argument)
            style = parameter.get("style") or _STYLES[place]
            exploded = parameter.get("explode", style == "form")
            places.append(Parameter(name, argument, place, style, bool(exploded)))
        body_kind, body_type, body_arguments = self._read_body(item, properties, required)
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            schema["required"] = required
        text = "\n\n".join(part for part in (item.get("summary"), item.get("description")) if part)
        return Operation(
            name=_name_of(item.get("operationId"), method, path),
            method=method.upper(),
            path=path,
            description=text or f"{method.upper()} {path}",
            parameters=self._with_definitions(schema),
            places=tuple(places),
            body_kind=body_kind,
            body_type=body_type,
            body_arguments=body_arguments,
            effect=_effect_of(item, method),
            security=self._security_of(item),
            output_schema=self._output_of(item),
        )

    def _read_body(
        self, item: dict[str, Json], properties: dict[str, Json], required: list[str]
    ) -> tuple[str | None, str | None, tuple[str, ...]]:
        if item.get("requestBody") is None:
            return None, None, ()
        body = self._resolve(item["requestBody"])
        content = body.get("content") or {}
        kind, media = next(
            ((kind, media) for prefix, kind in _BODY_KINDS for media in content if _is_media(media, prefix)),
            (None, None),
        )
        if kind is None or media is None:
            raise _CannotBeToolError(
                f"its body is {', '.join(content) or 'nothing'}, which cannot be written"
            )
        schema = self._convert(content[media].get("schema") or {}, is_input=True)
        inner = self._follow(schema)
        own: dict[str, Json] = inner.get("properties") or {}
        is_object = kind in ("json", "form", "multipart") and not (inner.keys() & _MIXED)
        if own and is_object and not (own.keys() & properties.keys()):
            properties.update(own)
            if body.get("required"):
                required += [name for name in inner.get("required", []) if name in own]
            return kind, media, tuple(own)
        properties["body"] = schema if kind != "binary" else {"type": "string", "contentEncoding": "base64"}
        if body.get("required"):
            required.append("body")
        return kind, media, ()

    def _schema_of(self, parameter: dict[str, Json]) -> dict[str, Json]:
        if "schema" in parameter:
            return self._convert(parameter["schema"], is_input=True)
        content = parameter.get("content") or {}
        if content:
            raise _CannotBeToolError(
                f"its parameter {parameter['name']!r} is written as {next(iter(content))}"
            )
        return {}

    def _convert(self, schema: Json, *, is_input: bool) -> dict[str, Json]:
        """A schema of the document as JSON Schema; references go to `$defs`."""
        if not isinstance(schema, dict):
            return {} if schema is True or schema is None else {"not": {}}
        if "$ref" in schema:
            return {"$ref": "#/$defs/" + _definition_name(schema["$ref"])}
        made: dict[str, Json] = {}
        for key, value in schema.items():
            if key in (
                "discriminator",
                "xml",
                "externalDocs",
                "example",
                "nullable",
                "readOnly",
                "writeOnly",
            ):
                continue
            if key in ("properties", "patternProperties", "$defs") and isinstance(value, dict):
                made[key] = {
                    name: self._convert(item, is_input=is_input)
                    for name, item in value.items()
                    if not (is_input and isinstance(item, dict) and item.get("readOnly"))
                }
            elif key in ("items", "additionalProperties", "not", "contains") and isinstance(value, dict):
                made[key] = self._convert(value, is_input=is_input)
            elif key in ("allOf", "anyOf", "oneOf", "prefixItems"):
                made[key] = [self._convert(item, is_input=is_input) for item in value]
            else:
                made[key] = value
        return self._modernize(
            made, is_nullable=bool(schema.get("nullable")), dropped=_read_only(schema, is_input)
        )

    def _modernize(self, made: dict[str, Json], *, is_nullable: bool, dropped: set[str]) -> dict[str, Json]:
        """What version 3.0 says otherwise than JSON Schema."""
        if dropped and "required" in made:
            made["required"] = [name for name in made["required"] if name not in dropped]
        if not self._is_old:
            return made
        for limit, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(made.get(limit), bool) and made.pop(limit) and plain in made:
                made[limit] = made.pop(plain)
        if is_nullable and isinstance(made.get("type"), str):
            made["type"] = [made["type"], "null"]
            if "enum" in made and None not in made["enum"]:
                made["enum"] = [*made["enum"], None]
        elif is_nullable:
            return {"anyOf": [made, {"type": "null"}]}
        return made

    def _with_definitions(self, schema: dict[str, Json]) -> dict[str, Json]:
        """`schema` with all that it refers to, however deep; cycles stay references."""
        definitions: dict[str, Json] = {}
        pending = list(_references(schema))
        while pending:
            name = pending.pop()
            if name not in definitions:
                definitions[name] = self._convert(self._by_name(name), is_input=True)
                pending += _references(definitions[name])
        return {**schema, "$defs": definitions} if definitions else schema

    def _follow(self, schema: dict[str, Json]) -> dict[str, Json]:
        """The schema behind references."""
        for _ in range(20):
            if "$ref" not in schema:
                return schema
            schema = self._convert(self._by_name(schema["$ref"].removeprefix("#/$defs/")), is_input=True)
        return schema

    def _by_name(self, name: str) -> Json:
        return self._look_up(
            "#/" + "/".join(("components/schemas", name)) if not name.startswith("~") else name[1:]
        )

    def _resolve(self, item: Json) -> dict[str, Json]:
        """The object behind a reference within the document."""
        for _ in range(20):
            if not isinstance(item, dict):
                break
            if "$ref" not in item:
                return item
            item = self._look_up(item["$ref"])
        raise ConfigError(f"{self._origin}: a reference leads to no object")

    def _look_up(self, reference: str) -> Json:
        if not reference.startswith("#/"):
            raise ConfigError(
                f"{self._origin} refers to {reference!r}, outside itself; bundle it into one document"
            )
        value: Any = self.raw
        for part in reference[2:].split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(value, dict) or part not in value:
                raise ConfigError(f"{self._origin}: the reference {reference!r} leads nowhere")
            value = value[part]
        return value

    def _security_of(self, item: dict[str, Json]) -> tuple[str, ...]:
        """The first alternative; an empty one needs nothing."""
        alternatives = item.get("security", self.raw.get("security")) or []
        return tuple(alternatives[0]) if alternatives else ()

    def _output_of(self, item: dict[str, Json]) -> dict[str, Json] | None:
        responses = item.get("responses") or {}
        chosen = next(
            (responses[code] for code in ("200", "201", "2XX", "default") if code in responses), None
        )
        if chosen is None:
            return None
        content = self._resolve(chosen).get("content") or {}
        media = next((name for name in content if _is_media(name, "application/json")), None)
        schema = content[media].get("schema") if media is not None else None
        return self._with_definitions(self._convert(schema, is_input=False)) if schema else None


class _CannotBeToolError(Exception):
    """Why an operation is left out."""


_MIXED = frozenset(("oneOf", "anyOf", "allOf", "patternProperties"))
"""In a schema with one of these, the properties are not all that there is."""


def _read_only(schema: dict[str, Json], is_input: bool) -> set[str]:
    properties = schema.get("properties")
    if not is_input or not isinstance(properties, dict):
        return set()
    return {name for name, item in properties.items() if isinstance(item, dict) and item.get("readOnly")}


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


def _definition_name(reference: str) -> str:
    plain = "#/components/schemas/"
    name = reference.removeprefix(plain)
    return name if reference.startswith(plain) and "/" not in name else "~" + reference


def _is_media(media: str, prefix: str) -> bool:
    plain = media.partition(";")[0].strip().lower()
    return plain == prefix or (prefix == "application/json" and plain.endswith("+json"))


def _name_of(operation_id: Json, method: str, path: str) -> str:
    name = str(operation_id or f"{method}_{path}")
    return re.sub(r"_+", "_", re.sub(r"[^a-zA-Z0-9_-]", "_", name)).strip("_")[:64] or method


def _effect_of(item: dict[str, Json], method: str) -> Effect:
    try:
        return Effect(item.get("x-treadle-effect", _EFFECTS.get(method, Effect.ONCE)))
    except ValueError:
        raise ConfigError(
            f"x-treadle-effect is {item['x-treadle-effect']!r}; use pure, idempotent or once"
        ) from None
