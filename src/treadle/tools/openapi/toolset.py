"""The toolset of an OpenAPI document."""

import base64
import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Effect, Json, ToolSpec
from treadle.sync import run_blocking
from treadle.tools.definitions import decode
from treadle.tools.http import GuardedHttp, Resolver, host_of
from treadle.tools.openapi.document import Document, Operation
from treadle.tools.openapi.request import build, read
from treadle.tools.protocol import ToolContext, ToolOutput
from treadle.tools.validation import ArgumentChecker

MAX_DOCUMENT_BYTES = 32 * 1024 * 1024


class OpenAPI:
    """One tool for each operation. Requests go to the document's servers, or `base_url`, and nowhere else."""

    def __init__(
        self,
        document: str | Path | Mapping[str, Json],
        *,
        base_url: str | None = None,
        allowed_hosts: Iterable[str] = (),
        headers: Mapping[str, str] | None = None,
        auth: Mapping[str, str] | None = None,
        allow_private: bool = False,
        max_response_bytes: int = 1_000_000,
        timeout_seconds: float = 30.0,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        effects: Mapping[str, Effect | str] | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        """`document` is a path, a URL or the document itself.

        `auth` gives the secret of each security scheme by its name (`user:password` for basic); one that is not
        given is taken from the environment as `<SCHEME>` in capitals, with `_` for what is no letter. `include`
        and `exclude` are names of operations. `allowed_hosts` are further hosts that redirects may lead to.
        Raises: `ConfigError`.
        """
        raw, origin, source = _load(document, allow_private=allow_private, resolver=resolver)
        self.document = Document(raw, origin)
        self.base_url = (base_url or _first_server(self.document, source, origin)).rstrip("/")
        named = [*allowed_hosts, *([host_of(base_url)] if base_url is not None else [])]
        if source is not None and host_of(source) == host_of(self.base_url):
            # Whoever gave the document's URL named its host.
            named.append(host_of(source))
        self._http = GuardedHttp(
            [host_of(self.base_url)],
            named_by_user=named,
            allow_private=allow_private,
            max_response_bytes=max_response_bytes,
            timeout_seconds=timeout_seconds,
            resolver=resolver,
        )
        self._headers = dict(headers or {})
        self._secrets = _find_secrets(self.document, auth or {})
        operations = _choose(self.document.operations(), include, exclude, origin)
        changed = {name: Effect(value) for name, value in (effects or {}).items()}
        self._tools = tuple(
            [
                OpenAPITool(self, item, changed.get(item.name, item.effect), timeout_seconds)
                for item in operations
            ]
        )

    def tools(self) -> "tuple[OpenAPITool, ...]":
        """See `Toolset.tools`."""
        return self._tools

    @property
    def notes(self) -> Sequence[str]:
        """The operations that were left out, and why."""
        return self.document.notes

    async def send(
        self, operation: Operation, arguments: Mapping[str, Json], context: ToolContext
    ) -> ToolOutput:
        """Make one request. Raises: `ToolError`."""
        made = build(operation, arguments)
        url = self.base_url + made.path
        headers = {**self._headers, **made.headers}
        if operation.effect is Effect.ONCE:
            headers.setdefault("idempotency-key", context.idempotency_key)
        for name in operation.security:
            url = self._sign(name, url, headers)
        try:
            answer = await self._http.request(operation.method, url, headers, made.body)
        except ToolError as error:
            raise ToolError(self._hide(str(error))) from None
        return read(answer)

    def _sign(self, name: str, url: str, headers: dict[str, str]) -> str:
        """Add the secret of a security scheme; the URL with it, if it goes there."""
        scheme = self.document.security_schemes.get(name, {})
        secret = self._secrets.get(name)
        if secret is None:
            raise ToolError(f"the secret of {name!r} is not there: set {_variable(name)} in the environment")
        if scheme.get("type") == "apiKey":
            where, key = scheme.get("in"), scheme.get("name", "")
            if where == "query":
                return f"{url}{'&' if '?' in url else '?'}{quote(key)}={quote(secret, safe='')}"
            if where == "cookie":
                earlier = f"{headers['cookie']}; " if "cookie" in headers else ""
                headers["cookie"] = f"{earlier}{key}={quote(secret)}"
            else:
                headers[key] = secret
        elif scheme.get("type") == "http" and str(scheme.get("scheme", "")).lower() == "basic":
            headers["authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}"
        else:
            headers["authorization"] = f"Bearer {secret}"
        return url

    def _hide(self, text: str) -> str:
        for secret in (*self._secrets.values(), *self._headers.values()):
            text = text.replace(secret, "***") if len(secret) >= 4 else text
        return text

    def __repr__(self) -> str:
        return f"<OpenAPI {self.document.title!r}, {len(self._tools)} operations>"


class OpenAPITool:
    """One operation."""

    def __init__(self, api: OpenAPI, operation: Operation, effect: Effect, timeout_seconds: float) -> None:
        self._api = api
        self._operation = operation
        self.spec = ToolSpec(
            name=operation.name,
            description=operation.description,
            parameters=operation.parameters,
            effect=effect,
            output_schema=operation.output_schema,
        )
        self.find_fault = ArgumentChecker(operation.parameters).find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> ToolOutput:
        """See `Tool.call`. Raises: `ToolError`."""
        return await self._api.send(self._operation, arguments, context)

    def __repr__(self) -> str:
        return f"<tool {self.spec.name!r}>"


def openapi(text: str) -> OpenAPI:
    """The operations of `openapi:document.json` or `openapi:https://host/openapi.json`. Raises: `ConfigError`."""
    if not text:
        raise ConfigError(
            "openapi: say which document, as openapi:document.json or openapi:https://host/openapi.json"
        )
    return OpenAPI(text)


def _load(
    document: str | Path | Mapping[str, Json], *, allow_private: bool, resolver: Resolver | None
) -> tuple[Json, str, str | None]:
    """The decoded document, how messages name it, and the URL that it came from."""
    if isinstance(document, Mapping):
        return dict(document), "the OpenAPI document", None
    text = str(document)
    if text.lstrip().startswith("{"):
        return decode(text.encode(), ".json", "the OpenAPI document"), "the OpenAPI document", None
    if text.startswith(("http://", "https://")):
        http = GuardedHttp(
            [],
            named_by_user=[host_of(text)],
            allow_private=allow_private,
            max_response_bytes=MAX_DOCUMENT_BYTES,
            resolver=resolver,
        )
        try:
            answer = run_blocking(http.request("GET", text, {"accept": "application/json, application/yaml"}))
        except ToolError as error:
            raise ConfigError(f"cannot read the OpenAPI document: {error}") from error
        if answer.status != 200:
            raise ConfigError(f"cannot read the OpenAPI document of {text!r}: HTTP {answer.status}")
        is_yaml = "yaml" in answer.headers.get("content-type", "") or text.endswith((".yaml", ".yml"))
        return decode(answer.body, ".yaml" if is_yaml else ".json", repr(text)), repr(text), text
    path = Path(text).expanduser()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the OpenAPI document {text!r}: {error.strerror}") from error
    return decode(data, path.suffix, repr(text)), repr(text), None


def _first_server(document: Document, source: str | None, origin: str) -> str:
    for url in document.servers or ("/",):
        whole = urljoin(source, url) if source is not None else url
        if urlsplit(whole).scheme in ("http", "https"):
            return whole
    raise ConfigError(f"{origin} names no server with an address; give one with OpenAPI(..., base_url=...)")


def _choose(
    operations: Sequence[Operation], include: Sequence[str] | None, exclude: Sequence[str], origin: str
) -> list[Operation]:
    names = [item.name for item in operations]
    for name in (*(include or ()), *exclude):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"
            raise ConfigError(f"{origin} has no operation {name!r}{hint}")
    chosen = [
        item for item in operations if (include is None or item.name in include) and item.name not in exclude
    ]
    if not chosen:
        raise ConfigError(f"{origin} has no operation that can be a tool")
    return chosen


def _find_secrets(document: Document, given: Mapping[str, str]) -> dict[str, str]:
    known = document.security_schemes
    for name in given:
        if name not in known:
            raise ConfigError(
                f"the document has no security scheme {name!r}; it has {', '.join(known) or 'none'}"
            )
    found = {name: os.environ.get(_variable(name)) for name in known}
    return {**{name: value for name, value in found.items() if value}, **given}


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name).upper()
