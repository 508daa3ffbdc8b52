"""The collector of streamed answers of Ollama: it joins the chunks to the raw object of a whole answer."""

from collections.abc import Callable

from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import Json
from treadle.models.dialects.ollama.answer import MESSAGE_FIELDS, read_call
from treadle.models.wire.server import Server
from treadle.models.wire.stream import Collector


class OllamaCollector(Collector):
    """A collector for one streamed answer."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        super().__init__(on_delta, server)
        self._head: dict[str, Json] = {}
        self._message: dict[str, Json] = {}
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Json] = []
        self._logprobs: list[Json] = []

    @property
    def is_complete(self) -> bool:
        return self.is_done

    def add(self, event: Json) -> None:
        message = event["message"]
        if text := message.get("thinking"):
            self._thoughts.append(text)
            self._on_delta(ReasoningDelta(text))
        if text := message.get("content"):
            self._texts.append(text)
            self._on_delta(TextDelta(text))
        for raw in message.get("tool_calls") or ():
            call = read_call(raw)
            self._on_delta(ToolCallDelta(len(self._calls), call.call_id, call.name, call.arguments))
            self._calls.append(raw)
        self._logprobs += event.get("logprobs") or ()
        self._message |= {key: value for key, value in message.items() if key not in MESSAGE_FIELDS}
        self._head |= {key: value for key, value in event.items() if key not in ("message", "logprobs")}
        self.is_done = bool(event.get("done"))

    def raw(self) -> Json:
        message = {
            **self._message,
            "content": "".join(self._texts),
            "thinking": "".join(self._thoughts),
            "tool_calls": self._calls,
        }
        return {**self._head, "message": message, "logprobs": self._logprobs}
