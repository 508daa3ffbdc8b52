"""An agent with the interface of llama-stack's `Agent`: its sessions, and its turns as events of turns and steps.

A session is a session of Treadle, so it survives the process. Tools run here, and their steps have their results.
If llama-stack-client is installed, the events are of its classes; else they have the same fields. Source:
llama-stack-client 0.7.5.
"""

import importlib
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from treadle.agent.agent import Agent
from treadle.agent.sync import block, iterate_blocking
from treadle.core import events as e
from treadle.core.errors import ConfigError, TreadleError
from treadle.core.events.narrowing import Item
from treadle.core.types import StopReason, ToolCall, ToolResult
from treadle.knowledge.files.file_search import NAME as FILE_SEARCH
from treadle.runs.begin import make_run_id
from treadle.server.responses.item_parts import Echo
from treadle.server.responses.request_items import read_items
from treadle.server.responses.response_fold import ResponseFold
from treadle.server.responses.response_ids import ResponseId, conversation_id, read_conversation_id

_WORD = re.compile(r"(?<!^)(?=[A-Z])")


def _make(name: str, **fields: object) -> Any:
    """Return an event or a part of one, of the class of llama-stack-client if that is installed."""
    try:
        found: Any = importlib.import_module("llama_stack_client.lib.agents.turn_events")
    except ImportError:
        tag = _WORD.sub("_", name).lower()
        kind = "delta_type" if name.endswith("Delta") else "event_type"
        return SimpleNamespace(**{kind: tag.removesuffix("_delta")}, **fields)
    return getattr(found, name)(**fields)


class StackAgent:
    """An agent whose turns are told as llama-stack's `Agent` tells them."""

    def __init__(self, agent: Agent[Any]) -> None:
        self.agent = agent
        self.sessions: list[str] = []
        """The ids of the sessions that were made with this object. Others of the journal can be continued too."""
        self._last_response_id: str | None = None
        self._session_last_response_id: dict[str, str] = {}

    def create_session(self, session_name: str) -> str:
        """Begin a session, and return its id."""
        return block(lambda: self.create_session_async(session_name), "await agent.create_session_async(...)")

    async def create_session_async(self, session_name: str) -> str:
        """Begin a session, and return its id."""
        run_id = make_run_id()
        async with self.agent.session(run_id, metadata={"title": session_name}, expects_new=True):
            pass
        self.sessions.append(conversation_id(run_id))
        return self.sessions[-1]

    def create_turn(self, messages: Sequence[dict[str, Any]], session_id: str, stream: bool = True) -> Any:
        """Answer messages. Return an iterator of chunks, each with an `event`, the last one with a `response`.

        Without `stream`, return the response. Raises: `ConfigError`, without `stream` also for a turn that failed.
        """
        chunks = self.create_turn_async(messages, session_id)
        told: Iterator[Any] = iterate_blocking(chunks, "async for chunk in agent.create_turn_async(...)")
        if stream:
            return told
        last = list(told)[-1]
        if last.response is None:
            raise ConfigError(f"the turn did not complete: {last.event.error_message}")
        return last.response

    async def create_turn_async(
        self, messages: Sequence[dict[str, Any]], session_id: str
    ) -> AsyncIterator[Any]:
        """Answer messages, and yield the chunks of the turn."""
        run_id, asked = read_conversation_id(session_id), read_items(list(messages))
        if asked.message is None or asked.history:
            raise ConfigError("give one message of the user; the session has the others")
        async with self.agent.session(run_id) as session:
            before = self._session_last_response_id.get(session_id)
            turn = _StackTurn(self.agent, session_id, before, len(await session.read_events()))
            yield _make("AgentStreamChunk", event=turn.begin(), response=None)
            parts, blobs = asked.message.parts, asked.blobs
            try:
                async for item in session.stream(asked.message.content, attach=parts, blobs=blobs):
                    for event in turn.take(item):
                        response = turn.response() if turn.is_done else None
                        yield _make("AgentStreamChunk", event=event, response=response)
            except TreadleError as error:
                yield _make("AgentStreamChunk", event=turn.fail(str(error)), response=None)
        if turn.is_done:
            self._last_response_id = self._session_last_response_id[session_id] = turn.response_id


class _StackTurn:
    def __init__(self, agent: Agent[Any], session_id: str, before: str | None, events: int) -> None:
        self._turn_id = f"turn_{secrets.token_hex(6)}"
        self._turn = {"turn_id": self._turn_id, "session_id": session_id}
        place = ResponseId(read_conversation_id(session_id), events, 0)
        echo = Echo(model=agent.model.name, created_at=time.time(), previous_response_id=before)
        self._fold = ResponseFold(place, echo)
        self._fold.offer([tool.spec for tool in agent.tools.values()], None)
        self.response_id = str(place)
        self.is_done = False
        self._steps = 0
        self._text = ""
        self._is_streamed = False
        self._kind = ""
        """The kind of the open step; empty if none is open."""
        self._calls: dict[str, ToolCall] = {}
        self._results: dict[str, ToolResult] = {}
        """The results of the open step, by the call's id."""

    def begin(self) -> Any:
        return _make("TurnStarted", **self._turn)

    def take(self, item: Item) -> list[Any]:
        """Return the events that follow from an event or a delta of the run."""
        body: Any = item.body
        self._fold.take(body)
        if isinstance(body, e.InferenceStarted):
            self._text, self._is_streamed = "", False
            return [self._open("inference", None)] if self._kind != "inference" else []
        if isinstance(body, e.TextDelta):
            self._text, self._is_streamed = self._text + body.text, True
            return [self._progress(_make("TextDelta", text=body.text))]
        if isinstance(body, e.InferenceCompleted):
            return self._end_inference(body)
        if isinstance(body, e.ToolCompleted) and body.result.call_id in self._calls:
            return self._end_call(body.result)
        if isinstance(body, e.TurnCompleted):
            return [self._end_turn(body)]
        if isinstance(body, e.RunPaused):
            return [self.fail(f"it waits for: {body.reason}")]
        return []

    def response(self) -> Any:
        raw = self._fold.response()
        try:
            models: Any = importlib.import_module("llama_stack_client._models")
            types: Any = importlib.import_module("llama_stack_client.types")
            return models.construct_type(type_=types.ResponseObject, value=raw)
        except ImportError:
            made = json.loads(json.dumps(raw), object_hook=lambda fields: SimpleNamespace(**fields))
            made.output_text = self._text
            return made

    def _open(self, kind: str, metadata: dict[str, object] | None) -> Any:
        self._kind, self._steps = kind, self._steps + 1
        return _make("StepStarted", **self._step, metadata=metadata)

    @property
    def _step(self) -> dict[str, object]:
        step_id = f"{self._turn_id}_step_{self._steps - 1}"
        return {"step_id": step_id, "step_type": self._kind, "turn_id": self._turn_id}

    def _progress(self, delta: Any) -> Any:
        return _make("StepProgress", **self._step, delta=delta)

    def _end_inference(self, body: e.InferenceCompleted) -> list[Any]:
        message, told = body.completion.message, []
        if not self._is_streamed and message.content:
            told.append(self._progress(_make("TextDelta", text=message.content)))
        self._text = message.content
        self._calls, self._results = {call.call_id: call for call in message.tool_calls}, {}
        searches = [call for call in message.tool_calls if call.name == FILE_SEARCH]
        for call in message.tool_calls:
            told.append(
                self._progress(_make("ToolCallIssuedDelta", **_about(call), arguments=call.arguments))
            )
        is_server = bool(searches) and len(searches) == len(self._calls)
        reason = "end_of_turn" if not self._calls else "server_tool_call" if is_server else "tool_calls"
        result = _make(
            "InferenceStepResult",
            step_id=self._step["step_id"],
            response_id=self.response_id,
            text_content=message.content,
            function_calls=[_write_call(call) for call in message.tool_calls if call not in searches],
            server_tool_executions=[_write_call(call).__dict__ for call in searches],
            stop_reason=reason,
        )
        told.append(_make("StepCompleted", **self._step, result=result))
        self._kind = ""
        if self._calls:
            about = {"tool_type": "file_search", "tool_name": FILE_SEARCH} if is_server else {}
            told.append(self._open("tool_execution", {"server_side": is_server, **about}))
        return told

    def _end_call(self, result: ToolResult) -> list[Any]:
        self._results[result.call_id] = result
        told = [self._progress(_make("ToolCallCompletedDelta", **_about(result), result=result.content))]
        if self._results.keys() == self._calls.keys():
            ended = _make(
                "ToolExecutionStepResult",
                step_id=self._step["step_id"],
                tool_calls=[_write_call(call) for call in self._calls.values()],
                tool_responses=[_write_result(self._results[call_id]) for call_id in self._calls],
            )
            told.append(_make("StepCompleted", **self._step, result=ended))
            self._kind = ""
        return told

    def _end_turn(self, body: e.TurnCompleted) -> Any:
        if body.stop_reason is not StopReason.COMPLETED:
            return self.fail(body.error or str(body.stop_reason))
        self.is_done, self._text = True, body.output or self._text
        ids = [self.response_id]
        return _make(
            "TurnCompleted", **self._turn, final_text=self._text, response_ids=ids, num_steps=self._steps
        )

    def fail(self, message: str) -> Any:
        """Return the last event of a turn that failed."""
        return _make("TurnFailed", **self._turn, error_message=message)


def _about(item: ToolCall | ToolResult) -> dict[str, object]:
    kind = "file_search" if item.name == FILE_SEARCH else "function"
    return {"call_id": item.call_id, "tool_type": kind, "tool_name": item.name}


def _write_result(result: ToolResult) -> dict[str, object]:
    named = {"call_id": result.call_id, "tool_name": result.name}
    return {**named, "content": result.content, "metadata": {"is_error": result.is_error}}


def _write_call(call: ToolCall) -> Any:
    # The module of events has this class, too.
    return _make("ToolCall", call_id=call.call_id, tool_name=call.name, arguments=call.arguments)
