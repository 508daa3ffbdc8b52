"""Validation of results against a tool's output schema, and of final answers against the caller's schema."""

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from treadle.core.answering import ask_for_schema
from treadle.core.asking import FindFault
from treadle.core.types import Effect, Json, OutputMode, OutputSpec, ToolSpec
from treadle.tools.context import ToolContext
from treadle.tools.schema.validation import ArgumentChecker, OutputChecker


@lru_cache(maxsize=64)
def _checker(schema: str) -> OutputChecker:
    return OutputChecker(msgspec.json.decode(schema))


def find_output_fault(schema: dict[str, Json], value: Json) -> str | None:
    """Return why `value` does not fit `schema`; `None` if it fits. Raises: `ConfigError` for a wrong schema."""
    return _checker(msgspec.json.encode(schema).decode()).find_fault(value)


def check_schema(schema: dict[str, Json]) -> dict[str, Json]:
    """Return `schema` unchanged. Raises: `ConfigError` if it is not a valid JSON Schema."""
    OutputChecker(schema).find_fault(None)
    return schema


def close_schema(schema: dict[str, Json]) -> dict[str, Json]:
    """Return the schema of a type in the form that constrained decoding needs.

    Objects allow no other properties, and the schema does not begin with a reference.
    """
    definitions = schema.get("$defs", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    if name in definitions:
        schema = {**definitions[name], "$defs": definitions}
        if f'"#/$defs/{name}"' not in msgspec.json.encode(schema).decode():
            schema["$defs"] = {key: value for key, value in definitions.items() if key != name}
        if not schema["$defs"]:
            del schema["$defs"]
    _close(schema)
    return check_schema(schema)


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
    """The tool with which a model gives its final answer: the arguments are the answer, and must fit the schema."""

    def __init__(self, output: OutputSpec, checked: dict[str, Json], find_type_fault: FindFault) -> None:
        """Make a tool. Answers must fit `checked`; `find_type_fault` finds what else is wrong with one."""
        assert output.tool is not None
        self._schema = output.schema
        self._find_type_fault = find_type_fault
        description = "Give your final answer. Call this once, alone, when you have all that it needs."
        self.spec = ToolSpec(output.tool, description, output.schema, Effect.PURE)
        self._find_fault = ArgumentChecker(checked).find_fault

    def find_fault(self, arguments: Json) -> str | None:
        return self._find_fault(arguments) or self._find_type_fault(self._schema, arguments)

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str:
        return "The answer was taken."


TOOL_NAME = "final_answer"


def choose_output(schema: dict[str, Json], mode: OutputMode, names: Iterable[str]) -> OutputSpec:
    """Return how to ask a model for answers that fit `schema`. `names` are the names of the other tools."""
    if mode is not OutputMode.TOOL:
        return OutputSpec(schema, mode)
    if schema.get("type") != "object":
        # Arguments are an object. An answer of another type is requested in the text.
        return OutputSpec(schema, OutputMode.TEXT)
    taken, name = set(names), TOOL_NAME
    while name in taken:
        name += "_"
    return OutputSpec(schema, mode, name)


def instruct(instructions: str | None, output: OutputSpec) -> str | None:
    """Return the instructions, with the schema added if the model is not told the schema in another way."""
    if output.mode is not OutputMode.TEXT:
        return instructions
    asked = ask_for_schema(output)
    return f"{instructions}\n\n{asked}" if instructions else asked
