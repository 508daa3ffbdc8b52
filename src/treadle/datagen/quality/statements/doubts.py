"""What the rules can find out about a statement, and what they share."""

from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct

from treadle.datagen.quality.figures.figure_reader import find_quantities
from treadle.datagen.quality.figures.quantities import Quantity, shape, shapes, unit_of
from treadle.datagen.quality.statements.evidence import Evidence, unit_stems
from treadle.datagen.quality.statements.result_records import Cell, Labels, Record, stems_of
from treadle.datagen.quality.statements.statements import AnswerStatement, clauses

_ENTITY, _BREAK, _NOUN, _LETTERS, _CODE = shapes("doubt_forms", "entity break noun letters code")
_BESIDE = shape("doubt_forms", "beside")


class DoubtKind(StrEnum):
    """What the rules found out about a statement, from what supports it to what speaks against it."""

    SEEN = "seen"
    DERIVED = "derived"
    INSIDE = "inside"
    """It stands within a longer word."""
    TOLD = "told"
    """It occurs only in what the user or the instructions say."""
    UNPLACED = "unplaced"
    """It was seen, and the statement does not say what it belongs to, or in words that no result has."""
    UNREAD = "unread"
    """It is a part of a form that is not read."""
    UNNAMED = "unnamed"
    """A small number that was seen, where no word of the sentence stands."""
    UNCOUNTED = "uncounted"
    REWORDED = "reworded"
    UNKNOWN = "unknown"
    """Some words of a sentence were not seen."""
    POSSIBLE = "possible"
    """A cause whose words were seen."""
    PARTLY = "partly"
    """A cause or an action, some words of which were not seen; another value than was seen, of common words."""
    UNFOUNDED = "unfounded"
    """A sentence about what happened, or why, of which no word was seen."""
    STRANGE = "strange"
    """An action on something, or a short value, that was not seen."""
    ABSENT = "absent"
    ELSEWHERE = "elsewhere"
    """It was seen, and belongs to something else."""
    UNIT = "unit"
    """It was seen in another unit only."""
    UNLIKE = "unlike"
    """What it speaks of was seen, with another value."""
    DENIED = "denied"
    """It denies what was seen."""
    UNABLE = "unable"
    """No successful call could have done it."""
    UNDONE = "undone"
    """The agent says that it changed something, and no successful call could have done it."""
    FORGED = "forged"
    """An address that occurs nowhere."""
    UNCALLED = "uncalled"
    """Data in an answer without any call."""


_OPEN = frozenset(list(DoubtKind)[list(DoubtKind).index(DoubtKind.UNFOUNDED) :])


class Doubt(Struct, frozen=True):
    """What the rules found out about a statement."""

    kind: DoubtKind
    reason: str = ""
    way: str = ""
    """How a figure follows from what was seen, such as `count` or `sum`; empty if it does not."""
    degree: float = 0.0
    """How likely the statement is untrue, from 0 to 1."""

    @property
    def is_sure(self) -> bool:
        """True if nothing else needs to be known: the statement is untrue."""
        return self.kind in (DoubtKind.UNDONE, DoubtKind.FORGED, DoubtKind.UNCALLED)

    @property
    def is_open(self) -> bool:
        """True if the rules found nothing that supports the statement."""
        return self.kind in _OPEN


SEEN = Doubt(DoubtKind.SEEN)
_RANKS = {kind: number for number, kind in enumerate(DoubtKind)}


def rank(doubt: Doubt) -> int:
    """Return how much what was found speaks against a statement."""
    return _RANKS[doubt.kind]


_LABEL_REACH = 24
"""How many characters before and after a figure may have the other words of its label."""


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
    """Return the words of records and places in the clause of a statement, or else in the one before it."""
    clause = statement.clause + beside(statement)
    places = (stems_of(clause) & seen.places) - unit_stems()
    names = seen.call_words if places else frozenset[str]()
    anchors = seen.anchors(clause) - seen.places - unit_stems() - names
    if anchors or (places and _CODE.search(clause)):
        return anchors, places
    text = statement.before
    if not statement.says("refers"):
        text = text.rpartition("\n")[2]
    earlier, _, here = text.rpartition("\n")
    names = frozenset().union(*entities_of(earlier))
    inherited = frozenset().union(*[seen.anchors(clause) for clause, _ in clauses(here)])
    inherited = inherited or (seen.anchors(earlier) & names)
    is_alone = len(find_figures(seen, statement.sentence)) < 2 or statement.sentence.lstrip().startswith("|")
    above = inherited or (seen.anchors(statement.sentence) if is_alone else frozenset())
    places = places or stems_of(text) & seen.places
    return above - seen.places - names, places


def find_labels(seen: Evidence, statement: AnswerStatement) -> tuple[Labels, bool]:
    """Return the labels that name a quantity, and whether it is alone in its clause; else those beside it."""
    item = statement.quantity
    assert item is not None
    is_row = statement.sentence.lstrip().startswith("|")
    clause = statement.sentence if is_row else statement.clause
    is_alone = len(find_figures(seen, clause)) < 2
    texts = [clause + beside(statement)] if is_alone else []
    if not (is_row and is_alone):
        is_sole = len(find_figures(seen, statement.sentence)) < 2
        scopes = list(_scopes(seen, statement))
        texts = [*texts, *scopes] if is_sole else [*scopes, *texts]
    for text in texts:
        named = seen.named_labels(text, item.kind)
        if found := frozenset([label for label in named if _can_have(seen, label, item.unit)]):
            return found, True
    return frozenset(), is_alone


def _can_have(seen: Evidence, label: frozenset[str], name: str) -> bool:
    """Return whether a column can have a quantity with a unit: one in another dimension cannot."""
    unit, sizes = unit_of(name), seen.units.get(label, frozenset())
    return unit is None or not sizes or any(dimension == unit[0] for dimension, _ in sizes)


def find_figures(seen: Evidence, text: str) -> list[Quantity]:
    """Return the quantities of a text that are no parts of labels, as `50` is in `count below 50`."""
    return [item for item in find_quantities(text) if not is_in_label(seen, text, item.start, item.end)]


def is_in_label(seen: Evidence, text: str, start: int, end: int) -> bool:
    """Return whether a figure of a text is a part of a label, whose other words stand beside it."""
    said = text[start:end].strip()
    return any(said in label for label in seen.numbered) and any(
        said in label and label <= stems_of(text[max(0, start - _LABEL_REACH) : end + _LABEL_REACH])
        for label in seen.numbered
    )


def find_rivals(
    seen: Evidence, labels: Labels, anchors: frozenset[str], places: frozenset[str]
) -> list[Cell]:
    """Return the cells with quantities under some labels, in the records that a statement chooses."""
    return [
        cell
        for record in seen.records
        if (not anchors or record.stems & anchors)
        and (not places or places & (record.context | record.stems))
        for cell in record.cells
        if cell.label in labels and cell.quantities
    ]


def _scopes(seen: Evidence, statement: AnswerStatement) -> Iterator[str]:
    """Yield the texts that may name what a figure is, the likeliest first: those between it and its neighbours.

    Whether names stand before or after figures is told by the first one of the sentence.
    """
    sentence, start, end = statement.sentence, statement.place, statement.place + len(statement.text)
    figures = find_figures(seen, sentence)
    before = max([item.end for item in figures if item.end <= start], default=0)
    after = min([item.start for item in figures if item.start >= end], default=len(sentence))
    left = sentence[before:start]
    if any(item.end == before and not item.unit for item in figures):
        left = _NOUN.sub("", left)  # what the figure before it counts
    left = _BREAK.split(left)[-1]
    right = _BREAK.split(sentence[end:after])[0]
    first = min([item.start for item in figures], default=0)
    is_before = len(_LETTERS.findall(sentence[:first])) > 1
    yield left if is_before else right
    # What stands on the other side may belong to a neighbour.
    if is_before and after == len(sentence):
        yield right
    elif not is_before and not before:
        yield left
