"""Chat-completions responses for tests, complete and as the chunks of a stream."""

from typing import Any

from treadle.core.events import Delta
from treadle.core.log import Log
from treadle.core.types import Message, Request, Role
from treadle.models.protocol import Watch

REQUEST = Request(Log([Message(Role.USER, "What is the weather in Zürich?")]))

WEATHER_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Zürich"}'},
}
USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}


def answer(content: str | None = "Sunny.", *, finish: str | None = "stop", **message: Any) -> dict[str, Any]:
    """Return a complete response; `message` holds further fields of the message."""
    raw = {"role": "assistant", "content": content, **message}
    choice = {"index": 0, "message": raw, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "m-1",
        "choices": [choice],
        "usage": USAGE,
    }


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """Return a chunk of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m-1", "choices": [choice]}


def usage_chunk() -> dict[str, Any]:
    """Return the last chunk of a stream, which has no choice."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "m-1",
        "choices": [],
        "usage": USAGE,
    }


def error(message: str = "boom", **fields: Any) -> dict[str, Any]:
    """Return the body of an error."""
    return {"error": {"message": message, "type": "some_error", **fields}}


class Listener:
    """Return a watch that records what it is called with."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.failures: list[tuple[str, int, float]] = []
        self.watch = Watch(self.deltas.append, lambda e, n, s: self.failures.append((str(e), n, s)))
