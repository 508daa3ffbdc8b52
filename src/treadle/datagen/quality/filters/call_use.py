"""Filters of tool calls: useless repetitions, and arguments and answers that do not fit their JSON Schemas."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated

import msgspec
from pydantic import Field

from treadle.core.answering import strip_answer
from treadle.core.types import Effect, Message, ToolSpec
from treadle.datagen.quality.exchanges import Exchange, answers, exchanges
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, FilterSettings, FilterVerdict
from treadle.export.rows import Row
from treadle.tools.schema.answer_schema import find_output_fault
from treadle.tools.schema.validation import ArgumentChecker

_TOKEN = re.compile(r"(?<![\w./-])[\w./-]*\w")


class UselessCallSettings(FilterSettings):
    """The numbers of useless calls that are allowed."""

    max_repeats: Annotated[int, Field(ge=0)] = 0
    """How many repeated calls a conversation may have."""
    max_unused: Annotated[int, Field(ge=0)] | None = None
    """How many results may stay unused. A result is unused if it has new words and none of its words is among the
    new words of later calls, answers and reasoning. By default unused results are allowed, because a call that
    finds nothing can still be needed."""


class UselessCallFilter(BuiltinFilter[UselessCallSettings]):
    """No call is made twice in a turn with the same arguments and the same result if nothing in between could have
    changed it. Calls with the effect `once` are not repetitions, and the same call is allowed again after a change.
    """

    name = "useless_calls"
    settings_type = UselessCallSettings

    async def check(self, candidate: Candidate) -> FilterVerdict:
        """See `Filter.check`."""
        settings = self.settings
        items = list(exchanges(candidate.row.messages))
        repeats = _find_repeats(candidate.row, items)
        if len(repeats) > settings.max_repeats:
            first = repeats[0].call
            return self.reject(
                f"{first.name}({first.arguments:.80}) is repeated with the same result, and nothing in between "
                "could have changed it",
                repeats=len(repeats),
            )
        if settings.max_unused is None:
            return self.accept()
        unused = list(_find_unused(candidate.row, items))
        if len(unused) > settings.max_unused:
            return self.reject(f"the results of {len(unused)} calls are not used: {', '.join(unused[:3])}")
        return self.accept(unused=len(unused))


def _find_repeats(row: Row, items: Sequence[Exchange]) -> list[Exchange]:
    effects = {tool.name: tool.effect for tool in row.tools}
    seen: dict[tuple[str, bytes], str] = {}
    repeats = []
    turn = 0
    for item in items:
        if item.turn != turn:
            turn = item.turn
            seen.clear()  # the user may have changed something, or wants to be sure
        effect = effects.get(item.call.name, Effect.ONCE)
        key = item.call.name, _normalize(item.call.arguments)
        if effect is not Effect.ONCE and seen.get(key) == item.result.content:
            repeats.append(item)
        elif effect is not Effect.PURE and not item.result.is_error:
            seen.clear()
        seen[key] = item.result.content
    return repeats


def _normalize(arguments: str) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments), order="sorted")
    except msgspec.DecodeError:
        return arguments.encode()


def _find_unused(row: Row, items: Sequence[Exchange]) -> Iterator[str]:
    """Yield the tool of each `pure` call whose result is unused; see `UselessCallSettings.max_unused`."""
    effects = {tool.name: tool.effect for tool in row.tools}
    looks = [
        item for item in items if not item.result.is_error and effects.get(item.call.name) is Effect.PURE
    ]
    if not looks:
        return
    first: dict[str, int] = {}
    """The position of the message in which each word is first written. Results do not count."""
    for index in range(len(row.messages) - 1, -1, -1):
        if row.messages[index].call_id is None:
            first.update(dict.fromkeys(_tokens(_written(row.messages[index])), index))
    never = len(row.messages)
    for item in looks:
        found = [first.get(word, never) for word in _tokens(item.result.content)]
        # Words that were written before the result say nothing.
        new = [index for index in found if index > item.result_index]
        if new and min(new) == never:
            yield item.call.name


def _written(message: Message) -> str:
    calls = [call.arguments for call in message.tool_calls]
    return "\n".join([message.content, message.reasoning or "", *calls])


def _tokens(text: str) -> set[str]:
    return set(_TOKEN.findall(text.casefold()))


class SchemaFilter(BuiltinFilter[FilterSettings]):
    """The arguments of each successful call fit the tool's JSON Schema, and the answers fit
    `generation.conversation.output_schema`, if there is one. A call that failed is not checked: an agent may
    recover from it."""

    name = "schema"

    async def check(self, candidate: Candidate) -> FilterVerdict:
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
