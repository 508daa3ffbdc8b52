"""Validation of arguments and results against a JSON Schema, with messages that help a model to correct them."""

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.core.texts.documents import read_data
from treadle.core.texts.json_text import MAX_DEPTH, is_deep
from treadle.core.types import Effect, Json, ToolSpec

MAX_PROBLEMS = 20
_MAX_NAMED_TYPES = 8
_MAX_OUTPUT_PROBLEMS = 5
MAX_PROBLEM_CHARS = 300
_MAX_CHECKS = 20_000
"""How many checks are made of a value. To say what is wrong with one, all are made that its schema asks for."""
_MAX_UNEVALUATED = 2_000
"""How many checks a schema with `unevaluatedProperties` or `unevaluatedItems` may ask for."""
_TOO_MANY = "the schema has too many alternatives within alternatives to check this value"
_TOO_DEEP = "the value is nested too deeply to check it"
_UNEXPLAINED = "a value does not fit the schema, which has too many alternatives to say where"

_TYPE_NAMES = {type(None): "null", bool: "a boolean", str: "a string", list: "an array"}


def own_spec(name: str) -> ToolSpec:
    """Return the spec of a tool of Treadle from `tools/specs.toml`."""
    return msgspec.convert({"name": name, **read_data("treadle.tools", "specs")[name]}, ToolSpec)


LEAST = {
    "timeout_seconds": 1e-9,
    "max_result_chars": 1,
    "max_calls": 1,
    "max_concurrent": 1,
    "max_retries": 0,
}
"""The least value of each number of a `ToolSpec`."""


def check_spec(spec: ToolSpec, label: str) -> None:
    """Check the numbers, the types and the rules of a definition, because a journal with another could not be read.

    Raises: `ConfigError`.
    """
    for key, least in LEAST.items():
        value = getattr(spec, key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if (value is not None or key == "max_retries") and not (is_number and value >= least):
            needed = f"at least {least}" if isinstance(least, int) else "above 0"
            raise ConfigError(f"{label}: {key} is {value!r}; it must be {needed}")
    try:
        msgspec.convert(msgspec.to_builtins(spec), ToolSpec)
    except (msgspec.ValidationError, TypeError) as error:
        raise ConfigError(f"{label}: an option of the tool has a wrong type: {error}") from None
    if is_deep(msgspec.json.encode(spec.parameters)):
        raise ConfigError(f"{label}: the schema is nested more than {MAX_DEPTH} levels deep")
    for rule in spec.may_differ:
        try:
            re.compile(rule)
        except re.error as error:
            raise ConfigError(
                f"{label}: may_differ has {rule!r}, which is not a regular expression ({error}); "
                "use 'timestamps', 'order' or a pattern"
            ) from error


class ArgumentChecker:
    """A validator of arguments against one schema of an object. It is compiled at the first use."""

    __slots__ = ("_schema", "_validator", "is_valid")

    def __init__(self, schema: dict[str, Json]) -> None:
        self._schema = schema
        self._validator: Any = None
        self.is_valid: Callable[[Json], bool] | None = None
        """True if arguments fit the schema; `None` until the schema is compiled."""

    def find_fault(self, arguments: Json) -> str | None:
        """See `Tool.find_fault`. Raises: `ConfigError` if the schema itself is not valid."""
        is_valid = self.is_valid or self._build()
        if type(arguments) is dict:
            return None if is_valid(arguments) else self._describe(arguments)
        kind = _TYPE_NAMES.get(type(arguments), "a number")
        return f"the arguments must be one JSON object, not {kind}\n{self._accepted()}"

    def _build(self) -> Callable[[Json], bool]:
        self._validator = _BoundedValidator(self._schema, "the parameters are")
        self.is_valid = self._validator.is_valid
        return self._validator.is_valid  # type: ignore[no-any-return]

    def _describe(self, arguments: dict[str, Json]) -> str:
        problems = list(self._names_at_fault(arguments))
        errors, why = self._validator.explain(arguments)
        problems += [why] if why and not problems else []
        for error in errors:
            is_about_names = error.schema_path in (["required"], ["additionalProperties"])
            if not is_about_names:
                where = _pointer(error.instance_path)
                problems.append(f"{where}: {_explain(error)}" if where else _explain(error))
        shown = [_shorten(problem) for problem in problems[:MAX_PROBLEMS]]
        if len(problems) > MAX_PROBLEMS:
            shown.append(f"and {len(problems) - MAX_PROBLEMS} more problems")
        return "\n".join(["the arguments are not valid:", *(f"- {line}" for line in shown), self._accepted()])

    def _names_at_fault(self, arguments: dict[str, Json]) -> Iterator[str]:
        properties = self._schema.get("properties", {})
        for name in self._schema.get("required", ()):
            if name not in arguments:
                yield f"missing parameter {name!r}"
        if self._schema.get("additionalProperties") is False:
            free = [name for name in properties if name not in arguments]
            for index, name in enumerate(name for name in arguments if name not in properties):
                # Finding similar names is slow, and a model may send thousands of names.
                yield f"unknown parameter {name!r}{did_you_mean(name, free) if index < MAX_PROBLEMS else ''}"

    def _accepted(self) -> str:
        required = self._schema.get("required", ())
        parts = []
        for name, schema in self._schema.get("properties", {}).items():
            words = [self._type_of(schema), "required" if name in required else ""]
            note = ", ".join(word for word in words if word)
            parts.append(f"{name} ({note})" if note else name)
        return f"accepted parameters: {', '.join(parts) or 'none'}"

    def _type_of(self, schema: Json, depth: int = 3) -> str:
        if not isinstance(schema, dict) or not depth:
            return ""
        if "anyOf" in schema:
            if len(schema["anyOf"]) > _MAX_NAMED_TYPES:
                return ""
            kinds = [self._type_of(part, depth - 1) for part in schema["anyOf"]]
            return " or ".join(dict.fromkeys(kinds)) if all(kinds) else ""
        if "$ref" in schema:
            name = str(schema["$ref"]).rpartition("/")[2]
            return self._type_of(self._schema.get("$defs", {}).get(name), depth - 1)
        kind = schema.get("type", "")
        return " or ".join(kind) if isinstance(kind, list) else str(kind)


class OutputChecker:
    """A validator of values of any type against one schema. It is compiled at the first use."""

    __slots__ = ("_schema", "_validator")

    def __init__(self, schema: Json) -> None:
        self._schema = schema
        self._validator: Any = None

    def find_fault(self, value: Json) -> str | None:
        """Return the reason why `value` does not fit the schema; `None` if it fits. Raises: `ConfigError` if
        the schema is not valid."""
        if self._validator is None:
            self._validator = _BoundedValidator(self._schema, "the output schema is")
        if self._validator.is_valid(value):
            return None
        errors, why = self._validator.explain(value)
        problems = [why] if why else []
        for error in islice(errors, _MAX_OUTPUT_PROBLEMS):
            where = "".join(f"/{part}" for part in error.instance_path)
            problems.append(_shorten(f"{where}: {error.message}" if where else str(error.message)))
        return "; ".join(problems)


class _BoundedValidator:
    """A validator that makes no more checks than it can. Raises: `ConfigError` for a schema that is not valid."""

    def __init__(self, schema: Json, what: str) -> None:
        from treadle.tools.schema.check_counts import CheckCounter

        counter = self._counter = CheckCounter(schema, _refuse_reference)
        if counter.asks_what_is_left and counter.has_references and counter.exceeds(_MAX_UNEVALUATED):
            raise ConfigError(f"{what} not usable: there are too many alternatives within alternatives")
        self._validator = _compile(schema, what)
        self._is_hard = counter.has_references and counter.exceeds(_MAX_CHECKS)
        is_careful = self._is_hard or counter.compares_items
        self.is_valid: Callable[[Json], bool] = self._is_valid if is_careful else self._validator.is_valid

    def _is_valid(self, value: Json) -> bool:
        if self._is_hard and self._counter.exceeds(_MAX_CHECKS, value):
            return False
        try:
            return bool(self._validator.is_valid(value))
        except ValueError:  # only items that are compared are converted, which has a limit of 255 levels
            return False

    def explain(self, value: Json) -> tuple[Iterator[Any], str | None]:
        """Return what is wrong with a value that is not valid, or why that cannot be said."""
        if self._counter.has_references and self._counter.exceeds(_MAX_CHECKS, value):
            return iter(()), _TOO_MANY if self._is_hard else _UNEXPLAINED
        try:
            return self._validator.iter_errors(value), None
        except ValueError:
            return iter(()), _TOO_DEEP


def _compile(schema: Json, what: str) -> Any:
    """Return the validator of a schema. It never fetches another document. Raises: `ConfigError`."""
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(schema, retriever=_refuse_reference)
    except jsonschema_rs.ValidationError as error:
        why = f"{_pointer(error.instance_path)}: {_explain(error)}"
        raise ConfigError(f"{what} not a valid JSON Schema: {why.removeprefix(': ')}") from error
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise ConfigError(f"{what} not a valid JSON Schema: {error}") from error


def read_effect(value: Json, where: str) -> Effect:
    """Return the effect that a user wrote. Raises: `ConfigError`."""
    try:
        return Effect(value)
    except ValueError:
        known = ", ".join(repr(item.value) for item in Effect)
        raise ConfigError(f"{where} is {value!r}; use one of {known}") from None


def _explain(error: Any) -> str:
    """Return the message of an error. If no alternative fits, it says what is wrong with each."""
    alternatives = getattr(error.kind, "context", None)
    if not alternatives or not all(alternatives):
        return str(error.message)
    reasons = []
    for first in (errors[0] for errors in alternatives):
        below = _pointer(first.instance_path[len(error.instance_path) :])
        reasons.append(_shorten(f"{below}: {first.message}" if below else str(first.message), 120))
    return f"fits none of the alternatives: {'; '.join(reasons)}"


def _pointer(path: list[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _shorten(text: str, limit: int = MAX_PROBLEM_CHARS) -> str:
    # The value may be megabytes long, and the end of the message says what is wrong with it.
    return text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 2 :]}"


def _refuse_reference(uri: str) -> Json:
    raise ValueError(f"a schema must not refer to {uri!r}, which is outside it")
