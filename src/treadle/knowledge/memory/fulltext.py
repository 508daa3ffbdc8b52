"""Search of memories by words: the index, and the words of a text as they are indexed and compared.

Words are folded, without accents and marks. Every word loses its English and then its Norwegian ending, so the
language of a text need not be known. Scripts without blanks are split into pairs of characters.
"""

import heapq
import math
import re
import sqlite3
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import combinations

import snowballstemmer

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
        """Return how many entries of the file have each of the terms. Terms that no entry has are left out."""
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


MAX_QUERY_CHARS = 20_000
"""How much of a query is read."""
_MAX_WORD_CHARS = 40
_WORD = re.compile(r"[^\W_]+")
_DENSE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""The characters of scripts without blanks."""

_ENGLISH_STOP = """a about am an and any are as at be been being but by can could did do does doing done for from
had has have having he her here hers him his how i if in into is it its just let me my of on or our ours please re
s shall she should so some than that the their theirs them then there these they this those to t too up us was we
were what when where which who whom whose why will with would you your yours ve ll d m tell know say said again"""
_NORWEGIAN_STOP = """alle at av bare ble bli blir blitt da de deg dem den denne der dere deres det dette din ditt
dine du eller en ei er et etter for fortell fra gjorde gjøre ha hadde han hans har hun hva hvem hvilke hvilken
hvilket hvor hvordan hvorfor i ikke inn jeg kan kunne man med meg men min mitt mine ned noe noen nå når og også om
opp oss over på sa seg selv si sin sine sitt skal skulle som så til ut var ved vet vi vil ville vår være vært"""
_FILLER = """a an the very really just also so quite actually please too s en ei et den det de veldig ganske bare
også så nå jo"""
_NEGATION = "no not never none nothing without cannot nor neither ikke aldri ingen intet uten nei"
_STOP = frozenset(f"{_ENGLISH_STOP} {_NORWEGIAN_STOP} {_FILLER}".split())
"""Words that say little about what a text is about."""
_FILLERS = frozenset(_FILLER.split())
"""Words whose absence does not change what a text says."""
_NEGATIONS = frozenset(_NEGATION.split())

_english = snowballstemmer.stemmer("english").stemWord
_norwegian = snowballstemmer.stemmer("norwegian").stemWord


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return the stem of a word in lower case: a text that all forms of the word share."""
    made = word if word.isdecimal() else _norwegian(_english(word))
    plain = "".join(char for char in unicodedata.normalize("NFKD", made) if not unicodedata.combining(char))
    return plain or made


def words_of(text: str) -> Iterator[str]:
    """Yield the words of `text` in order, in lower case."""
    for match in _WORD.finditer(unicodedata.normalize("NFKC", text).casefold()):
        word = match[0][:_MAX_WORD_CHARS]
        if len(word) == 1 or not _DENSE.search(word):
            yield word
        else:
            yield from (word[place : place + 2] for place in range(len(word) - 1))


def index_form(text: str) -> str:
    """Return the stems of `text`, separated by blanks: what the full-text index holds."""
    return " ".join(map(stem, words_of(text)))


def query_terms(text: str) -> list[str]:
    """Return the different stems of a query, in order. Stop words are left out, unless there is nothing else."""
    words = list(words_of(text[:MAX_QUERY_CHARS]))
    telling = [word for word in words if word not in _STOP]
    return list(dict.fromkeys(map(stem, telling or words)))


def tell_words(text: str) -> list[str]:
    """Return the stems of the words that matter for what `text` says, in order, each as often as it occurs."""
    return [stem(word) for word in words_of(text) if word not in _FILLERS]


def says_the_same(new: str, old: str) -> bool:
    """Return whether `new` adds nothing to `old`.

    Its words, in any form and without fillers, occur in `old` in the same order, and make up most of it. Both have
    the same negations and numbers. So nothing is lost if only `old` is kept.
    """
    mine, theirs = tell_words(new), tell_words(old)
    if not mine or len(mine) < 0.8 * len(theirs) or _fixed(new) != _fixed(old):
        return False
    rest = iter(theirs)
    return all(word in rest for word in mine)


def _fixed(text: str) -> list[str]:
    found = words_of(text.replace("n't", " not").replace("n’t", " not"))
    return sorted(word for word in found if word in _NEGATIONS or any(char.isdigit() for char in word))
