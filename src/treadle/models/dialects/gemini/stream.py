"""The collector of streamed answers of the Gemini API: it joins the chunks to the raw object of a whole answer."""

from collections.abc import Callable

from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import Json
from treadle.models.dialects.gemini.answer import read_call
from treadle.models.wire.server import Server
from treadle.models.wire.stream import Collector


class GeminiCollector(Collector):
    """A collector for one streamed answer. Each chunk has the form of an answer."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        super().__init__(on_delta, server)
        self._head: dict[str, Json] = {}
        self._candidate: dict[str, Json] = {}
        self._parts: list[dict[str, Json]] = []
        self._pieces: list[str] = []
        """The pieces of the last part's text."""
        self._logprobs: list[Json] = []
        self._calls = 0

    @property
    def is_complete(self) -> bool:
        return bool(
            self._candidate.get("finishReason") or (self._head.get("promptFeedback") or {}).get("blockReason")
        )

    def add(self, event: Json) -> None:
        for key, value in event.items():
            if key != "candidates" and value is not None:
                self._head[key] = value
        for candidate in (event.get("candidates") or ())[:1]:
            for key, value in candidate.items():
                if key == "logprobsResult":
                    self._logprobs += value.get("chosenCandidates") or ()
                elif key != "content" and value is not None and value != "":
                    self._candidate[key] = value
            for part in (candidate.get("content") or {}).get("parts") or ():
                self._add_part(part)

    def _add_part(self, part: dict[str, Json]) -> None:
        text = part.get("text")
        if isinstance(text, str):
            if text:
                self._on_delta(ReasoningDelta(text) if part.get("thought") else TextDelta(text))
            last = self._parts[-1] if self._parts else {}
            # A part with a signature stays separate.
            if self._pieces and part.keys() == last.keys() and "thoughtSignature" not in part:
                self._pieces.append(text)
                return
            self._close_part()
            self._pieces = [text]
        else:
            self._close_part()
            if (function := part.get("functionCall")) is not None:
                call = read_call(part, function)
                self._on_delta(ToolCallDelta(self._calls, call.call_id, call.name, call.arguments))
                self._calls += 1
        self._parts.append(part)

    def _close_part(self) -> None:
        if self._pieces:
            self._parts[-1] = {**self._parts[-1], "text": "".join(self._pieces)}
            self._pieces = []

    def raw(self) -> Json:
        self._close_part()
        if not self._candidate and not self._parts:
            return self._head
        candidate = {**self._candidate, "content": {"parts": self._parts}}
        if self._logprobs:
            candidate["logprobsResult"] = {"chosenCandidates": self._logprobs}
        return {**self._head, "candidates": [candidate]}
