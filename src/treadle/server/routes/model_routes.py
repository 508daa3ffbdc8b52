"""`/v1/models`: the agents and models that the server offers."""

from fastapi import APIRouter
from fastapi.responses import Response

from treadle.core.types import Json
from treadle.server.catalog import UnknownAgentError
from treadle.server.routes.route_context import Fast, Reader, TheHost

router = APIRouter(prefix="/v1/models", tags=["models"])


def _write(name: str) -> dict[str, Json]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "treadle"}


@router.get("")
async def list_models(host: TheHost, caller: Reader) -> Response:
    """Return the names that `model` may have."""
    return Fast({"object": "list", "data": [_write(name) for name in host.catalog.names]})


@router.get("/{name:path}")
async def get_model(name: str, host: TheHost, caller: Reader) -> Response:
    """Return one agent or model."""
    if name not in host.catalog.names:
        raise UnknownAgentError(f"there is no model {name!r:.100}")
    return Fast(_write(name))
