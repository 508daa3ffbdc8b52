"""The fast reader for plain answers, which most answers are, with a typed decoder.

The decoder refuses unknown fields. An answer with fields that Treadle has no type for is therefore read by the
dialect's `read_completion`, which keeps these fields. For a plain answer both give the same completion.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from treadle.core.types import Completion, FinishReason, Json, Message, Prior, Role, Settings, ToolCall, Usage
from treadle.models.wire.price import Price, cost_of

# An attribute of an enum takes longer to look up than a global name.
_ASSISTANT = Role.ASSISTANT
_CALLS = FinishReason.TOOL_CALLS
_STOP = FinishReason.STOP
_MAX_MISSES = 16
"""After this many consecutive answers that are not plain, the fast decoder is no longer tried."""


class PlainReader(ABC):
    """The fast reader for one server's answers. A subclass defines what a plain answer is."""

    ANSWER: ClassVar[Any]
    """The type of a plain answer, which refuses unknown fields."""

    def __init__(self, settings: Settings, price: Price | None, answer: Any = None) -> None:
        """Make a reader. `answer` is the type of a plain answer with these settings, if it is not `ANSWER`."""
        self._decode = msgspec.json.Decoder(answer or self.ANSWER).decode
        self._settings = settings
        self._price = price
        self._misses = 0
        self._prior = b""
        """The packed ids that the prompt of the answer probably begins with."""

    def read(self, body: bytes, prior: Prior | None = None) -> Completion | None:
        """Return the completion, or `None` if the answer is not plain or is damaged.

        `prior` has the ids of the inference before.
        """
        if self._misses >= _MAX_MISSES:
            return None
        try:
            answer = self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            self._misses += 1
            return None
        if self._misses:
            self._misses = 0
        self._prior = b"" if prior is None else prior.token_ids
        return self._read(answer)

    @abstractmethod
    def _read(self, answer: Any) -> Completion | None:
        """Return the completion for an `ANSWER`; `None` if it is not plain because of its values."""

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
        """Return a completion with these values and the reader's settings."""
        return Completion(
            Message(_ASSISTANT, content, calls, None, None, False, reasoning, opaque),
            _CALLS if calls else _STOP,
            usage,
            cost_of(usage, self._price),
            model,
            response_id,
            self._settings,
        )
