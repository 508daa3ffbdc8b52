"""Fixed answers of mocked tools: choosing one for a call, and filling in its placeholders.

Criteria and answers are JSON values and are compared as such: `1` equals `1.0`, but neither `true` nor `"1"`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.core.types import Json

_PLACE = re.compile(r"\{\{\s*([\w$.\-]+)\s*\}\}")


class Fixture(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A fixed answer. Without `match` and `when` it answers every call that no other fixture answers."""

    match: dict[str, Json] = {}
    """Arguments, or paths such as `user.name`, and the values that they must have."""
    when: dict[str, Json] = {}
    """Like `match`, for the values that earlier calls of this run have set."""
    result: Json = msgspec.UNSET
    error: str | None = None
    set: dict[str, Json] = {}
    """The values that are set for later calls of the run when this fixture has answered."""


FixtureLike: TypeAlias = "Fixture | Mapping[str, Json]"


def is_fit(fixture: Fixture, arguments: Mapping[str, Json], state: Mapping[str, Json]) -> bool:
    """Return whether all criteria of a fixture are met."""
    criteria = ((fixture.match, arguments), (fixture.when, state))
    return all(
        _is_equal(wanted, _find(path, values)) for given, values in criteria for path, wanted in given.items()
    )


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


def rank_fixtures(fixtures: Sequence[Fixture]) -> list[Fixture]:
    """Return fixtures by priority: most criteria first; of those with the same number, the later one first."""
    ranked = list(reversed(fixtures))
    ranked.sort(key=lambda fixture: len(fixture.match) + len(fixture.when), reverse=True)
    return ranked


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


def _is_equal(wanted: Json, value: Json) -> bool:
    """Return whether a value meets a criterion."""
    if isinstance(wanted, dict):
        return (
            isinstance(value, dict)
            and wanted.keys() == value.keys()
            and all(_is_equal(item, value[key]) for key, item in wanted.items())
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(value, list | tuple)
            and len(wanted) == len(value)
            and all(_is_equal(*pair) for pair in zip(wanted, value, strict=True))
        )
    # In Python, True equals 1.
    if isinstance(wanted, bool) or isinstance(value, bool):
        return wanted is value
    return bool(wanted == value)


def _rename(item: Json) -> Json:
    """Rename the field `response` of DeepFabric's mock component to `result`."""
    if not isinstance(item, Mapping) or "response" not in item or "result" in item:
        return item
    return {"result" if key == "response" else key: value for key, value in item.items()}


def _check(fixture: Fixture, label: str, parameters: Mapping[str, Json]) -> None:
    if (fixture.result is msgspec.UNSET) is (fixture.error is None):
        what = "neither" if fixture.error is None else "both"
        raise ConfigError(f"{label} has {what} 'result' and 'error'; it needs exactly one of them")
    properties = parameters.get("properties", {})
    for path in fixture.match:
        name = path.partition(".")[0]
        if properties and path not in properties and name not in properties:
            hint = did_you_mean(name, properties, cutoff=0.6)
            if hint or parameters.get("additionalProperties") is False:
                hint = hint or f"; the parameters are {', '.join(properties)}"
                raise ConfigError(f"{label} matches {name!r}, which is not a parameter of the tool{hint}")
