"""Whether a call is the expected one, by value: what is written differently and means the same is equal.

Pure functions. A tool's JSON Schema says what a value means: 1, 1.0 and "1" are the same number where it says
number, two ways to write a date are the same date where it says `date`, the order of a list does not matter
where it says `uniqueItems`, and an argument that is left out is its default.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, TypeVar

from msgspec import Struct

from treadle.core.types import Json

_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")
_DATES = ("%B %d, %Y", "%d %B %Y", "%b %d, %Y", "%d %b %Y", "%Y/%m/%d", "%d.%m.%Y")
"""The forms of dates beside those of ISO 8601, without those that are read differently in different countries."""
_PRECISION = 1e-9
_MARKS = str.maketrans({**dict.fromkeys(" ,./-_*^"), "'": '"'})
T = TypeVar("T")
U = TypeVar("U")


class ExpectedCall(Struct, frozen=True, omit_defaults=True):
    """A call that a model should make."""

    name: str
    arguments: dict[str, Json] = {}
    accepted: dict[str, list[Json]] = {}
    """Further values of an argument that are right too, by its name."""
    optional: list[str] = []
    """The arguments that may be left out."""


class MatchRules(Struct, frozen=True, kw_only=True):
    """What else counts as equal."""

    ignores_case: bool = False
    """True if texts may differ in upper and lower case."""
    ignores_order: bool = False
    """True if lists may have another order."""
    ignores_marks: bool = False
    """True if texts may differ in spaces, in the marks ,./-_*^ and in the kind of quotation marks."""
    is_literal: bool = False
    """True if a value of another type is another value, and null or the default is not the same as no argument. An
    integer is still a number."""


def find_call_fault(
    expected: ExpectedCall,
    name: str,
    arguments: Json,
    schema: Mapping[str, Any] | None = None,
    rules: MatchRules = MatchRules(),
) -> str | None:
    """Return how a call differs from the expected one; `None` if it is the same. `schema` is that of the tool's
    parameters, if it is known."""
    if name != expected.name:
        return f"{name!r} was called in place of {expected.name!r}"
    if not isinstance(arguments, dict):
        return f"the arguments of {name!r} are not an object"
    for key, right in _find_wrong(expected, arguments, schema or {}, rules):
        if key not in arguments:
            return f"the argument {key!r} of {name!r} is missing"
        if key not in expected.arguments:
            return f"{name!r} has the argument {key!r}, which is {arguments[key]!r:.80}"
        return f"the argument {key!r} of {name!r} is {arguments[key]!r:.80} in place of {right!r:.80}"
    return None


def _find_wrong(
    expected: ExpectedCall, made: dict[str, Json], schema: Mapping[str, Any], rules: MatchRules
) -> list[tuple[str, Json]]:
    properties, required = schema.get("properties", {}), schema.get("required", ())
    wrong = []
    for key in [*expected.arguments, *[key for key in made if key not in expected.arguments]]:
        inner = properties.get(key, {})
        values = [expected.arguments[key]] if key in expected.arguments else []
        values += expected.accepted.get(key, [])
        is_open = not values or key in expected.optional
        if key in made:
            is_right = any(is_same_value(value, made[key], inner, rules) for value in values)
            if not is_right and is_open and key not in required and not rules.is_literal:
                is_right = _is_nothing(made[key], inner, is_known=key in properties or not properties)
        else:
            is_right = is_open or (
                not rules.is_literal and any(_is_nothing(value, inner) for value in values)
            )
        if not is_right:
            wrong.append((key, values[0] if values else None))
    return wrong


def _is_nothing(value: Json, schema: Mapping[str, Any], *, is_known: bool = True) -> bool:
    """Return whether a value means the same as none: the default, null, or an empty list, object or text."""
    if "default" in schema:
        return value is None or is_same_value(schema["default"], value, schema)
    return is_known and (
        value is None or (value in ("", [], {}) and not isinstance(value, bool | int | float))
    )


def is_same_value(
    right: Json, made: Json, schema: Mapping[str, Any] | None = None, rules: MatchRules = MatchRules()
) -> bool:
    """Return whether two values mean the same in a place with this JSON Schema."""
    schema = schema or {}
    types = _types_of(schema)
    if rules.is_literal:
        if isinstance(made, float) and "integer" in types and "number" not in types:
            return False
    else:
        right, made = _typed(right, types), _typed(made, types)
    if isinstance(right, bool) or isinstance(made, bool) or right is None or made is None:
        return right is made
    if isinstance(right, int | float) and isinstance(made, int | float):
        return right == made or (not rules.is_literal and math.isclose(right, made, rel_tol=_PRECISION))
    if isinstance(right, str) and isinstance(made, str):
        return _is_same_text(right, made, schema, rules)
    if isinstance(right, list) and isinstance(made, list):
        return _is_same_list(right, made, schema, rules)
    if isinstance(right, dict) and isinstance(made, dict):
        return not _find_wrong(ExpectedCall("", right), made, schema, rules)
    return False


def _types_of(schema: Mapping[str, Any]) -> set[str]:
    found = schema.get("type", ())
    types = {found} if isinstance(found, str) else set(found)
    for word in ("anyOf", "oneOf"):
        for item in schema.get(word, ()):
            types |= _types_of(item)
    return types


def _typed(value: Json, types: set[str]) -> Json:
    """Return a value in the type that its schema says, if it is plainly the same value."""
    if isinstance(value, str):
        text = value.strip()
        if types & {"number", "integer"} and _NUMBER.fullmatch(text):
            return float(text) if any(mark in text for mark in ".eE") else int(text)
        if "boolean" in types and text in ("true", "false", "True", "False"):
            return text.casefold() == "true"
    elif types == {"string"} and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value


def _is_same_text(right: str, made: str, schema: Mapping[str, Any], rules: MatchRules) -> bool:
    one, other = _plain(right), _plain(made)
    if rules.ignores_marks:
        one, other = one.translate(_MARKS), other.translate(_MARKS)
    if one == other or (rules.ignores_case and one.casefold() == other.casefold()):
        return True
    if schema.get("format") not in ("date", "date-time"):
        return False
    moments = _read_moment(one), _read_moment(other)
    return moments[0] is not None and moments[0] == moments[1]


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def _read_moment(text: str) -> datetime | None:
    """Return the moment that a text names; `None` if it is no date. A date is the midnight at its beginning."""
    try:
        found = datetime.fromisoformat(text)
        return found if found.tzinfo is None else found.astimezone(UTC)
    except ValueError:
        pass
    for form in _DATES:
        try:
            day: date = datetime.strptime(text, form)
        except ValueError:
            continue
        return datetime(day.year, day.month, day.day)
    return None


def _is_same_list(right: list[Json], made: list[Json], schema: Mapping[str, Any], rules: MatchRules) -> bool:
    if len(right) != len(made):
        return False
    inner = schema.get("items", {})
    inner = inner if isinstance(inner, dict) else {}

    def is_same(one: Json, other: Json) -> bool:
        return is_same_value(one, other, inner, rules)

    if schema.get("uniqueItems") or rules.ignores_order:
        return len(pair_up(right, made, is_same)) == len(right)
    return all(map(is_same, right, made))


def pair_up(right: Sequence[T], made: Sequence[U], is_same: Callable[[T, U], bool]) -> dict[int, int]:
    """Return the largest set of pairs that are the same: positions in `right` to positions in `made`."""
    fits = [[place for place, item in enumerate(made) if is_same(wanted, item)] for wanted in right]
    taken: dict[int, int] = {}

    def place(wanted: int, seen: set[int]) -> bool:
        for at in fits[wanted]:
            if at not in seen:
                seen.add(at)
                if at not in taken or place(taken[at], seen):
                    taken[at] = wanted
                    return True
        return False

    for wanted in range(len(right)):
        place(wanted, set())
    return {wanted: at for at, wanted in taken.items()}


def count_in_order(right: Sequence[T], made: Sequence[U], is_same: Callable[[T, U], bool]) -> int:
    """Return how many of `right` come in `made` in the same order, with anything between them."""
    before = [0] * (len(made) + 1)
    for wanted in right:
        row = [0]
        for at, item in enumerate(made):
            row.append(before[at] + 1 if is_same(wanted, item) else max(row[at], before[at + 1]))
        before = row
    return before[-1]
