"""Results against the schema that a tool declares for them."""

from itertools import islice
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.types import Json

MAX_PROBLEMS = 5
MAX_PROBLEM_CHARS = 300


class OutputChecker:
    """Checks values of any type against one schema. The validator is built at the first check."""

    __slots__ = ("_schema", "_validator")

    def __init__(self, schema: Json) -> None:
        self._schema = schema
        self._validator: Any = None

    def find_fault(self, value: Json) -> str | None:
        """What in `value` breaks the schema, or `None`. Raises: `ConfigError` if it is no JSON Schema."""
        if self._validator is None:
            self._validator = self._build()
        if self._validator.is_valid(value):
            return None
        problems = []
        for error in islice(self._validator.iter_errors(value), MAX_PROBLEMS):
            where = "".join(f"/{part}" for part in error.instance_path)
            text = f"{where}: {error.message}" if where else str(error.message)
            # The end says what is wrong with a value, and the value may be long.
            half = MAX_PROBLEM_CHARS // 2
            problems.append(text if len(text) <= 2 * half else f"{text[:half]} … {text[-half:]}")
        return "; ".join(problems)

    def _build(self) -> Any:
        import jsonschema_rs

        try:
            return jsonschema_rs.validator_for(self._schema, retriever=_refuse)
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise ConfigError(f"the output schema is not a valid JSON Schema: {error}") from error


def _refuse(uri: str) -> Json:
    raise ValueError(f"a schema may not refer to {uri!r}, outside itself")
