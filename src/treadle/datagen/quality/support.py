"""The rules by which a statement of an answer is held against what was seen.

Each rule returns how far the statement is in doubt, from 0 to 1, with the reason. From `DOUBTFUL` on, a statement
counts as untrue unless a judge says otherwise.
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import permutations

from msgspec import Struct

from treadle.core.types import Effect, ToolSpec
from treadle.datagen.quality.derivations import Figures, solve_equations
from treadle.datagen.quality.observations import MadeCall, Observations, Record, Sighting, stem, stems_of
from treadle.datagen.quality.quantities import Quantity, QuantityKind, find_quantities, lexicon, unit_of
from treadle.datagen.quality.statements import Statement, StatementKind, clauses

DOUBTFUL = 0.5
_MAX_COUNT = 50


class Doubt(Struct, frozen=True):
    """How far a statement is in doubt."""

    degree: float
    """0: it was seen. 1: nothing supports it, or something contradicts it."""
    reason: str = ""


SEEN = Doubt(0.0)


@cache
def _shape(section: str, name: str) -> re.Pattern[str]:
    return re.compile(lexicon(section)[name])


@cache
def _list(section: str, name: str) -> frozenset[str]:
    return frozenset([stem(word) for word in lexicon(section)[name].split()])


class Support:
    """The rules for the answers of one turn."""

    def __init__(self, seen: Observations, tools: tuple[ToolSpec, ...], answer: str) -> None:
        """`answer` is the whole text, whose numbers may follow from each other."""
        self._seen = seen
        self._tools = {tool.name: tool for tool in tools}
        self._answer = answer
        self._solved = {value for text in [*seen.work, answer] for value in solve_equations(text)}
        self._figures: dict[frozenset[str], Figures] = {}
        self._is_code = False
        self._known: list[float] = []
        """The numbers of the answer that were found, from which others may follow."""

    def doubt(self, statement: Statement) -> Doubt:
        """Return how far a statement is in doubt."""
        kind = statement.kind
        if kind is StatementKind.QUANTITY:
            return self._quantity(statement)
        if kind is StatementKind.ACTION:
            return self._action(statement)
        if kind is StatementKind.CAUSE:
            return self._cause(statement)
        if kind is StatementKind.ORDER:
            return self._order(statement)
        if kind is StatementKind.RELATION:
            return self._relation(statement)
        if kind is StatementKind.NAME:
            return self._name(statement)
        return self._words(statement)

    # Words: paths, identifiers, quoted texts, names.

    def _words(self, statement: Statement) -> Doubt:
        seen = self._seen.text
        said = " ".join(statement.text.casefold().replace("’", "'").split()).strip("./ ,;:!?")
        if not said or said in seen:
            return self._placed(statement, said)
        new = Doubt(0.9, "does not occur before")
        if re.fullmatch(r"\+?[\d ()-]+", said):
            return SEEN if re.sub(r"\D", "", said) in re.sub(r"[ ()-]", "", seen) else new
        if statement.kind is StatementKind.PATH:
            return SEEN if self._is_joined(said) else new
        parts = [part for part in re.split(r"[\s/,;:|()\[\]{}\"'=]+", said) if part]
        if len(parts) > 1 and all(part in seen for part in parts):
            return SEEN
        if (found := find_quantities(said)) and all(
            any(any(self._matches(item, None, is_told=told)) for told in (False, True)) for item in found
        ):
            return SEEN
        words = stems_of(said)
        if statement.kind is StatementKind.TEXT and " " in said and not re.search(r"[\d/@_]", said):
            if len(words - self._seen.stems) < len(words) / 2:
                return Doubt(0.2, "is not said in these words")
        return new

    def _placed(self, statement: Statement, said: str) -> Doubt:
        """Check that an address or a number of a phone belongs to the name in its clause."""
        if "@" not in said and not re.fullmatch(r"\+?[\d ()-]{7,}", said):
            return SEEN
        own = [
            record
            for record in self._seen.records
            if any(said in cell.text.casefold() for cell in record.cells)
        ]
        anchors = self._anchors(statement)[0] - stems_of(said)
        entities = [
            names & anchors
            for names in _entities(f"{statement.before[-80:]}{statement.clause}")
            if names & anchors
        ]
        if not own or not entities or not any(cell.label for cell in own[0].cells):
            return SEEN
        if any(entities[-1] <= record.stems for record in own):
            return SEEN
        return Doubt(0.65, f"belongs to something else: {_show_record(own[0])}")

    def _is_joined(self, path: str) -> bool:
        """Return whether a path is a folder that a call was given, with a name from its result."""
        folder, _, name = path.rpartition("/")
        return bool(folder) and any(
            folder in item.call.arguments.casefold() and name in item.result.casefold()
            for item in self._seen.calls
        )

    def _name(self, statement: Statement) -> Doubt:
        word = statement.text.casefold()
        word = word.removesuffix("'s").removesuffix("’s")
        text = self._seen.text
        if stem(word) in self._seen.stems or word in self._seen.stems or word in text:
            return SEEN
        parts = word.split("-")
        if len(parts) > 1 and all(stem(part) in self._seen.stems or part in text for part in parts):
            return SEEN
        return Doubt(0.85, "does not occur before")

    # Quantities.

    def _quantity(self, statement: Statement) -> Doubt:
        item = statement.quantity
        assert item is not None
        if item.value in (0, 1) and item.kind is QuantityKind.NUMBER and not item.unit:
            return SEEN
        seen = self._seen
        own = list(self._matches(item, statement, is_told=False))
        anchors, places = self._anchors(statement)
        near = statement.sentence[max(0, statement.place - 28) : statement.place + len(statement.text) + 18]
        is_alone = len(re.findall(r"\d[\d.,:]*", statement.clause)) < 2
        labels = stems_of(near) & stems_of(statement.clause) & seen.labels if is_alone else frozenset()
        is_total = (
            _shape("answers", "aggregate").search(statement.clause) is not None and len(seen.records) > 1
        )
        if any(_is_at(place, anchors, places) and _has_label(place, labels) for place in own):
            if (
                not is_total
                or item.kind is not QuantityKind.NUMBER
                or any(not place.cell.label or place.cell.label & _list("causes", "totals") for place in own)
            ):
                return self._note(item)
        told = [place for place in self._matches(item, statement, is_told=True) if _has_label(place, labels)]
        if told and not own:
            return self._note(item)
        if not seen.anchors(statement.clause) and labels:
            above = seen.anchors(statement.before)
            if any(_has_label(place, labels) and above & place.record.stems for place in own):
                return self._note(item)
        if _is_listed(statement, item, self._answer):
            return self._note(item)
        if self._is_derived(statement, item, (anchors, places, labels), is_strict=bool(own)):
            self._note(item)
            return Doubt(0.1, "follows from what was seen")
        if told:
            return Doubt(0.3, "occurs in the request")
        if own:
            if len(seen.records) == 1 and not labels:
                return self._note(item)
            return Doubt(0.7, f"belongs to something else: {_show(own[0])}")
        if (
            item.kind is QuantityKind.NUMBER
            and item.value >= 100
            and re.search(rf"(?<![\d.]){item.value:g}(?![\d])", seen.text)
        ):
            return Doubt(0.1, "is a part of another word")
        is_small = (
            item.kind is QuantityKind.NUMBER and item.value <= _MAX_COUNT and item.value == int(item.value)
        )
        return Doubt(0.8 if is_small else 0.95, "does not occur before, and does not follow from it")

    def _anchors(self, statement: Statement) -> tuple[frozenset[str], frozenset[str]]:
        """Return the words by which a statement says what it is about: of records, and of places. If its clause has
        none, they are those of the clause before it."""
        seen = self._seen
        places = stems_of(statement.clause) & seen.places
        if anchors := seen.anchors(statement.clause):
            return anchors, places
        text = statement.before
        if not _shape("answers", "refers").search(statement.sentence):
            text = text.rpartition("\n")[2]
        for clause, _ in reversed(list(clauses(text))):
            if anchors := seen.anchors(clause):
                return anchors, places or stems_of(clause) & seen.places
        return anchors, places

    def _note(self, item: Quantity) -> Doubt:
        if item.kind is QuantityKind.NUMBER:
            self._known.append(item.value)
        return SEEN

    def _matches(self, item: Quantity, statement: Statement | None, *, is_told: bool) -> Iterator[Sighting]:
        """Yield where a quantity was seen, with the roundings and units in which people say it."""
        seen = self._seen
        value = abs(item.value)
        is_about = statement is not None and _is_about(statement, item)
        if item.kind is QuantityKind.DATE:
            for place in seen.sightings(item.kind, value, value + 0.5, is_told=is_told):
                years = place.quantity.year, item.year
                if None in years or years[0] == years[1]:
                    yield place
            return
        if item.kind is QuantityKind.TIME:
            slack = 20.0 if is_about else 0.999
            for clock in (value,) if item.has_halves else (value, (value + 720) % 1440):
                yield from seen.sightings(
                    item.kind, clock - (slack if is_about else 0.0), clock + slack, is_told=is_told
                )
            return
        if item.kind is QuantityKind.SHARE:
            return
        slack = _slack(item, is_about=is_about)
        unit = unit_of(item.unit) if item.unit and item.unit != "%" else None
        for place in seen.sightings(
            QuantityKind.NUMBER, value - slack, value + slack + 1e-9, is_told=is_told
        ):
            theirs = unit_of(place.quantity.unit) or unit_of(place.cell.unit)
            if unit is None or theirs is None or unit[0] != theirs[0] or unit[1] == theirs[1]:
                yield place
        if unit is not None:
            yield from self._converted(item, unit, slack, is_told=is_told)
        if item.unit == "%":
            yield from seen.sightings(
                QuantityKind.NUMBER, (value - slack) / 100, (value + slack) / 100 + 1e-9, is_told=is_told
            )
        if item.value == int(item.value) and 1900 <= item.value <= 2100 and str(int(item.value)) in seen.text:
            yield from [
                Sighting(other, record, cell)
                for record in (seen.told_records if is_told else seen.records)
                for cell in record.cells
                for other in cell.quantities
                if other.year == int(item.value)
            ]

    def _converted(
        self, item: Quantity, unit: tuple[str, float], slack: float, *, is_told: bool
    ) -> Iterator[Sighting]:
        """Yield the sightings of a value in another unit of the same dimension."""
        dimension, factor = unit
        value = abs(item.value)
        slack = min(slack, 0.03 * value) if not item.is_word else 1e-6
        if dimension == "temperature":
            if item.unit.upper().endswith("F") or item.unit == "f":
                low, high = (value - slack - 32) / 1.8, (value + slack - 32) / 1.8
                yield from self._seen.sightings(QuantityKind.NUMBER, low - 0.3, high + 0.3, is_told=is_told)
            return
        if dimension == "speed":
            yield from self._seen.sightings(
                QuantityKind.NUMBER, (value - 1) * factor, (value + 1) * factor, is_told=is_told
            )
            return
        sizes = {size for name, (other, size) in _units().items() if other == dimension}
        for size in sizes - {factor}:
            scale = factor / size
            for place in self._seen.sightings(
                QuantityKind.NUMBER,
                (value - slack) * scale * (1 - 1e-6),
                (value + slack) * scale * (1 + 1e-6),
                is_told=is_told,
            ):
                theirs = unit_of(place.quantity.unit) or unit_of(place.cell.unit)
                if theirs == (dimension, size) or (theirs is None and dimension != "time"):
                    yield place
        if dimension == "data" and factor % 1024:  # MB for MiB
            power = {1e3: 1, 1e6: 2, 1e9: 3, 1e12: 4}.get(factor)
            if power:
                scale = 1024.0**power
                yield from self._seen.sightings(
                    QuantityKind.NUMBER, (value - slack) * scale, (value + slack) * scale, is_told=is_told
                )

    def _is_derived(
        self,
        statement: Statement,
        item: Quantity,
        where: tuple[frozenset[str], frozenset[str], frozenset[str]],
        *,
        is_strict: bool,
    ) -> bool:
        """Return whether a quantity follows from what was seen, or from other numbers of the answer. `where` has the
        anchors, places and labels of the statement."""
        anchors, places, labels = where
        if item.kind is QuantityKind.DATE:
            return False
        if item.kind is QuantityKind.TIME:
            return self._is_shifted(item)
        value, is_about = abs(item.value), _is_about(statement, item)
        is_rest = _shape("answers", "others").search(statement.clause) is not None
        is_share = item.kind is QuantityKind.SHARE or item.unit == "%"
        if is_share:
            anchors = self._seen.anchors(statement.sentence) or anchors
        told = self._seen.anchors(" ".join(self._seen.told))
        choices = [anchors]
        if not anchors:
            choices += [told, frozenset()]
        elif not is_strict and not any(names & anchors for names in _entities(statement.clause)):
            choices.append(told)
        after = statement.sentence[statement.place + len(statement.text) :]
        if _shape("answers", "whole").search(statement.sentence[: statement.place]) or _shape(
            "answers", "of_files"
        ).match(after):
            choices += [frozenset(), told]
        for names in dict.fromkeys(choices):
            key = names | {f"@{place}" for place in places} | ({"+"} if is_rest else set())
            if (figures := self._figures.get(key)) is None:
                figures = self._figures[key] = Figures(
                    self._seen, names, places if names == anchors else frozenset(), is_rest=is_rest
                )
            if is_share:
                slack = (
                    item.slack if item.kind is QuantityKind.SHARE else _slack(item, is_about=is_about) / 100
                )
                share = value if item.kind is QuantityKind.SHARE else value / 100
                if any(abs(one - share) <= slack for one in figures.shares()):
                    return True
            elif self._is_figure(figures, statement, item, labels, is_strict=is_strict):
                return True
        if is_share:
            share = value * 100 if item.kind is QuantityKind.SHARE else value
            slack = 6.0 if item.kind is QuantityKind.SHARE else _slack(item, is_about=is_about)
            return any(abs(one - share) <= slack for one in self._from_answer(is_share=True))
        slack = max(_slack(item, is_about=is_about) if is_about or item.unit else 0.0, 0.006)
        is_small = value <= _MAX_COUNT and value == int(value)
        return value in self._solved or any(
            abs(one - value) <= slack for one in self._from_answer(is_share=False, is_small=is_small)
        )

    def _is_figure(
        self,
        figures: Figures,
        statement: Statement,
        item: Quantity,
        labels: frozenset[str],
        *,
        is_strict: bool,
    ) -> bool:
        value, unit = abs(item.value), unit_of(item.unit)
        is_about = _is_about(statement, item)
        slack = _slack(item, is_about=is_about)
        is_whole = value == int(value)
        if (unit is not None and unit[0] == "temperature") or (
            is_whole and 1900 <= value <= 2100 and unit is None
        ):
            return False
        is_difference = _shape("answers", "differs").search(statement.sentence) is not None
        if unit is not None and unit[0] == "time":
            minutes = unit[1] / 60
            spread = max(slack if is_about else 0.06, 0.5 if unit[1] >= 604800 else 0.0) * minutes
            is_wide = is_difference or _shape("answers", "aggregate").search(statement.sentence) is not None
            if any(abs(span - value * minutes) <= spread for span in figures.spans(is_wide=is_wide)):
                return True
        if is_whole and value <= _MAX_COUNT and not is_about and unit is None:
            figured = figures.counts() | (figures.sums() if figures.is_chosen else set())
            return value in figured or (is_difference and value in figures.gaps())
        exact = slack if is_about or not is_whole or unit is not None else 1e-6
        scales = [1.0]
        if unit is not None and unit[0] in ("data", "time"):
            scales += [unit[1], unit[1] * 1000]
        elif _shape("answers", "yearly").search(statement.sentence):
            scales += [1 / 12]
            if any(
                self._seen.sightings(
                    QuantityKind.NUMBER, (value - exact) / 12, (value + exact) / 12, is_told=False
                )
            ):
                return True
        return any(
            abs(abs(one) - value * scale) <= exact * scale
            for one in figures.amounts(
                labels, is_strict=is_strict, is_difference=is_difference or not is_strict
            )
            for scale in scales
        )

    def _from_answer(self, *, is_share: bool, is_small: bool = False) -> Iterator[float]:
        """Yield what follows from numbers of the answer that were found."""
        known = self._known[-10:]
        for one, two in permutations(known, 2):
            if is_share:
                yield from (one * 100 / two, abs(one - two) * 100 / two) if two else ()
                continue
            yield from (abs(one - two), one + two)
            if is_small:
                continue
            yield from (one * two, one * two * 12, one * 12)
            yield from (one * two / 100, one * (100 + two) / 100) if two <= 100 else ()
            if two:
                yield one / two
        if not is_share:
            yield from (sum(known[start:]) for start in range(len(known) - 1))

    def _is_shifted(self, item: Quantity) -> bool:
        """Return whether a time of day is another one plus a span that was seen."""
        starts: set[float] = set()
        spans: set[float] = {60.0} if "hour" in self._seen.text else set()
        for record in [*self._seen.records, *self._seen.told_records]:
            for cell in record.cells:
                for other in cell.quantities:
                    if other.kind is QuantityKind.TIME:
                        starts.add(other.value)
                    elif other.kind is QuantityKind.NUMBER and 0 < other.value <= 600:
                        unit = unit_of(other.unit) or unit_of(cell.unit)
                        if (unit is not None and unit[0] == "time") or cell.label & {
                            "minut",
                            "duration",
                            "length",
                        }:
                            spans.add(other.value * (unit[1] / 60 if unit else 1))
        return any(abs(start + span - item.value) < 1 for start in starts for span in spans)

    # Relations, orders, causes.

    def _relation(self, statement: Statement) -> Doubt:
        """Hold the words of a clause against each other: what belongs to one record is not said of another."""
        seen, clause = self._seen, statement.clause
        if (found := _shape("answers", "negation").search(clause)) is not None:
            return self._negation(clause[found.end() :], found[0], clause)
        anchors = seen.anchors(clause)
        if (doubt := self._labelled(clause)) is not None:
            return doubt
        if len(anchors) < 2 or _shape("answers", "compares").search(clause):
            return SEEN
        entities = [names for names in _entities(clause) if names & anchors]
        known = frozenset([name for names in entities for name in names])
        doubts: list[str] = []
        total = 0
        for names in entities:
            self._is_code = any(re.search(r"[\d_]", word) for word in names)
            own = self._records_of(names & anchors)
            others = [name for name in anchors if name not in known]
            others += [
                name
                for other in entities
                if other is not names
                for name in other & anchors
                if self._differs(own, name)
            ]
            for name in others:
                total += 1
                if not any(name in record.stems or name in record.context for record in own):
                    doubts.append(name)
        supported = total - len(doubts)
        # A word counts only against all entities of the clause.
        missing = [
            name for name in set(doubts) if doubts.count(name) == len([n for n in entities if name not in n])
        ]
        if not missing or (supported and not self._is_structured(missing)):
            return SEEN
        if len(missing) == 1 and not self._is_structured(missing) and missing[0] not in known:
            return Doubt(0.3, f"{missing[0]!r} is said of something else")
        return Doubt(0.65, f"{missing[0]!r} belongs to something else")

    def _labelled(self, clause: str) -> Doubt | None:
        """Check names right after the name of a column, such as `from Hamburg`."""
        for found in re.finditer(r"\b([A-Za-z]+)(?: is| was| of|:)? ([A-Z][\w-]+)", clause):
            label, name = frozenset([stem(found[1].lower())]), stem(found[2].lower())
            for record in self._seen.by_stem.get(name, ())[:6]:
                own = next((cell for cell in record.cells if cell.label == label), None)
                if own is not None and name not in own.stems and len(own.text) <= 40:
                    return Doubt(0.65, f"{found[1]!r} is {own.text!r}")
        return None

    def _is_structured(self, names: list[str]) -> bool:
        """Return whether a word is a value of a column."""
        return any(
            cell.label and name in cell.stems and len(cell.text) <= 40
            for name in names
            for record in self._seen.by_stem[name][:3]
            for cell in record.cells
        )

    def _records_of(self, names: frozenset[str]) -> list[Record]:
        """Return the records of a name of several words: those with all of them, else those with any."""
        every = [record for record in self._seen.by_stem[min(names)] if names <= record.stems]
        if every and (self._is_code or any(cell.label for cell in every[0].cells)):
            return every
        return [record for name in names for record in self._seen.by_stem[name]]

    def _differs(self, own: list[Record], name: str) -> bool:
        """Return whether a word is a value of another kind than the name of some records."""
        theirs = self._seen.by_stem[name]
        if not any(cell.label for record in [*own[:2], *theirs[:2]] for cell in record.cells):
            is_code = re.search(r"[\d_]", name) is not None
            return bool(own) and own[0].source == theirs[0].source and is_code is not self._is_code
        labels = {_label_of(record, name) for record in theirs[:4]}
        mine = {cell.label for record in own[:4] for cell in record.cells}
        return (
            bool(labels - {frozenset()})
            and bool(labels & mine)
            and name not in {word for record in own for word in record.stems}
            and not labels & {cell.label for record in own[:1] for cell in record.cells[:1]}
        )

    def _negation(self, rest: str, word: str, clause: str) -> Doubt:
        """Check that what is denied was not seen."""
        seen = self._seen
        words = [stem(name) for name in re.findall(r"[^\W\d](?:[\w.-]*\w)?", rest.lower())]
        said = [name for name in words if name not in _list("causes", "ignored")][:1]
        anchors = seen.anchors(clause)
        if word.lower() in ("no", "none of", "nobody"):
            names = frozenset([name for entity in _entities(clause) for name in entity])
            degree = 0.65 if anchors - names else 0.45
        else:
            degree, anchors = 0.65, anchors | frozenset(said)
        if not anchors or (len(seen.records) == 1 and not anchors & frozenset(said)):
            anchors = frozenset([name for name in said if name in seen.by_stem])
        for record in seen.records if anchors else ():
            if anchors <= record.stems and not record.stems & _list("causes", "denials"):
                return Doubt(degree, f"denies what was seen: {_show_record(record)}")
        return SEEN

    def _order(self, statement: Statement) -> Doubt:
        """Check that what is called the first of its kind is first by some column."""
        seen = self._seen
        if _shape("answers", "aggregate").search(statement.clause):
            return SEEN
        anchors = seen.anchors(statement.clause)
        if not anchors and statement.before:
            anchors = seen.anchors(statement.sentence)
        keys = [name for name in anchors if 0 < seen.frequency[name] <= max(1, len(seen.records) // 2)]
        if (
            (named := stems_of(statement.sentence) & seen.labels)
            and not keys
            and statement.topic in ("most", "least")
        ):
            return self._order_of_cells(statement, named)
        if not keys or len(seen.records) < 2:
            return SEEN
        sources: dict[tuple[int, frozenset[frozenset[str]]], list[Record]] = {}
        for record in seen.records:
            sources.setdefault((record.source, frozenset(cell.label for cell in record.cells)), []).append(
                record
            )
        is_checked = False
        for records in [*sources.values(), seen.records]:
            if len(records) < 2:
                continue
            for first in _firsts(records, statement.topic):
                is_checked = True
                if any(name in record.stems for record in first for name in keys):
                    return SEEN
            for values in _group_firsts(records, statement.topic):
                is_checked = True
                if values & set(keys):
                    return SEEN
        return Doubt(0.7, "is not first in any column") if is_checked else Doubt(0.2, "cannot be checked")

    def _order_of_cells(self, statement: Statement, named: frozenset[str]) -> Doubt:
        """Check an order among the cells of a record, such as `{"north": 3, "south": 5}`."""
        is_checked = False
        for record in self._seen.records:
            cells = [(cell.quantities[0].value, cell) for cell in record.cells if len(cell.quantities) == 1]
            if len(cells) < 3 or not any(named & cell.label for _, cell in cells):
                continue
            is_checked = True
            _, first = (max if statement.topic == "most" else min)(cells, key=lambda pair: pair[0])
            if first.label & named:
                return SEEN
        return Doubt(0.6, "is not first") if is_checked else SEEN

    def _cause(self, statement: Statement) -> Doubt:
        """Check that the words of a cause were seen."""
        said = stems_of(_shape("causes", "marker").sub("", statement.text, count=1))
        words = {
            word
            for word in said
            if word not in _list("causes", "neutral")
            and not word[:1].isdigit()
            and not re.search("n['’]t$|^.$", word)
        }
        if not words:
            return SEEN
        missing = {word for word in words if word not in self._seen.stems and word not in self._seen.text}
        if not missing:
            return Doubt(0.1)
        share = len(missing) / len(words)
        listed = ", ".join(sorted(missing)[:3])
        if share > 0.4:
            return Doubt(0.8, f"gives a cause that nothing says ({listed})")
        return Doubt(0.4, f"gives a cause with words that nothing says ({listed})")

    # Actions.

    def _action(self, statement: Statement) -> Doubt:
        """Check that a successful call could have done what an answer claims."""
        topic, _, mode = statement.topic.partition("/")
        verb = stem(statement.text.split()[0].casefold())
        done = [item for item in self._seen.calls if not item.is_error]
        if topic == "look":
            return SEEN if done else Doubt(0.9, "claims a look, but no call succeeded")
        able = [item for item in done if self._can(item, topic, verb)]
        if not able:
            if mode in ("passive", "then", "bare") and self._is_told(statement, verb):
                return Doubt(0.1)
            return Doubt(0.9, "claims an action, but no successful call could have done it")
        after = statement.sentence[statement.place :]
        named = [text for text in _objects(after)]
        if mode == "passive":
            named = [*_objects(statement.clause[: statement.clause.find(statement.text)]), *named] or named
        if named and not any(self._mentions(item, name) for item in able for name in named[:2]):
            if mode == "passive" and self._is_told(statement, verb):
                return Doubt(0.2)
            return Doubt(0.75, f"claims an action on {named[0]!r}, but no successful call did it")
        return SEEN

    def _can(self, item: MadeCall, topic: str, verb: str) -> bool:
        tool = self._tools.get(item.call.name)
        if tool is not None and tool.effect is Effect.PURE:
            return False
        words = stems_of(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", item.call.name))
        able = frozenset([stem(word) for word in lexicon("actions")[topic]["done"].split()])
        if verb in words or words & able:
            return True
        described = stems_of(tool.description.split(".")[0]) if tool is not None else frozenset()
        generic = words & {
            "shell",
            "bash",
            "python",
            "command",
            "run",
            "execut",
            "exec",
            "patch",
            "sql",
            "query",
        }
        return bool(generic and (topic == "run" or stems_of(item.call.arguments) & able)) or verb in described

    def _is_told(self, statement: Statement, verb: str) -> bool:
        """Return whether results or the request say that it was done."""
        return any(
            verb in record.stems or any(verb in cell.label for cell in record.cells)
            for record in self._seen.records
        )

    def _mentions(self, item: MadeCall, name: str) -> bool:
        return name.casefold() in f"{item.call.arguments}\n{item.result}".casefold()


@cache
def _units() -> dict[str, tuple[str, float]]:
    return {
        name: (dimension, size)
        for dimension, units in lexicon("units").items()
        for name, size in units.items()
    }


_ENTITY = re.compile(
    r"(?:[A-Z][\w'’-]*(?:\s+(?=[A-Z]))?)+|\b(?=[\w.-]*\d)(?=[\w.-]*[a-z_])[\w.-]*\w|\b\w+(?:[_.-]\w+)+"
)


def _is_listed(statement: Statement, item: Quantity, answer: str) -> bool:
    """Return whether a number counts the items of the list that follows it in the answer."""
    if item.kind is not QuantityKind.NUMBER or item.unit or not 2 <= item.value <= _MAX_COUNT:
        return False
    rest = statement.sentence[statement.place :]
    _, colon, listed = rest.partition(":")
    if colon and listed.strip():
        parts = re.split(r",\s+(?:and\s+)?|\s+and\s+|\s+og\s+", re.sub(r"\([^)]*\)", "", listed.strip(" .")))
        return len(parts) == item.value
    after = (
        answer[answer.find(statement.sentence) + len(statement.sentence) :]
        if statement.sentence in answer
        else ""
    )
    block = re.match(r"(?:\s*\n[^\S\n]*(?:[-*•]|\d+[.)])\s[^\n]*)+", after)
    return block is not None and len(block[0].strip().splitlines()) == item.value


_OBJECT = re.compile(
    r"`([^`\n]+)`|\"([^\"\n]+)\"|(?<![\w/])((?:[\w-]+/)*[\w-]+\.[a-z]\w{1,4})\b|(?<=\s)([A-Z][\w-]+)"
)


def _objects(text: str) -> list[str]:
    """Return what a claim is about: paths, quoted texts, names."""
    end = re.search(r"[.;!?](?=\s|$)|\b(?:and|but|then|because)\b", text)
    part = text[: end.start()] if end else text
    return [next(name for name in found if name) for found in _OBJECT.findall(part)]


def _is_about(statement: Statement, item: Quantity) -> bool:
    """Return whether a number is said to be approximate."""
    before = statement.sentence[max(0, statement.place - 28) : statement.place]
    return _shape("answers", "approximate").search(before) is not None


def _slack(item: Quantity, *, is_about: bool) -> float:
    value = abs(item.value)
    slack = max(item.slack, 1e-6)
    if item.unit and value == int(value) and not item.is_word:
        slack = max(slack, 0.5001)
    if is_about:
        size = 10.0 ** (len(str(int(value))) - len(str(int(value)).rstrip("0") or "0"))
        slack = max(slack, value * 0.025, min(size * 0.5, value * 0.06), 0.5001)
    return slack


def _is_at(place: Sighting, anchors: frozenset[str], places: frozenset[str]) -> bool:
    """Return whether a value was seen where the words of a statement say."""
    record = place.record
    if places and not places & (record.context | record.stems):
        return False
    return not anchors or bool(anchors & record.stems)


def _has_label(place: Sighting, labels: frozenset[str]) -> bool:
    return not labels or not place.cell.label or bool(labels & place.cell.label)


def _entities(clause: str) -> list[frozenset[str]]:
    """Return the names and identifiers in a clause, as stems."""
    return [stems_of(found) for found in _ENTITY.findall(clause)]


def _show_record(record: Record) -> str:
    cells = ", ".join([cell.text for cell in record.cells])
    return repr(cells if len(cells) <= 60 else f"{cells[:59]}…")


def _show(place: Sighting) -> str:
    return _show_record(place.record)


def _label_of(record: Record, name: str) -> frozenset[str]:
    return next((cell.label for cell in record.cells if name in cell.stems), frozenset())


def _firsts(records: list[Record], topic: str) -> Iterator[list[Record]]:
    """Yield the records that are first by some column."""
    if topic in ("first", "last"):
        yield [records[0] if topic == "first" else records[-1]]
    if topic in ("newest", "oldest", "first", "last"):
        ends = [_moment(record) for record in records]
        if any(ends):
            best = (max if topic in ("newest", "last") else min)(ends)
            yield [record for record, end in zip(records, ends, strict=True) if end == best]
        if topic in ("newest", "oldest"):
            return
    columns: dict[tuple[frozenset[str], int], list[tuple[float, Record]]] = {}
    for record in records if topic in ("most", "least") else ():
        for cell in record.cells:
            numbers = [item for item in cell.quantities if item.kind is QuantityKind.NUMBER]
            for index, item in enumerate(numbers if not cell.label else numbers[:1]):
                unit = unit_of(item.unit)
                value = item.value * (unit[1] if unit else 1)
                columns.setdefault((cell.label, index), []).append((value, record))
    for values in columns.values():
        listed = [value for value, _ in values]
        is_year = all(1900 <= value <= 2100 for value in listed)
        if len(values) < 2 or is_year or listed == [float(number) for number in range(1, len(listed) + 1)]:
            continue
        best_value = (max if topic == "most" else min)(listed)
        yield [record for value, record in values if value == best_value]


def _moment(record: Record) -> tuple[float, ...]:
    for cell in record.cells:
        dates = [item for item in cell.quantities if item.kind is QuantityKind.DATE]
        times = [item for item in cell.quantities if item.kind is QuantityKind.TIME]
        if dates:
            return (dates[0].year or 0, dates[0].value, times[0].value if times else 0.0)
    years = [item.value for cell in record.cells for item in cell.quantities if 1900 <= item.value <= 2100]
    return (years[0], 0.0, 0.0) if years else (0.0, 0.0, 0.0)


def _group_firsts(records: list[Record], topic: str) -> Iterator[frozenset[str]]:
    """Yield the words whose records have the largest or smallest sum of a column, or are most or fewest."""
    if topic not in ("most", "least"):
        return
    labels = {cell.label for record in records for cell in record.cells if cell.label}
    for by in labels:
        sums: dict[str, dict[frozenset[str], float]] = {}
        counts: dict[str, int] = {}
        for record in records:
            name = next((cell.text.casefold() for cell in record.cells if cell.label == by), None)
            if name is None:
                continue
            counts[name] = counts.get(name, 0) + 1
            for cell in record.cells:
                if cell.label != by and cell.quantities:
                    own = sums.setdefault(name, {})
                    own[cell.label] = own.get(cell.label, 0.0) + cell.quantities[0].value
        if not 1 < len(counts) < len(records):
            continue
        pick = max if topic == "most" else min
        best = pick(counts.values())
        yield frozenset().union(*[stems_of(name) for name, count in counts.items() if count == best])
        for label in {label for own in sums.values() for label in own}:
            totals = {name: own[label] for name, own in sums.items() if label in own}
            top = pick(totals.values())
            yield frozenset().union(*[stems_of(name) for name, total in totals.items() if total == top])
