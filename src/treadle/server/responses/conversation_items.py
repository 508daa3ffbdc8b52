"""The items of a run in the order of its events: what the client said, and what its responses show, under the same
ids."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from treadle.core import events as e
from treadle.core.parts import parts_among
from treadle.core.types import Artifact, Json, Message, Role
from treadle.server.admission.access import no_such
from treadle.server.responses.item_parts import Echo
from treadle.server.responses.response_fold import ResponseFold, is_wait
from treadle.server.responses.response_ids import ResponseId, wire_call_id

Shown = dict[str, Json]


def items_of_run(
    events: Iterable[e.Event], run_id: str, before: ResponseId | None = None, *, has_history: bool = True
) -> list[Shown]:
    """Return the items of a run, the oldest first: all, or those that a response had before its own.

    The messages that a session began with are left out unless `has_history`.
    """
    reader = _ItemReader(run_id, before, has_history)
    for event in events:
        reader.take(event)
        if reader.is_over:
            break
    reader.end_part()
    return reader.items


class _ItemReader:
    def __init__(self, run_id: str, before: ResponseId | None, has_history: bool) -> None:
        self.items: list[Shown] = []
        self.is_over = False
        self._run_id = run_id
        self._before = before
        self._has_history = has_history
        self._offered: e.RunStarted | e.RunResumed = e.RunStarted(version="")
        self._turn = self._step = self._waits = 0
        self._listed: set[str] = set()
        """The labels of the MCP servers whose tools were listed."""
        self._part: ResponseFold | None = None
        """The response that the events belong to; `None` between turns."""

    def take(self, event: e.Event) -> None:
        body = event.body
        if isinstance(body, e.RunStarted):
            self._offered = body
            if self._has_history:
                self.items += write_items(body.history, self._run_id)
        elif isinstance(body, e.RunResumed) and body.agent is not None:
            self._offered = body
        elif isinstance(body, e.TurnStarted):
            self.end_part()
            self.is_over = self.is_over or (self._before is not None and self._before.is_compaction)
            if self.is_over:
                return
            self._turn, self._waits = body.turn, 0
            self._say(body.message, event.seq)
            self._begin_part(ResponseId(self._run_id, body.turn, self._step))
        elif isinstance(body, e.MessageInjected):
            self._say(body.message, event.seq)
        elif isinstance(body, e.ToolCompleted) and self._waits:
            self._answer(body)
        elif isinstance(body, e.ApprovalDecided):
            self._decide(body, event.seq)
        if self._part is not None:
            self._part.take(body)
        if isinstance(body, e.InferenceCompleted):
            self._step, self._waits = body.step, 0
        elif is_wait(body):
            said = {} if self._part is None else self._part.said
            self.end_part()
            self._begin_part(ResponseId(self._run_id, self._turn, self._step, self._waits))
            self._waits += 1
            if self._part is not None:
                self._part.note_calls(said.values())

    def _begin_part(self, place: ResponseId) -> None:
        self._part = ResponseFold(place, Echo(model="", created_at=0), is_told=False)
        self._part.listed = self._listed
        self._part.take(self._offered)
        self._part.begin()

    def end_part(self) -> None:
        """Add what the response shows; nothing if the items before it are asked for."""
        part, self._part = self._part, None
        if part is None or self.is_over:
            return
        if part.response_id == self._before:
            self.is_over = True
        else:
            output = part.response()["output"]
            assert isinstance(output, list)
            self.items += output

    def _say(self, message: Message, seq: int) -> None:
        if not message.is_own:
            self.items += [
                {"id": f"msg_{self._run_id}_e{seq}", "status": "completed", **item}
                for item in _write_message(message, self._run_id)
            ]

    def _answer(self, body: e.ToolCompleted) -> None:
        """Add the output of a call if the client has sent it."""
        if self._part is not None and self._part.is_answered_by_client(body.name):
            wire = wire_call_id(self._run_id, body.call_id)
            kind = self._part.output_type(body.name)
            shown = _write_output(body.result.content, parts_among(body.result.artifacts))
            output: Shown = {"call_id": wire, "output": shown, "status": "completed"}
            self.items.append({"id": f"fco_{wire}", "type": kind, **output})

    def _decide(self, body: e.ApprovalDecided, seq: int) -> None:
        asked = wire_call_id(self._run_id, body.call_id)
        told: Shown = {"approval_request_id": asked, "approve": body.is_approved, "reason": body.reason}
        self.items.append({"id": f"mcpa_{self._run_id}_e{seq}", "type": "mcp_approval_response", **told})


def write_items(messages: Iterable[Message], run_id: str) -> list[Shown]:
    """Return messages as items of a conversation, with their places as ids. System messages and summaries are left
    out."""
    items: list[Shown] = []
    for number, message in enumerate(messages):
        for part, item in enumerate([] if message.is_own else _write_message(message, run_id)):
            item_id = f"msg_{run_id}_{number}" + (f"_{part}" if part else "")
            items.append({"id": item_id, "status": "completed", **item})
    return items


def _write_message(message: Message, run_id: str) -> list[Shown]:
    """Return the items of a message without their ids: one for its text, and one for each call."""
    said: list[Shown] = []
    if message.role is Role.USER:
        said.append(
            {"type": "message", "role": "user", "content": _write_contents(message.content, message.parts)}
        )
    elif message.role is Role.TOOL:
        call_id = wire_call_id(run_id, message.call_id or "")
        output = _write_output(message.content, message.parts)
        said.append({"type": "function_call_output", "call_id": call_id, "output": output})
    elif message.role is Role.ASSISTANT:
        if message.content or not message.tool_calls:
            text = {"type": "output_text", "text": message.content, "annotations": []}
            said.append({"type": "message", "role": "assistant", "content": [text]})
        for call in message.tool_calls:
            named = {"name": call.name, "arguments": call.arguments}
            said.append({"type": "function_call", "call_id": wire_call_id(run_id, call.call_id), **named})
    return said


def _write_contents(text: str, parts: tuple[Artifact, ...]) -> list[Json]:
    shown: list[Json] = [{"type": "input_text", "text": text}] if text or not parts else []
    return [*shown, *map(_write_part, parts)]


def _write_output(text: str, parts: tuple[Artifact, ...]) -> Json:
    """Return the output of a call: its text, or a list if images or files came with it."""
    return _write_contents(text, parts) if parts else text


def _write_part(part: Artifact) -> Json:
    """Return an image or a file of a message, without its content."""
    if part.kind == "image":
        return {"type": "input_image", "image_url": part.uri, "file_id": None, "detail": "auto"}
    return {"type": "input_file", "filename": part.name, "file_id": None, "file_url": part.uri}


class ItemPage(BaseModel):
    """Which part of a list is returned, as the query of a request says it."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None

    def choose(self, items: Sequence[Shown]) -> dict[str, Json]:
        """Return the part of items, which are given with the oldest first. Raises: `RequestRefused`."""
        chosen = list(items) if self.order == "asc" else list(items)[::-1]
        if self.after is not None:
            places = [number for number, item in enumerate(chosen) if item["id"] == self.after]
            if not places:
                raise no_such("item", self.after)
            chosen = chosen[places[0] + 1 :]
        return page_of(chosen[: self.limit], has_more=len(chosen) > self.limit)


def page_of(items: list[Shown], *, has_more: bool = False) -> dict[str, Json]:
    """Return a list of the API with all `items`."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }
