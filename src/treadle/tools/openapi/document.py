"""The reader for operations of an OpenAPI document.

Source: OpenAPI 3.0.4 and 3.1.1.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ToolError
from treadle.core.texts.documents import decode_document, read_data
from treadle.core.types import Effect, Json
from treadle.http.background import run_blocking
from treadle.http.guarded import GuardedHttp, Resolver, host_of
from treadle.journal.named_files import explain_unread
from treadle.tools.openapi.json_schema import CannotBeToolError, Schemas
from treadle.tools.schema.validation import ArgumentChecker, OutputChecker, read_effect

_WORDS = read_data(__package__, "words")
_WITHOUT_BODY = ("get", "head")
_BODY_KINDS = tuple([(kind, re.compile(form)) for kind, form in _WORDS["bodies"].items()])
_TEXT: dict[str, Json] = {"type": "string", "description": "The body, as text."}


class Parameter(Struct, frozen=True):
    """A parameter of an operation: where one argument belongs in a request, and how it is written."""

    name: str
    """The name in the request."""
    argument: str
    """The name in the tool's arguments. It differs if two parameters have the same name."""
    place: str
    """`path`, `query`, `header` or `cookie`."""
    style: str
    """The way in which the value is written: one of OpenAPI's styles, or `json`."""
    is_exploded: bool
    has_reserved: bool = False
    """True if characters with a meaning in URLs are sent unescaped."""


class RequestBody(Struct, frozen=True):
    """The body of a request."""

    kind: str
    """`json`, `form` or `text`."""
    media: str
    is_required: bool
    arguments: tuple[str, ...] = ()
    """The arguments that are properties of the body. Empty: the body is one argument, `body`."""


class Operation(Struct, frozen=True):
    """An operation that can be a tool."""

    name: str
    method: str
    path: str
    description: str
    parameters: dict[str, Json]
    """The JSON Schema of the tool's arguments."""
    places: tuple[Parameter, ...]
    body: RequestBody | None
    effect: Effect
    security: tuple[tuple[str, ...], ...]
    """The alternatives of security schemes; a request needs all schemes of one. Empty: no security."""
    servers: tuple[str, ...]
    """The operation's own servers, which replace the document's."""
    output_schema: dict[str, Json] | None


class OpenAPIDocument:
    """An OpenAPI document of version 3.0 or 3.1."""

    def __init__(self, raw: Json, origin: str, url: str | None = None) -> None:
        """Read a decoded document; errors name its `origin`. `url` is where it came from, if it is from a server.

        Raises: `ConfigError` if it is not an OpenAPI document.
        """
        if not isinstance(raw, dict):
            raise ConfigError(f"{origin} is not an OpenAPI document: it is not an object")
        version = str(raw.get("openapi", ""))
        if "swagger" in raw:
            raise ConfigError(
                f"{origin} is a Swagger {raw['swagger']} document; only OpenAPI 3.0 and 3.1 are read: convert it, "
                "for example with 'npx swagger2openapi'"
            )
        if not version.startswith(("3.0", "3.1")):
            raise ConfigError(f"{origin} says openapi {version or 'nothing'!r}; 3.0 and 3.1 are read")
        self.raw = raw
        self.origin = origin
        self.url = url
        self._schemas = Schemas(raw, is_old=version.startswith("3.0"))
        self.notes: list[str] = []
        """The operations that were left out, and why."""

    @property
    def title(self) -> str:
        info = self.raw.get("info")
        return str(info.get("title", "api")) if isinstance(info, dict) else "api"

    @property
    def servers(self) -> tuple[str, ...]:
        """The URLs of the servers, with the defaults of their variables."""
        return _servers_of(self.raw)

    @property
    def security_schemes(self) -> Mapping[str, Json]:
        components = self.raw.get("components")
        schemes = components.get("securitySchemes") if isinstance(components, dict) else None
        try:
            return {name: self._schemas.resolve(item) for name, item in (schemes or {}).items()}
        except (CannotBeToolError, AttributeError) as error:
            raise ConfigError(f"the security schemes of {self.origin} cannot be read: {error}") from None

    def operations(self) -> tuple[Operation, ...]:
        """Return all operations that can be tools. `notes` describes the others. Raises: `ConfigError`."""
        found: dict[str, Operation] = {}
        paths = self.raw.get("paths")
        for path, given in paths.items() if isinstance(paths, dict) else ():
            for method, operation in self._read_path(str(path), given):
                if isinstance(operation, str):
                    self.notes.append(f"{method} {path}: {operation}")
                    continue
                name, number = operation.name, 2
                while name in found:
                    name, number = f"{operation.name[:60]}_{number}", number + 1
                found[name] = replace(operation, name=name)
        return tuple(found.values())

    def _read_path(self, path: str, given: Json) -> Iterator[tuple[str, Operation | str]]:
        try:
            item = self._schemas.resolve(given)
        except CannotBeToolError as error:
            yield "the path", str(error)
            return
        for method in _WORDS["effects"]:
            if isinstance(item.get(method), dict):
                try:
                    yield method.upper(), self._read(path, method, item[method], item)
                except CannotBeToolError as error:
                    yield method.upper(), str(error)
                except (KeyError, TypeError, AttributeError, RecursionError) as error:
                    yield method.upper(), f"it is malformed ({type(error).__name__}: {error})"

    def _read(self, path: str, method: str, item: dict[str, Json], shared: dict[str, Json]) -> Operation:
        properties: dict[str, Json] = {}
        required: list[str] = []
        given = [*(shared.get("parameters") or ()), *(item.get("parameters") or ())]
        places = self._read_parameters(path, given, properties, required)
        body = None
        if item.get("requestBody") is not None and method not in _WITHOUT_BODY:
            body = self._read_body(self._schemas.resolve(item["requestBody"]), properties, required)
        schema: dict[str, Json] = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            schema["required"] = required
        schema = self._schemas.complete(schema, is_input=True)
        try:
            ArgumentChecker(schema).find_fault({})
        except ConfigError as error:
            raise CannotBeToolError(str(error).partition("\n")[0]) from None
        texts = (
            "Deprecated." if item.get("deprecated") else "",
            item.get("summary"),
            item.get("description"),
        )
        return Operation(
            name=_name_of(item.get("operationId"), method, path),
            method=method.upper(),
            path=path,
            description="\n\n".join(str(text) for text in texts if text) or f"{method.upper()} {path}",
            parameters=schema,
            places=places,
            body=body,
            effect=read_effect(item.get("x-treadle-effect", _WORDS["effects"][method]), "x-treadle-effect"),
            security=tuple([tuple(given) for given in item.get("security", self.raw.get("security")) or ()]),
            servers=_servers_of(item) or _servers_of(shared),
            output_schema=self._output_of(item),
        )

    def _read_parameters(
        self, path: str, given: Sequence[Json], properties: dict[str, Json], required: list[str]
    ) -> tuple[Parameter, ...]:
        wanted = {(item["name"], item["in"]): item for item in map(self._schemas.resolve, given)}
        for name in re.findall(r"\{([^{}]+)\}", path):
            wanted.setdefault((name, "path"), {"schema": {"type": "string"}})
        places = []
        for (name, place), parameter in wanted.items():
            if place == "header" and name.lower() in _WORDS["own_headers"]:
                continue
            styles = _WORDS["styles"][place]
            style = parameter.get("style") or styles[0]
            if style not in styles:
                raise CannotBeToolError(f"its parameter {name!r} has the unsupported style {style}")
            if place == "path" and f"{{{name}}}" not in path:
                continue
            schema = parameter.get("schema")
            if parameter.get("content"):
                media, content = next(iter(parameter["content"].items()))
                if not _BODY_KINDS[0][1].fullmatch(_plain(media)):
                    raise CannotBeToolError(f"its parameter {name!r} has the unsupported media type {media}")
                style, schema = "json", content.get("schema")
            made = self._schemas.read(schema, is_input=True)
            if parameter.get("description") and "description" not in made:
                made = {**made, "description": parameter["description"]}
            argument = name if name not in properties else f"{place}_{name}"
            if argument in properties:
                raise CannotBeToolError(f"two of its parameters are called {argument!r}")
            properties[argument] = made
            if parameter.get("required") or place == "path":
                required.append(argument)
            is_exploded = bool(parameter.get("explode", style == "form"))
            places.append(
                Parameter(name, argument, place, style, is_exploded, bool(parameter.get("allowReserved")))
            )
        return tuple(places)

    def _read_body(
        self, body: dict[str, Json], properties: dict[str, Json], required: list[str]
    ) -> RequestBody:
        content = body.get("content") or {}
        found = (
            (kind, media) for kind, form in _BODY_KINDS for media in content if form.fullmatch(_plain(media))
        )
        kind, media = next(found, (None, ""))
        if kind is None:
            raise CannotBeToolError(f"its body is {', '.join(content) or 'nothing'}, which is not supported")
        is_required = bool(body.get("required"))
        schema = content[media].get("schema")
        flat = self._schemas.flatten(schema) if kind in ("json", "form") else None
        own = self._schemas.read(flat, is_input=True) if flat is not None else {"properties": {}}
        is_clear = own["properties"] and not (own["properties"].keys() & properties.keys())
        # Only a body of its own can say that a field is required if there is a body.
        if is_clear and (is_required or not own["required"]):
            properties.update(own["properties"])
            required += own["required"]
            return RequestBody(kind, media, is_required, tuple(own["properties"]))
        if "body" in properties:
            raise CannotBeToolError("it has a parameter 'body' in addition to its body")
        if kind == "text":
            made = self._schemas.read(schema, is_input=True)
            properties["body"] = made if made.get("type") == "string" else _TEXT
        else:
            properties["body"] = self._schemas.read(schema, is_input=True)
        required += ["body"] if is_required else []
        return RequestBody(kind, media, is_required)

    def _output_of(self, item: dict[str, Json]) -> dict[str, Json] | None:
        """Return the schema of a successful response, or `None` if there is none."""
        responses = {str(code): response for code, response in (item.get("responses") or {}).items()}
        code = next((code for code in ("200", "201", "2XX", "default") if code in responses), None)
        if code is None:
            return None
        try:
            content: Any = self._schemas.resolve(responses[code]).get("content") or {}
            media = next((name for name in content if _BODY_KINDS[0][1].fullmatch(_plain(name))), None)
            schema = content[media].get("schema") if media is not None else None
            if not isinstance(schema, dict) or not schema:
                return None
            # The type is repeated at the top for readers that accept only schemas of objects.
            top = self._schemas.resolve(schema) if set(schema) == {"$ref"} else schema
            made = self._schemas.complete(self._schemas.read(top, is_input=False), is_input=False)
            OutputChecker(made).find_fault(None)
        except (CannotBeToolError, ConfigError):
            return None
        return made


def _servers_of(item: Mapping[str, Json]) -> tuple[str, ...]:
    found = []
    for server in item.get("servers") or ():
        if isinstance(server, dict):
            url = str(server.get("url", ""))
            for name, variable in (server.get("variables") or {}).items():
                url = url.replace(f"{{{name}}}", str(variable.get("default", "")))
            found.append(url)
    return tuple(found)


def _plain(media: str) -> str:
    return media.partition(";")[0].strip().lower()


def _name_of(operation_id: Json, method: str, path: str) -> str:
    name = str(operation_id or f"{method}_{path}")
    return re.sub(r"_+", "_", re.sub(r"[^a-zA-Z0-9_-]", "_", name)).strip("_")[:64] or method


MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
_ACCEPT = "application/json, application/yaml;q=0.9, */*;q=0.5"
_NAME = "the OpenAPI document"


def is_location(document: str | Path | Mapping[str, Json]) -> bool:
    """Return whether `document` is a path or a URL, and not the text of a document or the document itself."""
    return isinstance(document, Path) or (
        isinstance(document, str) and not document.lstrip().startswith("{") and "\n" not in document
    )


def load(
    document: str | Path | Mapping[str, Json], *, allow_private: bool, resolver: Resolver | None
) -> OpenAPIDocument:
    """Return the document at a path or URL, in a text, or given decoded. Raises: `ConfigError`."""
    if isinstance(document, Mapping):
        return OpenAPIDocument(dict(document), _NAME)
    text = str(document)
    if isinstance(document, str) and text.startswith(("http://", "https://")):
        return _fetch(text, allow_private=allow_private, resolver=resolver)
    if not is_location(document):
        return OpenAPIDocument(decode_document(text.encode(), _NAME), _NAME)
    try:
        data = Path(text).expanduser().read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            raise explain_unread(f"{_NAME} ", text, error) from error
        raise ConfigError(f"cannot read {_NAME} {text!r}: {error}") from error
    return OpenAPIDocument(
        decode_document(data, repr(text), is_yaml=False if text.endswith(".json") else None), repr(text)
    )


def _fetch(url: str, *, allow_private: bool, resolver: Resolver | None) -> OpenAPIDocument:
    http = GuardedHttp(
        [],
        named_by_user=[host_of(url)],
        allow_private=allow_private,
        max_response_bytes=MAX_DOCUMENT_BYTES,
        resolver=resolver,
    )
    # A query may contain a key.
    origin = repr(url.partition("?")[0])
    try:
        answer = run_blocking(http.request("GET", url, {"accept": _ACCEPT}))
    except ToolError as error:
        raise ConfigError(f"cannot read {_NAME} {origin}: {error}") from error
    if answer.status != 200:
        raise ConfigError(f"cannot read {_NAME} {origin}: HTTP {answer.status}")
    return OpenAPIDocument(decode_document(answer.body, origin), origin, answer.url)
