"""The reader of the word lists of all languages (`words/*.toml`) and of the patterns over them (`patterns.toml`).

A list is phrases with commas between them. Its notation is explained at the top of `words/en.toml`. To add a
language, add its file: its lists join those of the other languages, and a list that it does not have is empty.
"""

import re
import tomllib
from collections.abc import Iterator
from functools import cache, partial
from importlib.resources import files
from itertools import product
from typing import Any

from treadle.core.texts.documents import read_data

FILE, ADDRESS, QUOTE, CODE = "\ue000", "\ue001", "\ue002", "\ue003"
"""The characters that replace, in the prose of a message, the parts that are not the user's own words."""

_SLOT = re.compile(r"\{([A-Za-z]\w*)\}")
_END = r"(?= *(?:[?!.,]|$))"
_SIGNS = {"_": r"[\w:.'-]+", "#": r"\d+"}


@cache
def languages() -> dict[str, dict[str, Any]]:
    """Return the lists of each language by its code, English first."""
    found = [item for item in files(__package__).joinpath("words").iterdir() if item.name.endswith(".toml")]
    found.sort(key=lambda item: (item.name != "en.toml", item.name))
    return {item.name.removesuffix(".toml"): tomllib.loads(item.read_text("utf-8")) for item in found}


patterns = partial(read_data, __package__, "patterns")
"""A function that returns the sections of `patterns.toml`."""
prompts = partial(read_data, __package__, "prompts")
"""A function that returns the sections of `prompts.toml`: what models are told about messages and answers."""


def words(section: str, name: str) -> frozenset[str]:
    """Return the single words of a list, of all languages."""
    return frozenset(word for text in _texts(section, name) for word in text.replace(",", " ").split())


@cache
def phrases(section: str, name: str) -> frozenset[tuple[str, ...]]:
    """Return the phrases of a list as tuples of words, with one tuple for each choice of words."""
    found: set[tuple[str, ...]] = set()
    for text in _texts(section, name):
        for phrase in text.split(","):
            choices = [word.split("/") for word in phrase.split()]
            found.update(tuple(word for word in choice if word != "-") for choice in product(*choices))
    return frozenset(found)


@cache
def pattern(section: str, name: str) -> re.Pattern[str]:
    """Return a pattern of `patterns.toml`, or a pattern of the phrases of a list that has no pattern."""
    written = patterns().get(section, {}).get(name)
    return compile_pattern(section, written if isinstance(written, str) else f"{{{name}}}")


def compile_pattern(section: str, text: str) -> re.Pattern[str]:
    """Return a pattern with the lists of a section in it."""
    return re.compile(_SLOT.sub(lambda slot: _fill(section, slot[1]), text.replace("\n", "")))


def expression(text: str) -> str:
    """Return the regular expression of the phrases of a list, the longest first."""
    phrases = sorted({" ".join(item.split()) for item in text.split(",")} - {""}, key=len, reverse=True)
    return "(?:" + "|".join(map(_phrase, phrases)) + ")"


def _fill(section: str, name: str) -> str:
    signs = {"FILE": FILE, "ADDRESS": ADDRESS, "QUOTE": QUOTE, "CODE": CODE, "FEW": r"(?:[^\s.]+ ){0,4}?"}
    if name in signs:
        return signs[name]
    if name == "HELD":
        return f"[{FILE}{CODE}{QUOTE}{ADDRESS}]"
    if name == "PLEASE":
        return rf"(?: {_fill(section, 'afterwards')}(?!\w))*+ *$"
    texts = _texts(section, name) or _texts("common", name)
    if not texts:
        raise LookupError(f"no language has the list {name!r} in the section {section!r} or in 'common'")
    return expression(",".join(texts))


def _texts(section: str, name: str) -> list[str]:
    return [text for lists in languages().values() if (text := lists.get(section, {}).get(name)) is not None]


@cache
def _phrase(text: str) -> str:
    """Return the regular expression of one phrase."""
    return "".join(_pieces(text.split()))


def _pieces(parts: list[str]) -> Iterator[str]:
    is_first = True
    for part in parts:
        if part == ".":
            yield _END
        elif part.startswith("~"):
            yield rf"(?!\w)(?! (?:{_choice(part[1:])})(?!\w))"
        elif part.startswith("("):
            several = f"(?:{_choice(part[1:-1])})"
            yield f"(?:{several} )*+" if is_first else f"(?: {several})*+"
        else:
            one = f"(?:{_choice(part)})" if "/" in part else _choice(part)
            is_optional = "-" in part.split("/")
            if is_first:
                yield f"(?:{one} )?" if is_optional else one
                is_first = is_optional
            else:
                yield f"(?: {one})?" if is_optional else f" {one}"


def _choice(part: str) -> str:
    words = [word for word in part.split("/") if word != "-"]
    return "|".join(_SIGNS.get(word) or re.escape(word).replace(r"\*", r"\w*") for word in words)
