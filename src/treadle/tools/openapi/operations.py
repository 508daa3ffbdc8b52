"""The toolset of an OpenAPI document."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from msgspec.structs import replace

from treadle.core.errors import ConfigError, ToolError
from treadle.core.prompts.foreign import let_in_tool
from treadle.core.registry import did_you_mean
from treadle.core.spec import PartSpec
from treadle.core.types import Effect, Json, ToolSpec
from treadle.http.guarded import GuardedHttp, Resolver, host_of
from treadle.tools.context import ToolContext
from treadle.tools.openapi.document import OpenAPIDocument, Operation, is_location, load
from treadle.tools.openapi.exchange import build, read
from treadle.tools.openapi.security import Secrets, variable_of
from treadle.tools.protocol import ToolOutput
from treadle.tools.schema.validation import ArgumentChecker, OutputChecker, read_effect
from treadle.tools.toolset_parts import SECRET, may_hold_secret, settings_of


class OpenAPI:
    """A toolset with one tool for each operation. Requests only go to the document's servers, or to `base_url`."""

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
        """Make a toolset from `document`: a path, a URL, a text or a decoded document. Loading a URL blocks.

        `base_url` replaces all servers of the document. `auth` maps names of security schemes to credentials
        (`user:password` for basic); others are taken from the environment variables `OPENAPI_<HOST>_<SCHEME>`.
        `include`, `exclude` and `effects` use the names of tools. `allowed_hosts` are further hosts that redirects
        may lead to. `headers` are sent with every request, but not to other hosts.
        Raises: `ConfigError`.
        """
        allowed_hosts, given = list(allowed_hosts), locals()
        loaded = self.document = load(document, allow_private=allow_private, resolver=resolver)
        self._given_url = base_url
        chosen = _choose(self.document, include, exclude)
        own = {name: read_effect(value, f"the effect of {name!r}") for name, value in (effects or {}).items()}
        _check_names(own, [item.name for item in chosen], loaded.origin)
        operations = [replace(item, effect=own.get(item.name, item.effect)) for item in chosen]
        self._urls = {item.name: self._url_of(item) for item in operations}
        hosts = {host_of(url) for url in self._urls.values()}
        named = {host_of(url) for url in (base_url, loaded.url) if url is not None}
        self._http = GuardedHttp(
            hosts,
            # A user who gave the document's URL thereby named its host.
            named_by_user=[*allowed_hosts, *(hosts & named)],
            allow_private=allow_private,
            max_response_bytes=max_response_bytes,
            timeout_seconds=timeout_seconds,
            resolver=resolver,
        )
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._secrets = Secrets(
            self.document.security_schemes, dict(auth or {}), self._headers, is_host_named=hosts <= named
        )
        if (missing := self._find_obstacle(document, auth or {}, resolver)) is not None:
            self.part = PartSpec(name="openapi:", missing=missing)
        else:
            kept = {name: given[name] for name in _RECORDED}
            self.part = PartSpec(name=f"openapi:{document}", settings=settings_of(OpenAPI, kept))
        self._tools = tuple([OpenAPITool(self, item) for item in operations])

    def tools(self) -> "tuple[OpenAPITool, ...]":
        return self._tools

    @property
    def notes(self) -> Sequence[str]:
        """The operations that were left out, and why."""
        return self.document.notes

    async def send(
        self, operation: Operation, arguments: Mapping[str, Json], context: ToolContext
    ) -> ToolOutput:
        """Send the request of one call. Raises: `ToolError`."""
        made = build(operation, arguments)
        headers = {**made.headers, **self._headers}
        if "cookie" in made.headers and "cookie" in self._headers:
            headers["cookie"] = f"{self._headers['cookie']}; {made.headers['cookie']}"
        if "content-type" in made.headers:
            headers["content-type"] = made.headers["content-type"]
        if operation.method in ("POST", "PATCH") and operation.effect is not Effect.PURE:
            headers.setdefault("idempotency-key", context.idempotency_key)
        url = self._secrets.sign(operation.security, self._urls[operation.name] + made.path, headers)
        try:
            answer = await self._http.request(operation.method, url, headers, made.body)
        except ToolError as error:
            raise type(error)(self._secrets.hide(str(error))) from None
        headers = {name: self._secrets.hide(value) for name, value in answer.headers.items()}
        return read(replace(answer, headers=headers, body=self._secrets.hide_bytes(answer.body)))

    def _find_obstacle(
        self, document: str | Path | Mapping[str, Json], auth: Mapping[str, str], resolver: Resolver | None
    ) -> str | None:
        """Return why the toolset cannot be made again from its settings."""
        if not is_location(document):
            return "its document is an object of the program"
        if self._headers or may_hold_secret(f"openapi:{document} {self._given_url or ''}"):
            return "its headers may hold a secret" if self._headers else SECRET
        if resolver is not None:
            return "its resolver is an object of the program"
        urls = set(self._urls.values())
        for name, value in auth.items():
            variables = sorted({variable_of(url, name) for url in urls})
            if value not in [os.environ.get(variable) for variable in variables]:
                return f"its secret for {name!r} is not in the environment; set {' or '.join(variables)}"
        return None

    def _url_of(self, operation: Operation) -> str:
        if self._given_url is not None:
            return self._given_url.rstrip("/")
        for url in operation.servers or self.document.servers or ("/",):
            whole = url if self.document.url is None else urljoin(self.document.url, url)
            if urlsplit(whole).scheme in ("http", "https"):
                return whole.rstrip("/")
        raise ConfigError(
            f"{self.document.origin} has no server with an absolute URL; pass one with OpenAPI(..., base_url=...)"
        )

    def __repr__(self) -> str:
        return f"<OpenAPI {self.document.title!r}: {len(self._tools)} tools, {len(self.notes)} left out>"


class OpenAPITool:
    """A tool for one operation."""

    def __init__(self, api: OpenAPI, operation: Operation) -> None:
        self._api = api
        self._operation = operation
        name, about, parameters = operation.name, operation.description, operation.parameters
        spec = ToolSpec(name, about, parameters, operation.effect, output_schema=operation.output_schema)
        self.spec = let_in_tool(spec)
        self.find_fault = ArgumentChecker(operation.parameters).find_fault
        self._find_output_fault = OutputChecker(operation.output_schema or {}).find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> ToolOutput:
        """See `Tool.call`. If a response breaks the document's own schema, only its text is returned.

        Raises: `ToolError`.
        """
        output = await self._api.send(self._operation, arguments, context)
        if output.structured is None or self._find_output_fault(output.structured) is None:
            return output
        return replace(output, structured=None)

    def __repr__(self) -> str:
        return f"<tool {self.spec.name!r}>"


def openapi(text: str, **settings: Any) -> OpenAPI:
    """Return the toolset of `openapi:document.json` or `openapi:https://host/openapi.json`.

    `settings` are arguments of `OpenAPI`. Raises: `ConfigError`.
    """
    if not text:
        raise ConfigError(
            "openapi: name a document, as in openapi:document.json or openapi:https://host/openapi.json"
        )
    return OpenAPI(text, **settings)


_RECORDED = (
    *("base_url", "allowed_hosts", "allow_private", "max_response_bytes", "timeout_seconds"),
    *("include", "exclude", "effects"),
)
"""The arguments that the part of a toolset has: credentials are found again in the environment."""


def _choose(
    document: OpenAPIDocument, include: Sequence[str] | None, exclude: Sequence[str]
) -> list[Operation]:
    operations = document.operations()
    _check_names([*(include or ()), *exclude], [item.name for item in operations], document.origin)
    chosen = [
        item for item in operations if (include is None or item.name in include) and item.name not in exclude
    ]
    if not chosen:
        left_out = f": {'; '.join(document.notes[:5])}" if document.notes else ""
        raise ConfigError(f"{document.origin} has no operation that can be a tool{left_out}")
    return chosen


def _check_names(names: Iterable[str], known: Sequence[str], origin: str) -> None:
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, f"there are {', '.join(known[:50]) or 'none'}")
            raise ConfigError(f"{origin} has no operation {name!r}{hint}")
