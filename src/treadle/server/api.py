"""The HTTP API of a server: its routers, and its errors in the form of OpenAI's API."""

import contextlib
import importlib.util
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException

from treadle import __version__
from treadle.core.errors import (
    ConfigError,
    JournalError,
    LeaseHeldError,
    ProviderError,
    RunExistsError,
    RunNotFoundError,
    SandboxError,
    TreadleError,
)
from treadle.core.texts.hiding import hide_servers
from treadle.core.texts.mistakes import Keys
from treadle.core.texts.places import Problem
from treadle.models.config.tables import ServeTable
from treadle.server.admission.access import Gate, RequestRefused, error_body
from treadle.server.admission.idempotency import Idempotency
from treadle.server.api_document import describe_api
from treadle.server.catalog import AgentUnavailableError, UnknownAgentError
from treadle.server.compression import Compressed
from treadle.server.gateway.wires import Gateway, GatewayErrors
from treadle.server.metrics import Metrics
from treadle.server.protocols.agent_tools import serve_agents
from treadle.server.responses.request_form import RequestReader
from treadle.server.routes import (
    a2a_routes,
    ag_ui_routes,
    conversation_routes,
    dataset_view_routes,
    file_routes,
    model_routes,
    response_routes,
    run_routes,
    run_work_routes,
    vector_store_routes,
    viewer_routes,
)
from treadle.server.routes.response_routes import answer_directly
from treadle.server.routes.route_context import EncodedSlashes, Fast, Reader
from treadle.server.run_host import RunHost
from treadle.viewer.viewed_data import ViewedData

ROUTERS = (
    response_routes.router,
    conversation_routes.router,
    model_routes.router,
    run_routes.router,
    run_work_routes.router,
    ag_ui_routes.router,
    a2a_routes.router,
    file_routes.router,
    vector_store_routes.router,
    viewer_routes.router,
    dataset_view_routes.router,
)


OTHER = "/other"
"""What the paths of the API of a second journal begin with."""


def make_api(
    host: RunHost,
    table: ServeTable,
    name: str,
    viewed: ViewedData | None = None,
    other: RunHost | None = None,
) -> Any:
    """Return the ASGI application.

    `name` is the host name under which it is reached, `viewed` is what pages show beside runs, and `other` has the
    runs of a second journal.
    """

    mcp = _make_mcp(host)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for one in (host,) if other is None else (host, other):
                await one.open()
                stack.push_async_callback(one.close)
            if mcp is not None:
                await stack.enter_async_context(mcp.router.lifespan_context(mcp))
            yield

    api = _make_routes(host, viewed or ViewedData(), lifespan)
    if mcp is not None:
        api.router.routes.extend(mcp.routes)
    if other is not None:
        api.mount(OTHER, _make_routes(other, ViewedData(), None))

    @api.get("/healthz", tags=["probes"])
    async def healthz() -> dict[str, str]:
        """Say that the process is alive."""
        return {"status": "alive"}

    @api.get("/readyz", tags=["probes"])
    async def readyz() -> JSONResponse:
        """Say whether the server takes requests."""
        fault = host.fault
        return Fast({"status": hide_servers(fault or "ready")}, status_code=200 if fault is None else 503)

    @api.get("/metrics", tags=["probes"], response_class=PlainTextResponse)
    async def metrics_text(_: Reader, request: Request) -> PlainTextResponse:
        """Return what the server has counted, in the text form of Prometheus."""
        return PlainTextResponse(request.app.state.metrics.write())

    direct = {response_routes.router.prefix: partial(answer_directly, api, host, RequestReader())}
    app: Any = EncodedSlashes(Gateway(Compressed(api), host, _answer_any, direct))
    if table.allow_origins:
        anything = ["*"]
        app = CORSMiddleware(app, table.allow_origins, anything, anything, expose_headers=anything)
    api.openapi = partial(describe_api, api)  # type: ignore[method-assign]
    metrics = Metrics(GatewayErrors(Gate(Idempotency(app, host), table, name)), host)
    api.state.metrics = metrics
    return metrics


def _make_routes(host: RunHost, viewed: ViewedData, lifespan: Any) -> FastAPI:
    """Return the application with the routes of a journal, and its errors."""
    api = FastAPI(
        title="Treadle",
        version=__version__,
        description="Agents whose every run is a journal, in the wire formats of OpenAI.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    api.state.host = host
    api.state.viewed = viewed
    for router in ROUTERS:
        # `include_router` would make each route again, which takes a tenth of a second at the first request.
        api.router.routes.extend(router.routes)
    api.add_exception_handler(TreadleError, _answer_error)
    api.add_exception_handler(RequestRefused, _answer_refusal)
    api.add_exception_handler(RequestValidationError, _answer_invalid)
    api.add_exception_handler(ValidationError, _answer_invalid)
    api.add_exception_handler(UnicodeEncodeError, _answer_no_text)
    api.add_exception_handler(HTTPException, _answer_http)
    api.add_exception_handler(Exception, _answer_defect)
    return api


def _make_mcp(host: RunHost) -> Any:
    """Return the application that serves agents at `/mcp`; `None` if the extra `mcp` is not installed."""
    if importlib.util.find_spec("mcp") is None:
        return None
    # The gate has checked the host and the origin. Without sessions, any process of the server can answer.
    return serve_agents(host).streamable_http_app(stateless_http=True, host="")


def _answer_any(error: Exception) -> JSONResponse:
    """Return the response for an error that was raised outside of FastAPI."""
    if isinstance(error, RequestRefused):
        return _answer_refusal(None, error)
    if isinstance(error, TreadleError):
        return _answer_error(None, error)
    return _answer_defect(None, error)


_ERRORS: tuple[tuple[type[Exception], int, str], ...] = (
    (UnknownAgentError, 404, "model_not_found"),
    (AgentUnavailableError, 503, "agent_unavailable"),
    (RunNotFoundError, 404, "not_found"),
    (LeaseHeldError, 409, "conversation_locked"),
    (RunExistsError, 409, "conversation_locked"),
    (ConfigError, 400, "invalid_request"),
    (SandboxError, 400, "invalid_request"),
    (ProviderError, 502, "provider_error"),
    (JournalError, 503, "journal_error"),
    (TreadleError, 500, "server_error"),
)
"""The status and the code of each class of errors; the first that fits counts."""


def _answer_error(_: Request | None, error: Exception) -> JSONResponse:
    status, code = next((status, code) for kind, status, code in _ERRORS if isinstance(error, kind))
    message = str(error)
    if status >= 500:
        logging.getLogger("treadle.server").warning("a request was answered with %d: %s", status, message)
        message = hide_servers(message)
    return Fast(error_body(status, message, code), status_code=status)


def _answer_refusal(_: Request | None, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestRefused)
    body = error_body(error.status_code, error.detail, error.code)
    return Fast(body, status_code=error.status_code, headers=error.headers)


def _answer_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError | ValidationError)
    faults = error.errors()
    first, where = faults[0], None
    if first["type"] == "json_invalid":
        message = f"the body is not JSON: {first['ctx']['error']}"
    elif first["loc"] == ("body",) and first["type"] in ("model_attributes_type", "dict_type"):
        message = "the body is not a JSON object; send one, with the header 'content-type: application/json'"
    elif first["loc"] == ("body",) and first["type"] == "missing":
        message = "the body is missing"
    else:
        problem = _explain_faults(request, error, first["loc"][0])
        where, message = problem.key or None, str(problem)
        if first["type"] == "missing" and first["loc"][-1:] == problem.path[-1:]:
            message = f"{where} is missing"
    return Fast(error_body(400, message, "invalid_request", where), status_code=400)


def _explain_faults(request: Request, error: Any, place: Any) -> Problem:
    """Return the first mistake in one place of a request, such as `body`, as its client knows it."""
    faults = [fault | {"loc": fault["loc"][1:]} for fault in error.errors() if fault["loc"][0] == place]
    body = getattr(error, "body", None)
    given = {
        "query": dict(request.query_params),
        "body": dict(body) if isinstance(body, FormData) else body,
    }.get(place)
    field = getattr(request.scope.get("route"), "body_field", None)
    keys = Keys(lambda: {} if field is None else TypeAdapter(field.field_info.annotation).json_schema(), {})
    return keys.explain(faults, given)[0]


def _answer_no_text(_: Request, error: Exception) -> JSONResponse:
    message = "the request has half of a surrogate pair, which is no character"
    return Fast(error_body(400, message, "invalid_request"), status_code=400)


def _answer_defect(request: Request | None, error: Exception) -> JSONResponse:
    what = "a request to the gateway" if request is None else f"{request.method} {request.url.path}"
    logging.getLogger("treadle.server").error("%s failed", what, exc_info=error)
    return Fast(error_body(500, "the server has failed; its log says why", "server_error"), 500)


def _answer_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code, message = None, str(error.detail)
    if error.status_code == 404:
        code = "not_found"
        message = f"there is nothing at {request.url.path!r:.100}; /openapi.json lists all paths"
    elif error.status_code == 405:
        message = f"{request.url.path!r:.100} takes no {request.method}; /openapi.json lists all paths"
    return Fast(
        error_body(error.status_code, message, code), status_code=error.status_code, headers=error.headers
    )
