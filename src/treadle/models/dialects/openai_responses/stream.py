"""The collector of streamed answers of the Responses API, whose last event contains the whole answer."""

from collections.abc import Callable

from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import Json
from treadle.models.wire.server import Server, explain_error
from treadle.models.wire.stream import Collector

_ENDS = frozenset(("response.completed", "response.incomplete", "response.failed"))
_TEXTS = frozenset(("response.output_text.delta", "response.refusal.delta"))
_THOUGHTS = frozenset(("response.reasoning_summary_text.delta", "response.reasoning_text.delta"))


class ResponseCollector(Collector):
    """A collector for one streamed response."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        super().__init__(on_delta, server)
        self._items: dict[int, Json] = {}
        """The finished items, by their index."""
        self._raw: Json = None
        self._calls: dict[int, tuple[int, str, str]] = {}
        """The position, id and name of each call, by the index of its item."""
        self._told: set[int] = set()
        """The positions of calls whose arguments arrived in pieces."""
        self._thought_at: tuple[str, int, int] | None = None
        """The part of the reasoning that is being streamed: its event, item and part."""

    @property
    def is_complete(self) -> bool:
        return self._raw is not None

    def add(self, event: Json) -> None:
        kind = event["type"]
        if kind in _TEXTS:
            if event["delta"]:
                self._on_delta(TextDelta(event["delta"]))
        elif kind == "response.function_call_arguments.delta":
            position, call_id, name = self._calls[event["output_index"]]
            if event["delta"]:
                self._told.add(position)
                self._on_delta(ToolCallDelta(position, call_id, name, event["delta"]))
        elif kind in _THOUGHTS:
            self._think(event)
        elif kind == "response.output_item.added":
            self._start(event["output_index"], event["item"])
        elif kind == "response.output_item.done":
            index, item = event["output_index"], event["item"]
            self._items[index] = item
            self._start(index, item)
            if index in self._calls and self._calls[index][0] not in self._told and item["arguments"]:
                self._on_delta(ToolCallDelta(*self._calls[index], item["arguments"]))
        elif kind in _ENDS:
            self._end(event["response"])

    def add_whole(self, raw: Json) -> None:
        if isinstance(raw.get("output"), list):
            for index, item in enumerate(raw["output"]):
                self._start(index, item)
                for part in item["content"] if item["type"] == "message" else ():
                    self._on_delta(TextDelta(part.get("text") or part.get("refusal") or ""))
                if index in self._calls:
                    self._on_delta(ToolCallDelta(*self._calls[index], item["arguments"]))
        self._end(raw)

    def _start(self, index: int, item: dict[str, Json]) -> None:
        if item["type"] == "function_call" and index not in self._calls:
            self._calls[index] = (len(self._calls), item["call_id"], item["name"])
            self._on_delta(ToolCallDelta(*self._calls[index], ""))

    def _think(self, event: dict[str, Json]) -> None:
        part: int = event["summary_index" if "summary_index" in event else "content_index"]
        at: tuple[str, int, int] = (event["type"], event["output_index"], part)
        if self._thought_at is not None and at != self._thought_at:
            self._on_delta(ReasoningDelta("\n\n"))
        self._thought_at = at
        if event["delta"]:
            self._on_delta(ReasoningDelta(event["delta"]))

    def _end(self, response: dict[str, Json]) -> None:
        if response.get("error") or response.get("status") == "failed":
            raise explain_error(self._server, 200, response.get("error") or response)
        self._raw = response
        self.is_done = True

    def raw(self) -> Json:
        if not self._raw.get("output") and self._items:
            # Some servers send the items only in earlier events.
            return {**self._raw, "output": [item for _, item in sorted(self._items.items())]}
        return self._raw
