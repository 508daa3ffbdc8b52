"""Search by words: SQLite's full-text index finds candidates, which are ranked by BM25.

Common words would make the index read a large part of all entries. A search therefore asks the index for its rare
words alone and for its common words in pairs, up to a number of entries, and the best candidates are then ranked by
all words. SQLite's own `bm25` would count all entries of every word again for each search.
Source of the formula and its constants: Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009.
"""

import heapq
import math
import sqlite3
from collections.abc import Collection, Sequence
from itertools import combinations

from treadle.knowledge.memory.words import query_terms, says_the_same

_MAX_TERMS = 48
_MAX_POSTINGS = 1500
"""How many entries the words of a query may have together, as far as they are asked for in one query."""
_MAX_PAIRS = 10
_CANDIDATES = 60
_K1, _B = 1.2, 0.75
_LEAST_SHARE = 0.2
"""The part of a query's weight that an entry must match, unless it matches `_ENOUGH`."""
_ENOUGH = 9.0
"""A weight that is enough for any query: about that of two rare words."""
_LEAST_OF_BEST = 0.3
_SAME_CANDIDATES = 20


class Frequencies:
    """The numbers of entries that have a word. Those of common words take long to count, so they are kept."""

    _COMMON = 200
    _MAX_KEPT = 20_000

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, int]] = {}

    def of(self, db: sqlite3.Connection, terms: Sequence[str], total: int) -> dict[str, int]:
        """Return how many entries of the file have each of the terms. Terms that none has are left out."""
        found = {}
        for term in terms:
            count, counted_at = self._kept.get(term, (0, -1))
            if counted_at < 0 or abs(total - counted_at) > counted_at // 50:
                row = db.execute("SELECT doc FROM memory_words WHERE term=?", (term,)).fetchone()
                count = row[0] if row else 0
                if count > self._COMMON:
                    if len(self._kept) >= self._MAX_KEPT:
                        self._kept.clear()
                    self._kept[term] = count, total
            if count:
                found[term] = count
        return found


def search_words(
    db: sqlite3.Connection,
    frequencies: Frequencies,
    space: tuple[int, int],
    text: str,
    stores: Collection[str] = (),
    limit: int = 50,
    also: Collection[int] = (),
) -> list[tuple[int, float]]:
    """Return the rows of entries that fit the words of `text`, with their scores, the best first.

    `space` is the range of the namespace's rows. The rows `also` were found in another way, and are ranked too.
    """
    total, own = _count(db, space)
    counts = frequencies.of(db, query_terms(text)[:_MAX_TERMS], total)
    if not counts:
        return []
    weights = {term: math.log(1 + (total - count + 0.5) / (count + 0.5)) for term, count in counts.items()}
    condition = f"AND e.store IN ({','.join('?' * len(stores))})" if stores else ""
    sql = (
        "SELECT memory_text.rowid FROM memory_text "
        f"{'CROSS JOIN memory_entries e ON e.id = memory_text.rowid' if stores else ''} "
        f"WHERE memory_text MATCH ? AND memory_text.rowid BETWEEN ? AND ? {condition}"
    )
    scores: dict[int, float] = {}
    for group in _plan({term: min(count, own) for term, count in counts.items()}, own):
        weight = sum(weights[term] for term in group) / len(group)
        for (row,) in db.execute(sql, (" AND ".join(map(_quote, group)), *space, *stores)):
            scores[row] = scores.get(row, 0.0) + weight
    best = heapq.nlargest(_CANDIDATES, scores, key=scores.__getitem__)
    rows = db.execute(
        f"SELECT rowid, stems FROM memory_text WHERE rowid IN ({','.join(map(str, {*best, *also}))})"
    ).fetchall()
    return _rank(rows, weights)[:limit]


def find_same(
    db: sqlite3.Connection, frequencies: Frequencies, space: tuple[int, int], text: str, store: str
) -> int | None:
    """Return the row of an entry of `store` to which `text` adds nothing; `None` if there is none."""
    terms = query_terms(text)[:_MAX_TERMS]
    counts = frequencies.of(db, terms, _count(db, space)[0])
    if not terms or len(counts) < len(terms):
        return None
    rarest = sorted(terms, key=counts.__getitem__)[:4]
    rows = db.execute(
        "SELECT e.id, e.text FROM memory_text CROSS JOIN memory_entries e ON e.id = memory_text.rowid "
        "WHERE memory_text MATCH ? AND memory_text.rowid BETWEEN ? AND ? AND e.store = ? "
        f"LIMIT {_SAME_CANDIDATES}",
        (" AND ".join(map(_quote, rarest)), *space, store),
    )
    return next((row for row, kept in rows if says_the_same(text, kept)), None)


def _count(db: sqlite3.Connection, space: tuple[int, int]) -> tuple[int, int]:
    """Return about how many entries the file and the namespace have. Forgotten ones count as well."""
    rows = db.execute("SELECT id, next - 1 FROM memory_spaces").fetchall()
    own = next((count for key, count in rows if key == space[0] >> 32), 0)
    return max(1, sum(count for _, count in rows)), max(1, own)


def _plan(counts: dict[str, int], total: int) -> list[tuple[str, ...]]:
    """Return the groups of terms that the index is asked for: entries that have all terms of one group."""
    terms = sorted(counts, key=counts.__getitem__)
    groups: list[tuple[str, ...]] = []
    postings = 0
    while terms and postings + counts[terms[0]] <= _MAX_POSTINGS:
        postings += counts[terms[0]]
        groups.append((terms.pop(0),))
    pairs = sorted(
        (counts[one] * counts[other] / total, one, other) for one, other in combinations(terms[:8], 2)
    )
    for expected, one, other in pairs[:_MAX_PAIRS]:
        postings += int(expected)
        if postings > _MAX_POSTINGS and groups:
            break
        groups.append((one, other))
    return groups or [(term,) for term in terms[:1]]


def _quote(term: str) -> str:
    return f'"{term}"'


def _rank(rows: Sequence[tuple[int, str]], weights: dict[str, float]) -> list[tuple[int, float]]:
    """Return the rows by BM25, the best first, without those that fit too little."""
    split = [(row, stems.split()) for row, stems in rows]
    average = sum(len(words) for _, words in split) / max(1, len(split)) or 1.0
    least = min(_ENOUGH, _LEAST_SHARE * sum(weights.values()))
    found = []
    for row, words in split:
        score = matched = 0.0
        norm = _K1 * (1 - _B + _B * len(words) / average)
        for term in weights.keys() & set(words):
            count = words.count(term)
            matched += weights[term]
            score += weights[term] * count * (_K1 + 1) / (count + norm)
        if matched >= least:
            found.append((row, score))
    found.sort(key=lambda item: (-item[1], -item[0]))
    return [item for item in found if item[1] >= _LEAST_OF_BEST * found[0][1]]
