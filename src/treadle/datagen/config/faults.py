"""Texts for the mistakes that pydantic finds in a configuration."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from treadle.core.registry import did_you_mean
from treadle.core.types import Json
from treadle.datagen.config.document import KeyPath, Problem
from treadle.datagen.config.schema import known_keys, sections_with

_FORMS = {
    ("models", "*"): "'provider:name', a name of treadle.toml, or a mapping with 'model' and settings",
    ("generation", "num_samples"): "a number from 1, 'auto', or a percentage such as '50%'",
    ("tools", "use", "*"): "the name of a toolset, or a mapping with 'name' and 'settings'",
    ("tools", "files"): "a folder, a mapping of path to content, or 'tasks:SET'",
    ("quality", "filters", "*"): "true, false, or a mapping with settings",
}
"""The forms of each value that can have several."""
_SECRETS = ("api_key", "key", "token", "secret", "password")
_NAME = re.compile(r"'([^']*)'")


def explain_faults(error: ValidationError, value: Json) -> list[Problem]:
    """Return a problem for each mistake in `value`."""
    problems: dict[KeyPath, Problem] = {}
    forms: dict[KeyPath, list[Any]] = {}
    for fault in error.errors(include_url=False):
        path, has_forms = _path_in(value, fault["loc"])
        if has_forms:
            forms.setdefault(_with_forms(path), []).append((path, fault))
        else:
            problems.setdefault(path, Problem(path, _explain(path, fault)))
    for root, faults in forms.items():
        # If the value is a mapping, only the mistakes within it are reported, and not those of the other forms.
        inner = [(path, fault) for path, fault in faults if len(path) > len(root)]
        for path, fault in inner:
            problems.setdefault(path, Problem(path, _explain(path, fault)))
        if not inner:
            given = _value_at(value, root)
            problems[root] = Problem(root, f"{given!r:.60} is not possible; give {_form_of(root)}")
    return list(problems.values())


def _path_in(value: Any, location: Sequence[str | int]) -> tuple[KeyPath, bool]:
    """Return the path of the fault in the file, and whether the value at this path can have several forms.

    If it can, `location` also contains the name of a form.
    """
    path: list[str | int] = []
    has_forms = False
    for position, part in enumerate(location):
        is_last = position == len(location) - 1
        is_key = isinstance(value, dict) and part in value
        if is_key or (isinstance(value, list) and isinstance(part, int)):
            value = value[part]
        elif part == "[key]":
            continue
        elif not isinstance(value, dict) or not is_last or part not in known_keys(tuple(path)):
            has_forms = True
            continue
        path.append(part)
    return tuple(path), has_forms


def _with_forms(path: KeyPath) -> KeyPath:
    """Return the part of `path` whose value has several forms."""
    for pattern in _FORMS:
        pairs = zip(pattern, path, strict=False)
        if len(pattern) <= len(path) and all(name in ("*", part) for name, part in pairs):
            return path[: len(pattern)]
    return path


def _form_of(path: KeyPath) -> str:
    """Return the forms that the value at `path` can have."""
    for pattern, text in _FORMS.items():
        if len(pattern) == len(path) and all(
            name in ("*", part) for name, part in zip(pattern, path, strict=True)
        ):
            return text
    return "another value"


def _value_at(value: Any, path: KeyPath) -> Any:
    for part in path:
        value = value[part]
    return value


def _explain(path: KeyPath, fault: Any) -> str:
    kind, key = fault["type"], str(path[-1]) if path else ""
    if kind == "extra_forbidden":
        return explain_unknown(path)
    if kind == "missing":
        return "it is missing, and it is required"
    if kind in ("enum", "literal_error"):
        names = _NAME.findall(fault["ctx"]["expected"])
        given = key if fault["loc"][-1] == "[key]" else fault["input"]
        return (
            f"{given!r:.60} is unknown{did_you_mean(str(given), names) or ';'} known are {', '.join(names)}"
        )
    message = fault["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{fault['input']!r:.60} is not possible; it should be {message}"


def explain_unknown(path: KeyPath) -> str:
    """Return the text for a key that does not exist."""
    section, key = path[:-1], str(path[-1])
    if key.lower() in _SECRETS:
        return "keys do not belong in a file; name the environment variable that holds the key with 'api_key_env'"
    known = known_keys(section)
    elsewhere = [name for name in sections_with(key) if name != ".".join(map(str, section))]
    hint = did_you_mean(key, known, cutoff=0.7)
    if not hint and elsewhere:
        hint = f"; there is such a key in {' and in '.join(map(repr, elsewhere))}"
    hint = hint or did_you_mean(key, known)
    return f"there is no such key{hint or f'; known are {chr(44).join(known)}'.replace(',', ', ')}"
