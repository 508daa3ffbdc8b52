"""What a page in one file holds of many rows: the bodies of a sample, and the words of the others for searches."""

import heapq
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import blake2b
from itertools import count
from typing import TypeAlias

import msgspec
from msgspec import Raw

from treadle.core.types import Json, Message, Role

_MAX_CHARS = 4_000
"""How many characters of a message, a call or a result are shown."""
_WORDS_BYTES = 24_000_000
"""How many bytes the words of rows without bodies may have together, by which they are searched."""

RowBody: TypeAlias = Callable[[], object]
"""A function that returns what a page shows when a row is opened."""
RowTexts: TypeAlias = Callable[[], Iterable[str]]
"""A function that returns the texts of a row."""


class BodySample:
    """The bodies of a sample of rows, and the words of the other rows.

    The sample is drawn by a hash of the rows' keys, so that it does not depend on their order. Rows with the same
    key stay together.
    """

    def __init__(self, most: int, max_bytes: int) -> None:
        """Begin a sample of up to `most` rows, which together have up to `max_bytes` as JSON."""
        self.rows = 0
        """How many rows were added."""
        self._most, self._max_bytes = most, max_bytes
        self._drawn: list[tuple[int, int, RowBody, RowTexts]] = []
        self._words: dict[int, str] = {}
        self._words_left = _WORDS_BYTES

    def add(self, key: str, body: RowBody, *, is_wanted: bool = False, texts: RowTexts = lambda: ()) -> None:
        """Add a row. `texts` returns what it is found by outside the sample; wanted rows are drawn first."""
        digest = int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        item = (0 if is_wanted else -1 - digest), -self.rows, body, texts
        self.rows += 1
        if len(self._drawn) < self._most:
            heapq.heappush(self._drawn, item)
        else:
            _, place, _, texts = heapq.heappushpop(self._drawn, item)
            self._add_words(-place, texts)

    def _add_words(self, place: int, texts: RowTexts) -> None:
        """Add the different words of a row without a body."""
        if self._words_left > 0 and (words := find_words(texts())):
            self._words_left -= len(words)
            self._words[place] = words

    def take(self) -> tuple[dict[int, Raw], dict[int, str]]:
        """Return the bodies and the words, by the places of their rows, from 0."""
        bodies: dict[int, Raw] = {}
        size = 0
        for _, place, body, texts in sorted(self._drawn, key=lambda item: item[:2], reverse=True):
            if size <= self._max_bytes:
                raw = Raw(msgspec.json.encode(body()))
                size += len(raw)
                if size <= self._max_bytes or not bodies:
                    bodies[-place] = raw
                    continue
            self._add_words(-place, texts)
        return bodies, self._words


def find_words(texts: Iterable[str]) -> str:
    """Return the different words of texts, in small letters, with spaces between them."""
    return " ".join(dict.fromkeys("\n".join(texts).lower().split()))


def write_conversation(
    messages: Sequence[Message],
    simulated: frozenset[str] = frozenset(),
    max_chars: int = _MAX_CHARS,
    untrained: Collection[int] = (),
) -> list[Json]:
    """Return messages as a page shows them, with the result of each call beside the call. `untrained` are the
    numbers of the answers, from 0, that are not trained on."""
    answers = count()
    results = {message.call_id: message for message in messages if message.role is Role.TOOL}
    written: list[Json] = []
    for message in messages:
        if message.role is Role.TOOL:
            continue
        role = "treadle" if message.is_own else message.role.value
        raw: dict[str, Json] = {"role": role, "text": cut_text(message.content, max_chars)}
        if message.reasoning:
            raw["thought"] = cut_text(message.reasoning, max_chars)
        if message.role is Role.ASSISTANT and next(answers) in untrained:
            raw["is_untrained"] = True
        for call in message.tool_calls:
            shown: dict[str, Json] = {"name": call.name, "arguments": cut_text(call.arguments, max_chars)}
            if (result := results.get(call.call_id)) is not None:
                shown |= {"result": cut_text(result.content, max_chars), "is_error": result.is_error}
            if call.call_id in simulated:
                shown["is_simulated"] = True
            raw.setdefault("calls", []).append(shown)
        written.append(raw)
    return written


def cut_text(text: str, chars: int = _MAX_CHARS) -> str:
    """Return a text, or its beginning with the number of characters that are left out."""
    return text if len(text) <= chars else f"{text[:chars]}… ({len(text) - chars:,} more characters)"
