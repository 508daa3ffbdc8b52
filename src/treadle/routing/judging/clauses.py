"""The reading of a message: its own words without quotes, code and addresses, its language, and its clauses.

Of a long message only the beginning and the end are read, because the middle is usually pasted text; so the time
for a message does not grow with its length.
"""

import re
from functools import cache, lru_cache

from msgspec import Struct

from treadle.routing.judging.lists import ADDRESS, CODE, FILE, QUOTE, languages, pattern, patterns, words

HEAD_CHARS = 6000
TAIL_CHARS = 2000
"""How many characters of the beginning and of the end of a long message are read."""
_COUNTED_WORDS = 400
"""How many words are counted to find the language."""

_CODE = re.compile(r"```[^`]*+(?:`{1,2}+(?!`)[^`]*+)*+(?:```|\Z)|`[^`\n]{1,300}+`")
_QUOTE = re.compile(
    r"\"[^\"\n]{1,400}+\"|“[^”\n]{1,400}+”|«[^»\n]{1,400}+»|„[^“”\n]{1,400}+[“”]"
    r"|(?<!\w)'[^'\n]{2,400}+'(?!\w)|(?<!\w)‘[^’\n]{2,400}+’(?!\w)|^[ \t]{0,3}+>[^\n]*+",
    re.MULTILINE,
)
_ADDRESS = re.compile(r"(?:https?://|www\.)[^\s<>\"]{1,2000}+", re.IGNORECASE)
_NAMED_FILE = re.compile(
    r"(?<![\w/.~-])(?:[~.]{0,2}/)?+[\w-]{1,64}+(?:[/.][\w-]{1,64}+){0,12}+", re.IGNORECASE
)
_WORD = re.compile(r"[^\W_]++(?:['’-][^\W_]++)*+")
_ENDING = re.compile(r"^([^\W\d_]{2,30}?)(?:et|e|t)(?=\s|$)")
"""The ending of a Norwegian infinitive or participle."""


class Reading(Struct, frozen=True):
    """The properties of a message that the judgements need."""

    text: str
    """The message, or its beginning and end if it is long."""
    prose: str
    """`text` in lower case, aligned with it. Private characters replace code, quotes, addresses, file names."""
    words: tuple[str, ...]
    """The words of `prose`."""
    language: str
    """The code of the language; `en` if it is not recognised."""
    left_out_chars: int
    """How many characters in the middle of the message were not read."""

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the position in the whole message of a position in `text`."""
        shift = 0 if start < HEAD_CHARS else self.left_out_chars
        return start + shift, end + shift


class Clause(Struct, frozen=True):
    """A part of a message that asks for one thing."""

    text: str
    """The clause in lower case, without words of politeness and without the things that it excludes."""
    forms: tuple[str, ...]
    """`text`, and the same with the imperative of its verb, where Norwegian has another form after "kan du"."""
    start: int
    """The position of `text` in the reading's text."""
    end: int
    is_question: bool
    """True if the clause asks for information."""
    is_capability: bool
    """True if the clause was introduced with "can you", so that it may ask for an ability."""
    is_request: bool
    """True if the clause says what to do; false if it states something."""


def read(message: str) -> Reading:
    """Return the reading of a message. The time that it takes is bounded for a message of any length."""
    left_out = max(0, len(message) - HEAD_CHARS - TAIL_CHARS)
    return _read(message[:HEAD_CHARS] + message[-TAIL_CHARS:] if left_out else message, left_out)


@lru_cache(maxsize=64)
def _read(text: str, left_out: int) -> Reading:
    prose = to_lower(text)
    for signed, sign in ((_CODE, CODE), (_ADDRESS, ADDRESS), (_QUOTE, QUOTE)):
        prose = signed.sub(lambda found, sign=sign: sign * len(found[0]), prose)  # type: ignore[misc]
    prose = _NAMED_FILE.sub(lambda found: FILE * len(found[0]) if content_of(found[0]) else found[0], prose)
    found = tuple(_WORD.findall(prose))
    return Reading(text, prose, found, find_language(found), left_out)


@cache
def _contents() -> dict[str, str]:
    return {ending: content for content, listed in patterns()["files"].items() for ending in listed.split()}


def content_of(name: str) -> str | None:
    """Return what a file holds by the ending of its name: a key of the section `files` of the patterns."""
    _, dot, ending = name.rpartition(".")
    return _contents().get(ending.lower()) if dot else None


def find_language(found: tuple[str, ...]) -> str:
    """Return the code of the language whose frequent words are the most; English if there are none."""
    counts = {
        code: sum([2 if letters.intersection(word) else word in frequent for word in found[:_COUNTED_WORDS]])
        for code, frequent, letters in _signs()
    }
    return max(counts, key=lambda code: counts[code])


@cache
def _signs() -> list[tuple[str, frozenset[str], frozenset[str]]]:
    """Return the frequent words and the letters of each language."""
    return [
        (
            code,
            frozenset(lists["reading"]["frequent"].replace(",", " ").split()),
            frozenset(lists["reading"].get("letters", "")),
        )
        for code, lists in languages().items()
    ]


def is_own(prose: str) -> bool:
    """Return whether all of the prose of a reading is the user's own: no code, quote, address or file name."""
    return not any(sign in prose for sign in (FILE, ADDRESS, QUOTE, CODE))


def to_lower(text: str) -> str:
    """Return `text` in lower case with the same length, and with typographic apostrophes replaced."""
    lowered = text.lower()
    if len(lowered) != len(text):
        lowered = "".join(char.lower() if len(char.lower()) == 1 else char for char in text)
    return lowered.replace("’", "'") if "’" in lowered and "‘" not in lowered else lowered


@lru_cache(maxsize=64)
def find_clauses(reading: Reading) -> tuple[Clause, ...]:
    """Return the clauses of a message that ask for something or tell something. Negated clauses are left out."""
    found, start = [], 0
    prose = reading.prose
    for match in pattern("clauses", "split").finditer(prose):
        found.append(_read_clause(prose, start, match.start(), "?" in match[0]))
        start = match.end()
    found.append(_read_clause(prose, start, len(prose), False))
    return tuple([clause for clause in found if clause is not None])


def _read_clause(prose: str, start: int, end: int, is_asked: bool) -> Clause | None:
    """Return the clause in a part of the prose; `None` if it is empty or says what is not to be done."""
    can = False
    while start < end:
        if found := pattern("clauses", "filler").match(prose, start, end):
            start = found.end()
        elif found := pattern("clauses", "asked").match(prose, start, end):
            can = can or bool(pattern("clauses", "can").match(found[0]))
            start = found.end()
        else:
            break
    text = pattern("clauses", "except").sub("", prose[start:end]).rstrip()
    if not text or pattern("clauses", "negation").match(text):
        return None
    is_question = bool(pattern("clauses", "able").match(text) or pattern("clauses", "question").match(text))
    is_telling = bool(pattern("clauses", "telling").match(text) or pattern("clauses", "told").match(text))
    forms = tuple(dict.fromkeys((text, _to_imperative(text)))) if can else (text,)
    return Clause(text, forms, start, end, is_question, can and is_asked, not is_question and not is_telling)


def _to_imperative(text: str) -> str:
    """Return a clause whose first word, an infinitive or participle, is an imperative."""
    verb, _, rest = text.partition(" ")
    for lists in languages().values():
        if (imperative := lists.get("clauses", {}).get("imperatives", {}).get(verb)) is not None:
            return f"{imperative} {rest}"
    return _ENDING.sub(r"\1", text)


def find_stems(text: str, section: str, common: str, shortest: int) -> frozenset[str]:
    """Return the stems of the words of a text in lower case that are not in the list `common` of a section. Words
    with fewer than `shortest` letters keep their endings."""
    left_out, endings = _stemming(section, common)
    found = [word for word in _LETTERS.findall(text) if word not in left_out]
    return frozenset([endings.sub("", word) if len(word) >= shortest else word for word in found])


_LETTERS = re.compile(r"[^\W\d_]{3,40}+")


@cache
def _stemming(section: str, common: str) -> tuple[frozenset[str], re.Pattern[str]]:
    """Return the words that are not compared, and the pattern of the endings that are cut off."""
    endings = sorted(words(section, "endings"), key=len, reverse=True)
    return words(section, common), re.compile(f"(?:{'|'.join(endings)})$")
