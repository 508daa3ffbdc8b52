"""`/v1/models` and `/v1/providers`, and the description of the requests that `gateway.wires` answers.

Source: OpenAI API reference, Models, 2026; OGX 1.0, Models and Providers.
"""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from treadle.core.types import Json
from treadle.server.admission.access import no_such
from treadle.server.catalog import UnknownAgentError
from treadle.server.routes.route_context import Fast, Name, Reader, TheHost

router = APIRouter(prefix="/v1")
_PROVIDER = "treadle"
_APIS = ("inference", "responses", "conversations", "files", "vector_io")


def _write(name: str) -> dict[str, Json]:
    made = {"model_type": "llm", "provider_id": _PROVIDER, "provider_resource_id": name}
    return {"id": name, "object": "model", "created": 0, "owned_by": _PROVIDER, "custom_metadata": made}


def _write_provider(api: str) -> dict[str, Json]:
    told = {"provider_id": _PROVIDER, "provider_type": f"inline::{_PROVIDER}", "config": {}}
    return {"api": api, **told, "health": {"status": "OK"}}


@router.get("/providers", tags=["models"])
async def list_providers(caller: Reader) -> Response:
    """Return what provides each API, as clients of llama-stack ask. What stands behind the server is not told."""
    return Fast({"data": [_write_provider(api) for api in _APIS]})


@router.get("/providers/{provider_id}", tags=["models"])
async def get_provider(provider_id: Name, caller: Reader) -> Response:
    """Return a provider."""
    if provider_id != _PROVIDER:
        raise no_such("provider", provider_id)
    return Fast(_write_provider(_APIS[0]))


@router.get("/models", tags=["models"])
async def list_models(host: TheHost, caller: Reader) -> Response:
    """Return the names that `model` may have."""
    return Fast({"object": "list", "data": [_write(name) for name in host.catalog.names]})


@router.get("/models/{name:path}", tags=["models"])
async def get_model(name: Name, host: TheHost, caller: Reader) -> Response:
    """Return one agent or model."""
    if name not in host.catalog.names:
        raise UnknownAgentError(f"there is no model {name!r:.100}")
    return Fast(_write(name))


def _body(*required: str) -> dict[str, Any]:
    schema = {"type": "object", "required": list(required), "properties": {"model": {"type": "string"}}}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.post("/chat/completions", tags=["gateway"], openapi_extra=_body("model", "messages"))
async def create_chat_completion() -> dict[str, Any]:
    """Answer as OpenAI's chat completions do, and record what is asked as a run.

    Requests that continue a conversation continue its run. The header `x-treadle-run` names the run, new or not,
    and `x-treadle-labels` has labels for it, as `name=value, name=value`.
    """
    raise AssertionError("the gateway answers before FastAPI does")


@router.post("/messages", tags=["gateway"], openapi_extra=_body("model", "messages"))
async def create_message() -> dict[str, Any]:
    """Answer as Anthropic's Messages API does, and record what is asked as a run; see chat completions."""
    raise AssertionError("the gateway answers before FastAPI does")


@router.post("/messages/count_tokens", tags=["gateway"], openapi_extra=_body("model", "messages"))
async def count_message_tokens() -> dict[str, Any]:
    """Return the tokens of a request as Anthropic's API does: as its server counts them, or else an estimate, which
    the header `x-treadle-estimated` tells."""
    raise AssertionError("the gateway answers before FastAPI does")
