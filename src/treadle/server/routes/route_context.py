"""What the routes of a request get: the host and the caller, and the bases of bodies and answers."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any
from urllib.parse import quote, unquote

import msgspec
from fastapi import Depends, Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.models.config.described import Described
from treadle.server.admission.access import ApiCaller, Receive, Scope, Send, check_scope
from treadle.server.run_host import RunHost

encode = msgspec.json.Encoder().encode


# The dependencies are coroutines, because FastAPI calls each plain function in a thread.
async def get_host(request: Request) -> RunHost:
    """Return the host that the application serves."""
    host: RunHost = request.app.state.host
    return host


def get_caller(request: Request) -> ApiCaller:
    """Return the caller, whom the gate has found."""
    caller: ApiCaller = request.state.caller
    return caller


def need(scope: str) -> Callable[[Request], Awaitable[ApiCaller]]:
    """Return a dependency: the caller, whose key must have the scope."""

    async def check(request: Request) -> ApiCaller:
        return check_scope(get_caller(request), scope)

    return check


TheHost = Annotated[RunHost, Depends(get_host)]
Reader = Annotated[ApiCaller, Depends(need("read"))]
Runner = Annotated[ApiCaller, Depends(need("run"))]


SLASH = "\ufdd0"
"""What stands for an encoded slash in the path of a request until its parts are read. It is no character."""
_ENCODED_SLASH = re.compile(b"%2f", re.IGNORECASE)
Name = Annotated[str, AfterValidator(lambda text: text.replace(SLASH, "/"))]
"""A part of a path, such as the id of a run, which may have encoded slashes."""


class EncodedSlashes:
    """ASGI middleware that tells the slashes within the parts of a path from those between them."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        raw = scope.get("raw_path") or b""
        app = self._answer if b"%" in raw and _ENCODED_SLASH.search(raw) else self._app
        return app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope["raw_path"]
        path, mark = scope["path"], quote(SLASH).encode()
        scope["path"] = unquote(_ENCODED_SLASH.sub(mark, raw.partition(b"?")[0]).decode("latin-1"))
        try:
            await self._app(scope, receive, send)
        finally:
            scope["path"] = path


async def check_parameters(request: Request) -> None:
    """Check that a route has all parameters in the query of a request. Raises: `ConfigError`."""
    route = request.scope["route"]
    if not (request.query_params and route.include_in_schema):
        return
    flat = get_flat_params(route.dependant)
    known = [field.alias for field in flat if isinstance(field.field_info, params.Query)]
    for name in request.query_params:
        if name not in known:
            hint = did_you_mean(name, known, f"known are {', '.join(known)}" if known else "there are none")
            raise ConfigError(f"there is no parameter {name!r:.100}{hint}")


Checked = Depends(check_parameters)
"""What every router of Treadle's own API depends on. Clients of other APIs may send more than is read."""


class ClientBody(Described, BaseModel):
    """The base of the bodies of requests."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_characters(cls, value: Any) -> Any:
        try:
            encode(value)
        except UnicodeEncodeError:
            raise ValueError("the request has half of a surrogate pair, which is no character") from None
        return value


class Fast(JSONResponse):
    """A response whose body is encoded by msgspec, and whose headers take no time."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return encode(content)

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Make the headers as they are sent."""
        given = [] if headers is None else [(name.lower(), value) for name, value in headers.items()]
        self.raw_headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
            *[(name.encode("latin-1"), value.encode("latin-1")) for name, value in given],
        ]
