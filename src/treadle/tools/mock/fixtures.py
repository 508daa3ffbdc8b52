"""Fixed answers of mocked tools: choosing one for a call, and filling in its placeholders.

Criteria and answers are JSON values and are compared as such: `1` equals `1.0`, but neither `true` nor `"1"`.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.core.types import Json

_PLACE = re.compile(r"\{\{\s*([\w$.\-]+)\s*\}\}")
_OPERATORS = ("$any", "$regex", "$equals")
_ERROR = "$error"


class Fixture(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A fixed answer. Without `match` and `when` it answers every call that no other fixture answers."""

    match: dict[str, Json] = {}
    """Arguments, or paths such as `user.name`, and the values that they must have. At any depth, `{"$regex":
    "..."}` matches a text in which the pattern is found, `{"$any": true}` any value, `{"$any": false}` a missing
    argument, and `{"$equals": ...}` a literal value, even if it looks like one of these."""
    when: dict[str, Json] = {}
    """Like `match`, for the values that earlier calls of this run have set."""
    result: Json = msgspec.UNSET
    results: tuple[Json, ...] = ()
    """The results of successive calls. The last one repeats. `{"$error": "..."}` is a failure."""
    error: str | None = None
    set: dict[str, Json] = {}
    """The values that are set for later calls of the run when this fixture has answered."""


FixtureLike: TypeAlias = "Fixture | Mapping[str, Json]"


class Rule:
    """A fixture that is ready for use."""

    __slots__ = ("fixture", "is_counting", "key", "weight")

    def __init__(self, fixture: Fixture) -> None:
        self.fixture = fixture
        self.weight = len(fixture.match) + len(fixture.when)
        criteria = msgspec.json.encode([fixture.match, fixture.when], order="sorted")
        self.key = hashlib.sha256(criteria).hexdigest()[:16]
        """An id of the criteria. If several fixtures have the same id, only one of them can ever answer."""
        self.is_counting = b"call_count" in msgspec.json.encode(fixture)
        """True if an answer contains the number of calls."""

    def answers(self) -> Iterator[Json]:
        """Yield every result that is not an error, with its placeholders."""
        if self.fixture.result is not msgspec.UNSET:
            yield self.fixture.result
        for item in self.fixture.results:
            if _error_of(item) is None:
                yield item

    def answer(self, used: int) -> tuple[Json, bool]:
        """Return the answer to the call after `used` calls, with its placeholders, and whether it is an error."""
        fixture = self.fixture
        if fixture.error is not None:
            return fixture.error, True
        if not fixture.results:
            return fixture.result, False
        item = fixture.results[min(used, len(fixture.results) - 1)]
        error = _error_of(item)
        return (item, False) if error is None else (error, True)

    def is_fit(self, arguments: Mapping[str, Json], state: Mapping[str, Json]) -> bool:
        """Return whether all criteria are met."""
        return _fits(self.fixture.match, arguments) and _fits(self.fixture.when, state)


def read_fixtures(
    name: str, given: Iterable[FixtureLike], parameters: Mapping[str, Json]
) -> tuple[Fixture, ...]:
    """Return the fixtures of the tool `name`, in order. Raises: `ConfigError` for one that cannot be used."""
    fixtures = []
    for number, item in enumerate(given, 1):
        label = f"fixture {number} of {name!r}"
        try:
            fixture = item if isinstance(item, Fixture) else msgspec.convert(_rename(item), Fixture)
            msgspec.json.encode(fixture)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{label}: {error}") from error
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"{label} contains a value that is not JSON: {error}") from error
        _check(fixture, label, parameters)
        fixtures.append(fixture)
    return tuple(fixtures)


def rank_fixtures(fixtures: Sequence[Fixture]) -> list[Rule]:
    """Return rules by priority: most criteria first; of rules with the same number, the later one first."""
    rules = [Rule(fixture) for fixture in reversed(fixtures)]
    rules.sort(key=lambda rule: rule.weight, reverse=True)
    return rules


def fill(template: Json, known: Mapping[str, Json]) -> Json:
    """Return `template` with its placeholders filled in.

    If a text consists of one placeholder, it becomes the value with its type. A value that is known to be missing
    becomes null. A placeholder with an unknown name is not changed.
    """
    if isinstance(template, dict):
        return {key: fill(value, known) for key, value in template.items()}
    if isinstance(template, list | tuple):
        return [fill(value, known) for value in template]
    if not isinstance(template, str):
        return template
    whole = _PLACE.fullmatch(template)
    if whole:
        return _fill_place(whole, known)

    def write(place: re.Match[str]) -> str:
        value = _fill_place(place, known)
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    return _PLACE.sub(write, template)


def has_places(template: Json) -> bool:
    """Return whether `template` contains placeholders."""
    if isinstance(template, dict):
        return any(has_places(value) for value in template.values())
    if isinstance(template, list | tuple):
        return any(has_places(value) for value in template)
    return isinstance(template, str) and _PLACE.search(template) is not None


def _fill_place(place: re.Match[str], known: Mapping[str, Json]) -> Json:
    path = place[1]
    value = _find(path, known)
    if value is not msgspec.UNSET:
        return value
    return None if path in known or path.partition(".")[0] in known else place[0]


def _find(path: str, values: Json) -> Json:
    """Return the value at `path`, or `UNSET`. A key that contains dots takes precedence over a path."""
    if isinstance(values, Mapping) and path in values:
        return values[path]
    for end in range(len(path) - 1, 0, -1):
        if path[end] != ".":
            continue
        head, rest = path[:end], path[end + 1 :]
        if isinstance(values, Mapping) and head in values:
            return _find(rest, values[head])
        if isinstance(values, list) and head.isdecimal() and int(head) < len(values):
            return _find(rest, values[int(head)])
    if isinstance(values, list) and path.isdecimal() and int(path) < len(values):
        return values[int(path)]
    return msgspec.UNSET


def _fits(criteria: Mapping[str, Json], values: Mapping[str, Json]) -> bool:
    return all(_is_equal(wanted, _find(path, values)) for path, wanted in criteria.items())


def _is_equal(wanted: Json, value: Json, *, is_literal: bool = False) -> bool:
    """Return whether a value meets a criterion. A literal criterion has no operators."""
    if isinstance(wanted, dict):
        operator = next(iter(wanted)) if len(wanted) == 1 and not is_literal else None
        if operator == "$any":
            return (value is not msgspec.UNSET) is wanted["$any"]
        if operator == "$regex":
            return isinstance(value, str) and re.search(wanted["$regex"], value) is not None
        if operator == "$equals":
            return _is_equal(wanted["$equals"], value, is_literal=True)
        return (
            isinstance(value, dict)
            and wanted.keys() == value.keys()
            and all(_is_equal(item, value[key], is_literal=is_literal) for key, item in wanted.items())
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(value, list | tuple)
            and len(wanted) == len(value)
            and all(_is_equal(*pair, is_literal=is_literal) for pair in zip(wanted, value, strict=True))
        )
    # In Python, True equals 1.
    if isinstance(wanted, bool) or isinstance(value, bool):
        return wanted is value
    return bool(wanted == value)


def _error_of(item: Json) -> str | None:
    is_error = isinstance(item, dict) and len(item) == 1 and isinstance(item.get(_ERROR), str)
    return item[_ERROR] if is_error else None


def _rename(item: Json) -> Json:
    """Rename the field `response` of DeepFabric's mock component to `result`."""
    if not isinstance(item, Mapping) or "response" not in item or "result" in item:
        return item
    return {"result" if key == "response" else key: value for key, value in item.items()}


def _check(fixture: Fixture, label: str, parameters: Mapping[str, Json]) -> None:
    says = (fixture.result is not msgspec.UNSET, bool(fixture.results), fixture.error is not None)
    if sum(says) != 1:
        what = "more than one of" if any(says) else "none of"
        raise ConfigError(f"{label} has {what} 'result', 'results' and 'error'; it needs exactly one")
    properties = parameters.get("properties", {})
    for path in fixture.match:
        name = path.partition(".")[0]
        if properties and path not in properties and name not in properties:
            hint = did_you_mean(name, properties, cutoff=0.6)
            if hint or parameters.get("additionalProperties") is False:
                hint = hint or f"; the parameters are {', '.join(properties)}"
                raise ConfigError(f"{label} matches {name!r}, which is not a parameter of the tool{hint}")
    _check_criteria([*fixture.match.values(), *fixture.when.values()], label)


def _check_criteria(wanted: Json, label: str) -> None:
    """Check the operators of a criterion. Raises: `ConfigError` for an unknown operator or a wrong operand."""
    if isinstance(wanted, list | tuple):
        for item in wanted:
            _check_criteria(item, label)
    if not isinstance(wanted, dict):
        return
    operator = next(iter(wanted)) if len(wanted) == 1 else ""
    value: Json = wanted.get(operator)
    if operator == "$equals":
        return
    if operator == "$any" and not isinstance(value, bool):
        raise ConfigError(f"{label}: '$any' is {value!r}; it must be true or false")
    if operator == "$regex":
        try:
            re.compile(value)
        except (re.error, TypeError) as error:
            raise ConfigError(f"{label}: {value!r} is not a regular expression ({error})") from error
    if operator.startswith("$") and operator not in _OPERATORS:
        hint = did_you_mean(operator, _OPERATORS, cutoff=0.7)
        if hint:
            raise ConfigError(f"{label} has {operator!r}{hint}")
    _check_criteria(list(wanted.values()), label)
