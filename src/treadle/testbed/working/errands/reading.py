"""Errands that read one file."""

import json
import re
from collections.abc import Callable, Mapping, Sequence

from treadle.tasks.draws import Draw
from treadle.testbed.working.errands.errand import (
    Errand,
    Shelf,
    Work,
    count_of,
    one_line,
    pick_path,
    prompts,
    words_in,
)
from treadle.testbed.working.kit import Kit

_KINDS = ("single", "recovery", "missing_parameter")
_Answer = Callable[[Mapping[str, str], str, str], str]
"""A function of the values, the path and the text that returns the answer."""


def _reading(answer: _Answer) -> Callable[[Mapping[str, str], Kit], Work]:
    def work(values: Mapping[str, str], kit: Kit) -> Work:
        path, text = yield from kit.find_text(values["path"])
        if path is None:
            return text
        note = "" if path == values["path"] else f"There is no {values['path']}, so I took {path}. "
        return note + answer(values, path, text)

    return work


def _errand(
    name: str,
    wordings: Sequence[str],
    answer: _Answer,
    *,
    gapped: Sequence[str] = (),
    draw: Callable[[Shelf, Draw], dict[str, str] | None] | None = None,
    endings: tuple[str, ...] = (),
    is_short: bool = False,
) -> Errand:
    return Errand(
        name=name,
        kinds=_KINDS if gapped else _KINDS[:2],
        needs=("read",),
        prompts=prompts(*wordings),
        gapped=prompts(*gapped),
        draw=draw or (lambda shelf, draw: pick_path(shelf.paths(*endings, is_short=is_short), draw)),
        work=_reading(answer),
    )


def _lines(text: str) -> list[str]:
    return text.splitlines()


def _first(values: Mapping[str, str], path: str, text: str) -> str:
    lines = _lines(text)
    return f"The first line of {path} is: {one_line(lines[0])}" if lines else f"{path} is empty."


def _last(values: Mapping[str, str], path: str, text: str) -> str:
    lines = [line for line in _lines(text) if line.strip()]
    return f"The last line of {path} is: {one_line(lines[-1])}" if lines else f"{path} is empty."


def _longest(values: Mapping[str, str], path: str, text: str) -> str:
    lines = _lines(text)
    return f"The longest line of {path} is: {one_line(max(lines, key=len))}" if lines else f"{path} is empty."


def _nth(values: Mapping[str, str], path: str, text: str) -> str:
    lines, number = _lines(text), int(values["number"])
    if number > len(lines):
        return f"{path} has only {count_of(len(lines), 'line')}, so there is no line {number}."
    return f"Line {number} of {path} is: {one_line(lines[number - 1])}"


def _draw_line(shelf: Shelf, draw: Draw) -> dict[str, str] | None:
    paths = [path for path in shelf.paths() if shelf.heads[path].count("\n") >= 3]
    if not paths:
        return None
    path = draw.pick(paths)
    return {"path": path, "number": str(draw.between(2, shelf.heads[path].count("\n") - 1))}


def _containing(values: Mapping[str, str], path: str, text: str) -> str:
    count = sum([values["word"] in line for line in _lines(text)])
    return f'"{values["word"]}" occurs in {count_of(count, "line")} of {path}.'


def _draw_word(shelf: Shelf, draw: Draw) -> dict[str, str] | None:
    paths = [path for path in shelf.paths(is_short=True) if words_in(shelf.heads[path])]
    if not paths:
        return None
    path = draw.pick(paths)
    return {"path": path, "word": draw.pick(words_in(shelf.heads[path]))}


def _columns(values: Mapping[str, str], path: str, text: str) -> str:
    columns = _header(text)
    return f"{path} has {count_of(len(columns), 'column')}: {', '.join(columns)}."


def _header(text: str) -> list[str]:
    first = text.partition("\n")[0]
    return [name.strip().strip('"') for name in first.split(";" if ";" in first else ",")]


def _rows(values: Mapping[str, str], path: str, text: str) -> str:
    rows = [line for line in _lines(text)[1:] if line.strip()]
    return f"Without the header, {path} has {count_of(len(rows), 'row')}."


def _keys(values: Mapping[str, str], path: str, text: str) -> str:
    value = json.loads(text)
    if not isinstance(value, dict):
        return f"{path} has no keys: it is a list with {count_of(len(value), 'entry')}."
    return f"The keys at the top level of {path} are: {', '.join(value)}."


def _setting(values: Mapping[str, str], path: str, text: str) -> str:
    value = json.loads(text).get(values["key"])
    shown = value if isinstance(value, str) else json.dumps(value)
    return f"In {path}, {values['key']} is {one_line(shown)}."


_SETTING = re.compile(r'^\s{0,4}"([\w -]+)":\s*("[^"\n]*"|[\d.]+|true|false),?$', re.MULTILINE)


def _draw_setting(shelf: Shelf, draw: Draw) -> dict[str, str] | None:
    found = []
    for path in shelf.paths(".json"):
        head = shelf.heads[path].lstrip()
        if head.startswith("{"):
            # Only the keys before the first nested value are certainly at the top level.
            flat = re.split(r"[\[{]", head[1:])[0]
            found += [{"path": path, "key": key} for key, _ in _SETTING.findall(flat)]
    return draw.pick(found) if found else None


READING: tuple[Errand, ...] = (
    _errand(
        "count_lines",
        (
            "How many lines does {path} have?",
            "Please count the lines of {path} for me.",
            "Open {path} and tell me how many lines there are in it.",
            "I would like to know the number of lines in {path}.",
            "What is the length of {path}, counted in lines?",
        ),
        lambda values, path, text: f"{path} has {count_of(len(_lines(text)), 'line')}.",
        gapped=(
            "How many lines does that file have?",
            "Please count the lines of the file for me.",
            "I would like to know the number of lines in the file we talked about.",
        ),
        is_short=True,
    ),
    _errand(
        "first_line",
        (
            "What does the first line of {path} say?",
            "Quote the first line of {path} for me.",
            "How does {path} begin? The first line is enough.",
            "Read me the opening line of {path}.",
        ),
        _first,
        gapped=("What does the first line say?", "Quote the first line of the document for me."),
    ),
    _errand(
        "last_line",
        (
            "What does the last line of {path} say?",
            "How does {path} end? Its last line is enough.",
            "Quote the final line of {path}.",
            "Tell me the last entry of {path}, the bottom line of the file.",
        ),
        _last,
        gapped=("What does the last line say?", "Quote the final line of the document."),
    ),
    _errand(
        "longest_line",
        (
            "Which line of {path} is the longest?",
            "Find the longest line in {path} and quote it.",
            "Some line in {path} is too long for our printer. Which one is the longest?",
        ),
        _longest,
        gapped=("Which line is the longest in it?", "Find the longest line in my file and quote it."),
    ),
    _errand(
        "nth_line",
        (
            "What is in line {number} of {path}?",
            "Show me line {number} of {path}.",
            "Somebody pointed me to line {number} of {path}. What does it say?",
        ),
        _nth,
        draw=_draw_line,
        gapped=("What is in line {number} of it?", "Show me line {number} of the file, please."),
    ),
    _errand(
        "lines_with_word",
        (
            'How many lines of {path} contain the word "{word}"?',
            'Look into {path} and count the lines in which "{word}" occurs.',
            'In how many lines does {path} mention "{word}"? Mind upper and lower case.',
            'Search {path} for "{word}" and tell me in how many lines you find it.',
        ),
        _containing,
        draw=_draw_word,
        gapped=('How many lines of my file contain the word "{word}"?',),
    ),
    _errand(
        "columns",
        (
            "Which columns does {path} have?",
            "List the column names of {path}.",
            "What are the headings of the table in {path}?",
        ),
        _columns,
        endings=(".csv",),
        gapped=("Which columns does the table have?", "List the column names of my export."),
    ),
    _errand(
        "rows",
        (
            "How many rows does {path} have, not counting the header?",
            "Count the data rows in {path}; the header is not one of them.",
            "How many records does the table in {path} hold below its header?",
        ),
        _rows,
        endings=(".csv",),
        is_short=True,
        gapped=("How many rows does the table have, not counting the header?",),
    ),
    _errand(
        "keys",
        (
            "Which keys are at the top level of {path}?",
            "Name the top-level keys of {path}.",
            "What does {path} contain at its top level? The keys are enough.",
        ),
        _keys,
        endings=(".json",),
        gapped=("Which keys are at the top level of the JSON file?",),
    ),
    _errand(
        "setting",
        (
            "What is the value of {key} in {path}?",
            "Look up {key} in {path} for me.",
            "I have to quote {key} as {path} has it. What is it?",
        ),
        _setting,
        draw=_draw_setting,
    ),
)
