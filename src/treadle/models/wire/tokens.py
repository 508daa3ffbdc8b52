"""Records of tokens as servers return them: ids and log probabilities that belong together, or none."""

from collections.abc import Sequence
from math import nan

import msgspec

from treadle.core.packed import count_packed, pack_ids, pack_logprobs
from treadle.core.types import Json, TokenRecord

_UNKNOWN = -9999.0
"""The log probability that vLLM writes for a token whose log probability it does not know.

Source: vLLM 0.11, `ChatCompletionLogProb`.
"""

_MAX_KNOWN_BYTES = 16_000_000
_TAIL_BYTES = 64

_decode_ids = msgspec.json.Decoder(list[int]).decode

_UNKNOWN_PACKED = pack_logprobs([_UNKNOWN])

Versions = tuple[tuple[int, str], ...]


def pack_known(values: Sequence[float | None]) -> bytes:
    """Return packed log probabilities, with NaN for each one that the server does not know.

    Raises: `TypeError` or `OverflowError` if one is not a number.
    """
    try:
        packed = pack_logprobs(values)  # type: ignore[arg-type]
        if _UNKNOWN_PACKED not in packed:
            return packed
    except TypeError:
        pass
    return pack_logprobs([nan if value is None or value <= _UNKNOWN else value for value in values])


def make_record(
    prompt: Sequence[int] | bytes | None,
    output: Sequence[int] | bytes | None,
    logprobs: Sequence[float | None] | bytes | None,
    *,
    counted: int | None = None,
    tokens: tuple[str, ...] | None = None,
    versions: Versions = (),
) -> TokenRecord | None:
    """Return the record of an answer's tokens; `None` if there are none.

    `counted` is how many tokens the server says that it sampled. Ids of another number are not all ids of the
    answer, and are left out. Log probabilities of another number than the ids belong to unknown positions, and are
    left out too: none is added, and none is cut off.
    """
    try:
        prompt_ids = None if prompt is None else _pack(prompt)
        ids = None if output is None else _pack(output)
        values = (
            None if logprobs is None else logprobs if isinstance(logprobs, bytes) else pack_known(logprobs)
        )
    except (TypeError, OverflowError):
        return None
    if counted and ids is not None and count_packed(ids) != counted:
        ids = None
    if ids is not None:
        tokens = None
        if values is not None and len(values) != len(ids):
            values = None
    elif values is not None and (tokens is None or len(tokens) != count_packed(values)):
        values = tokens = None
    if prompt_ids is None and ids is None and values is None:
        return None
    return TokenRecord(prompt_ids, 0, ids, values, tokens, (), versions if ids is not None else ())


def _pack(ids: Sequence[int] | bytes) -> bytes:
    return ids if isinstance(ids, bytes) else pack_ids(ids)


def read_versions(spans: Json, count: int | None) -> tuple[Versions, str | None]:
    """Return which weights sampled how many successive tokens, empty if one version sampled all, and the newest.

    `count` is how many tokens there are; `None` for an answer without ids. Spans that do not cover all tokens say
    nothing.

    Source: SGLang 0.5.13 and vLLM 0.33, `weight_versions`, `[{"version": "7", "start": 0, "end": 12}]`.
    """
    found: list[tuple[int, str]] = []
    end = 0
    try:
        for span in spans or ():
            if span["start"] != end:
                return (), None
            if span["end"] > end:
                found.append((span["end"] - end, str(span["version"])))
            end = span["end"]
    except (TypeError, LookupError):
        return (), None
    if not found or (count is not None and end != count):
        return (), None
    return (tuple(found) if len(found) > 1 and count is not None else ()), found[-1][1]


class KnownPrompts:
    """The JSON texts of the ids of recent prompts with their answers.

    A prompt that continues one of them is compared as text, and only the ids after it are decoded, because decoding
    all ids of long prompts at every step takes long.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], tuple[bytes, bytes]] = {}
        """The packed ids of a prompt and its answer with their text, by their length and their end."""
        self._size = 0

    def read_ids(self, prompt: bytes, answer: bytes, prior: bytes) -> tuple[bytes, bytes | None]:
        """Return the packed ids of an answer and of its prompt, given as JSON, and remember them.

        `prior` has the packed ids that the prompt probably begins with. The prompt is `None` if the server gave
        none. Raises: `msgspec.DecodeError` or `OverflowError` for JSON that is not a list of ids.
        """
        ids = pack_ids(_decode_ids(answer))
        if not prompt.startswith(b"["):
            return ids, None
        known, text = self._known.get((len(prior), prior[-_TAIL_BYTES:]), (b"", b""))
        rest = prompt[len(text) :]
        if known and known == prior and rest.startswith((b",", b"]")) and prompt.startswith(text):
            packed = prior if rest == b"]" else prior + pack_ids(_decode_ids(b"[" + rest[1:]))
        else:
            packed = pack_ids(_decode_ids(prompt))
        between = b", " if b", " in prompt else b","
        self._remember(packed + ids, b"".join([prompt[:-1], between, answer[1:-1]]))
        return ids, packed

    def _remember(self, ids: bytes, text: bytes) -> None:
        key = (len(ids), ids[-_TAIL_BYTES:])
        self._forget(key)
        self._known[key] = (ids, text)
        self._size += len(ids) + len(text)
        while self._size > _MAX_KNOWN_BYTES:
            self._forget(next(iter(self._known)))

    def _forget(self, key: tuple[int, bytes]) -> None:
        ids, text = self._known.pop(key, (b"", b""))
        self._size -= len(ids) + len(text)
