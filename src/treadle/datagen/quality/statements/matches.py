"""How well the words around a figure match the places where its value was seen, beside those of other values.

The rules of `quantity_rules` ask whether a value can be meant; this tells whether another value is more likely
meant, in whatever words.
"""

from collections import defaultdict
from math import log

from treadle.datagen.quality.figures.quantities import QuantityKind
from treadle.datagen.quality.statements.doubts import beside, find_figures
from treadle.datagen.quality.statements.evidence import Evidence
from treadle.datagen.quality.statements.result_records import Cell, stems_of
from treadle.datagen.quality.statements.sightings import find_sightings
from treadle.datagen.quality.statements.statements import AnswerStatement

_MAX_CELLS = 600
"""Of results with more cells, nothing is said."""
_CLEAR = 1.0
"""By how much one match must exceed another one to be clear."""


class Matches:
    """How well the words around figures match the values of the results."""

    def __init__(self, seen: Evidence) -> None:
        self._seen = seen
        self._cells: dict[QuantityKind, list[Cell]] = defaultdict(list)
        self._places: dict[QuantityKind, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        """By each word beside a value or in its label, the numbers of the cells that have it."""
        is_small = sum([len(record.cells) for record in seen.records]) <= _MAX_CELLS
        for record in seen.records if is_small else ():
            for cell in record.cells:
                for kind in {item.kind for item in cell.quantities}:
                    number = len(self._cells[kind])
                    self._cells[kind].append(cell)
                    for word in (record.stems - cell.stems) | cell.label | record.context:
                        self._places[kind][word].append(number)

    def of(self, statement: AnswerStatement) -> str:
        """Return how the words around a quantity match its value: `own` if they match it best, `tie` if they match
        another value as well, `other` or `clearly other` if they match another one better; `nothing` if they match
        no value better than the rest; empty if nothing is known."""
        item = statement.quantity
        cells = self._cells.get(item.kind, []) if item is not None else []
        if item is None or len(cells) < 2:
            return ""
        scores: dict[int, float] = defaultdict(float)
        for word in self._words(statement):
            places = self._places[item.kind].get(word, ())
            for place in places:
                scores[place] += log(len(cells) / len(places))
        best = max(scores.values(), default=0.0)
        if best <= 0:
            return "nothing"
        own_cells = {id(place.cell) for place in find_sightings(self._seen, item, is_told=False)}
        if not own_cells:
            return "no place"
        own = max(
            [scores[n] for n, cell in enumerate(cells) if id(cell) in own_cells and n in scores], default=0.0
        )
        other = max([score for n, score in scores.items() if id(cells[n]) not in own_cells], default=0.0)
        if own == other:
            return "tie"
        if own > other:
            return "own"
        return "other" if other - own < _CLEAR else "clearly other"

    def _words(self, statement: AnswerStatement) -> frozenset[str]:
        """Return the words that may name a quantity: of its sentence if it is alone there, else of its clause."""
        sentence = statement.sentence
        is_sole = len(find_figures(self._seen, sentence)) < 2 or sentence.lstrip().startswith("|")
        text = sentence if is_sole else statement.clause + beside(statement)
        return stems_of(text) - stems_of(statement.text)
