"""The type of a run's answers: its JSON Schema, its validation, and the conversion of an answer to it."""

from collections.abc import Callable
from functools import lru_cache
from inspect import isroutine
from typing import Any, Generic, TypeVar, get_args

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.types import Json

T_co = TypeVar("T_co", covariant=True)


class AnswerType(Generic[T_co]):
    """A type of answers, made from the `schema` of an agent or a run."""

    def __init__(
        self,
        name: str,
        schema: dict[str, Json] | None,
        read: Callable[[str], T_co],
        checked: dict[str, Json] | None = None,
    ) -> None:
        """Make a type. Answers need to fit only `checked`, if it is given."""
        self.name = name
        self.schema = schema
        """The JSON Schema that the model is asked to fit; `None` if answers are plain text."""
        self._read = read
        self._checked = checked or schema

    def read(self, text: str) -> T_co:
        """Return an answer as a value of the type. Raises: `ValueError` if it does not fit."""
        try:
            return self._read(text)
        except ValueError as error:
            raise ValueError(
                f"the answer {text!r:.200} does not fit {self.name}: {_explain(error)}"
            ) from error

    def find_fault(self, schema: dict[str, Json], value: Json) -> str | None:
        """Return what in `value` does not fit `schema` or the type's own validators; `None` if all fits."""
        from treadle.tools.schema.answer_schema import find_output_fault

        return find_output_fault(self.find_checked(schema), value) or self.find_type_fault(schema, value)

    def find_checked(self, schema: dict[str, Json]) -> dict[str, Json]:
        """Return the schema that answers need to fit, if the model was asked to fit `schema`.

        Constrained decoding needs a schema that allows no further keys; a type may ignore them.
        """
        return self._checked or {} if schema == self.schema else schema

    def find_type_fault(self, schema: dict[str, Json], value: Json) -> str | None:
        """Return what the type's own validators refuse in `value`, which fits `schema`; `None` if they refuse
        nothing.

        They are not asked if `schema` is not that of the type, because another agent recorded it.
        """
        if schema != self.schema:
            return None
        try:
            self._read(msgspec.json.encode(value).decode())
        except ValueError as error:
            return _explain(error)
        return None


TEXT: AnswerType[str] = AnswerType("str", None, str)


def answer_type(schema: Any) -> AnswerType[Any]:
    """Return the type of answers for the `schema` that a caller gives.

    Raises: `ConfigError` if `schema` is neither a JSON Schema nor a type that has one.
    """
    if schema is None or schema is str:
        return TEXT
    if isinstance(schema, dict):
        from treadle.tools.schema.answer_schema import check_schema

        return AnswerType("JSON", check_schema(schema), msgspec.json.decode)
    if isroutine(schema):
        raise _unusable(schema, TypeError("it is a function"))
    try:
        return _typed(schema)
    except TypeError as error:
        raise _unusable(schema, error) from error


@lru_cache(maxsize=256)
def _typed(kind: Any) -> AnswerType[Any]:
    from pydantic import PydanticUserError, TypeAdapter

    from treadle.tools.schema.answer_schema import close_schema

    name = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    read: Callable[[str], Any]
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        schema, checked, read = adapter.json_schema(), adapter.json_schema(), adapter.validate_json
    except PydanticUserError as refused:
        # Types with structs of msgspec in them.
        try:
            schema, checked = msgspec.json.schema(kind), msgspec.json.schema(kind)
        except (TypeError, ValueError):
            raise _unusable(kind, refused) from refused
        read = msgspec.json.Decoder(kind).decode
    return AnswerType(name, close_schema(schema), read, checked)


def _unusable(schema: object, error: Exception) -> ConfigError:
    advice = "give a pydantic model, a dataclass, another type that pydantic knows, or a JSON Schema"
    kind = type(schema)
    if hasattr(kind, "model_json_schema") or isinstance(schema, msgspec.Struct):
        advice = f"give the class {kind.__name__} and not an object of it"
    # The rest of what pydantic says is advice on other ways to declare a type.
    reason = str(error).partition(". ")[0].partition("\n")[0]
    return ConfigError(f"schema is {schema!r}, from which no JSON Schema can be made ({reason}); {advice}")


def _explain(error: ValueError) -> str:
    """Return the problems that a validator found, in one line."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    found = [(item["loc"], item["msg"].removeprefix("Value error, ")) for item in errors()]
    return "; ".join(f"/{'/'.join(map(str, where))}: {text}" if where else text for where, text in found)
