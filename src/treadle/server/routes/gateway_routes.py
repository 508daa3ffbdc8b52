"""`/v1/chat/completions` and `/v1/messages` in the description of the API; `gateway.wires` answers them."""

from typing import Any

from fastapi import APIRouter

router = APIRouter(prefix="/v1", tags=["gateway"])


def _body(*required: str) -> dict[str, Any]:
    schema = {"type": "object", "required": list(required), "properties": {"model": {"type": "string"}}}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.post("/chat/completions", openapi_extra=_body("model", "messages"))
async def create_chat_completion() -> dict[str, Any]:
    """Answer as OpenAI's chat completions do, and record what is asked as a run.

    Requests that continue a conversation continue its run. The header `x-treadle-run` names the run, new or not,
    and `x-treadle-labels` has labels for it, as `name=value, name=value`.
    """
    raise AssertionError("the gateway answers before FastAPI does")


@router.post("/messages", openapi_extra=_body("model", "messages"))
async def create_message() -> dict[str, Any]:
    """Answer as Anthropic's Messages API does, and record what is asked as a run; see chat completions."""
    raise AssertionError("the gateway answers before FastAPI does")
