"""Reads plain answers, which are nearly all, with a typed decoder.

The decoder refuses every field that it does not know, so that an answer with fields that Treadle does not model is
read in full by the dialect's `read_completion`, which keeps them. Both give the same completion for a plain answer.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from treadle.core.types import Completion, FinishReason, Json, Message, Role, Settings, ToolCall, Usage
from treadle.models.wire.price import Price

# An attribute of an enum takes longer to look up than a global name.
_ASSISTANT = Role.ASSISTANT
_CALLS = FinishReason.TOOL_CALLS
_STOP = FinishReason.STOP
_MAX_MISSES = 16
"""After so many answers in a row that are not plain, the fast decoder is no longer tried."""


class PlainReader(ABC):
    """The fast reader of one server's answers. A subclass says what a plain answer looks like."""

    ANSWER: ClassVar[Any]
    """The type of a plain answer, which refuses unknown fields."""

    def __init__(self, settings: Settings, price: Price | None) -> None:
        self._decode = msgspec.json.Decoder(self.ANSWER).decode
        self._settings = settings
        self._price = price
        self._misses = 0

    def read(self, body: bytes) -> Completion | None:
        """Return the completion, or `None` if the answer is not plain or is damaged."""
        if self._misses >= _MAX_MISSES:
            return None
        try:
            answer = self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            self._misses += 1
            return None
        if self._misses:
            self._misses = 0
        return self._read(answer)

    @abstractmethod
    def _read(self, answer: Any) -> Completion | None:
        """Return the completion of an `ANSWER`; `None` if it is not plain after all."""

    def _complete(
        self,
        content: str,
        calls: tuple[ToolCall, ...],
        usage: Usage | None,
        model: str | None,
        response_id: str | None,
        reasoning: str | None = None,
        opaque: dict[str, Json] | None = None,
    ) -> Completion:
        """Return the completion with these values."""
        return Completion(
            Message(_ASSISTANT, content, calls, None, None, False, reasoning, opaque),
            _CALLS if calls else _STOP,
            usage,
            None if self._price is None or usage is None else self._price.cost_usd(usage),
            model,
            response_id,
            self._settings,
        )
