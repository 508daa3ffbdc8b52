"""The filter of overlap with evaluation sets: shared runs of words, and nearly the same requests."""

import sqlite3
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from treadle.core.errors import ConfigError, TreadleError
from treadle.core.types import Json, Role
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.quality.duplicates import DuplicateIndex, DuplicateSettings
from treadle.datagen.quality.exchanges import WORD, name_message, quote, user_words
from treadle.datagen.quality.protocol import Candidate, Filter, FilterSettings, FilterVerdict, Resources
from treadle.datagen.quality.signatures import hash_text
from treadle.export.row_files import read_objects

_COLUMNS = ("messages", "conversations", "prompt", "question", "input", "instruction", "query", "text")
"""The columns that can hold the question of a row; the first one that the row has is used."""
_SPEAKERS = ("user", "human")
_MIN_WORDS = 5
"""A text with fewer words is too general to be compared."""


class ContaminationSettings(FilterSettings):
    """The thresholds of overlap."""

    ngram_words: Annotated[int, Field(ge=3)] = 13
    """A run of this many words that a request or an answer shares with a question of an evaluation set is
    overlap. A shorter question must occur as a whole."""
    is_near: bool = True
    """True to reject requests that are near-duplicates of a question, too, as the filter `duplicates` finds
    them."""


class ContaminationFilter(Filter[ContaminationSettings]):
    """The conversation does not overlap with the files of `quality.evaluation_sets`. It is used if there are
    any. They are rows in one of the formats of `treadle export`, or other JSON lines or Parquet files with a column
    `messages`, `prompt`, `question`, `input` or `text`."""

    name = "contamination"
    settings_type = ContaminationSettings

    def __init__(self, settings: ContaminationSettings, resources: Resources) -> None:
        """Read the evaluation sets. Raises: `ConfigError` if a file cannot be read or has no questions."""
        super().__init__(settings, resources)
        self._runs: dict[int, array[int]] = {}
        """Sorted hashes of runs of words, by their number of words."""
        self._near = DuplicateIndex(sqlite3.connect(""), DuplicateSettings())
        runs: dict[int, set[int]] = {}
        for path in resources.config.quality.evaluation_sets:
            for place, text in _read_questions(path):
                words = _words(text)
                size = min(settings.ngram_words, len(words))
                if size >= _MIN_WORDS:
                    runs.setdefault(size, set()).update(_hash_runs(words, size))
                if settings.is_near:
                    self._near.add_text(f"{path.name}, {place}", text)
        self._runs = {size: array("q", sorted(found)) for size, found in runs.items()}

    @classmethod
    def is_on(cls, config: GenerationConfig) -> bool:
        return bool(config.quality.evaluation_sets)

    async def check(self, candidate: Candidate) -> FilterVerdict:
        row = candidate.row
        for index, message in enumerate(row.messages):
            if message.role not in (Role.USER, Role.ASSISTANT):
                continue
            words = _words(message.content)
            for size, known in self._runs.items():
                for start, run in enumerate(_hash_runs(words, size)):
                    if (place := bisect_left(known, run)) < len(known) and known[place] == run:
                        shared = " ".join(words[start : start + size])
                        named = name_message(row.messages, index)
                        return self.reject(f"{named} shares {quote(shared)} with an evaluation set")
        if self.settings.is_near and (found := self._near.find_text(user_words(row))):
            row_id, similarity = found
            return self.reject(
                f"the user asks for nearly the same as {row_id}", similarity=round(similarity, 3)
            )
        return self.accept()


def _read_questions(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the questions of an evaluation set, each with its place."""
    has_any = False
    try:
        for place, raw in read_objects(path, "treadle"):
            text = _find_question(raw)
            if text.strip():
                has_any = True
                yield place, text
    except TreadleError as error:
        raise ConfigError(f"the evaluation set {str(path)!r} cannot be read: {error}") from error
    if not has_any:
        names = ", ".join(map(repr, _COLUMNS))
        raise ConfigError(f"the evaluation set {str(path)!r} has no questions; its rows need one of {names}")


def _find_question(raw: dict[str, Json]) -> str:
    for name in _COLUMNS:
        value = raw.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            turns = [item for item in value if isinstance(item, dict)]
            asked = [item for item in turns if item.get("role", item.get("from")) in _SPEAKERS]
            texts = [item.get("content", item.get("value")) for item in asked]
            return "\n".join([text for item in texts for text in _texts(item)])
    return ""


def _texts(content: Json) -> list[str]:
    """Return the texts of a message's content, which can be a text or a list of parts."""
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _words(text: str) -> list[str]:
    return [item.casefold() for item in WORD.findall(text)]


def _hash_runs(words: Sequence[str], size: int) -> Iterator[int]:
    for start in range(len(words) - size + 1):
        yield hash_text(" ".join(words[start : start + size]))
