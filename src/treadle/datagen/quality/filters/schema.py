"""The filter of arguments and answers by their JSON Schemas."""

from functools import lru_cache

import msgspec

from treadle.core.answers import strip_answer
from treadle.core.types import ToolSpec
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, Settings, Verdict
from treadle.datagen.quality.transcripts import answers, exchanges
from treadle.tools.schema.output import find_output_fault
from treadle.tools.schema.validation import ArgumentChecker


class SchemaFilter(BuiltinFilter[Settings]):
    """The arguments of each successful call fit the tool's JSON Schema, and the answers fit
    `generation.conversation.output_schema`, if there is one. A call that failed is not checked: an agent may
    recover from it."""

    name = "schema"

    async def check(self, candidate: Candidate) -> Verdict:
        """See `Filter.check`."""
        row = candidate.row
        tools = {tool.name: tool for tool in row.tools}
        for item in exchanges(row.messages):
            if not item.result.is_error and (
                fault := _find_fault(item.call.arguments, tools, item.call.name)
            ):
                return self.reject(f"the call {item.call.call_id!r}: {fault}")
        schema = self.resources.config.generation.conversation.output_schema
        for index in answers(row.messages) if schema is not None else ():
            try:
                value = msgspec.json.decode(strip_answer(row.messages[index].content))
            except msgspec.DecodeError as error:
                return self.reject(f"the final answer in message {index} is not JSON: {error}")
            if fault := find_output_fault(schema or {}, value):
                return self.reject(f"the final answer in message {index} does not fit the schema: {fault}")
        return self.accept()


def _find_fault(arguments: str, tools: dict[str, ToolSpec], name: str) -> str | None:
    if name not in tools:
        return f"the row has no tool {name!r}"
    try:
        value = msgspec.json.decode(arguments) if arguments.strip() else {}
    except msgspec.DecodeError as error:
        return f"the arguments of {name!r} are not JSON: {error}"
    found = _checker(msgspec.json.encode(tools[name].parameters)).find_fault(value)
    return f"{name!r}: {'; '.join(found.splitlines()[:3])}" if found else None


@lru_cache(maxsize=256)
def _checker(schema: bytes) -> ArgumentChecker:
    return ArgumentChecker(msgspec.json.decode(schema))
