"""Results against the schema that a tool declares for them, and a turn's answer against the caller's."""

from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.types import Effect, Json, OutputMode, OutputSpec, ToolSpec
from treadle.tools.context import ToolContext
from treadle.tools.schema.validation import ArgumentChecker, refuse_reference

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
            return jsonschema_rs.validator_for(self._schema, retriever=refuse_reference)
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise ConfigError(f"the output schema is not a valid JSON Schema: {error}") from error


@lru_cache(maxsize=64)
def _checker(schema: str) -> OutputChecker:
    return OutputChecker(msgspec.json.decode(schema))


def find_output_fault(schema: dict[str, Json], value: Json) -> str | None:
    """What in `value` breaks `schema`, or `None`. Raises: `ConfigError` if it is no JSON Schema."""
    return _checker(msgspec.json.encode(schema).decode()).find_fault(value)


def to_output_schema(given: Any) -> dict[str, Json]:
    """The JSON Schema of a pydantic model, of any type that pydantic knows, or given as it is.

    Objects of a generated schema are closed, since constrained decoding asks for it.
    Raises: `ConfigError` for what is neither, and for what is no JSON Schema.
    """
    if isinstance(given, dict):
        schema = given
    else:
        from pydantic import PydanticUserError, TypeAdapter

        try:
            schema = TypeAdapter(given).json_schema()
        except (PydanticUserError, TypeError) as error:
            raise ConfigError(f"schema is {given!r}, of which no JSON Schema can be made: {error}") from error
        _close(schema)
    OutputChecker(schema).find_fault(None)
    return schema


def _close(schema: Json) -> None:
    if isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for value in schema.values():
            _close(value)
    elif isinstance(schema, list):
        for value in schema:
            _close(value)


class AnswerTool:
    """The tool that takes a turn's answer. Its arguments are the answer; what breaks the schema comes back."""

    def __init__(self, output: OutputSpec) -> None:
        assert output.tool is not None
        description = "Give your final answer. Call this once, alone, when you have all that it needs."
        self.spec = ToolSpec(output.tool, description, output.schema, Effect.PURE)
        self.find_fault = ArgumentChecker(output.schema).find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str:
        """See `Tool.call`."""
        return "The answer was taken."


TOOL_NAME = "final_answer"


def choose_output(schema: dict[str, Json], mode: OutputMode, names: Iterable[str]) -> OutputSpec:
    """How to ask a model for answers in `schema`, beside tools of these names."""
    if mode is not OutputMode.TOOL:
        return OutputSpec(schema, mode)
    if schema.get("type") != "object":
        # Arguments are an object; an answer of another type is asked for in the text.
        return OutputSpec(schema, OutputMode.TEXT)
    taken, name = set(names), TOOL_NAME
    while name in taken:
        name += "_"
    return OutputSpec(schema, mode, name)


def instruct(instructions: str | None, output: OutputSpec) -> str | None:
    """The instructions, with the schema where nothing else tells the model of it."""
    if output.mode is not OutputMode.TEXT:
        return instructions
    schema = msgspec.json.encode(output.schema).decode()
    asked = f"Give your final answer as JSON and nothing else, in this JSON Schema:\n{schema}"
    return f"{instructions}\n\n{asked}" if instructions else asked
