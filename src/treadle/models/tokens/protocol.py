"""The protocol of engines that take and return token ids."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from treadle.core.packed import PackedIds, PackedLogprobs
from treadle.core.types import FinishReason, Settings
from treadle.models.protocol import Watch


class Generated(Struct, frozen=True, kw_only=True):
    """What an engine sampled for one prompt."""

    token_ids: PackedIds
    """The ids of the answer, shape [T], with the one that ended it."""
    logprobs: PackedLogprobs | None = None
    """The log probabilities of these ids, shape [T]; `None`: the engine returned none."""
    finish: FinishReason | None
    """Why the answer ended; `None`: it was aborted, and the ids are the part that was sampled before."""
    engine: str | None = None
    """The engine and its version; `None` if it is not known."""
    model: str | None = None
    """The model as the server names it; `None` if it does not."""
    weight_version: str | None = None
    """The version of the weights, if the engine tells it."""
    versions: tuple[tuple[int, str], ...] = ()
    """Which weights sampled which ids, as in `TokenRecord.versions`. Empty: `weight_version` sampled all."""
    response_id: str | None = None
    cached_tokens: int = 0
    """How many ids of the prompt the engine had in its cache."""
    forced: tuple[int, ...] = ()
    """The positions of ids that the engine inserted and the model did not sample."""


class TokenEngine(Protocol):
    """An endpoint that samples ids after the ids of a prompt."""

    @property
    def name(self) -> str:
        """The name of the model, for the journal."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int], settings: Settings, stop_token_ids: Sequence[int], watch: Watch
    ) -> Generated:
        """Return what the engine samples after `prompt_ids`. Cancelling closes the connection.

        If `watch.on_token_ids` is set, the engine streams, and calls it with each piece of the ids that it will
        return. The ids that were sampled before a connection broke are then returned as an aborted answer.

        Raises: `ProviderError` if the server fails, refuses or does not answer.
        """
        ...
