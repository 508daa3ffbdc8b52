"""The search for duplicates over a whole dataset, on a table in the ledger's database.

Two rows are duplicates if the users say the same words, or if both of these are true: the requests are nearly the
same apart from numbers, names, the order of words and a few added words, and the agents use the tools in a similar
way. Similar use of the tools alone is not enough, because different requests are often solved by the same calls.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Struct
from pydantic import Field

from treadle.core.types import Message
from treadle.datagen.quality.exchanges import exchanges, user_words
from treadle.datagen.quality.protocol import FilterSettings, FilterVerdict
from treadle.datagen.quality.signatures import (
    KEY_BITS,
    MIN_BANDS,
    BandTable,
    RequestSignature,
    hash_text,
    make_entry,
    make_signature,
)
from treadle.export.rows import Row

if TYPE_CHECKING:
    import sqlite3

Share = Annotated[float, Field(ge=0, le=1)]

_MAX_IN_BAND = 24
"""How many rows with an equal band are compared. A band that more rows share is not specific."""
_MAX_COMPARED = 96
"""How many candidates are compared, those with the most equal bands first."""
_BATCH = 16
"""How many rows are read at a time."""
_HASH_BYTES = 4
_COLUMNS = "row_id, exact, words, shape"
_READ = f"SELECT {_COLUMNS} FROM dup_rows WHERE number IN ({', '.join('?' * _BATCH)})"
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS dup_rows (number INTEGER PRIMARY KEY, row_id TEXT NOT NULL UNIQUE,"
    " exact INTEGER NOT NULL, words BLOB NOT NULL, shape BLOB NOT NULL, keys BLOB NOT NULL)"
)


class DuplicateSettings(FilterSettings):
    """The thresholds from which on two rows are duplicates."""

    similarity: Share = 0.8
    """The smallest share of common words among the words of both requests. Numbers, names and filler words do not
    count."""
    containment: Share = 0.95
    """The smallest share of the shorter request's words that the longer request also has. The default is high
    because requests that differ in one replaced word usually ask for different things."""
    shape: Share = 0.5
    """How similar the calls (names of tools and of arguments, and which follows which) must be; 0 to compare
    only the words. Requests with exactly the same words are duplicates in any case."""
    min_words: Annotated[int, Field(ge=1)] = 3
    """Requests with fewer words than this are only compared exactly. Names and numbers do not count as words."""


_Stored: TypeAlias = tuple[str, int, bytes, bytes]
"""The id, the hash of the text, the words and the shape of a row."""


class _Print(Struct, frozen=True):
    """The stored signature of a row and of its calls."""

    signature: RequestSignature
    shape: frozenset[int] | None
    """Hashes of the calls; `None` if they are not compared."""


class DuplicateIndex:
    """An index of the rows so far, which finds a row that a new row repeats.

    The rows are in a table of the caller's database, who begins and ends the transactions. Only their keys are in
    memory, about 200 bytes for each row. A key whose row was rolled back or removed does no harm, because each row
    that a key leads to is read and compared. One database must have only one index at a time.
    """

    def __init__(self, connection: "sqlite3.Connection", settings: DuplicateSettings | None = None) -> None:
        self._connection = connection
        self._settings = settings or DuplicateSettings()
        self._last: tuple[tuple[Message, ...], _Print] | None = None
        """The messages and signature of the row that `find` was last called with, which is usually added next."""
        self._table: BandTable | None = None
        """The keys; `None` until they are needed."""
        connection.execute(_SCHEMA)

    def count(self) -> int:
        """Return the number of rows in the index."""
        return int(self._connection.execute("SELECT count(*) FROM dup_rows").fetchone()[0])

    def find(self, row: Row) -> FilterVerdict:
        """Return the verdict about a row: rejected if a row of the index is the same or nearly the same."""
        found = self._find(self._print(row))
        if found is None:
            return FilterVerdict("duplicates", True)
        row_id, similarity, is_exact = found
        reason = f"the user asks for the same as in {row_id}, apart from numbers, names and word order"
        if is_exact:
            reason = f"the user says the same as in {row_id}"
        details = {"of": row_id, "similarity": round(similarity, 3), "is_exact": is_exact}
        return FilterVerdict("duplicates", False, reason, details)

    def find_text(self, text: str) -> tuple[str, float] | None:
        """Return the id of a row that asks for nearly the same as `text`, and the similarity; else `None`."""
        found = self._find(_Print(make_signature(text, self._settings.min_words), None))
        return found and found[:2]

    def add(self, row_id: str, row: Row) -> None:
        """Add a row. A row that the index has under the same id is replaced."""
        self._add(row_id, self._print(row))

    def add_text(self, row_id: str, text: str) -> None:
        """Add a request without a conversation."""
        self._add(row_id, _Print(make_signature(text, self._settings.min_words), frozenset()))

    def _find(self, mine: _Print) -> tuple[str, float, bool] | None:
        """Return the id of a row that is nearly the same, the similarity, and whether it is the same."""
        for row_id, exact, _, _ in self._read(self._bands.find(_shorten(mine.signature.exact), _MAX_IN_BAND)):
            if exact == mine.signature.exact:
                return row_id, 1.0, True
        for row_id, _, words, shape in self._candidates(mine.signature):
            similarity = self._compare(mine, words, shape)
            if similarity is not None:
                return row_id, similarity, False
        return None

    def _add(self, row_id: str, mine: _Print) -> None:
        self.remove(row_id)
        (number,) = self._connection.execute("SELECT coalesce(max(number), 0) + 1 FROM dup_rows").fetchone()
        signature = mine.signature
        keys = dict.fromkeys(map(_shorten, (signature.exact, *signature.keys)))
        entries = array("Q", [make_entry(key, number) for key in keys])
        self._bands.add(entries)
        self._connection.execute(
            "INSERT INTO dup_rows (number, row_id, exact, words, shape, keys) VALUES (?, ?, ?, ?, ?, ?)",
            (
                number,
                row_id,
                signature.exact,
                _pack(signature.words),
                _pack(mine.shape or ()),
                entries.tobytes(),
            ),
        )

    def remove(self, row_id: str) -> None:
        """Remove a row, if the index has it."""
        self._connection.execute("DELETE FROM dup_rows WHERE row_id = ?", (row_id,))

    @property
    def _bands(self) -> BandTable:
        if self._table is None:
            stored = self._connection.execute("SELECT keys FROM dup_rows")
            self._table = BandTable(entry for (keys,) in stored for entry in array("Q", keys))
        return self._table

    def _print(self, row: Row) -> _Print:
        if self._last is None or self._last[0] is not row.messages:
            signature = make_signature(user_words(row), self._settings.min_words)
            self._last = row.messages, _Print(signature, tool_shape(row))
        return self._last[1]

    def _candidates(self, signature: RequestSignature) -> Iterator[_Stored]:
        """Yield the stored signatures of the rows that share enough bands, the rows that share most bands first."""
        if not signature.keys:
            return
        find = self._bands.find
        same = find(_shorten(signature.keys[0]), _MAX_IN_BAND)
        yield from self._read(same)
        if len(same) == _MAX_IN_BAND:
            return
        counts: Counter[int] = Counter()
        for key in signature.keys[1:]:
            counts.update(find(_shorten(key), _MAX_IN_BAND))
        for number in same:
            del counts[number]
        yield from self._read([it for it, bands in counts.most_common(_MAX_COMPARED) if bands >= MIN_BANDS])

    def _read(self, numbers: Sequence[int]) -> Iterator[_Stored]:
        for start in range(0, len(numbers), _BATCH):
            batch = numbers[start : start + _BATCH]
            yield from self._connection.execute(_READ, [*batch, *[-1] * (_BATCH - len(batch))])

    def _compare(self, mine: _Print, words: bytes, shape: bytes) -> float | None:
        """Return how similar the words are, or `None` if the rows are not duplicates."""
        own, settings = mine.signature.words, self._settings
        count = len(words) // _HASH_BYTES
        if min(len(own), count) < settings.similarity * max(len(own), count):
            return None
        common = len(own.intersection(array("I", words)))
        similarity = common / (len(own) + count - common)
        if similarity < settings.similarity or common < settings.containment * min(len(own), count):
            return None
        is_alike = mine.shape is None or _overlap(mine.shape, _unpack(shape)) >= settings.shape
        return similarity if is_alike else None


def tool_shape(row: Row) -> frozenset[int]:
    """Return hashes of the calls by tool and names of arguments, and of the pairs that follow each other.

    A failed call and a successful call have different hashes. Repetitions do not count.
    """
    calls: list[str] = []
    for item in exchanges(row.messages):
        arguments = item.call.parsed_or({})
        keys = ",".join(sorted(arguments)) if isinstance(arguments, dict) else ""
        calls.append(f"{item.call.name}({keys}){'!' if item.result.is_error else ''}")
    pairs = [f"{one}>{two}" for one, two in pairwise(calls) if one != two]
    return frozenset([hash_text(item) & 0xFFFFFFFF for item in (*calls, *pairs)])


def _shorten(key: int) -> int:
    return key & ((1 << KEY_BITS) - 1)


def _overlap(one: frozenset[int], other: frozenset[int]) -> float:
    return len(one & other) / len(one | other) if one or other else 1.0


def _pack(values: Iterable[int]) -> bytes:
    return array("I", values).tobytes()


def _unpack(data: bytes) -> frozenset[int]:
    return frozenset(array("I", data))
