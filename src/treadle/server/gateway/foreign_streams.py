"""Streams of the Responses API as pieces of an answer, for the wire formats that know no items."""

from collections.abc import Iterator

from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import Json


class Pieces:
    """The pieces of one answer, and how it ended. The calls of the server's own tools are left out."""

    def __init__(self) -> None:
        self.reason: str | None = None
        """The finish reason; `None` before the end."""
        self.error: str | None = None
        """What went wrong; `None` if nothing did."""
        self._calls: dict[int, int] = {}
        """The position of each call among the calls, by its position in the output."""

    def of(self, event: dict[str, Json]) -> Iterator[Delta]:
        """Yield the pieces in an event of the Responses API."""
        kind = event["type"]
        if kind == "response.output_text.delta":
            yield TextDelta(event["delta"])
        elif kind == "response.reasoning_text.delta":
            yield ReasoningDelta(event["delta"])
        elif kind == "response.output_item.added" and event["item"]["type"] == "function_call":
            number = self._calls[event["output_index"]] = len(self._calls)
            yield ToolCallDelta(number, event["item"]["call_id"], event["item"]["name"], "")
        elif kind == "response.function_call_arguments.delta":
            yield ToolCallDelta(self._calls[event["output_index"]], None, None, event["delta"])
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._end(event["response"])

    def _end(self, response: dict[str, Json]) -> None:
        if response["status"] == "failed":
            self.error = str(response["error"]["message"])
        why = (response["incomplete_details"] or {}).get("reason")
        is_cut = {"max_output_tokens": "length", "content_filter": "content_filter"}
        self.reason = "tool_calls" if self._calls else is_cut.get(str(why), "stop")
