"""The features of a message that the trained judgements weigh: its words, parts of words, classes of words (the
section `classes` of `words/*.toml`), what stands beside what, and the facts about the conversation.

A feature is the number of a row of weights: a hash, so that a word which no training message had is harmless. The
number of features is bounded for a message of any length.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import combinations, islice, pairwise
from zlib import crc32

from treadle.routing.judging.clauses import Clause, Reading, content_of, find_clauses
from treadle.routing.judging.lists import ADDRESS, CODE, FILE, QUOTE, languages

ROWS = 1 << 17
"""The number of rows of weights."""
_HEAD_TOKENS = 90
_TAIL_TOKENS = 30
"""How many words of the beginning and of the end of a message are used."""
_MAX_CLAUSES = 8
_ASKED = 2
"""How many of the last clauses that ask for something are weighed by themselves: in a long message, what is asked
for is lost among what is told."""
_TOKEN = re.compile(
    rf"[^\W\d_]++(?:['-][^\W\d_]++)*+|\d[\d.,:]*+|[{FILE}{ADDRESS}{QUOTE}{CODE}]++|[?!:;%$€@]"
)
_FILES = re.compile(f"{FILE}++")
_SIGNS = {FILE: "<file>", ADDRESS: "<address>", QUOTE: "<quote>", CODE: "<code>", "@": "<mail>"}
_LENGTHS = (1, 2, 3, 4, 5, 7, 9, 12, 16, 22, 32, 60)


def find_features(reading: Reading, facts: str = "") -> list[int]:
    """Return the rows of the features of a message. `facts` is a letter for each fact about the conversation."""
    names: list[str] = []
    tokens = _find_tokens(reading)
    classes = [_classes_of(token) for token in tokens]
    present = sorted({name for found in classes for name in found})
    length = sum([len(tokens) > limit for limit in _LENGTHS])
    if _NAME.search(reading.text, 0, 2000):
        present.append("name")
    for found in islice(_FILES.finditer(reading.prose), _MAX_CLAUSES):
        present.append(f"<{content_of(reading.text[found.start() : found.end()])}>")
    present = list(dict.fromkeys(present))
    names.append(f"l{length}")
    names += [f"f{fact}{name}" for fact in facts for name in ("", f"l{length}", *present)]
    names += [f"p{one}|{other}" for one, other in combinations(present, 2)]
    names += [f"l{length // 2}{name}" for name in present]
    padded = ["^", *tokens, "$"]
    names += [f"b{one} {other}" for one, other in pairwise(padded)]
    for (one, other), near in zip(pairwise(classes), [*classes[2:], ()], strict=False):
        names += [f"n{a}>{b}" for a in one for b in other]
        names += [f"s{a}>{b}" for a in one for b in near]
    clauses = find_clauses(reading)
    for clause in [clause for clause in clauses if clause.is_request or clause.is_question][-_ASKED:]:
        names += _of_request(clause)
    for clause in clauses[:_MAX_CLAUSES]:
        kind = "q" if clause.is_question else "r" if clause.is_request else "t"
        words = _TOKEN.findall(clause.text[:200])[:12]
        names.append(f"k{kind}")
        if words:
            size = min(len(words), 8)
            names += [f"k{kind}{words[0]}", f"k{kind}{size}"]
            held = sorted({name for word in words[1:] for name in _classes_of(_sign(word))})
            for verb in _classes_of(_sign(words[0])):
                names += [
                    f"k{kind}{verb}",
                    f"k{kind}{verb}{size}",
                    *[f"v{kind}{verb}>{name}" for name in held],
                ]
    rows = find_rows(names)
    for token in tokens:
        rows += _rows_of(token)
    return list(dict.fromkeys(rows))


def _of_request(clause: Clause) -> Iterator[str]:
    """Yield the words and classes of a clause that asks for something, and what stands beside what in it."""
    words = [_sign(word) for word in _TOKEN.findall(clause.text[:200])[:20]]
    present = sorted({name for word in words for name in _classes_of(word)})
    yield from (f"a{name}" for name in (*words, *present))
    yield from (f"a{one}>{other}" for one, other in pairwise(words))
    yield from (f"a{one}|{other}" for one, other in combinations(present, 2))


def find_rows(names: Iterable[str]) -> list[int]:
    """Return the rows of features by their names."""
    return [crc32(name.encode()) & (ROWS - 1) for name in names]


def rows_of_words(text: str) -> list[int]:
    """Return the rows of the words of a text in lower case, without what stands beside what."""
    found = [row for token in _TOKEN.findall(text[:400])[:_HEAD_TOKENS] for row in _rows_of(_sign(token))]
    return list(dict.fromkeys(found))


def _find_tokens(reading: Reading) -> list[str]:
    found = _TOKEN.findall(reading.prose)
    if len(found) > _HEAD_TOKENS + _TAIL_TOKENS:
        found = found[:_HEAD_TOKENS] + found[-_TAIL_TOKENS:]
    return [_sign(token) for token in found]


_NAME = re.compile(r"(?<=[\w,(] )[^\W\d_a-zæøå][^\W\d_A-ZÆØÅ]++")
"""A word with a capital letter that does not begin a sentence."""


def _sign(token: str) -> str:
    return _SIGNS.get(token[0]) or (_number(token) if token[0].isdigit() else _spellings().get(token, token))


@cache
def _spellings() -> dict[str, str]:
    """Return the usual spellings of words that are often written in another way, by the other spelling."""
    phrases = [
        text.strip() for lists in languages().values() for text in lists["reading"]["spelled"].split(",")
    ]
    return {other: usual for usual, *others in [text.split("/") for text in phrases] for other in others}


def _number(token: str) -> str:
    if ":" in token:
        return "#time"
    digits = sum([char.isdigit() for char in token])
    return f"#{min(digits, 5)}"


@lru_cache(maxsize=8192)
def _rows_of(token: str) -> tuple[int, ...]:
    names = [f"w{token}", *[f"c{name}" for name in _classes_of(token)]]
    if token[0] not in "<#":
        whole = f"^{token[:24]}$"
        names += [f"g{whole[at : at + size]}" for size in (3, 5) for at in range(len(whole) - size + 1)]
    return tuple(find_rows(names))


@lru_cache(maxsize=8192)
def _classes_of(token: str) -> tuple[str, ...]:
    """Return the classes of a word, in the order of the word lists."""
    whole, beginnings = _classes()
    if token[0] == "#":
        return ("number",) if token != "#time" else ("number", "time")
    if token[0] == "<":
        return (token,)
    found = dict.fromkeys(whole.get(token, ()))
    for end in range(2, min(len(token), 16) + 1):
        found.update(dict.fromkeys(beginnings.get(token[:end], ())))
    return tuple(found)


@cache
def _classes() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the classes of whole words, and those of the beginnings of words."""
    whole: dict[str, list[str]] = {}
    beginnings: dict[str, list[str]] = {}
    for lists in languages().values():
        for name, text in lists["classes"].items():
            for word in text.replace(",", " ").split():
                place = beginnings if word.endswith("*") else whole
                place.setdefault(word.rstrip("*"), []).append(name)
    return whole, beginnings
