"""Search by embeddings: the signs of all numbers choose candidates, whose exact similarity is then computed.

The signs of a vector take 48 bytes at 384 numbers, so that those of 100,000 entries stay in memory; the vectors
themselves are read from the database. numpy makes the first pass about ten times as fast, and is not needed.
"""

import heapq
import itertools
import math
import sqlite3
import struct
from collections.abc import Collection, Sequence
from functools import cache
from operator import mul
from typing import Any

from treadle.core.errors import ConfigError

_CANDIDATES = 100
LEAST_SIMILARITY = 0.2
"""Entries that are less similar to a query do not fit it."""
_WORD_BITS = 64
_LEAST_ROOM = 64
"""For how many more codes there is room at least."""


@cache
def load_numpy() -> Any:
    """Return numpy, or `None` without it. It is imported for a search only, because that starts threads."""
    try:
        import numpy
    except ImportError:  # the extra `memory` has it
        return None
    return numpy


def normalize(values: Sequence[float]) -> list[float]:
    """Return a vector of length 1. Raises: `ValueError` if that cannot be made from `values`."""
    numbers = [float(value) for value in values]
    length = math.sqrt(sum(map(mul, numbers, numbers)))
    if not numbers or not math.isfinite(length) or length == 0:
        raise ValueError("a vector needs finite numbers that are not all 0")
    return [value / length for value in numbers]


def pack_vector(values: Sequence[float]) -> bytes:
    """Return the stored form of a vector."""
    return struct.pack(f"<{len(values)}e", *values)


def unpack_vector(kept: bytes) -> Sequence[float]:
    """Return the numbers of a stored vector."""
    return struct.unpack(f"<{len(kept) // 2}e", kept)


def pack_code(values: Sequence[float]) -> bytes:
    """Return the signs of the numbers as bits, in whole words of 64 bits."""
    size = -(-len(values) // _WORD_BITS) * (_WORD_BITS // 8)
    bits = sum(1 << place for place, value in enumerate(values) if value > 0)
    return bits.to_bytes(size, "little")


def drop_vectors(db: sqlite3.Connection, row: int) -> None:
    """Delete the embeddings of an entry."""
    db.execute("DELETE FROM memory_codes WHERE id IN (SELECT id FROM memory_vectors WHERE entry=?)", (row,))
    db.execute("DELETE FROM memory_vectors WHERE entry=?", (row,))


def put_vector(
    db: sqlite3.Connection, row: int, store: str, digest: bytes, model: int, vector: bytes, code: bytes
) -> None:
    """Store the embedding of an entry, in place of an older one."""
    old = "SELECT id FROM memory_vectors WHERE entry=? AND model=?"
    db.execute(f"DELETE FROM memory_codes WHERE id IN ({old})", (row, model))
    put = "INSERT OR REPLACE INTO memory_vectors(entry, model, digest, vector) VALUES(?,?,?,?)"
    key = db.execute(put, (row, model, digest, vector)).lastrowid
    put = "INSERT INTO memory_codes(id, entry, model, store, code) VALUES(?,?,?,?,?)"
    db.execute(put, (key, row, model, store, code))


class VectorIndex:
    """The codes of one namespace and model. Only new codes are read from the database."""

    def __init__(self, space: tuple[int, int], model: int) -> None:
        self._space = space
        self._model = model
        self._last = 0
        self._rows: list[int] = []
        """The ids of vectors."""
        self._stores = bytearray()
        """The store of each vector, as the position of its name in `_names`."""
        self._names: list[str] = []
        self._codes: list[int] = []
        """The codes as numbers, if numpy is not installed."""
        self._words: Any = None
        """The codes as an array with a row for each word of 64 bits, and room for more."""

    def search(
        self, db: sqlite3.Connection, values: Sequence[float], stores: Collection[str] = (), limit: int = 50
    ) -> list[tuple[int, float]]:
        """Return the rows of the entries most similar to a vector, with the cosine, the best first."""
        self._read(db)
        chosen = self._nearest(pack_code(values), stores)
        found = self._compare(db, values, f"id IN ({','.join(map(str, chosen))}) AND model=?")
        return sorted(found, key=lambda item: -item[1])[:limit]

    def compare(
        self, db: sqlite3.Connection, values: Sequence[float], rows: Collection[int]
    ) -> list[tuple[int, float]]:
        """Return the rows of given entries, with the cosine; entries without an embedding are left out."""
        return self._compare(db, values, f"entry IN ({','.join(map(str, rows))}) AND model=?")

    def _compare(
        self, db: sqlite3.Connection, values: Sequence[float], condition: str
    ) -> list[tuple[int, float]]:
        sql = f"SELECT entry, vector FROM memory_vectors WHERE {condition} AND entry BETWEEN ? AND ?"
        rows = db.execute(sql, (self._model, *self._space)).fetchall()
        scored = zip([row for row, _ in rows], _similarities([kept for _, kept in rows], values), strict=True)
        return [(row, score) for row, score in scored if score >= LEAST_SIMILARITY]

    def _read(self, db: sqlite3.Connection) -> None:
        """Read the codes that were stored since the last search. Deleted ones are noticed when they are chosen."""
        new = db.execute(
            "SELECT id, store, code FROM memory_codes "
            "WHERE id > ? AND model=? AND entry BETWEEN ? AND ? ORDER BY id",
            (self._last, self._model, *self._space),
        ).fetchall()
        if not new:
            return
        self._last = new[-1][0]
        self._rows += [row for row, _, _ in new]
        self._names += {store for _, store, _ in new}.difference(self._names)
        self._stores += bytes([self._names.index(store) for _, store, _ in new])
        if (numpy := load_numpy()) is None:
            self._codes += [int.from_bytes(code, "little") for _, _, code in new]
            return
        codes = numpy.frombuffer(b"".join(code for _, _, code in new), dtype="<u8").reshape(len(new), -1)
        known, size = len(self._rows) - len(new), len(self._rows)
        if self._words is None or self._words.shape[1] < size:
            # The room grows by a share, so that an entry of each turn does not copy all codes.
            words = numpy.empty((codes.shape[1], size + size // 4 + _LEAST_ROOM), dtype=numpy.uint64)
            if self._words is not None:
                words[:, :known] = self._words[:, :known]
            self._words = words
        self._words[:, known:size] = codes.T

    def _nearest(self, code: bytes, stores: Collection[str]) -> list[int]:
        """Return the vectors whose signs differ least from `code`."""
        wanted = [number for number, name in enumerate(self._names) if name in stores]
        numpy = load_numpy()
        if numpy is None or self._words is None:
            sought = int.from_bytes(code, "little")
            pairs: Any = zip(self._rows, self._codes, strict=True)
            if stores:
                pairs = itertools.compress(pairs, [store in wanted for store in self._stores])
            return [
                row
                for row, _ in heapq.nsmallest(_CANDIDATES, pairs, lambda pair: (pair[1] ^ sought).bit_count())
            ]
        size = len(self._rows)
        distances = numpy.zeros(size, dtype=numpy.uint16)
        for array, word in zip(self._words, numpy.frombuffer(code, dtype="<u8"), strict=True):
            distances += numpy.bitwise_count(array[:size] ^ word)
        if stores:
            kept = numpy.isin(numpy.frombuffer(bytes(self._stores), dtype=numpy.uint8), wanted)
            distances[~kept] = numpy.iinfo(numpy.uint16).max
        if size <= _CANDIDATES:
            return self._rows.copy()
        # The distances are few different numbers: counting them is faster than sorting.
        most = int(numpy.searchsorted(numpy.cumsum(numpy.bincount(distances)), _CANDIDATES))
        nearer = numpy.flatnonzero(distances < most)
        equal = numpy.flatnonzero(distances == most)[: _CANDIDATES - len(nearer)]
        return [self._rows[place] for place in (*nearer.tolist(), *equal.tolist())]


def _similarities(vectors: Sequence[bytes], values: Sequence[float]) -> list[float]:
    """Return the cosines of stored vectors with a vector of length 1."""
    if (numpy := load_numpy()) is not None and vectors:
        kept = (
            numpy.frombuffer(b"".join(vectors), dtype="<f2").reshape(len(vectors), -1).astype(numpy.float32)
        )
        return (kept @ numpy.asarray(values, dtype=numpy.float32)).tolist()  # type: ignore[no-any-return]
    form = struct.Struct(f"<{len(values)}e")
    return [sum(map(mul, form.unpack(kept), values)) for kept in vectors]


def check_numbers(db: sqlite3.Connection, model: str, numbers: int) -> int | None:
    """Return the row of a model of embeddings; `None` if nothing is stored for it.

    Raises: `ConfigError` if the model's vectors have another length than `numbers`.
    """
    row = db.execute("SELECT id, numbers FROM memory_models WHERE name=?", (model,)).fetchone()
    if row is None:
        return None
    if row[1] != numbers:
        raise ConfigError(
            f"the embeddings of {model!r} have {numbers} numbers, and those stored in this journal have {row[1]}; "
            "use the server that made them, or delete the stored ones with "
            "memory.store.drop_vectors(memory.embedder.name) and call memory.embed_missing()"
        )
    return int(row[0])
