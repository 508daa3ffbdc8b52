"""The exact tokens of an inference, as an engine returns them, and those that the next prompt begins with."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct

from treadle.core.tokens.packed import PackedIds, PackedLogprobs, pack_ids, pack_logprobs
from treadle.core.tokens.routed_experts import RoutedExperts


class SamplingMask(Struct, frozen=True, gc=False):
    """The tokens that were left to choose from at each position of an answer, after top-p, top-k and the like."""

    token_ids: bytes
    """The packed ids of all positions, one position after the other."""
    counts: bytes
    """How many of them each position has, packed as ids are, shape [T]."""

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "SamplingMask":
        """Return a mask of a list of ids for each position. Raises: `OverflowError`; `TypeError`."""
        return cls(pack_ids([number for row in rows for number in row]), pack_ids([len(row) for row in rows]))


class TokenRecord(Struct, frozen=True, omit_defaults=True, gc=False):
    """The exact tokens of one inference. Only some engines return them.

    Ids and log probabilities are packed, see `core.packed`. They are tuples if they were read from a journal of
    event version 2.2 or older.
    """

    prompt_token_ids: PackedIds | None = None
    """Ids of the prompt, shape [P], without the first `prompt_shared_tokens`. `None`: the engine returned none."""
    prompt_shared_tokens: int = 0
    """How many leading prompt ids are left out, as they equal the previous inference's prompt and output ids."""
    token_ids: PackedIds | None = None
    """Ids of the answer, shape [T]. `None`: the engine returned none."""
    logprobs: PackedLogprobs | None = None
    """Natural logarithms of the sampled tokens' probabilities, shape [T], NaN where one is not known. `None`: the
    engine returned none."""
    tokens: tuple[str, ...] | None = None
    """The sampled tokens as text, shape [T]; set only if logprobs came without token ids."""
    forced: tuple[int, ...] = ()
    """The positions in `token_ids` of tokens that the engine inserted and the model did not sample."""
    versions: tuple[tuple[int, str], ...] = ()
    """Numbers of successive tokens with the weights that sampled them. Empty: `Completion.weight_version`."""
    tokenizer: str | None = None
    """The fingerprint of the renderer that made the prompt's ids; `None` if the server made them."""
    routed_experts: RoutedExperts | None = None
    """The experts of the tokens that were sent through the model, without those that an earlier inference has.
    `None`: the engine returned none."""
    sampling_mask: SamplingMask | None = None
    """The tokens that each token of the answer was chosen from; `None`: the engine returned none."""

    @classmethod
    def of(
        cls,
        *,
        prompt: Iterable[int] | bytes | None = None,
        output: Iterable[int] | bytes | None = None,
        logprobs: Iterable[float] | bytes | None = None,
        tokens: tuple[str, ...] | None = None,
        forced: tuple[int, ...] = (),
        versions: tuple[tuple[int, str], ...] = (),
        tokenizer: str | None = None,
    ) -> "TokenRecord":
        """Return a record with packed ids and log probabilities. Bytes are packed already.

        Raises: `OverflowError` or `TypeError` if an id is not a 32-bit integer or a log probability not a number.
        """
        return cls(
            prompt if prompt is None or isinstance(prompt, bytes) else pack_ids(prompt),
            0,
            output if output is None or isinstance(output, bytes) else pack_ids(output),
            logprobs if logprobs is None or isinstance(logprobs, bytes) else pack_logprobs(logprobs),
            tokens,
            forced,
            versions,
            tokenizer,
        )


class TokenGrade(StrEnum):
    """The grade of a token record: how exactly it is known what the model sampled."""

    TOKEN_EXACT = "token_exact"
    """The engine's ids and log probabilities are known."""
    TOKEN_IDS = "token_ids"
    """The engine's ids are known, without log probabilities for all sampled tokens."""
    TEXT = "text"
    """Only texts are known."""


class Prior(Struct, frozen=True, gc=False):
    """The exact ids of the newest inference whose engine returned ids: its prompt, followed by its answer."""

    token_ids: bytes
    """The packed ids of the prompt and the answer."""
    messages: int
    """How many messages of the transcript, from the first, these ids stand for; 0 if they no longer stand for its
    beginning, because the context was compacted or other tools are offered."""
    tokenizer: str | None = None
    """The fingerprint of the renderer that made the ids; `None` if the server made them."""
    is_cut: bool = False
    """True if the limit of output tokens cut the answer off, so that it has no token that ends it."""
