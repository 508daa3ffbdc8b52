"""Numbers in texts, and the numbers that simple arithmetic over them gives: counts, sums of columns, differences.

A number is derived if it is an aggregate of a group of observed numbers. A group has the numbers of one text, of
one column, or with one label or unit. It is taken from all texts or from the texts of one folder, and from all
lines or from the lines with a certain word. Differences, products and shares are also computed for the totals, and
for the observed numbers if there are few.
"""

import csv
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import msgspec
from msgspec import Struct

NUMBER = re.compile(
    r"(?<![\w.])[-−]?[$€£]?\d[\d,'_]*(?:\.\d+)?(?=$|%|°|[^\w.]|\.(?!\d)|(?:ms|km|kg|kb|mb|gb|[smhd])\b)"
)
_EQUATION = re.compile(r"([-−\d.,()+*/×÷ $€£%]{3,120})=\s*([-−]?[$€£]?\d[\d,']*(?:\.\d+)?)")
_TIME = re.compile(r"\b(\d{1,2}):(\d\d)(?::(\d\d(?:[.,]\d+)?))?(?![\d:])")
_MARKS = re.compile(r"[$€£,'_%]")
_WORD = re.compile(r"[^\W\d][\w-]*")
_MAX_LINES = 2000
"""The largest number of lines that are read. If there are more, every number is accepted."""
_MAX_TOTALS = 24
"""How many totals are subtracted from each other."""
_MAX_TOTAL = 1e12
"""Larger totals are not compared."""
_MAX_PLACES = 12
"""How many decimal places are compared."""
_MAX_TIMES = 20
"""How many times of day are subtracted from each other."""
_MAX_PAIRED = 10
"""How many observed numbers are combined in pairs. With more numbers, some pair would give nearly any number."""
_UNITS = (1000.0, 0.001, 100.0, 0.01, 60.0, 1 / 60)
"""The factors between units that people convert: milliseconds, metres, cents, per cent, minutes."""
_MAX_COUNT = 50
"""Whole numbers up to this one can be counts of anything that was seen. Lines, words and characters are
counted."""

Groups = dict[tuple[str, ...], list[float]]


class NumberSource(Struct, frozen=True):
    """A text with numbers, and the folder that it comes from."""

    text: str
    folder: str = ""


def read_number(text: str) -> float | None:
    """Return the value of a number as people write it; `None` if it is not a number, or too large."""
    try:
        value = float(text)
    except ValueError:
        try:
            value = float(_MARKS.sub("", text.replace("−", "-")))
        except ValueError:
            return None
    return value if math.isfinite(value) else None


def find_numbers(text: str) -> Iterator[float]:
    """Yield the numbers in a text that are not parts of names, versions or paths."""
    for found in NUMBER.findall(text):
        if (value := read_number(found)) is not None:
            yield value


class _Line(Struct, frozen=True):
    """A line with numbers."""

    text: str
    numbers: list[tuple[float, list[str]]]
    """Each number with its labels."""


class Derived:
    """The numbers that follow from sources. They are computed when they are needed, the simple ones first."""

    def __init__(self, sources: Sequence[NumberSource], work: str) -> None:
        """`work` is what the agent wrote before its answer, in which equations count."""
        self._sources = sources
        self._work = work
        self._steps = iter((self._derive, self._derive_of_words))
        """The functions that compute further numbers."""
        self._totals: list[set[float]] = []
        self._rounded: dict[tuple[int, int], set[int]] = {}
        self._laid_out: list[list[str]] = []
        """The lines of each source."""
        self._line_count = 0
        self._counts: set[float] = set()
        self._lines: list[tuple[str, list[_Line]]] = []
        """The folder of each source and its lines with numbers, once the numbers were grouped."""

    def has(self, text: str) -> bool:
        """Return whether a number is a count, an aggregate or a simple combination of observed numbers."""
        value = abs(read_number(text) or 0.0)
        if not self._laid_out:
            self._count()
        if self._line_count > _MAX_LINES or value in self._counts:
            return True
        if value.is_integer() and value <= min(_MAX_COUNT, self._line_count + 1):
            return True
        places = len(text.partition(".")[2].rstrip("%"))
        if any(self._is_total(value, places, step) for step in range(len(self._totals))):
            return True
        for derive in self._steps:
            self._totals.append(derive())
            if self._is_total(value, places, len(self._totals) - 1):
                return True
        return False

    def _is_total(self, value: float, places: int, step: int) -> bool:
        """Return whether a number is one of the totals of a step, rounded to as many places."""
        if value >= _MAX_TOTAL:
            return False
        places = min(places, _MAX_PLACES)
        key = step, places
        if key not in self._rounded:
            scaled = [total * 10.0**places for total in self._totals[step] if total < _MAX_TOTAL]
            # A whole number must equal a whole total, because among many totals one rounds to nearly any number.
            slack = 0.501 if places else 1e-6
            self._rounded[key] = {
                near
                for item in scaled
                for near in range(math.ceil(item - slack), math.floor(item + slack) + 1)
            }
        return round(value * 10.0**places) in self._rounded[key]

    def _count(self) -> None:
        """Split the texts into lines, and count lines, words and characters."""
        sizes: list[tuple[int, ...]] = []
        for source in self._sources:
            lines = [line for line in _lay_out(source.text).splitlines() if line.strip()]
            self._laid_out.append(lines)
            self._line_count += len(lines)
            every = len(source.text.splitlines())
            words = len(source.text.split())
            sizes.append((every, every - 1, len(lines), len(lines) - 1, words, len(source.text)))
        for counts in zip(*sizes, strict=True):
            self._counts.update((*counts, sum(counts)))
        if len(sizes) <= _MAX_TOTALS:
            self._counts.update([one[0] + two[0] for one, two in combinations(sizes, 2)])

    def _derive(self) -> set[float]:
        """Return what follows from the numbers of texts, columns, labels, equations and times of day."""
        groups: Groups = defaultdict(list)
        for number, (source, lines) in enumerate(zip(self._sources, self._laid_out, strict=True)):
            header, delimiter = _read_header(lines)
            labelled = [_Line(line, list(_labelled(line, header, delimiter))) for line in lines]
            found = [line for line in labelled if line.numbers]
            _group(found, str(number), source.folder, groups, is_table=bool(header))
            self._lines.append((source.folder, found))
        times = {seconds for source in self._sources for seconds in _find_times(source.text)}
        return _aggregate(groups) | set(_solve_equations(self._work)) | set(_spans(times))

    def _derive_of_words(self) -> set[float]:
        """Return the totals of numbers with the same label, over the lines that contain the same word."""
        groups: Groups = defaultdict(list)
        for folder, lines in self._lines:
            for line in lines:
                words = {word.casefold() for word in _WORD.findall(line.text)}
                for value, labels in line.numbers:
                    for label in labels:
                        for word in words:
                            groups["lines", "all", label, word].append(value)
                            groups["lines", f"folder {folder}", label, word].append(value)
        return _aggregate(groups)


def _find_times(text: str) -> Iterator[float]:
    """Yield the times of day in a text, in seconds."""
    for hours, minutes, seconds in _TIME.findall(text):
        yield int(hours) * 3600 + int(minutes) * 60 + float(seconds.replace(",", ".") or 0)


def _spans(times: set[float]) -> Iterator[float]:
    """Yield the differences between times of day, if there are few, in seconds, minutes and hours."""
    listed = sorted(times)
    for one in listed if len(listed) <= _MAX_TIMES else ():
        for two in listed:
            if two > one:
                yield from (two - one, (two - one) / 60, (two - one) / 3600)


def _lay_out(text: str) -> str:
    """Return a text. If it is JSON, it is formatted with one value on each line."""
    if text[:1] in ("{", "["):
        try:
            return msgspec.json.format(text, indent=1)
        except (msgspec.DecodeError, RecursionError):
            pass
    return text


def _group(lines: Sequence[_Line], number: str, folder: str, groups: Groups, *, is_table: bool) -> None:
    """Add the numbers of one source to the groups that they belong to."""
    scopes = ("all", f"folder {folder}", f"text {number}")
    text = groups["text", number]
    for line in lines:
        values = [value for value, _ in line.numbers]
        if is_table:
            groups["row", number, line.text] += values
        text += values
        groups["labelled", number] += [value for value, labels in line.numbers if labels[0] != "#"]
        for value, labels in line.numbers:
            for label in labels:
                for scope in scopes:
                    groups["label", scope, label].append(value)


def _read_header(lines: Sequence[str]) -> tuple[list[str], str]:
    """Return the names of a table's columns and the delimiter; no names if the lines are not a table."""
    for delimiter in (",", ";", "\t", "|"):
        header = lines[0].split(delimiter) if len(lines) > 1 else []
        is_name = [cell.strip() == "" or _WORD.search(cell) is not None for cell in header]
        if len(header) > 1 and all(is_name) and lines[1].count(delimiter) >= len(header) - 1:
            return [cell.strip().casefold() for cell in header], delimiter
    return [], ""


def _labelled(line: str, header: Sequence[str], delimiter: str) -> Iterator[tuple[float, list[str]]]:
    """Yield the numbers of a line, each with its column, or with the words before and after it."""
    if header:
        for name, cell in zip(header, _split(line, delimiter), strict=False):
            if NUMBER.fullmatch(cell.strip()) and (value := read_number(cell.strip())) is not None:
                yield value, [name]
        return
    for found in NUMBER.finditer(line):
        value = read_number(found[0])
        if value is not None:
            before = _WORD.findall(line[max(0, found.start() - 40) : found.start()])
            after = _WORD.match(line[found.end() : found.end() + 20].lstrip(' "%:'))
            yield (
                value,
                [
                    f"{before[-1].casefold()} #" if before else "#",
                    *([f"# {after[0].casefold()}"] if after else ()),
                ],
            )


def _split(line: str, delimiter: str) -> list[str]:
    """Return the cells of a line of a table."""
    try:
        return next(csv.reader([line], delimiter=delimiter))
    except csv.Error:  # a cell is very long
        return line.split(delimiter)


def _aggregate(groups: Groups) -> set[float]:
    """Return the absolute values of the aggregates of all groups, and of simple combinations of few numbers."""
    found: set[float] = set()
    totals: set[float] = set()
    observed: set[float] = set()
    for key, values in groups.items():
        if not values:
            continue
        total = sum(values)
        found.update((abs(total), abs(total) / len(values), max(values) - min(values)))
        if key[0] == "text":
            observed.update(values)
        if key[0] == "text" or key[:2] == ("label", "all"):
            totals.add(total)
    found.update([abs(value) * factor for value in observed for factor in _UNITS])
    if len(totals) <= _MAX_TOTALS:
        found.update([abs(one - two) for one in totals for two in totals])
    if len(observed) <= _MAX_PAIRED:
        found.update(map(abs, _combine(observed)))
    return found


def _combine(values: Iterable[float]) -> Iterator[float]:
    """Yield the differences, sums, products, quotients and percentages of all pairs."""
    listed = list(values)
    for one in listed:
        for two in listed:
            yield one - two
            yield one + two
            yield one * two
            if two:
                yield one / two
                yield one * 100 / two
                yield (one - two) * 100 / two
            if 0 < two < 100:
                yield one * (100 - two) / 100
                yield one * (100 + two) / 100


def _solve_equations(text: str) -> Iterator[float]:
    """Yield the right sides of the equations in a text that are correct."""
    for left, right in _EQUATION.findall(text):
        value, stated = evaluate(left), read_number(right)
        if value is not None and stated is not None and abs(value - stated) <= 0.0101:
            yield abs(stated)


def evaluate(text: str) -> float | None:
    """Return the value of sums and products of numbers, or `None` if the text is something else."""
    text = re.sub(r"[$€£,' ]", "", text.replace("−", "-").replace("×", "*").replace("÷", "/"))
    total = 0.0
    position = 0
    for term in re.finditer(r"([+-]?)(\d+(?:\.\d+)?%?(?:[*/]\d+(?:\.\d+)?%?)*)", text):
        if term.start() != position or (position and not term[1]):
            return None
        position = term.end()
        product = 1.0
        for sign, digits, percent in re.findall(r"([*/]?)(\d+(?:\.\d+)?)(%?)", term[2]):
            factor = float(digits) / (100 if percent else 1)
            if sign == "/" and not factor:
                return None
            product = product / factor if sign == "/" else product * factor
        total += -product if term[1] == "-" else product
    return total if position == len(text) and position else None
