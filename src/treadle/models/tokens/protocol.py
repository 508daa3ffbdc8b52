"""The protocol of engines that take and return token ids, and the ids of prompts."""

from collections.abc import Iterator, Sequence
from typing import Protocol, overload

from msgspec import Struct

from treadle.core.tokens.packed import PackedIds, PackedLogprobs, count_packed, pack_ids, view_ids
from treadle.core.tokens.routed_experts import RoutedExperts
from treadle.core.tokens.token_record import SamplingMask
from treadle.core.types import FinishReason, Settings
from treadle.models.protocol import Watch
from treadle.models.wire.token_records import KnownTexts, encode_ids, join_ids


class Generated(Struct, frozen=True, kw_only=True):
    """The ids that an engine sampled for one prompt, with further data about them."""

    token_ids: PackedIds
    """The ids of the answer, shape [T], including the id that ended it."""
    logprobs: PackedLogprobs | None = None
    """The log probabilities of these ids, shape [T]; `None`: the engine returned none."""
    finish: FinishReason | None
    """Why the answer ended; `None`: it was aborted, and the ids are the part that was sampled before."""
    engine: str | None = None
    """The engine and its version; `None` if it is not known."""
    model: str | None = None
    """The model as the server names it; `None` if the server does not name it."""
    weight_version: str | None = None
    """The version of the weights, if the engine tells it."""
    versions: tuple[tuple[int, str], ...] = ()
    """Which weights sampled which ids, as in `TokenRecord.versions`. Empty: `weight_version` sampled all."""
    response_id: str | None = None
    cached_tokens: int = 0
    """How many ids of the prompt the engine had in its cache."""
    forced: tuple[int, ...] = ()
    """The positions of ids that the engine inserted and the model did not sample."""
    routed_experts: RoutedExperts | None = None
    """The experts of the tokens of prompt and answer; `None`: the engine returned none."""
    sampling_mask: SamplingMask | None = None
    """The tokens that each id was chosen from; `None`: the engine returned none."""


class TokenEngine(Protocol):
    """An endpoint that samples ids after the ids of a prompt."""

    @property
    def name(self) -> str:
        """The name of the model, for the journal."""

    async def generate(
        self, prompt_ids: Sequence[int], settings: Settings, stop_token_ids: Sequence[int], watch: Watch
    ) -> Generated:
        """Return what the engine samples after `prompt_ids`. Cancelling closes the connection.

        If `watch.on_token_ids` is set, the engine streams, and calls it with each piece of the ids that it will
        return. The ids that were sampled before a connection broke are then returned as an aborted answer.

        Raises: `ProviderError` if the server fails, refuses or does not answer.
        """


class PromptIds(Sequence[int]):
    """The ids of a prompt, as they are stored and as they are sent, so that a step does not convert all of them.

    They are unpacked only if somebody looks at them.
    """

    __slots__ = ("packed", "text")

    def __init__(self, packed: bytes, text: bytes) -> None:
        self.packed = packed
        """The ids, packed."""
        self.text = text
        """The ids as JSON without the brackets."""

    @classmethod
    def of(cls, ids: Sequence[int]) -> "PromptIds":
        return ids if isinstance(ids, PromptIds) else cls(pack_ids(ids), encode_ids(list(ids)))

    @classmethod
    def after(cls, prior: bytes, ids: list[int], texts: KnownTexts) -> "PromptIds":
        """Return the prompt of the packed ids `prior` and then `ids`."""
        text = texts.find(prior) or encode_ids(list(view_ids(prior)))
        return cls(prior + pack_ids(ids), join_ids(text, ids))

    def __len__(self) -> int:
        return count_packed(self.packed)

    def __iter__(self) -> Iterator[int]:
        return iter(view_ids(self.packed))

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return view_ids(self.packed)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PromptIds({list(self)!r})"
