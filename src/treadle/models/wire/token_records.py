"""Records of the tokens in servers' answers. Ids and log probabilities that do not match are left out."""

from collections.abc import Sequence
from math import nan

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.texts.documents import UNREADABLE
from treadle.core.tokens.packed import ID_BYTES, count_packed, pack_ids, pack_logprobs
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import Json

_UNKNOWN = -9999.0
"""The log probability that vLLM writes for a token whose log probability it does not know.

Source: vLLM 0.11, `ChatCompletionLogProb`.
"""

_FINE = bytes([*range(0x3A), 0x7F, *range(0x80, 0x100)])
"""The highest bytes of packed numbers that can be log probabilities: those below 0.0005, and NaN. What is above 0
by more than a rounding error is a probability, or something else."""
_MOST = 2.0**-11
_MAX_KNOWN_BYTES = 64_000_000
_TAIL_BYTES = 64
_PROMPT_KEY = b'"prompt_token_ids":['
ID_MARK = "token_id:"
"""What vLLM writes before an id that takes the place of a token's text."""
_NAMED_ID = f'"{ID_MARK}'.encode()
_AFTER_ID = (b",", b"]")
_LOGPROBS_KEY, _VALUES_KEY, _FINISH_KEY = b'"logprobs":{', b'"token_logprobs":[', b',"finish_reason":'
_NO_LOGPROBS = b'"logprobs":null'
_LAST_ALTERNATIVES = (b"}]}", b"null]}", b"[]}", b"null}")
_TOKENS_KEY, _NAMED_TOKENS = b'"tokens":[', b'"tokens":["token_id:'
_HEAD_BYTES = 200
"""How much of the log probabilities has the first token."""
_decode_values = msgspec.json.Decoder(list[float | None]).decode
_MARKED = -1
_MARK = b"-1"
"""What stands for the known ids that were cut out of an answer. It is not an id."""

_encode = msgspec.json.Encoder().encode

_UNKNOWN_PACKED = pack_logprobs([_UNKNOWN])

Versions = tuple[tuple[int, str], ...]


def pack_known(values: Sequence[float | None]) -> bytes:
    """Return packed log probabilities, with NaN for each one that the server does not know, or that cannot be one.

    Raises: `TypeError` or `OverflowError` if one is not a number.
    """
    try:
        packed = pack_logprobs(values)  # type: ignore[arg-type]
        if _UNKNOWN_PACKED not in packed and not packed[3::ID_BYTES].translate(None, _FINE):
            return packed
    except TypeError:
        pass
    return pack_logprobs(
        [nan if value is None or not _UNKNOWN < value < _MOST else value for value in values]
    )


def make_record(
    prompt: Sequence[int] | bytes | None,
    output: Sequence[int] | bytes | None,
    logprobs: Sequence[float | None] | None,
    *,
    counted: int | None = None,
    counted_prompt: int | None = None,
    tokens: tuple[str, ...] | None = None,
    versions: Versions = (),
) -> TokenRecord | None:
    """Return the record of an answer's tokens; `None` if there are none.

    `counted_prompt` is how many tokens the server says that the prompt had; other ids are left out.
    `counted` is how many tokens the server says that it sampled. If there is another number of ids, some are
    missing, and all are left out. If there is another number of log probabilities than ids, their positions are not
    known, and they are left out; so are ids that are fewer, unless `counted` confirms them. Neither is ever padded
    or cut.
    """
    try:
        prompt_ids = None if prompt is None else _pack(prompt)
        ids = None if output is None else _pack(output)
        values = None if logprobs is None else pack_known(logprobs)
    except (TypeError, OverflowError):
        return None
    if counted and ids is not None and len(ids) != counted * ID_BYTES:
        ids = None
    if counted_prompt and prompt_ids is not None and len(prompt_ids) != counted_prompt * ID_BYTES:
        prompt_ids = None
    if ids is not None:
        tokens = None
        if values is not None and len(values) != len(ids):
            is_short = len(values) > len(ids) and counted != count_packed(ids)
            values, ids = None, None if is_short else ids
    elif values is not None and (tokens is None or len(tokens) != count_packed(values)):
        values = tokens = None
    if prompt_ids is None and ids is None and values is None:
        return None
    return TokenRecord(prompt_ids, 0, ids, values, tokens, (), versions if ids is not None else ())


def _pack(ids: Sequence[int] | bytes) -> bytes:
    return ids if type(ids) is bytes else pack_ids(ids)


class VersionNotes:
    """The versions of the weights that the events of a stream name, without the spans that some engines give."""

    def __init__(self) -> None:
        self._spans: list[dict[str, Json]] = []

    def note(self, version: Json, start: int, end: int) -> None:
        """Note the version in an event with the tokens from `start` to `end`."""
        if version is None:
            return
        last = self._spans[-1] if self._spans else None
        if last is not None and last["version"] == version:
            last["end"] = end
        else:
            self._spans.append({"version": version, "start": 0 if last is None else start, "end": end})

    @property
    def spans(self) -> list[dict[str, Json]] | None:
        """The spans, in the form of engines; `None` if there is only one version."""
        return self._spans if len(self._spans) > 1 else None


def check_choices(extra: dict[str, Json] | None) -> None:
    """Check that additional fields of a body ask for one answer. Raises: `ConfigError`."""
    for name in ("n", "best_of"):
        if (extra or {}).get(name) not in (None, 1):
            raise ConfigError(
                f"Settings.extra has {name}={extra[name]!r}, and Treadle reads one answer for each request; make "  # type: ignore[index]
                "several runs, such as a rollout with several runs in a group"
            )


def read_versions(spans: Json, count: int | None) -> tuple[Versions, str | None]:
    """Return how many successive tokens each version of the weights sampled (empty if one version sampled all),
    and the newest version.

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


def encode_ids(ids: Sequence[int]) -> bytes:
    """Return token ids as JSON without the brackets."""
    return _encode(ids)[1:-1]


def join_ids(text: bytes, ids: list[int]) -> bytes:
    """Return the JSON of ids whose first ones are `text`, without the brackets."""
    if not text or not ids:
        return text or encode_ids(ids)
    return b"%b,%b" % (text, encode_ids(ids))


class _Known(Struct, gc=False):
    ids: bytes
    text: bytes
    runs: int
    """How many runs have these ids."""


class KnownTexts:
    """The ids of recent prompts with their answers as JSON, for the prompts that continue them.

    Neither writing nor reading the ids of long prompts takes long, as only the ids after the known ones are encoded
    or decoded. The JSON has neither blanks nor brackets.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], _Known] = {}
        """What is known, by the length and the end of the packed ids."""
        self._size = 0

    def find(self, ids: bytes) -> bytes:
        """Return the text of packed ids; empty if it is not known."""
        entry = self._known.get((len(ids), ids[-_TAIL_BYTES:]))
        return entry.text if entry is not None and entry.ids == ids else b""

    def remember(self, ids: bytes, text: bytes, prior: bytes) -> None:
        """Remember the text of packed ids in place of that of `prior`, unless another run has the same ids."""
        entry = self._known.get((len(prior), prior[-_TAIL_BYTES:])) if prior else None
        if entry is not None:
            entry.runs -= 1
            if not entry.runs:
                self._forget(prior)
        entry = self._known.get((len(ids), ids[-_TAIL_BYTES:]))
        if entry is not None:
            if entry.ids == ids:
                entry.runs += 1
                return
            self._forget(ids)
        self._known[len(ids), ids[-_TAIL_BYTES:]] = _Known(ids, text, 1)
        self._size += len(ids) + len(text)
        while self._size > _MAX_KNOWN_BYTES:
            self._forget(next(iter(self._known.values())).ids)

    def _forget(self, ids: bytes) -> None:
        entry = self._known.pop((len(ids), ids[-_TAIL_BYTES:]))
        self._size -= len(entry.ids) + len(entry.text)


def has_named_ids(body: bytes, size: int = _HEAD_BYTES) -> bool:
    """Return whether a token at the beginning of an answer's log probabilities is named by its id."""
    start = body.find(_LOGPROBS_KEY[:-1])
    return start != -1 and body.find(_NAMED_ID, start, start + size) != -1


def cut_logprobs(body: bytes) -> tuple[bytes, list[float | None] | None]:
    """Return an answer of vLLM's completions without its `logprobs`, and the log probabilities in them.

    The texts and alternatives beside them take long to read, and are not needed. An answer in another form is
    returned unchanged, with `None`.

    Source: vLLM 0.11 to 0.33, `CompletionResponseChoice`, where `finish_reason` follows `logprobs`, whose last
    field is `top_logprobs`.
    """
    # A quotation mark within a text has a backslash before it, so these are keys.
    start = body.find(_LOGPROBS_KEY)
    begin = body.find(_VALUES_KEY, start) + len(_VALUES_KEY) - 1
    if start == -1 or begin < start:
        return body, None
    close = body.find(b"]", begin)
    end = body.rfind(_FINISH_KEY, close)
    # Another field between the two is not cut out, and ids that take the place of texts are compared elsewhere.
    if end == -1 or not body.endswith(_LAST_ALTERNATIVES, close, end):
        return body, None
    if body.startswith(_NAMED_TOKENS, close + 2):
        return body, None
    if not body.startswith(_TOKENS_KEY, close + 2) and body.find(_NAMED_TOKENS, close, end) != -1:
        return body, None
    try:
        values = _decode_values(body[begin : close + 1])
    except UNREADABLE:
        return body, None
    return b"".join((body[:start], _NO_LOGPROBS, body[end:])), values


def find_prompt(body: bytes, text: bytes) -> int:
    """Return the position at which the prompt's ids in an answer begin with `text`; -1 if they do not."""
    # A quotation mark within a text has a backslash before it, so this is a key.
    start = body.rfind(_PROMPT_KEY) + len(_PROMPT_KEY)
    if start < len(_PROMPT_KEY) or not body.startswith(text, start):
        return -1
    return start if body.startswith(_AFTER_ID, start + len(text)) else -1


class PromptCutter:
    """A reader of the prompt's ids in answers, which decodes only those that do not continue a known prompt.

    `cut` takes the known ids out of an answer before it is decoded, with a mark in their place, and `join` puts
    them back.
    """

    def __init__(self) -> None:
        self._texts = KnownTexts()
        self._prior = b""
        """The packed ids that the prompt of the answer probably begins with."""
        self._text = b""
        """Their text, if it was cut out of the answer."""

    def cut(self, body: bytes, prior: bytes) -> bytes:
        """Return the answer without the ids of its prompt that equal `prior`, if their text is known."""
        self._prior, self._text = prior, b""
        text = self._texts.find(prior)
        if not text:
            return body
        start = find_prompt(body, text)
        if start == -1:
            return body
        self._text = text
        return b"".join([body[:start], _MARK, body[start + len(text) :]])

    def join(self, prompt: list[int] | None, answer: list[int]) -> tuple[bytes | None, bytes]:
        """Return the packed ids of the prompt and of the answer as they were before `cut`, and remember them.

        The prompt is `None` if the server gave none. Raises: `OverflowError` for a number that is not an id.
        """
        if prompt is None:
            return None, pack_ids(answer)
        known = text = b""
        if self._text and prompt and prompt[0] == _MARKED:
            known, text = self._prior, self._text
            del prompt[0]
        new = prompt + answer
        packed = known + pack_ids(new)
        self._texts.remember(packed, join_ids(text, new), self._prior)
        end = len(packed) - len(answer) * ID_BYTES
        return packed[:end], packed[end:]
