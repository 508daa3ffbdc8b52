"""The items of a response, and the events of its stream about them, whoever knows what the model does.

Invariants: `sequence_number` counts up without gaps, and at most one text is open, which ends before the next item
is added.

Source: OpenAI API reference, Responses, 2026.
"""

from typing import TypeAlias

from msgspec import Struct

from treadle.core.types import Json
from treadle.models.wire.served import text_of_call

ResponseEvent: TypeAlias = dict[str, Json]


class ResponseItem(Struct, eq=False):
    """One item of a response."""

    index: int
    item: dict[str, Json]
    step: int
    """The step that it belongs to."""
    text: str = ""
    """The text or the arguments that were streamed so far."""
    is_done: bool = False
    is_dropped: bool = False
    """True if the answer that it belongs to was lost or thrown away."""


class ResponseWriter:
    """The base of all that writes a response."""

    step = 0
    """The number of the newest step."""
    _open: ResponseItem | None = None
    """The message or reasoning whose text is coming; `None` if none is."""
    _count = 0

    def __init__(self, name: str, where: dict[str, Json], *, is_told: bool = True) -> None:
        """Make an empty response. The ids of its items end with `name`, and events about items begin with `where`.

        `is_told` says whether the events are made.
        """
        self._name = name
        self._where = where
        self._is_told = is_told
        self._out: list[ResponseEvent] = []
        """The events that were not returned yet."""
        self._items: list[ResponseItem] = []
        self._logprobs: Json = []
        """The log probabilities of the open message, if they are shown."""

    def _taken(self) -> list[ResponseEvent]:
        """Return the events that were not returned yet."""
        out, self._out = self._out, []
        return out

    def _notes_on(self, text: str) -> list[Json]:
        """Return the annotations of a message."""
        return []

    def _say(self, kind: str, **fields: Json) -> None:
        self._out.append({"type": f"response.{kind}", "sequence_number": self._count, **fields})
        self._count += 1

    def _say_of(self, item: ResponseItem, kind: str, **fields: Json) -> None:
        if self._is_told:
            self._say(kind, **self._where, item_id=item.item["id"], output_index=item.index, **fields)

    def _say_item(self, item: ResponseItem, kind: str) -> None:
        if self._is_told:
            self._say(f"output_item.{kind}", **self._where, output_index=item.index, item=item.item.copy())

    def _add(self, prefix: str, item: dict[str, Json]) -> ResponseItem:
        number = len(self._items)
        made = ResponseItem(number, {"id": f"{prefix}_{self._name}_{number}", **item}, self.step)
        self._items.append(made)
        self._say_item(made, "added")
        return made

    def _done(self, item: ResponseItem) -> None:
        item.is_done = True
        self._say_item(item, "done")

    def _add_text(self, text: str, *, is_reasoning: bool) -> None:
        """Say the next piece of a message or of reasoning."""
        item = self._open
        if item is None or (item.item["type"] == "reasoning") is not is_reasoning:
            self._close_text()
            item = self._open = self._begin_text(is_reasoning=is_reasoning)
        item.text += text
        if not self._is_told:
            return
        if is_reasoning:
            self._say_of(item, "reasoning_text.delta", content_index=0, delta=text)
        else:
            self._say_of(item, "output_text.delta", content_index=0, delta=text, logprobs=[])

    def _begin_text(self, *, is_reasoning: bool) -> ResponseItem:
        if is_reasoning:
            item = self._add(
                "rs", {"type": "reasoning", "summary": [], "content": [], "status": "in_progress"}
            )
        else:
            item = self._add(
                "msg", {"type": "message", "role": "assistant", "status": "in_progress", "content": []}
            )
        part = _reasoning_part("") if is_reasoning else _text_part("", [], [])
        self._say_of(item, "content_part.added", content_index=0, part=part)
        return item

    def _close_text(self, refusal: str | None = None) -> None:
        """End the open text, if there is one. `refusal` stands in place of a message's text."""
        item = self._open
        if item is None:
            return
        self._open = None
        if item.item["type"] == "reasoning":
            part = _reasoning_part(item.text)
            self._say_of(item, "reasoning_text.done", content_index=0, text=item.text)
        else:
            part = self._end_message(item, refusal)
        self._say_of(item, "content_part.done", content_index=0, part=part)
        item.item |= {"content": [part], "status": "completed"}
        self._done(item)

    def _end_message(self, item: ResponseItem, refusal: str | None) -> Json:
        """Say how a message ends, and return its content."""
        logprobs, self._logprobs = self._logprobs, []
        notes = self._notes_on(item.text)
        for number, note in enumerate(notes):
            told: dict[str, Json] = {"content_index": 0, "annotation_index": number, "annotation": note}
            self._say_of(item, "output_text.annotation.added", **told)
        if refusal is not None:
            self._say_of(item, "refusal.done", content_index=0, refusal=refusal)
            return {"type": "refusal", "refusal": refusal}
        self._say_of(item, "output_text.done", content_index=0, text=item.text, logprobs=logprobs)
        return _text_part(item.text, notes, logprobs)

    def _add_arguments(self, item: ResponseItem, piece: str) -> None:
        """Say the next piece of the arguments of a call."""
        item.text += piece
        self._say_of(item, f"{_arguments_of(item)}.delta", delta=piece)

    def _end_arguments(self, item: ResponseItem, arguments: str) -> None:
        """Say the rest of the arguments of a call."""
        if arguments != item.text and arguments.startswith(item.text):
            self._say_of(item, f"{_arguments_of(item)}.delta", delta=arguments[len(item.text) :])
        item.text = item.item["arguments"] = arguments
        named = {"name": item.item["name"]} if item.item["type"] == "function_call" else {}
        self._say_of(item, f"{_arguments_of(item)}.done", arguments=arguments, **named)

    def _end_client_call(self, item: ResponseItem, arguments: str) -> None:
        """Say the rest of a call that the client makes, and end its item."""
        if item.item["type"] == "custom_tool_call":
            text = item.item["input"] = text_of_call(arguments)
            self._say_of(item, "custom_tool_call_input.delta", delta=text)
            self._say_of(item, "custom_tool_call_input.done", input=text)
        else:
            self._end_arguments(item, arguments)
            item.item["status"] = "completed"
        self._done(item)


def client_call(call_id: str, name: str, *, takes_text: bool) -> dict[str, Json]:
    """Return the item of a call that the client makes, before its arguments are known."""
    if takes_text:
        return {"type": "custom_tool_call", "call_id": call_id, "name": name, "input": ""}
    named: dict[str, Json] = {"type": "function_call", "call_id": call_id, "name": name}
    return {**named, "arguments": "", "status": "in_progress"}


def _arguments_of(item: ResponseItem) -> str:
    """Return the beginning of the names of the events about the arguments of a call."""
    return "function_call_arguments" if item.item["type"] == "function_call" else "mcp_call_arguments"


def _text_part(text: str, notes: list[Json], logprobs: Json) -> Json:
    return {"type": "output_text", "text": text, "annotations": notes, "logprobs": logprobs}


def _reasoning_part(text: str) -> Json:
    return {"type": "reasoning_text", "text": text}
