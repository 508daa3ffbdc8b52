"""The measure of doubt, and what the rules for statements share."""

import re
from functools import cache

from msgspec import Struct

from treadle.datagen.quality.evidence import Evidence, unit_stems
from treadle.datagen.quality.figure_reader import find_quantities
from treadle.datagen.quality.quantities import lexicon
from treadle.datagen.quality.result_records import Record, stem, stems_of
from treadle.datagen.quality.statements import AnswerStatement, clauses

DOUBTFUL = 0.5
"""From this doubt on, a statement counts as untrue unless a judge says otherwise."""

_ENTITY = re.compile(
    r"(?:[A-Z][\w'’-]*(?:\s+(?=[A-Z]))?)+|\b(?=[\w.-]*\d)(?=[\w.-]*[a-z_])[\w.-]*\w|\b\w+(?:[_.-]\w+)+"
)


class Doubt(Struct, frozen=True):
    """How far a statement is in doubt."""

    degree: float
    """0: it was seen. 1: nothing supports it, or something contradicts it."""
    reason: str = ""


SEEN = Doubt(0.0)
_BESIDE = re.compile(r"\(([^()]{1,80})\)")
"""What stands in brackets after a clause."""


@cache
def shape(section: str, name: str) -> re.Pattern[str]:
    """Return a pattern of `grounding.toml`."""
    return re.compile(lexicon(section)[name])


@cache
def word_list(section: str, name: str) -> frozenset[str]:
    """Return the stems of a list of words of `grounding.toml`, or of the keys of a table."""
    words = lexicon(section)[name]
    words = words.split() if isinstance(words, str) else words
    return frozenset([stem(word) for word in words])


def entities_of(clause: str) -> list[frozenset[str]]:
    """Return the names and identifiers in a clause, as stems."""
    return [stems_of(found) for found in _ENTITY.findall(clause)]


def show_record(record: Record) -> str:
    """Return a record for a reason, cut to 60 characters."""
    cells = ", ".join([cell.text for cell in record.cells])
    return repr(cells if len(cells) <= 60 else f"{cells[:59]}…")


def beside(statement: AnswerStatement) -> str:
    """Return what stands in brackets after the clause of a statement."""
    start = statement.sentence.find(statement.clause)
    found = _BESIDE.match(statement.sentence, start + len(statement.clause))
    return f" {found[1]}" if found else ""


def find_anchors(seen: Evidence, statement: AnswerStatement) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words by which a statement says what it is about: of records, and of places. If its clause has
    none, they are those of the clause before it."""
    clause = statement.clause + beside(statement)
    places = stems_of(clause) & seen.places
    if anchors := seen.anchors(clause) - seen.places - unit_stems():
        return anchors, places
    text = statement.before
    if not shape("answers", "refers").search(statement.sentence):
        text = text.rpartition("\n")[2]
    earlier, _, here = text.rpartition("\n")
    names = frozenset().union(*entities_of(earlier))
    inherited = frozenset().union(*[seen.anchors(clause) for clause, _ in clauses(here)])
    inherited = inherited or (seen.anchors(earlier) & names)
    is_alone = len(find_quantities(statement.sentence)) < 2 or statement.sentence.lstrip().startswith("|")
    above = inherited or (seen.anchors(statement.sentence) if is_alone else frozenset())
    return above - seen.places, places or stems_of(text) & seen.places
