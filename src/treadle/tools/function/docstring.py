"""The parts of a docstring that a model is shown: the first paragraph and the parameters' descriptions.

Google, NumPy and Sphinx styles are understood, also mixed. Everything else is left out.
"""

import inspect
import re
from typing import NamedTuple

_GOOGLE_SECTION = re.compile(r"(\w[\w ]*):\s*$")
_GOOGLE_ENTRY = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\)\s*)?:\s*(.*)$")
_NUMPY_ENTRY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_SPHINX_FIELD = re.compile(r":(\w+)(?:\s+([^:]*))?:\s*(.*)$")
_PARAMETER_SECTIONS = {"args", "arguments", "parameters", "params", "keyword args", "keyword arguments"}
_SECTIONS = _PARAMETER_SECTIONS | {"returns", "yields", "raises", "example", "examples", "note", "notes"}
_SPHINX_PARAMETERS = {"param", "parameter", "arg", "argument", "key", "keyword"}


class Docstring(NamedTuple):
    """The parts of a docstring that a model is shown, each on one line."""

    summary: str
    parameters: dict[str, str]


def parse_docstring(text: str | None) -> Docstring:
    """Return the parts of a docstring; missing ones are empty. The first description of a parameter counts."""
    lines = inspect.cleandoc(text or "").split("\n")
    summary = []
    for index, line in enumerate(lines):
        google = _GOOGLE_SECTION.match(line)
        is_section = google is not None and google[1].lower() in _SECTIONS
        if not line.strip() or is_section or _is_underlined(lines, index) or _SPHINX_FIELD.match(line):
            break
        summary.append(line.strip())
    parameters: dict[str, str] = {}
    for index in range(len(lines)):
        for name, description in _entries_at(lines, index):
            if description:
                parameters.setdefault(name.lstrip("*"), description)
    return Docstring(" ".join(summary), parameters)


def _is_underlined(lines: list[str], index: int) -> bool:
    below = lines[index + 1].strip() if index + 1 < len(lines) else ""
    return len(below) >= 3 and set(below) == {"-"} and bool(lines[index].strip())


def _entries_at(lines: list[str], index: int) -> list[tuple[str, str]]:
    """Return the parameters that the line at `index` describes, or the section that it begins."""
    line = lines[index].strip()
    field = _SPHINX_FIELD.match(line)
    if field:
        words = (field[2] or "").split()
        if field[1] not in _SPHINX_PARAMETERS or not words:
            return []
        return [(words[-1], _join(field[3], _block(lines, index)))]
    title = line.rstrip(":").lower()
    if title not in _PARAMETER_SECTIONS:
        return []
    if _is_underlined(lines, index):
        return _numpy_entries(lines, index + 2)
    return _google_entries(lines, index) if line.endswith(":") else []


def _google_entries(lines: list[str], header: int) -> list[tuple[str, str]]:
    section = [line for line in _block(lines, header, over_blanks=True) if line.strip()]
    entries = []
    for index, line in enumerate(section):
        entry = _GOOGLE_ENTRY.match(line.strip())
        if entry and _indent(line) == _indent(section[0]):
            entries.append((entry[1], _join(entry[2], _block(section, index))))
    return entries


def _numpy_entries(lines: list[str], start: int) -> list[tuple[str, str]]:
    entries: list[tuple[str, str]] = []
    for index in range(start, len(lines)):
        if _is_underlined(lines, index):
            break
        entry = _NUMPY_ENTRY.match(lines[index])
        if entry:
            description = _join("", _block(lines, index))
            entries += [(name.strip(), description) for name in entry[1].split(",")]
    return entries


def _block(lines: list[str], index: int, *, over_blanks: bool = False) -> list[str]:
    """Return the lines after the one at `index` that are indented deeper."""
    block = []
    for line in lines[index + 1 :]:
        if line.strip() and _indent(line) <= _indent(lines[index]):
            break
        if not line.strip() and not over_blanks:
            break
        block.append(line)
    return block


def _join(first: str, rest: list[str]) -> str:
    return " ".join(part.strip() for part in [first, *rest] if part.strip())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
