"""The results of calls, in the shape that the turn and step stream has for them."""

from collections.abc import Sequence

from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.types import Json, ServerCall, ToolResult


def show_result(result: ToolResult, body: e.ToolCompleted) -> dict[str, Json]:
    """Return the result of a call that Treadle ran."""
    metadata: dict[str, Json] = {"is_error": result.is_error, "duration_seconds": body.duration_seconds}
    if result.error_kind is not None:
        metadata["error_kind"] = result.error_kind.value
    if result.structured is not None:
        metadata["structured"] = result.structured
    if body.child is not None:
        metadata["child_run_id"] = body.child.run_id
    return {
        "call_id": result.call_id,
        "tool_name": result.name,
        "content": result.content,
        "metadata": metadata,
    }


def with_id(call: ServerCall, number: int) -> ServerCall:
    """Return a server's call that has no id with one that counts the calls of the answer."""
    return replace(call, call_id=f"server_{number}")


def show_server_call(call: ServerCall) -> dict[str, Json]:
    """Return a call that the model's server ran, with its result."""
    return {
        "call_id": call.call_id,
        "tool_type": call.name,
        "tool_name": call.name,
        "arguments": call.arguments or "{}",
        "result": call.result,
        "is_error": call.is_error,
    }


def describe_server_calls(shown: Sequence[dict[str, Json]]) -> dict[str, Json]:
    """Return the metadata of the step in which the model's server ran these calls."""
    kinds, names = (
        ", ".join(dict.fromkeys([item[key] for item in shown])) for key in ("tool_type", "tool_name")
    )
    return {"server_side": True, "tool_type": kinds, "tool_name": names}
