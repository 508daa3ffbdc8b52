"""The detection of the language of a text, offline, by its script and its most frequent words.

It recognises scripts that only one language uses, and the languages with Latin and Cyrillic letters that
`words.toml` has. For short texts, code, tables and closely related languages, such as Norwegian and Danish, it
often returns `None` instead of a guess.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any

from treadle.core.texts.documents import read_data

_SPOKEN = re.compile(r"(?<![\w./\\-])[^\W\d_]+(?:['’][^\W\d_]+)*(?![\w/\\]|[.-]\w)")
"""A word that is not a part of a path or an identifier."""
_MIN_WORDS = 3
"""How many different frequent words of a language a text must have."""
_MIN_LEAD = 1.4
"""How many times more of the frequent words of the best language than of the second a text must have."""


@cache
def word_lists(section: str) -> dict[str, frozenset[str]]:
    """Return the lists of a section of `words.toml`."""
    data = read_data(__package__, "words")[section]
    return {name: frozenset(text.split()) for name, text in data.items()}


def read_patterns() -> dict[str, Any]:
    """Return the sections of `patterns.toml`."""
    return read_data(__package__, "patterns")


def pattern(section: str, name: str) -> re.Pattern[str]:
    """Return a pattern of `patterns.toml`."""
    return re.compile("|".join(read_patterns()[section][name]))


WORDS = word_lists("languages")
"""The most frequent words of the languages that are recognised by words."""
_LANGUAGES_OF: dict[str, list[str]] = {}
"""The languages that have a word among their most frequent ones."""
for _name, _words in WORDS.items():
    for _word in _words:
        _LANGUAGES_OF.setdefault(_word, []).append(_name)

_SCRIPTS = {script: code for code, scripts in word_lists("scripts").items() for script in scripts}
_MIN_SHARE = 0.3
"""The share of a script among the letters from which on the script decides. It is below one half because names in
Latin letters are common."""

_GERMAN, _ENGLISH = WORDS["de"] - WORDS["en"], WORDS["en"] - WORDS["de"]

LANGUAGES = frozenset([*WORDS, *_SCRIPTS.values()])
"""The codes of the languages that can be recognised."""


def is_german(words: Iterable[str]) -> bool:
    """Return whether at least two frequent words of a text are German, and not as many English."""
    known = {word.casefold() for word in words}
    return len(_GERMAN & known) >= max(2, len(_ENGLISH & known))


def detect_language(text: str) -> str | None:
    """Return the ISO 639-1 code of the language of a text, or `None` if the language is not recognised."""
    if text.isascii():
        return _detect_by_words(text)
    letters: Counter[str] = Counter([_script(char) for char in text[:5000] if char.isalpha()])
    total = sum(letters.values())
    found: Counter[str] = Counter()
    for script, count in letters.items():
        if script in _SCRIPTS:
            found[_SCRIPTS[script]] += count
    if found["ja"] and (found["ja"] + found["zh"]) >= total * _MIN_SHARE:
        return "ja"  # Japanese mixes its own letters with Chinese ones
    if found and found.most_common(1)[0][1] >= total * _MIN_SHARE:
        return found.most_common(1)[0][0]
    return _detect_by_words(text)


def _detect_by_words(text: str) -> str | None:
    words = {word.casefold() for word in _SPOKEN.findall(text)}
    counts = dict.fromkeys(WORDS, 0)
    for word in words & _LANGUAGES_OF.keys():
        for name in _LANGUAGES_OF[word]:
            counts[name] += 1
    (best, name), (second, _) = sorted([(count, name) for name, count in counts.items()], reverse=True)[:2]
    return name if best >= _MIN_WORDS and best >= second * _MIN_LEAD else None


@lru_cache(maxsize=4096)
def _script(char: str) -> str:
    return unicodedata.name(char, "").partition(" ")[0]
