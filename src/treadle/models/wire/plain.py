"""Reads the answers that have nothing unusual, which are nearly all, with a typed decoder.

The decoder refuses every field that it does not know, so that an answer which holds more than we model goes the
complete way, which keeps it. Both give the same completion for what both can read.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from treadle.core.types import Completion, FinishReason, Json, Message, Role, Settings, ToolCall, Usage
from treadle.models.wire.price import Price

_MAX_MISSES = 16
"""A server whose answers never fit is not tried for ever."""


class PlainReader(ABC):
    """The fast way to read one server's answers. A subclass says what they look like."""

    ANSWER: ClassVar[Any]
    """A type that takes nothing else."""

    def __init__(self, settings: Settings, price: Price | None) -> None:
        self._decode = msgspec.json.Decoder(self.ANSWER).decode
        self._settings = settings
        self._price = price
        self._misses = 0

    def read(self, body: bytes) -> Completion | None:
        """The completion, or `None` for an answer with anything unusual in it, damage included."""
        if self._misses >= _MAX_MISSES:
            return None
        try:
            answer = self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            self._misses += 1
            return None
        self._misses = 0
        return self._read(answer)

    @abstractmethod
    def _read(self, answer: Any) -> Completion | None:
        """What an `ANSWER` says; `None` if it is unusual after all."""

    def _complete(
        self,
        content: str,
        calls: list[ToolCall],
        usage: Usage | None,
        model: str | None,
        response_id: str | None,
        reasoning: str | None = None,
        opaque: dict[str, Json] | None = None,
    ) -> Completion:
        message = Message(Role.ASSISTANT, content, tuple(calls), None, None, False, reasoning, opaque)
        reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        cost = None if usage is None or self._price is None else self._price.cost_usd(usage)
        return Completion(message, reason, usage, cost, model, response_id, self._settings)
