"""The rules for quantities: where a value was seen, in which rounding and unit, and from what it follows."""

import re
from collections.abc import Iterator
from itertools import permutations

from msgspec.structs import replace

from treadle.datagen.quality.figures.figure_reader import find_quantities
from treadle.datagen.quality.figures.quantities import Quantity, QuantityKind, shape, shapes, unit_of
from treadle.datagen.quality.statements.count_rules import CountRules
from treadle.datagen.quality.statements.derivations import Figures, solve_equations
from treadle.datagen.quality.statements.doubts import (
    SEEN,
    Doubt,
    DoubtKind,
    entities_of,
    find_anchors,
    find_labels,
    is_in_label,
    rank,
    show_record,
)
from treadle.datagen.quality.statements.evidence import (
    Evidence,
    Occurrence,
    is_opposite,
    plain_label,
    word_list,
    words_of,
)
from treadle.datagen.quality.statements.result_records import Labels, stem, stems_of
from treadle.datagen.quality.statements.sightings import (
    doubt_rival,
    find_sightings,
    has_label,
    is_at,
    is_reversed,
    other_readings,
)
from treadle.datagen.quality.statements.statements import AnswerStatement

_NEAREST, _OF, _SIGNED, _CAPITAL_BEFORE = shapes("quantity_forms", "nearest of signed capital_before")
_CAPITAL_AFTER, _ROW, _UNIT_BEFORE = shapes("quantity_forms", "capital_after row unit_before")
_WORD_BEFORE, _ITEMS, _SEPARATOR = shapes("quantity_forms", "word_before items separator")
_UNREAD_BEFORE, _UNREAD_AFTER = shapes("quantity_forms", "unread_before unread_after")
_MAX_COUNT = 50
"""Whole numbers up to this one are counts: among many figures, one equals nearly any of them."""


def _with_unit(statement: AnswerStatement, item: Quantity) -> Iterator[Quantity]:
    """Yield a number with the unit that its name has, as in `Weight in grams: 40`."""
    found = _UNIT_BEFORE.search(statement.head)
    if found is not None and not item.unit and unit_of(found[1]) is not None:
        half = 0.5 if item.value == int(item.value) else 0.0  # else it is as exact as its digits
        low, high = min(item.low, item.value - half), max(item.high, item.value + half)
        yield replace(item, unit=found[1], low=low, high=high)


class QuantityRules:
    """The rules for the quantities of one answer, whose numbers may follow from each other."""

    def __init__(self, seen: Evidence, answer: str) -> None:
        self._seen = seen
        self._answer = answer
        self._counts = CountRules(seen)
        self._solved = {value for text in seen.work for value in solve_equations(text, has_parts=True)}
        self._solved.update(solve_equations(answer))
        self._figures: dict[frozenset[str], Figures] = {}
        self._known: list[float] = []
        """The numbers of the answer that were found, from which others may follow."""

    def doubt(self, statement: AnswerStatement) -> Doubt:
        """Return how far the quantity of a statement is in doubt, in the reading that is least in doubt."""
        item = statement.quantity
        assert item is not None
        is_word = statement.text.isalpha() and item.kind is QuantityKind.TIME
        if (
            self._is_in_name(statement)
            or _NEAREST.search(statement.head)
            or (is_word and stem(statement.text.lower()) in self._seen.stems)
        ):
            return SEEN
        if item.is_ordinal:
            return self._doubt_ordinal(item)
        doubt = self._doubt(statement, item)
        is_unsure = doubt.is_open or (item.spread is not None and doubt is not SEEN)
        if doubt.is_open and any(
            not self._doubt(statement, other).is_open for other in _with_unit(statement, item)
        ):
            return SEEN
        for other in other_readings(item) if is_unsure else ():
            found = self._doubt(statement, other)
            if not found.is_open and min(doubt, found, key=rank) is found:
                doubt, statement = found, replace(statement, quantity=other)
        return doubt if doubt.is_open else doubt_rival(self._seen, statement, doubt)

    def _is_in_name(self, statement: AnswerStatement) -> bool:
        """Return whether a figure is only a part of an identifier that was seen, such as `47` in `47-496`."""
        start, end = statement.place, statement.place + len(statement.text)
        if is_in_label(self._seen, statement.sentence, start, end):
            return True
        if (named := _WORD_BEFORE.search(statement.sentence[:start])) and (
            statement.text in self._seen.subject_numbers
        ):
            return f"{named[1]} {statement.text}".casefold() in self._seen.plain_text
        if start and statement.sentence[start - 1] in "!#№§&":
            return statement.sentence[start - 1 : end].casefold() in self._seen.text
        rest = statement.sentence[end:]
        said = statement.sentence[start:end].strip()
        for pair in (
            f"{found[1]} {said}" if (found := _CAPITAL_BEFORE.search(statement.sentence[:start])) else "",
            f"{said} {found[1]}" if said[:1].isupper() and (found := _CAPITAL_AFTER.match(rest)) else "",
        ):
            if pair and pair.casefold() in self._seen.text:
                return True  # a part of a name, such as `Seven Bridges`
        for found in _ROW.finditer(statement.sentence):
            if found.start() <= start < end <= found.end() and found[0].casefold() in self._seen.text:
                return True  # cells that stand close together, as in `ash,7,407`
        for found in _SIGNED.finditer(statement.sentence):
            if found.start() <= start < end <= found.end():
                name = found[0].strip(".,:-–/")
                is_longer = len(name) > len(statement.text.strip())
                return is_longer and name.casefold() in self._seen.text
        return False

    def _doubt_ordinal(self, item: Quantity) -> Doubt:
        """Check a place in an order: a day of a date, a number that was seen, or one of the records."""
        seen, day = self._seen, int(item.value)
        if day <= len(seen.records) or re.search(rf"(?<!\d){day}(?!\d)", seen.text):
            return SEEN
        return Doubt(DoubtKind.ABSENT, "does not occur before")

    def _doubt(self, statement: AnswerStatement, item: Quantity) -> Doubt:
        seen = self._seen
        if (counted := self._counts.doubt(statement, item)) is not None:
            return self._note(item) if counted is SEEN else counted
        if item.value in (0, 1) and item.kind is QuantityKind.NUMBER and not item.unit:
            is_shown = any(not call.is_error for call in seen.new_calls) or not seen.has_new
            return SEEN if is_shown else Doubt(DoubtKind.UNNAMED, "stands after calls that failed")
        if (portion := self._doubt_portion(statement, item)) is not None:
            return portion
        own = list(find_sightings(self._seen, item, is_told=False))
        anchors, places = find_anchors(seen, statement)
        labels, is_alone = find_labels(seen, statement)
        found = own
        if item.kind is QuantityKind.NUMBER and item.value <= _MAX_COUNT and not item.unit:
            # A small number is found somewhere by chance.
            words = stems_of(statement.sentence) | anchors | places
            own = [place for place in own if self._is_meant(place, words)]
        is_total = (
            shape("answers", "aggregate").search(statement.clause) is not None and len(seen.records) > 1
        )
        is_here = any(
            is_at(place, frozenset() if _is_printed(place) else anchors, places) and has_label(place, labels)
            for place in own
        )
        if is_here and not (is_total and item.kind is QuantityKind.NUMBER and not _is_of_total(own)):
            self._note(item)
            words = words_of(statement.sentence, item.kind)
            is_named = is_alone and any(plain_label(one) <= words for one in labels)
            is_loose = not is_named and item.kind is QuantityKind.NUMBER and all(map(_is_printed, own))
            is_loose = is_loose or (item.is_about and not labels and not anchors)
            return Doubt(DoubtKind.UNPLACED, "may belong to something else") if is_loose else SEEN
        told = [place for place in find_sightings(self._seen, item, is_told=True) if has_label(place, labels)]
        if told and not own:
            return self._note(item)
        if (
            labels
            and not is_total
            and not seen.anchors(statement.clause)
            and any(has_label(place, labels) for place in own)
        ):
            self._note(item)
            return Doubt(DoubtKind.UNPLACED, "may belong to something else")
        if _is_listed(statement, item, self._answer):
            return self._note(item)
        known = labels or seen.named_labels(statement.sentence, item.kind, is_full=True)
        way = self._derive(statement, item, (anchors, places, known), is_strict=bool(own))
        is_reckoned = statement.says("differs") or statement.says("aggregate")
        is_days = (unit_of(item.unit) or ("", 0.0))[1] >= 86400
        is_long = item.value >= 1000 or item.value != int(item.value)  # no sum equals it by chance
        is_found = own or is_days or (way and is_reckoned and not is_long)
        named = seen.named_labels(statement.sentence, item.kind, is_full=True)
        if (not is_found and any(self._clashes(item, is_told=is_told) for is_told in (False, True))) or (
            not own and not is_days and self._clashes(item, is_told=False, labels=named)
        ):
            return Doubt(DoubtKind.UNIT, "has another unit")
        if way:
            self._note(item)
            return Doubt(DoubtKind.DERIVED, "follows from what was seen", way)
        if told and not (own and labels):
            return Doubt(DoubtKind.TOLD, "occurs in the request")
        if own:
            words = words_of(statement.sentence, item.kind)
            is_named = is_alone and any(plain_label(label) <= words for label in labels)
            if (len(seen.records) == 1 and not labels) or (
                any(is_at(place, anchors, places) for place in own) and not is_named
            ):
                self._note(item)
                is_loose = bool(labels) and all(map(_is_printed, own))
                return Doubt(DoubtKind.UNPLACED, "may belong to something else") if is_loose else SEEN
            if any(self._may_be(place, item, statement, (anchors, places)) for place in own):
                return Doubt(DoubtKind.UNPLACED, "may belong to something else")
            return Doubt(DoubtKind.ELSEWHERE, f"belongs to something else: {show_record(own[0].record)}")
        if (
            item.kind is QuantityKind.NUMBER
            and item.value >= 100
            and re.search(rf"(?<![\d.]){item.value:g}(?![\d])", seen.text)
        ):
            return Doubt(DoubtKind.INSIDE, "is a part of another word")
        if found and not labels:
            return Doubt(DoubtKind.UNNAMED, "was seen, and is named by other words")
        before, _, after = statement.sentence.partition(statement.text)
        if item.spread is None and (_UNREAD_BEFORE.search(before) or _UNREAD_AFTER.match(after)):
            return Doubt(DoubtKind.UNREAD, "is a part of a figure that is not read")
        return Doubt(DoubtKind.ABSENT, "does not occur before, and does not follow from it")

    def _may_be(
        self,
        place: Occurrence,
        item: Quantity,
        statement: AnswerStatement,
        where: tuple[frozenset[str], frozenset[str]],
    ) -> bool:
        """Return whether nothing but the name of its column keeps a value from being meant. `where` has the anchors
        and places of the statement."""
        if not place.record.stems - place.cell.stems and not place.cell.label:
            return True
        is_chosen = any(where) or len(self._seen.records) == 1
        if not is_chosen or not is_at(place, *where):
            return False
        others = [
            other
            for cell in place.record.cells
            for other in cell.quantities
            if other.kind is item.kind and Occurrence(other, place.record, cell).unit == place.unit
        ]
        is_only = len(others) == 1 and (place.unit is not None or item.kind is not QuantityKind.NUMBER)
        words = words_of(statement.clause, item.kind)
        if item.kind is not QuantityKind.NUMBER and is_opposite(place.cell.label, words):
            return False
        return is_only or bool(plain_label(place.cell.label) & words)

    def _is_meant(self, place: Occurrence, words: frozenset[str]) -> bool:
        """Return whether words name the column or the record of a value that was seen."""
        label = plain_label(place.cell.label)
        return (
            not label or not label.isdisjoint(words) or bool((place.record.stems - place.cell.stems) & words)
        )

    def _doubt_portion(self, statement: AnswerStatement, item: Quantity) -> Doubt | None:
        """Check a share of the records that have a value, such as `3 of 8` or `40 %`; `None` if it is none."""
        is_part = item.kind is QuantityKind.NUMBER and 0 < item.value < 1 and not item.unit
        if is_part and _OF.match(statement.rest):
            item = replace(item, kind=QuantityKind.SHARE)
        is_share = item.kind is QuantityKind.SHARE or item.unit == "%"
        if not is_share and item.whole is None:
            return None
        found = self._seen.portions(statement.sentence, statement.place)
        if not found:
            return (
                Doubt(DoubtKind.UNCOUNTED, "cannot be counted")
                if item.kind is QuantityKind.SHARE and item.value == 0.5
                else None
            )
        stated = abs(item.value)
        if not is_share:
            is_right = any(
                (stated in ((one.part, one.whole) if item.whole == stated else (one.part,)))
                and (item.portion != 1.0 or one.part == one.whole)
                for one in found
            )
        else:
            size = 1.0 if item.kind is QuantityKind.SHARE else 100.0
            near = 0.0 if item.kind is QuantityKind.SHARE or item.is_about else 0.025 * stated
            low, high = item.low - near, item.high + near
            if item.is_about and item.low >= 0.985 * stated:
                high = size  # more than a half
            elif item.is_about and item.high <= 1.015 * stated:
                low = 0.0
            is_right = any(low <= one.part / one.whole * size <= high for one in found)
        if is_right:
            return self._note(item)
        if is_share and not stated:
            return Doubt(DoubtKind.UNLIKE, f"is not right: it is {found[0].part:g} of {found[0].whole:g}")
        if any(True for _ in find_sightings(self._seen, item, is_told=False)) or self._seen.named_labels(
            statement.sentence, QuantityKind.NUMBER, is_full=True
        ):
            return None
        sole = [one for one in found if one.is_sole]
        if not sole:
            return Doubt(DoubtKind.UNCOUNTED, "cannot be counted")
        return Doubt(DoubtKind.UNLIKE, f"is not right: it is {sole[0].part:g} of {sole[0].whole:g}")

    def _clashes(self, item: Quantity, *, is_told: bool, labels: Labels | None = None) -> bool:
        """Return whether the number was seen with another unit only; if there are `labels`, under one of them."""
        unit = unit_of(item.unit)
        if unit is None or item.kind is not QuantityKind.NUMBER:
            return False
        low, high = item.low, item.high + 1e-9
        units = [
            place.unit
            for place in self._seen.sightings(QuantityKind.NUMBER, low, high, is_told=is_told)
            if labels is None or place.cell.label in labels
        ]
        return bool(units) and all(other is not None and other != unit for other in units)

    def _note(self, item: Quantity) -> Doubt:
        if item.kind is QuantityKind.NUMBER:
            self._known.append(item.value)
        return SEEN

    def _derive(
        self,
        statement: AnswerStatement,
        item: Quantity,
        where: tuple[frozenset[str], frozenset[str], Labels],
        *,
        is_strict: bool,
    ) -> str:
        """Return how a quantity follows from what was seen, or from other numbers of the answer; empty if it does
        not. `where` has the anchors, places and labels of the statement."""
        anchors, places, labels = where
        if item.kind is QuantityKind.DATE:
            return ""
        if item.kind is QuantityKind.TIME:
            return "span" if self._is_shifted(item) else ""
        value = abs(item.value)
        if not is_strict and self._is_multiple(statement, item):
            return "product"
        is_share = item.kind is QuantityKind.SHARE or item.unit == "%"
        if is_share:
            anchors = self._seen.anchors(statement.sentence) or anchors
        choices = self._choices(statement, anchors, is_share=is_share, is_strict=is_strict)
        for names in dict.fromkeys(choices):
            key = names | {f"@{place}" for place in places}
            if (figures := self._figures.get(key)) is None:
                figures = self._figures[key] = Figures(
                    self._seen, names, places if names == anchors else frozenset()
                )
            if is_share:
                size = 1.0 if item.kind is QuantityKind.SHARE else 100.0
                if any(item.low <= one * size <= item.high for one in figures.shares()):
                    return "share"
                if item.unit == "%" and statement.says("aggregate"):
                    whole = replace(item, unit="")
                    if self._is_amount(figures, statement, whole, labels, is_strict=is_strict):
                        return "amount"
            elif way := self._find_figure(figures, statement, item, labels, is_strict=is_strict):
                return way
        if is_share:
            size = 100.0 if item.kind is QuantityKind.SHARE else 1.0
            known = self._from_answer(is_share=True)
            return "answer" if any(item.low * size <= one <= item.high * size for one in known) else ""
        is_small = value <= _MAX_COUNT and value == int(value)
        near = 0.006 if not item.is_about else 0.0
        if value in self._solved:
            return "equation"
        known = self._from_answer(is_share=False, is_small=is_small)
        return "answer" if any(item.low - near <= one <= item.high + near for one in known) else ""

    def _choices(
        self, statement: AnswerStatement, anchors: frozenset[str], *, is_share: bool, is_strict: bool
    ) -> list[frozenset[str]]:
        """Return the words by which the records may be chosen that a quantity follows from."""
        told = self._seen.anchors(" ".join(self._seen.told))
        choices = [anchors]
        if not anchors:
            choices += [told, frozenset()]
            if is_share:
                choices.append(self._seen.anchors(statement.before.rpartition("\n")[0].rpartition("\n")[2]))
        elif not is_strict and not any(names & anchors for names in entities_of(statement.clause)):
            choices.append(told)
        if statement.says("aggregate"):
            choices.append(self._seen.anchors(statement.sentence))
        is_whole = shape("answers", "whole").search(statement.head)
        if is_whole or shape("answers", "of_files").match(statement.rest):
            choices += [frozenset(), told]
        return choices

    def _is_multiple(self, statement: AnswerStatement, item: Quantity) -> bool:
        """Return whether a quantity is a value that was seen, times a small number that the sentence has."""
        times = {
            other.value
            for other in find_quantities(statement.sentence)
            if other.start != statement.place and other.kind is QuantityKind.NUMBER and not other.unit
        }
        times |= {2.0} if statement.says("doubled") else set()
        return (item.value > _MAX_COUNT or (2.0 in times and item.value > 2)) and any(
            2 <= one <= 20
            and one == int(one)
            and self._seen.sightings(
                QuantityKind.NUMBER, item.low / one, item.high / one + 1e-9, is_told=False
            )
            for one in times
        )

    def _count_named(self, statement: AnswerStatement) -> set[float] | None:
        """Return how many records have the word after a number; `None` if it is no word of the records."""
        noun = shape("answers", "counted").match(statement.rest)
        name = stem(noun[1].lower()) if noun else ""
        count = self._seen.frequency[name]
        if name not in self._seen.labels:
            return {1.0} if count == 1 else None
        return {
            float(count),
            float(sum(name in frozenset().union(*record.labels) for record in self._seen.records)),
        }

    def _find_figure(
        self, figures: Figures, statement: AnswerStatement, item: Quantity, labels: Labels, *, is_strict: bool
    ) -> str:
        """Return how a quantity follows from the figures of some records; empty if it does not."""
        value, unit = abs(item.value), unit_of(item.unit)
        is_whole = value == int(value)
        is_total = statement.says("aggregate")
        is_degree = unit is not None and unit[0] in ("celsius", "fahrenheit") and not is_total
        if is_degree or (is_whole and 1900 <= value <= 2100 and unit is None and not is_total):
            return "sum" if value in figures.listed_sums else ""
        is_difference = statement.says("differs")
        if unit is not None and unit[0] == "time":
            minutes = unit[1] / 60
            near = max(0.06, 0.5 if unit[1] >= 604800 else 0.0)
            low, high = min(item.low, value - near) * minutes, max(item.high, value + near) * minutes
            if any(low <= span <= high for span in figures.spans(is_wide=is_difference or is_total)):
                return "" if is_reversed(self._seen, statement) else "span"
            if is_whole and unit[1] >= 86400 and value in figures.counts():
                return "count"
        is_mean = statement.says("mean")
        named = self._count_named(statement) if is_whole and unit is None else None
        if value in (named or ()):
            return "named"
        if labels and is_whole and value <= 2 * _MAX_COUNT and unit is None:
            columns = figures.amounts(labels, is_strict=True, is_difference=is_difference)
            if any(abs(abs(one) - value) <= 0.5 for one in columns):
                return "column"
            noun = shape("answers", "counted").match(statement.rest)
            if is_strict or noun is None or any(stem(noun[1].lower()) in label for label in labels):
                return ""
        counts = figures.counts() if is_whole and unit is None else set()
        if value in counts if named is None else value in named | figures.named_counts:
            return "named" if value in figures.named_counts else "count"
        if is_whole and statement.says("sizes") and value in figures.text_sizes():
            return "size"
        if is_whole and value <= _MAX_COUNT and not item.is_about and unit is None and not is_mean:
            if (figures.is_chosen or is_total) and value in figures.sums():
                return "sum"
            return "gap" if is_difference and value in figures.gaps() else ""
        if labels and item.is_about and not (is_total or is_mean or is_difference):
            return ""  # a rounded figure equals nearly any sum
        return "amount" if self._is_amount(figures, statement, item, labels, is_strict=is_strict) else ""

    def _is_amount(
        self, figures: Figures, statement: AnswerStatement, item: Quantity, labels: Labels, *, is_strict: bool
    ) -> bool:
        """Return whether a quantity is a sum, mean, product or difference."""
        value, unit = abs(item.value), unit_of(item.unit)
        is_whole = value == int(value)
        is_difference = statement.says("differs")
        is_mean = statement.says("mean")
        slack = max(value - item.low, item.high - value)
        exact = slack if item.is_about or not is_whole or unit is not None else 1e-6
        if is_whole and is_mean:
            exact = max(exact, 0.5)
        low, high = (item.low, item.high) if item.is_about else (value - exact, value + exact)
        scales = [1.0]
        if unit is not None:
            own = {size for sizes in self._seen.units.values() for other, size in sizes if other == unit[0]}
            scales += [unit[1] / size for size in sorted(own)]
            scales += [unit[1], unit[1] * 1000] if unit[0] in ("data", "time") else []
        elif statement.says("yearly"):
            scales += [1 / 12]
            if any(self._seen.sightings(QuantityKind.NUMBER, low / 12, high / 12, is_told=False)):
                return True
        return any(
            low * scale <= abs(one) <= high * scale
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
        return any(abs((start + span) % 1440 - item.value) < 1 for start in starts for span in spans)


def _is_listed(statement: AnswerStatement, item: Quantity, answer: str) -> bool:
    """Return whether a number counts the items of the list that follows it in the answer."""
    if item.kind is not QuantityKind.NUMBER or item.unit or not 2 <= item.value <= _MAX_COUNT:
        return False
    rest = statement.sentence[statement.place :]
    _, colon, listed = rest.partition(":")
    if colon and listed.strip():
        parts = _SEPARATOR.split(re.sub(r"\([^()]*+\)", "", listed.strip(" .")))
        return len(parts) == item.value
    after = (
        answer[answer.find(statement.sentence) + len(statement.sentence) :]
        if statement.sentence in answer
        else ""
    )
    block = _ITEMS.match(after)
    return block is not None and len(block[0].strip().splitlines()) == item.value


def _is_printed(place: Occurrence) -> bool:
    """Return whether a value stands among others that a program printed with their names, and with nothing else."""
    cells = place.record.cells
    return len(cells) > 1 and all(cell.label and len(cell.quantities) == 1 for cell in cells)


def _is_of_total(places: list[Occurrence]) -> bool:
    """Return whether a value stands under the name of a total, or under none."""
    totals = word_list("causes", "totals")
    return any(not place.cell.label or place.cell.label & totals for place in places)
