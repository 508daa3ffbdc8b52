"""The events of a turn as those of the AG-UI protocol.

Invariants: the first event is RUN_STARTED, the last is RUN_FINISHED or RUN_ERROR, and between them each message,
call and step that was opened is closed. Source: AG-UI 1.0.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from treadle.core import events as e
from treadle.core.asking import Question
from treadle.core.events.narrowing import Item
from treadle.core.texts.hiding import hide_servers
from treadle.core.types import Json, StopReason, ToolCall
from treadle.runs.run import Run
from treadle.server.responses.response_fold import ASK, ResponseFold
from treadle.server.responses.response_ids import read_call_id

AgUiEvent = dict[str, Json]
_DECISION: dict[str, Json] = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "editedArgs": {"type": "object"},
        "reason": {"type": "string"},
    },
    "required": ["approved"],
}


class AgUiStream:
    """The fold of one run of AG-UI, which is a turn here, or the rest of a turn that waited for the client."""

    def __init__(self, fold: ResponseFold, thread_id: str, run_id: str, external: Iterable[str]) -> None:
        """Make a stream. `external` are the names of the client's tools."""
        self._fold = fold
        self._named: dict[str, Json] = {"threadId": thread_id, "runId": run_id}
        self._external = frozenset(external)
        self._open_calls: dict[str, str] = {}
        """The ids of the calls that are open, by the ids of their items."""
        self._step: str | None = None

    def begin(self) -> list[AgUiEvent]:
        return [{"type": "RUN_STARTED", **self._named}]

    def take(self, item: Item) -> Iterator[AgUiEvent]:
        """Yield what follows from an event or a piece of output of the run."""
        body = item.body
        if isinstance(body, e.InferenceStarted):
            yield from self._end_step()
            self._step = f"step {body.step}"
            yield {"type": "STEP_STARTED", "stepName": self._step}
        for event in self._fold.take(body):
            yield from self._translate(event)
        if isinstance(body, e.ToolCompleted) and body.result.name not in self._external:
            result = body.result
            where = {"messageId": f"result_{result.call_id}", "toolCallId": result.call_id, "role": "tool"}
            yield {"type": "TOOL_CALL_RESULT", **where, "content": result.content}

    def _end_step(self) -> Iterator[AgUiEvent]:
        if self._step is not None:
            yield {"type": "STEP_FINISHED", "stepName": self._step}
            self._step = None

    def _translate(self, event: dict[str, Any]) -> Iterator[AgUiEvent]:
        kind: str = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            yield from self._open(event["item"])
        elif kind == "output_item.done":
            yield from self._close(event["item"])
        elif kind == "output_text.delta":
            yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": event["item_id"], "delta": event["delta"]}
        elif kind == "reasoning_text.delta":
            where = {"messageId": event["item_id"], "delta": event["delta"]}
            yield {"type": "REASONING_MESSAGE_CONTENT", **where}
        elif kind.endswith("_arguments.delta") and event["item_id"] in self._open_calls:
            call_id = self._open_calls[event["item_id"]]
            yield {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": event["delta"]}
        elif kind == "mcp_call_arguments.done":
            yield from self._close_call(event["item_id"])

    def _open(self, item: dict[str, Any]) -> Iterator[AgUiEvent]:
        where = {"messageId": item["id"]}
        if item["type"] == "message":
            yield {"type": "TEXT_MESSAGE_START", **where, "role": "assistant"}
        elif item["type"] == "reasoning":
            yield {"type": "REASONING_START", **where}
            yield {"type": "REASONING_MESSAGE_START", **where, "role": "reasoning"}
        elif item["type"] in ("function_call", "mcp_call") and item["name"] != ASK:
            wire = item.get("call_id")
            named = self._fold.call_id_of(item["id"]) if wire is None else wire
            call_id = read_call_id(self._fold.response_id.run_id, named or item["id"])
            self._open_calls[item["id"]] = call_id
            yield {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": item["name"]}

    def _close(self, item: dict[str, Any]) -> Iterator[AgUiEvent]:
        where = {"messageId": item["id"]}
        if item["type"] == "message":
            yield {"type": "TEXT_MESSAGE_END", **where}
        elif item["type"] == "reasoning":
            yield {"type": "REASONING_MESSAGE_END", **where}
            yield {"type": "REASONING_END", **where}
        elif item["type"] in ("function_call", "mcp_call"):
            yield from self._close_call(item["id"])

    def _close_call(self, item_id: str) -> Iterator[AgUiEvent]:
        if (call_id := self._open_calls.pop(item_id, None)) is not None:
            yield {"type": "TOOL_CALL_END", "toolCallId": call_id}

    def finish(self, run: Run[Any]) -> Iterator[AgUiEvent]:
        """Yield the last events of a run that was driven."""
        for item_id in list(self._open_calls):
            yield from self._close_call(item_id)
        yield from self._end_step()
        ending = run.state.ending
        if not run.state.turn.is_open and ending.error is not None:
            yield {
                "type": "RUN_ERROR",
                "message": hide_servers(ending.error),
                "code": str(ending.stop_reason),
            }
            return
        usage = self._fold.usage
        counts = {
            "inputTokens": usage.input_tokens,
            "outputTokens": usage.output_tokens,
            "cachedInputTokens": usage.cached_input_tokens,
            "reasoningTokens": usage.reasoning_tokens,
            "totalTokens": usage.total_tokens,
        }
        yield {"type": "RUN_FINISHED", **self._named, "outcome": _outcome_of(run), "usage": [counts]}

    def fail(self, message: str) -> AgUiEvent:
        """Return the last event of a run that could not be driven."""
        return {"type": "RUN_ERROR", "message": message}


def _outcome_of(run: Run[Any]) -> dict[str, Json]:
    interrupts = [
        *[_of_question(key, question) for key, question in run.open_questions.items()],
        *[_of_approval(call) for call in run.approvals.values()],
    ]
    if interrupts:
        return {"type": "interrupt", "interrupts": interrupts}
    if run.external_calls:
        return {"type": "success", "pendingToolCallIds": list(run.external_calls)}
    is_stopped = run.state.turn.is_open or run.state.ending.stop_reason is StopReason.CANCELLED
    return {"type": "cancelled" if is_stopped else "success"}


def _of_question(question_id: str, question: Question) -> dict[str, Json]:
    schema: dict[str, Json] = {"type": "string"}
    if question.options:
        schema["enum"] = [option.label for option in question.options]
    return {
        "id": question_id,
        "reason": "input_required",
        "message": question.text,
        "responseSchema": question.schema or schema,
    }


def _of_approval(call: ToolCall) -> dict[str, Json]:
    return {
        "id": call.call_id,
        "reason": "tool_call",
        "toolCallId": call.call_id,
        "message": f"Approve {call.name}({call.arguments})?",
        "responseSchema": _DECISION,
    }
