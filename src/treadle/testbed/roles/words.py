"""The reader of the teacher's data: the words, requests and answers in the `.toml` files of this folder."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from treadle.core.texts.documents import read_data
from treadle.tasks.draws import Wording, split

load = partial(read_data, __package__)
"""Return the content of a data file of this folder."""


@cache
def words(section: str, name: str) -> tuple[str, ...]:
    """Return a list of `words.toml`: texts with single spaces, separated by `|`. `section` may have dots."""
    found: dict[str, Any] = load("words")
    for part in section.split("."):
        found = found[part]
    return split(found[name])


def wordings(texts: Sequence[str]) -> tuple[Wording, ...]:
    return tuple(map(Wording, texts))
