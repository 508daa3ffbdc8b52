"""The fast reader for plain answers, which most answers are, with a typed decoder.

The decoder refuses unknown fields. An answer with fields that Treadle has no type for is therefore read by the
dialect's `read_completion`, which keeps these fields. For a plain answer both give the same completion.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
from msgspec import Struct

from treadle.core.packed import count_packed
from treadle.core.token_record import Prior
from treadle.core.types import (
    UNREPORTED,
    Completion,
    FinishReason,
    Json,
    Message,
    Role,
    Settings,
    ToolCall,
    Usage,
)
from treadle.models.wire.provider import Price, cost_of
from treadle.models.wire.token_records import PromptCutter, has_named_ids, make_record, read_versions

# An attribute of an enum takes longer to look up than a global name.
_ASSISTANT = Role.ASSISTANT
_CALLS = FinishReason.TOOL_CALLS
_STOP = FinishReason.STOP
_REASONS = {reason.value: reason for reason in FinishReason}
_MAX_MISSES = 16
"""After this many consecutive answers that are not plain, the fast decoder is no longer tried."""


Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
"""The name in a plain call. A call without a name is not plain."""


class TokenCounts(Struct, gc=False):
    """The token counts of an answer as the API writes them."""

    def read(self) -> Usage:
        """Return the counts in Treadle's type."""
        raise NotImplementedError


def read_usage(raw: Json, kind: type[TokenCounts]) -> Usage:
    """Return the token counts in a raw answer, which `kind` reads; `UNREPORTED` if there are none."""
    try:
        counts = {name: value for name, value in raw.items() if value not in ("", [], {}, None)}
        return msgspec.convert(counts, kind, strict=False).read() if counts else UNREPORTED
    except (AttributeError, msgspec.ValidationError):
        return UNREPORTED


class PlainReader(ABC):
    """The fast reader for one server's answers. A subclass defines what a plain answer is."""

    ANSWER: ClassVar[Any]
    """The type of a plain answer, which refuses unknown fields."""

    def __init__(self, settings: Settings, price: Price | None) -> None:
        self._decode = msgspec.json.Decoder(self.ANSWER).decode
        self._settings = settings
        self._price = price
        self._misses = 0

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
        return self._read(answer)

    @abstractmethod
    def _read(self, answer: Any) -> Completion | None:
        """Return the completion for an `ANSWER`; `None` if it is not plain because of its values."""

    def _complete(
        self,
        content: str,
        calls: tuple[ToolCall, ...],
        usage: Usage,
        model: str | None,
        response_id: str | None,
        reasoning: str | None = None,
        opaque: dict[str, Json] | None = None,
        *,
        kept: dict[str, Json] | None = None,
    ) -> Completion:
        """Return a completion with these values and the reader's settings. `opaque` belongs to its message, `kept`
        to the completion itself."""
        return Completion(
            Message(_ASSISTANT, content, calls, None, None, False, reasoning, opaque),
            _CALLS if calls else _STOP,
            usage,
            None if self._price is None else cost_of(usage, self._price),
            model,
            response_id,
            self._settings,
            None,
            kept,
        )


class TokenAnswerReader(PlainReader):
    """A fast reader of answers that have token ids if the settings ask for them."""

    TOKEN_ANSWER: ClassVar[Any]
    """The type of a plain answer with token ids."""

    def __init__(self, settings: Settings, price: Price | None) -> None:
        super().__init__(settings, price)
        self._has_ids = bool(settings.return_token_ids)
        self._cutter = PromptCutter()
        if self._has_ids:
            self._decode = msgspec.json.Decoder(self.TOKEN_ANSWER).decode

    def read(self, body: bytes, prior: Prior | None = None) -> Completion | None:
        """See `PlainReader.read`."""
        if self._has_ids and self._misses < _MAX_MISSES:
            if has_named_ids(body):
                return None
            body = self._shorten(body)
            body = self._cutter.cut(body, b"" if prior is None else prior.token_ids)
        return super().read(body)

    def _shorten(self, body: bytes) -> bytes:
        """Return an answer without what a subclass reads by itself."""
        return body

    def _complete_tokens(
        self,
        answer: Any,
        message: Message,
        usage: Usage,
        logprobs: Sequence[float | None] | None,
        *,
        weight_version: str | None = None,
        opaque: dict[str, Json] | None = None,
    ) -> Completion | None:
        """Return a completion with the token ids of a `TOKEN_ANSWER`; `None` if they cannot be read.

        `weight_version` is the version of the weights if the choice does not say one.
        """
        choice = answer.choices[0]
        # vLLM's chat has the prompt's ids beside the choices, other endpoints have them in the choice.
        asked = choice.prompt_token_ids if answer.prompt_token_ids is None else answer.prompt_token_ids
        try:
            prompt, ids = self._cutter.join(asked, choice.token_ids)
        except OverflowError:
            return None
        versions, newest = read_versions(choice.weight_versions, count_packed(ids))
        counted, known = (usage.output_tokens, usage.input_tokens) if usage.is_reported else (None, None)
        return Completion(
            message,
            _REASONS[choice.finish_reason],
            usage,
            cost_of(usage, self._price),
            answer.model,
            answer.id,
            self._settings,
            make_record(prompt, ids, logprobs, counted=counted, counted_prompt=known, versions=versions),
            opaque,
            weight_version=newest or weight_version,
        )
