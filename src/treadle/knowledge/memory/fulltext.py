"""Search of memories by words: the index, and the words of a text as they are indexed and compared.

Words are folded, without accents and marks. Every word loses its English and then its Norwegian ending, so the
language of a text need not be known. Scripts without blanks are split into pairs of characters.
"""

import heapq
import math
import re
import sqlite3
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Sequence, Set
from functools import cache, lru_cache
from itertools import chain, combinations
from typing import NamedTuple

import snowballstemmer
from msgspec import Struct

from treadle.core.texts.documents import read_data

_MAX_TERMS = 48
_MAX_POSTINGS = 1500
"""How many entries the words of a query may have together, as far as they are asked for in one query."""
_MAX_PAIRS = 10
_CANDIDATES = 60
_SPEAKER_ENTRIES, _SPEAKER_CHARS = 5, 200
"""In how many entries with a word it is looked for as the name of who said them, and how much of them is read."""
_K1, _B = 0.9, 0.4
_NEIGHBOURS = {1: 0.5, 2: 0.3}
"""Which part of its score an episode adds to those of the same run that were written so many entries before and
after it: a question often stands in one, and its answer in the next."""
_ASKED = 0.8
"""The same for an episode that follows one which ends with a question."""
_KIND = 0.5
"""How much a word that tells of a kind, such as `violin`, counts where the query names the kind: `instruments`.
Another form of a verb, such as `bought` for `buy`, counts as much."""
_FURTHER = 0.3
"""Which share of their scores an entry gets for further words of the same kind: several make it likelier that it
tells of the kind, but do not say as much as the words of a query."""
_SUBJECT = 2.0
"""By how much the score of an entry is multiplied if a query has its first word and a colon follows that: it is
what somebody said whom the query asks about, and others only name them."""
_SIMILAR = 0.2
"""Which share of these parts counts for embeddings."""
_OWN = 1.2
"""By how much the similarity of an entry in the first person is multiplied: it tells about who said it."""
_QUESTION = 0.75
"""By how much the score of an entry that ends with a question is multiplied: it asks for what others tell."""
_TIME, _TIME_IN_RUN = 1.4, 1.8
"""By how much the score of an entry with a word of time is multiplied, if a query asks for a time: one that tells
about no run, and an episode of a run, of which few tell a time."""
_RARE = 0.8
"""The logarithm of the factor by which the score of an episode of a run is multiplied if it has a word, besides the
query's, that no other candidate has: it tells something, and small talk does not. Words of several count less."""
_NEWS = 1.2
"""By how much the score of an episode is multiplied if it is the first of its run, which often tells what is new
and what the rest is about. A quotation, such as the title of a book, counts as much."""
_BONUS = 0.2
"""How much each of a query's words that an entry has, after the first, adds to its fit, besides their share. As
much is added if the query names who said the entry."""
_MAX_TELLING = 12
"""Of longer queries, an entry can only be about a part, and no kind that they name counts."""
_LEAST_DIGITS, _YEAR_DIGITS = 2, 4
_LEAST_SHARE = 0.2
"""The part of a query's weight that an entry must match, unless it matches `_ENOUGH`."""
_ENOUGH = 9.0
"""A weight that is enough for any query: about that of two rare words."""
_LEAST_OF_BEST = 0.3
_SAME_CANDIDATES = 20
_FOLLOWED, _NAMED = 3, 6
"""How many of the best entries lead to others by a name, and how many entries may have that name at most."""
_FOLLOWED_CHARS = 2_000
_LED = 0.5
"""Which share of its score an entry adds to another one by a name that only the two have; less if more have it."""


class Match(Struct, frozen=True):
    """An entry that has words of a query."""

    row: int
    score: float
    """The score by BM25, which can only be compared with those of the same query."""
    fit: float
    """How well the entry fits on its own: see `Hit.fit`."""


class _Text(NamedTuple):
    """The words of an entry."""

    row: int
    stems: list[str]
    words: set[str]
    """The different stems."""
    origin: tuple[str, str | None]
    """The store and the run that the entry tells about."""
    is_said: bool
    """True if a colon follows the first word, which is the name of who said the rest."""
    is_question: bool
    """True if it ends with a question."""
    news: int
    """How many of these are true: it is the first of its run; it has a quotation."""

    def is_said_by(self, names: Collection[str]) -> bool:
        """Return whether one of `names` said the entry."""
        return self.is_said and bool(self.stems) and self.stems[0] in names

    def suit(self, names: Collection[str]) -> float:
        """Return by how much the entry's score is multiplied, if a query names `names`."""
        return (_SUBJECT if self.is_said_by(names) else 1.0) * (_QUESTION if self.is_question else 1.0)


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
    among: Collection[int] | None = None,
) -> list[Match]:
    """Return the entries that fit the words of `text`, the best first.

    `space` is the range of the namespace's rows. The rows `also` were found in another way, and are ranked too.
    With `among`, only these rows are found.
    """
    total, own = _count(db, space)
    asked = query_terms(text)[:_MAX_TERMS]
    kinds = _kinds() if len(asked) <= _MAX_TELLING else {}
    told = {word: term for term in asked for word in kinds.get(term, ()) if word not in asked}
    known = frequencies.of(db, [*asked, *told], total)
    if not known:
        return []
    weights = {word: math.log(1 + (total - count + 0.5) / (count + 0.5)) for word, count in known.items()}
    weights |= {word: _KIND * weights[word] for word in told.keys() & known.keys()}
    condition = f"AND e.store IN ({','.join('?' * len(stores))})" if stores else ""
    sql = (
        "SELECT memory_text.rowid FROM memory_text "
        f"{'CROSS JOIN memory_entries e ON e.id = memory_text.rowid' if stores else ''} "
        f"WHERE memory_text MATCH ? AND memory_text.rowid BETWEEN ? AND ? {condition}"
    )
    scores: dict[int, float] = {}
    counts = {word: min(count, own) for word, count in known.items()}
    for group in _plan(counts, asked, own):
        weight = sum(weights[term] for term in group) / len(group)
        for (row,) in db.execute(sql, (" AND ".join(map(_quote, group)), *space, *stores)):
            if among is None or row in among:
                scores[row] = scores.get(row, 0.0) + weight
    best = heapq.nlargest(_CANDIDATES, scores, key=scores.__getitem__)
    is_time = not _LISTS["asks_time"].isdisjoint(words_of(text[:MAX_QUERY_CHARS]))
    texts = _read_texts(db, {*best, *also})
    telling = [term for term in _telling(text) if term in known or not _is_time(term)]
    return _rank(texts, weights, told, telling, is_time=is_time)[:limit]


def _read_texts(db: sqlite3.Connection, rows: Collection[int]) -> dict[int, _Text]:
    """Return the words of entries, and those of the episodes of the same runs beside them."""
    found = {text.row: text for text in _read(db, rows)}
    told = [row for row, text in found.items() if text.origin[1] is not None]
    return found | {text.row: text for text in _read(db, neighbours_of(told) - found.keys())}


def _read(db: sqlite3.Connection, rows: Collection[int]) -> list[_Text]:
    sql = (
        "SELECT t.rowid, t.stems, e.store, json_extract(e.metadata, '$.run'), "
        "substr(e.text, instr(e.text, ' ') - 1, 1) = ':', e.text LIKE '%?', "
        "(instr(e.text, '\"') OR instr(e.text, '“') OR instr(e.text, '«')) + NOT EXISTS ("
        "SELECT 1 FROM memory_entries b WHERE b.id IN (e.id - 1, e.id - 2) "
        "AND json_extract(b.metadata, '$.run') = json_extract(e.metadata, '$.run')) FROM memory_text t "
        f"JOIN memory_entries e ON e.id = t.rowid WHERE t.rowid IN ({','.join(map(str, rows))})"
    )
    return [
        _Text(row, words := stems.split(), {*words}, (store, run), bool(said), bool(asks), news)
        for row, stems, store, run, said, asks, news in db.execute(sql)
    ]


def drop_speaker(text: str) -> str:
    """Return an entry's text without a first word that a colon follows: the text of which an embedding is made.

    All that one person says would else be similar to all that is asked or said about that person.
    """
    label, _, said = text.partition(": ")
    return said if said and not any(map(str.isspace, label)) else text


def to_first_person(db: sqlite3.Connection, space: tuple[int, int], query: str) -> str:
    """Return a query with words such as `I` or `my` for the names of those who said entries that have their names:
    what they said about themselves has these words. A query with nothing else is not changed."""
    words = {word for word in _WORD.findall(query[:MAX_QUERY_CHARS]) if word.casefold() not in _ASKING}
    sql = (
        f"SELECT substr(text, 1, {_SPEAKER_CHARS}) FROM memory_entries WHERE id IN (SELECT rowid FROM memory_text "
        f"WHERE memory_text MATCH ? AND rowid BETWEEN ? AND ? LIMIT {_SPEAKER_ENTRIES})"
    )
    made = query
    for word in sorted(words)[:_MAX_TERMS]:
        name = word.casefold()
        rows = db.execute(sql, (_quote(stem(name)), *space))
        if said := " ".join(text for (text,) in rows if text.casefold().startswith(f"{name}: ")):
            others = (pair for pair in _FIRST_PERSON[1:] if pair[0] in words_of(said))
            first, possessive = next(others, _FIRST_PERSON[0])
            made = re.sub(rf"\b{word}\b", first, re.sub(rf"\b{word}['’]s\b", possessive, made))
    return query if _LISTS["self"].issuperset(words_of(made)) else made


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


def _plan(counts: dict[str, int], asked: Collection[str], total: int) -> list[tuple[str, ...]]:
    """Return the groups of terms that the index is asked for: entries that have all terms of one group. Words that
    were not `asked` for come last."""
    terms = sorted(counts, key=lambda term: (term not in asked, counts[term]))
    groups: list[tuple[str, ...]] = []
    postings = 0
    while terms and postings + counts[terms[0]] <= _MAX_POSTINGS:
        postings += counts[terms[0]]
        groups.append((terms.pop(0),))
    terms = [term for term in terms if term in asked]
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


def _rank(
    texts: dict[int, _Text],
    weights: dict[str, float],
    told: dict[str, str],
    telling: Collection[str],
    *,
    is_time: bool,
) -> list[Match]:
    """Return the entries by BM25, the best first, without those that fit too little.

    `told` has the term of the query that names the kind of a word. `is_time` is true for a query that asks for a
    time.
    """
    average = sum(len(text.stems) for text in texts.values()) / max(1, len(texts)) or 1.0
    least = min(_ENOUGH, _LEAST_SHARE * sum(weight for term, weight in weights.items() if term not in told))
    terms = {row: _score_terms(text, weights, told, average) for row, text in texts.items()}
    own = {row: sum(scores.values()) for row, scores in terms.items()}
    plain: dict[int, float] = {}
    fits: dict[int, float] = {}
    for row, text in texts.items():
        if not own[row]:
            continue
        near = _beside(row, texts)
        matched = terms[row].keys() | {
            term for _, other in near if abs(other - row) == 1 for term in terms[other]
        }
        if sum(weights.get(term, 0.0) for term in matched) >= least:
            plain[row] = (own[row] + sum(part * own[other] for part, other in near)) * text.suit(weights)
            fits[row] = _fit(matched, telling, is_subject=text.is_said_by(weights))
    enough = _LEAST_OF_BEST * max(plain.values(), default=0.0)
    rarity = _rarity(texts, weights.keys())
    found = []
    for row, score in plain.items():
        if score >= enough:
            tells_time = is_time and not _stems_of("time").isdisjoint(texts[row].words)
            in_time = _TIME_IN_RUN if texts[row].origin[1] else _TIME
            found.append(Match(row, score * rarity[row] * (in_time if tells_time else 1.0), fits[row]))
    return sorted(found, key=lambda item: (-item.score, -item.row))


def _rarity(texts: dict[int, _Text], asked: Set[str]) -> dict[int, float]:
    """Return by how much the score of each entry is multiplied for its rarest word that was not `asked` for, and
    for what is new in it.

    An entry that tells about no run was written to tell something, and is not small talk.
    """
    counts = Counter(chain.from_iterable(text.words for text in texts.values()))
    total = len(texts) + 1
    factors = [
        math.exp(_RARE * math.log(total / (count + 0.5)) / math.log(total / 1.5)) if total > 2 else 1.0
        for count in range(total)
    ]
    return {
        row: _NEWS**text.news * factors[min(map(counts.__getitem__, text.words - asked), default=-1)]
        if text.origin[1]
        else 1.0
        for row, text in texts.items()
    }


def _beside(row: int, texts: dict[int, _Text]) -> list[tuple[float, int]]:
    """Return the episodes of the same run beside an entry, each with the part of its score that the entry gets."""
    origin = texts[row].origin
    return [
        (_ASKED if other == row - 1 and texts[other].is_question else part, other)
        for away, part in _NEIGHBOURS.items()
        for other in (row - away, row + away)
        if origin[1] is not None and other in texts and texts[other].origin == origin
    ]


def lift_similar(
    db: sqlite3.Connection, text: str, rows: Collection[int], cosines: dict[int, float]
) -> dict[int, float]:
    """Return the scores of `rows` by meaning: their cosines with the query `text`, and a part of those of the
    episodes beside them. What somebody said whom the query names counts more, and so does an entry with a rare
    word, and one in the first person."""
    texts, names = _read_texts(db, rows), {*query_terms(text)}
    rarity, own = _rarity(texts, names), _stems_of("self")
    return {
        row: (
            cosines[row]
            + sum(_SIMILAR * part * cosines.get(other, 0.0) for part, other in _beside(row, texts))
        )
        * texts[row].suit(names)
        * rarity[row]
        * (1.0 if own.isdisjoint(texts[row].words) else _OWN)
        for row in rows
        if row in cosines and row in texts
    }


def follow_names(
    db: sqlite3.Connection,
    space: tuple[int, int],
    query: str,
    stores: Collection[str],
    scores: dict[int, float],
) -> dict[int, float]:
    """Return what the best entries add to the scores of those that have a rare name of theirs.

    "Where does Kim's sister live?" finds "Kim's sister Åse called", which leads to "Åse moved to Hamar". `scores`
    are those of the entries that were found. Names in the query and in pieces of documents lead nowhere.
    """
    rows = heapq.nlargest(_FOLLOWED, scores, key=scores.__getitem__)
    kept = f"SELECT id, text FROM memory_entries WHERE id IN ({','.join(map(str, rows))}) AND store <> 'documents'"
    condition = f"AND e.store IN ({','.join('?' * len(stores))})" if stores else ""
    sql = (
        "SELECT memory_text.rowid FROM memory_text CROSS JOIN memory_entries e ON e.id = memory_text.rowid "
        f"WHERE memory_text MATCH ? AND memory_text.rowid BETWEEN ? AND ? {condition} LIMIT {_NAMED + 1}"
    )
    asked, added = {*query_terms(query)}, dict[int, float]()
    for row, text in db.execute(kept).fetchall():
        for name in _names(text) - asked:
            found = {other for (other,) in db.execute(sql, (_quote(name), *space, *stores))} - {row}
            if len(found) < _NAMED:
                for other in found:
                    added[other] = max(added.get(other, 0.0), _LED * scores[row] * 2 / (len(found) + 1))
    return added


def _names(text: str) -> set[str]:
    """Return the stems of words that have a capital letter although they do not begin a sentence."""
    said = drop_speaker(text)[:_FOLLOWED_CHARS]
    begun = {found.end() for found in _SENTENCE.finditer(said)}
    words = [found for found in _WORD.finditer(said) if found[0][0].isupper() and found.start() not in begun]
    return {stem(word) for found in words if len(word := found[0].casefold()) > 1 and word not in _ASKING}


def neighbours_of(rows: Collection[int]) -> set[int]:
    """Return the rows that may be beside some rows, and these."""
    return {row + step for row in rows for away in (0, *_NEIGHBOURS) for step in (away, -away)}


def _score_terms(
    text: _Text, weights: dict[str, float], told: dict[str, str], average: float
) -> dict[str, float]:
    """Return the score of each term of a query of which an entry has a word: the term, or words of its kind."""
    found = [(_score(text.stems, word, weights[word], average), word) for word in weights.keys() & text.words]
    scores: dict[str, float] = {}
    for score, word in sorted(found, reverse=True):
        term = told.get(word, word)
        scores[term] = scores[term] + _FURTHER * score if term in scores else score
    return scores


def _score(stems: Sequence[str], term: str, weight: float, average: float) -> float:
    count = stems.count(term)
    return weight * count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * len(stems) / average))


def _fit(matched: Collection[str], telling: Collection[str], *, is_subject: bool) -> float:
    """Return how well the words `matched` fit a query with `telling` ones, of which one may be a name."""
    count, most = sum(term in matched for term in telling), min(len(telling), _MAX_TELLING)
    bonus = _BONUS * most / max(1, len(telling))
    return count and min(1.0, count / most + bonus * (count - 1 + is_subject))


def _telling(text: str) -> list[str]:
    """Return the different stems of a query that tell what it is about, those that no entry has included.

    Words of requests and small talk in any form do not, and neither do short numbers. A name that is also the stem
    of such a word, such as `Sam` of `same`, is no form of it.
    """
    names = {word for word in words_of(text[:MAX_QUERY_CHARS]) if word not in _ASKING and word == stem(word)}
    return [
        term
        for term in query_terms(text)[:_MAX_TERMS]
        if (term in names or term not in _stems_of("asking"))
        and not (term.isdecimal() and len(term) < _LEAST_DIGITS)
    ]


def _is_time(term: str) -> bool:
    """Return whether a stem is a year or a word of time. An entry may fit a query without having it, because its
    text does not say when it was written."""
    return term in _stems_of("time") or (term.isdecimal() and len(term) == _YEAR_DIGITS)


@cache
def _stems_of(name: str) -> frozenset[str]:
    """Return the stems of the words in a list."""
    return frozenset(map(stem, _LISTS[name]))


@cache
def _kinds() -> dict[str, list[str]]:
    """Return the stems that tell of a kind, for each stem that names it, and all forms of a verb for each."""
    found: dict[str, list[str]] = {}
    forms = read_data(__package__, "words")["forms"].split(",")
    for names, members in [*read_data(__package__, "kinds").items(), *zip(forms, forms, strict=True)]:
        for name in words_of(names):
            found.setdefault(stem(name), []).extend(map(stem, words_of(members)))
    return found


MAX_QUERY_CHARS = 20_000
"""How much of a query is read."""
_MAX_WORD_CHARS = 40
_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(r"(?:^|[.!?:\"“«\n])\s*")
"""The end of one sentence, up to the beginning of the next one."""
_DENSE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""The characters of scripts without blanks."""

_LISTS = {name: frozenset(text.split()) for name, text in read_data(__package__, "words").items()}
_STOP = _LISTS["stop"] | _LISTS["filler"]
"""Words that say little about what a text is about."""
_ASKING = _LISTS["asking"] = _STOP | _LISTS["request"]
_FILLERS = _LISTS["filler"]
"""Words whose absence does not change what a text says."""
_NEGATIONS = _LISTS["negation"]
_FIRST_PERSON = [pair.split() for pair in read_data(__package__, "words")["first_person"].split(",")]

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


def says_the_same(new: str, old: str) -> bool:
    """Return whether two texts have the same words in the same order, in any form and without fillers, and the same
    negations and numbers. A word more may change everything: an old boss, a shell fish."""
    mine, theirs = ([stem(word) for word in words_of(text) if word not in _FILLERS] for text in (new, old))
    return bool(mine) and mine == theirs and _fixed(new) == _fixed(old)


def _fixed(text: str) -> list[str]:
    found = words_of(text.replace("n't", " not").replace("n’t", " not"))
    return sorted(word for word in found if word in _NEGATIONS or any(char.isdigit() for char in word))
