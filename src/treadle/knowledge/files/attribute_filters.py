"""Attributes of the files in vector stores, and conditions on them.

Source: OpenAI API reference, Retrieval, 2026.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from treadle.core.errors import ConfigError
from treadle.core.types import Json

AttributeValue: TypeAlias = str | float | bool
Attributes: TypeAlias = Mapping[str, AttributeValue]
Condition: TypeAlias = Callable[[Attributes], bool]
_MAX_ATTRIBUTES = 16
_MAX_KEY_CHARS = 64
_MAX_VALUE_CHARS = 512
_MAX_DEPTH = 20
_MAX_NUMBER = 1e308
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda own, given: bool(own == given),
    "gt": lambda own, given: bool(own > given),
    "gte": lambda own, given: bool(own >= given),
    "lt": lambda own, given: bool(own < given),
    "lte": lambda own, given: bool(own <= given),
}


def check_attributes(given: Json) -> dict[str, AttributeValue]:
    """Return the attributes of a file. Raises: `ConfigError`."""
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > _MAX_ATTRIBUTES:
        raise ConfigError(f"attributes must be an object with at most {_MAX_ATTRIBUTES} keys")
    for key, value in given.items():
        if len(key) > _MAX_KEY_CHARS or not isinstance(value, str | int | float | bool):
            raise ConfigError(
                f"the attribute {key!r:.100} is not a text, a number or a boolean, or its name has more than "
                f"{_MAX_KEY_CHARS} characters"
            )
        if isinstance(value, str) and len(value) > _MAX_VALUE_CHARS:
            raise ConfigError(f"the attribute {key!r} has more than {_MAX_VALUE_CHARS} characters")
        # JSON has no NaN and no infinity, so that such a number could be stored and never be read again.
        if not isinstance(value, str) and not -_MAX_NUMBER <= value <= _MAX_NUMBER:
            raise ConfigError(f"the attribute {key!r} is {value!r:.50}; give a number that JSON has")
    return dict(given)


def read_filter(given: Json, depth: int = 0) -> Condition:
    """Return the condition that a filter describes. Raises: `ConfigError`."""
    if not isinstance(given, dict) or depth > _MAX_DEPTH:
        raise ConfigError(f"a filter is {given!r:.100}; give an object with a type, such as 'eq' or 'and'")
    kind = given.get("type")
    if kind in ("and", "or"):
        parts = given.get("filters")
        if not isinstance(parts, list):
            raise ConfigError(f"the filter {kind!r} needs a list of filters")
        conditions = [read_filter(part, depth + 1) for part in parts]
        join = all if kind == "and" else any
        return lambda own: join([condition(own) for condition in conditions])
    key, value = given.get("key"), given.get("value")
    if not isinstance(key, str):
        raise ConfigError(f"the filter {kind!r:.50} needs a key, the name of an attribute")
    if kind in ("in", "nin"):
        if not isinstance(value, list):
            raise ConfigError(f"the filter {kind!r} needs a list as its value")
        return lambda own: any([_is_true("eq", own.get(key), item) for item in value]) is (kind == "in")
    if not isinstance(value, str | int | float | bool):
        raise ConfigError(f"the value of the filter on {key!r:.100} must be a text, a number or a boolean")
    if kind == "ne":
        return lambda own: not _is_true("eq", own.get(key), value)
    if not isinstance(kind, str) or kind not in _COMPARE:
        raise ConfigError(
            f"a filter has the type {kind!r:.50}; the types are {', '.join(_COMPARE)}, ne, in, nin, and, or"
        )
    return lambda own: _is_true(kind, own.get(key), value)


def _is_true(kind: str, own: object, given: object) -> bool:
    """Return whether a comparison is true. Values of different kinds cannot be compared."""
    return own is not None and _kind_of(own) == _kind_of(given) and _COMPARE[kind](own, given)


def _kind_of(value: object) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__
