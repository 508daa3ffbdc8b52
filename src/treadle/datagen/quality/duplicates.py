"""The search for duplicates over a whole dataset, on tables in the ledger's database.

Two rows are duplicates if the users say the same words, or if they ask for the same with other numbers and
names, in other order or with a few words more, and the agents use the tools in a similar way. The same way of
using the tools alone means nothing: different requests are often solved by the same calls.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Struct
from pydantic import Field

from treadle.core.types import Message
from treadle.datagen.quality.protocol import Settings, Verdict
from treadle.datagen.quality.signatures import BANDS, MIN_BANDS, Signature, hash_text, make_signature
from treadle.datagen.quality.transcripts import exchanges, user_words
from treadle.export.rows import Row

if TYPE_CHECKING:
    import sqlite3

Share = Annotated[float, Field(ge=0, le=1)]

_MAX_IN_BAND = 24
"""How many rows with an equal band are looked at. A band that more rows have says little."""
_MAX_COMPARED = 96
"""How many candidates are compared, those with the most equal bands first."""
_BATCH = 16
"""How many rows are read at a time."""
_HASH_BYTES = 4
_CACHE_KIB = 32 * 1024
"""How much of the tables SQLite keeps in memory. 100,000 rows have 45 MB, and are read and written all over."""
_FIND = f"SELECT number FROM dup_keys WHERE key = ? LIMIT {_MAX_IN_BAND}"
_FIND_BANDS = " UNION ALL ".join([f"SELECT * FROM ({_FIND})"] * BANDS)
_READ_ONE = "SELECT row_id, words, shape FROM dup_rows WHERE number = ?"
_READ = f"SELECT row_id, words, shape FROM dup_rows WHERE number IN ({', '.join('?' * _BATCH)})"

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS dup_rows"
    " (number INTEGER PRIMARY KEY, row_id TEXT NOT NULL UNIQUE, words BLOB NOT NULL, shape BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS dup_keys"
    " (key INTEGER NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (key, number)) WITHOUT ROWID",
)


class DuplicateSettings(Settings):
    """When two rows count as duplicates."""

    similarity: Share = 0.8
    """The least share of common words among the words of both requests. Numbers, names and words that say
    nothing do not count."""
    containment: Share = 0.95
    """The least share of the words of the shorter request that the longer one has. Requests in which one word is
    replaced by another ask for different things."""
    shape: Share = 0.5
    """How similar the calls (names of tools and of arguments, and which follows which) must be; 0 to compare
    only the words. Requests with exactly the same words are duplicates in any case."""
    min_words: Annotated[int, Field(ge=1)] = 3
    """Requests with fewer words than this, without names and numbers, are only compared exactly."""


class _Print(Struct, frozen=True):
    """What is stored about a row."""

    signature: Signature
    shape: frozenset[int] | None
    """Hashes of the calls; `None` if they are not compared."""


class DuplicateIndex:
    """The rows so far, and the search for one that a new row repeats.

    The index is on disk, in tables whose names begin with `dup_`. The caller begins and ends the transactions.
    """

    def __init__(self, connection: "sqlite3.Connection", settings: DuplicateSettings | None = None) -> None:
        self._connection = connection
        self._settings = settings or DuplicateSettings()
        self._last: tuple[tuple[Message, ...], _Print] | None = None
        """The messages of the row that was found last, which is usually added next."""
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        for statement in _SCHEMA:
            connection.execute(statement)

    def count(self) -> int:
        """Return the number of rows in the index."""
        return int(self._connection.execute("SELECT count(*) FROM dup_rows").fetchone()[0])

    def find(self, row: Row) -> Verdict:
        """Return the verdict about a row: rejected if a row of the index is the same or nearly the same."""
        found = self._find(self._print(row))
        if found is None:
            return Verdict("duplicates", True)
        row_id, similarity, is_exact = found
        reason = f"the user asks for the same as in {row_id}, but for numbers, names and order"
        if is_exact:
            reason = f"the user says the same as in {row_id}"
        details = {"of": row_id, "similarity": round(similarity, 3), "is_exact": is_exact}
        return Verdict("duplicates", False, reason, details)

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
        """Return the id of a row that is the same or nearly the same, the similarity, and whether it is the
        same."""
        for number in self._numbers(_FIND, [mine.signature.exact])[:1]:
            return next(self._read([number]))[0], 1.0, True
        for row_id, words, shape in self._candidates(mine.signature):
            similarity = self._compare(mine, words, shape)
            if similarity is not None:
                return row_id, similarity, False
        return None

    def _add(self, row_id: str, mine: _Print) -> None:
        self.remove(row_id)
        made = self._connection.execute(
            "INSERT INTO dup_rows (row_id, words, shape) VALUES (?, ?, ?)",
            (row_id, _pack(mine.signature.words), _pack(mine.shape or ())),
        )
        keys = dict.fromkeys((mine.signature.exact, *mine.signature.keys))
        self._connection.executemany(
            "INSERT INTO dup_keys (key, number) VALUES (?, ?)", [(key, made.lastrowid) for key in keys]
        )

    def remove(self, row_id: str) -> None:
        """Remove a row, if the index has it."""
        found = self._connection.execute("SELECT number FROM dup_rows WHERE row_id = ?", (row_id,)).fetchone()
        if found is not None:
            # Rows are rarely removed, so the keys need no index by number.
            self._connection.execute("DELETE FROM dup_keys WHERE number = ?", found)
            self._connection.execute("DELETE FROM dup_rows WHERE number = ?", found)

    def _print(self, row: Row) -> _Print:
        if self._last is None or self._last[0] is not row.messages:
            signature = make_signature(user_words(row), self._settings.min_words)
            self._last = row.messages, _Print(signature, tool_shape(row))
        return self._last[1]

    def _candidates(self, signature: Signature) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield what is stored about the rows that share enough bands, those that share the most first."""
        if not signature.keys:
            return
        same = self._numbers(_FIND, signature.keys[:1])
        yield from self._read(same)
        if len(same) == _MAX_IN_BAND:
            return
        counts = Counter(self._numbers(_FIND_BANDS, signature.keys[1:]))
        for number in same:
            del counts[number]
        ranked = [number for number, bands in counts.most_common(_MAX_COMPARED) if bands >= MIN_BANDS]
        for start in range(0, len(ranked), _BATCH):
            yield from self._read(ranked[start : start + _BATCH])

    def _numbers(self, query: str, keys: Sequence[int]) -> list[int]:
        return [number for (number,) in self._connection.execute(query, keys)]

    def _read(self, numbers: Sequence[int]) -> Iterator[tuple[str, bytes, bytes]]:
        for start in range(0, len(numbers), _BATCH):
            batch = numbers[start : start + _BATCH]
            padded = [*batch, *[-1] * (_BATCH - len(batch))] if len(batch) > 1 else batch
            yield from self._connection.execute(_READ if len(padded) > 1 else _READ_ONE, padded)

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

    A call that failed is another call than one that did not. Repetitions do not count.
    """
    calls: list[str] = []
    for item in exchanges(row.messages):
        try:
            arguments = msgspec.json.decode(item.call.arguments) if item.call.arguments.strip() else {}
        except msgspec.DecodeError:
            arguments = {}
        keys = ",".join(sorted(arguments)) if isinstance(arguments, dict) else ""
        calls.append(f"{item.call.name}({keys}){'!' if item.result.is_error else ''}")
    pairs = [f"{one}>{two}" for one, two in pairwise(calls) if one != two]
    return frozenset([hash_text(item) & 0xFFFFFFFF for item in (*calls, *pairs)])


def _overlap(one: frozenset[int], other: frozenset[int]) -> float:
    return len(one & other) / len(one | other) if one or other else 1.0


def _pack(values: Iterable[int]) -> bytes:
    return array("I", values).tobytes()


def _unpack(data: bytes) -> frozenset[int]:
    return frozenset(array("I", data))
