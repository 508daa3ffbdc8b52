"""Filters of the form of a conversation: its invariants, its end, its length, its kinds of tool use, and its calls,
which repeat nothing in vain and fit their JSON Schemas, as the answers do."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated

import msgspec
from pydantic import Field

from treadle.core.answering import strip_answer
from treadle.core.prompts.estimates import CHARS_PER_TOKEN
from treadle.core.prompts.transcript import check_transcript
from treadle.core.texts.documents import UNREADABLE
from treadle.core.texts.json_text import decode_json
from treadle.core.types import Effect, Json, Message, Role, StopReason, ToolCall, ToolSpec
from treadle.datagen.quality.exchanges import (
    Exchange,
    answers,
    count_words,
    exchanges,
    find_missing_thought,
    name_message,
)
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, FilterSettings, FilterVerdict
from treadle.datagen.scenarios.scenario import Kind
from treadle.export.rows import Row
from treadle.tools.schema.answer_schema import find_output_fault
from treadle.tools.schema.validation import ArgumentChecker

Limit = Annotated[int, Field(ge=0)]


class TranscriptFilter(BuiltinFilter[FilterSettings]):
    """Each call has exactly one result, in order, before the next message of the assistant, each result is of
    a tool that ended, and every turn ends with an answer."""

    name = "transcript"
    reads_turns = True

    async def check(self, candidate: Candidate) -> FilterVerdict:
        messages = candidate.row.messages
        if faults := check_transcript(messages):
            return self.reject("; ".join(faults[:3]))
        if doubtful := candidate.row.lineage.in_doubt:
            return self.reject(f"the call {doubtful[0]} has no result of its tool")
        turns = sum([message.role is Role.USER for message in messages])
        ends = answers(messages)
        if not turns or len(ends) != turns:
            return self.reject(f"the conversation has {turns} user messages and {len(ends)} final answers")
        if empty := [index for index in ends if not messages[index].content.strip()]:
            return self.reject(f"answer {ends.index(empty[0]) + 1} is empty")
        return self.accept()


class EndedFilter(BuiltinFilter[FilterSettings]):
    """The conversation was completed. One that reached a limit, was cancelled or refused is rejected."""

    name = "ended"

    async def check(self, candidate: Candidate) -> FilterVerdict:
        reason = candidate.row.lineage.stop_reason
        if reason != StopReason.COMPLETED:
            return self.reject(f"the conversation ended with {reason!r} and not with an answer")
        return self.accept()


class ReasoningFilter(BuiltinFilter[FilterSettings]):
    """Each step with calls has a text or reasoning before them, if `generation.conversation.reasoning` is given.
    Many models make calls without a text; switch the filter off to keep their conversations too."""

    name = "reasoning"
    reads_turns = True

    async def check(self, candidate: Candidate) -> FilterVerdict:
        is_wanted = self.resources.config.generation.conversation.reasoning is not None
        fault = find_missing_thought(candidate.row.messages) if is_wanted else None
        return self.accept() if fault is None else self.reject(fault)


class LengthSettings(FilterSettings):
    """The bounds of the length."""

    min_words: Limit = 1
    """The smallest number of words in each final answer."""
    max_words: Limit | None = 1000
    """The largest number of words in each final answer."""
    min_user_words: Limit = 2
    """The smallest number of words in the first user message."""
    max_user_words: Limit | None = 1000
    """The largest number of words in each user message."""
    max_turns: Limit | None = None
    """The largest number of turns."""
    max_steps: Limit | None = None
    """The largest number of assistant messages."""
    max_tokens: Limit | None = None
    """The largest number of tokens in all messages, estimated as one for each 4 characters."""


class LengthFilter(BuiltinFilter[LengthSettings]):
    """Answers, requests and the whole conversation are neither too short nor too long."""

    name = "length"
    settings_type = LengthSettings

    async def check(self, candidate: Candidate) -> FilterVerdict:
        messages, settings = candidate.row.messages, self.settings
        replies = [count_words(messages[index].content) for index in answers(messages)]
        requests = [count_words(item.content) for item in messages if item.role is Role.USER]
        steps = sum([item.role is Role.ASSISTANT for item in messages])
        chars = sum(
            [len(item.content) + sum([len(call.arguments) for call in item.tool_calls]) for item in messages]
        )
        tokens = chars // CHARS_PER_TOKEN
        bounds: list[tuple[str, int, int, int | None]] = [
            ("words in the shortest final answer", min(replies, default=0), settings.min_words, None),
            ("words in the longest final answer", max(replies, default=0), 0, settings.max_words),
            ("words in the first user message", (requests or [0])[0], settings.min_user_words, None),
            ("words in the longest user message", max(requests, default=0), 0, settings.max_user_words),
            ("turns", len(requests), 0, settings.max_turns),
            ("assistant messages", steps, 0, settings.max_steps),
            ("tokens by estimate", tokens, 0, settings.max_tokens),
        ]
        for what, count, least, most in bounds:
            if count < least or (most is not None and count > most):
                limit = f"at least {least}" if count < least else f"at most {most}"
                return self.reject(f"{what}: {count:,}, but the limit is {limit}", tokens=tokens)
        return self.accept(tokens=tokens)


class KindSettings(FilterSettings):
    """The treatment of conversations that do not show the planned kind of tool use."""

    reject: bool = False
    """True to reject a conversation that does not show the planned kind. By default it is kept and labelled with
    the kinds that it shows, and later samples are planned with the missing kind."""


class KindFilter(BuiltinFilter[KindSettings]):
    """The conversation shows the planned kind of tool use."""

    name = "kind"
    settings_type = KindSettings

    async def check(self, candidate: Candidate) -> FilterVerdict:
        planned, sample = candidate.spec.kind, candidate.row.lineage.sample
        shown = sample.kinds if sample is not None else ()
        if planned is None or planned in shown:
            return self.accept()
        text = f"the planned kind is {planned.value!r}, and the conversation shows {_join(shown)}"
        return self.reject(text) if self.settings.reject else self.accept(text, is_shown=False)


def _join(kinds: tuple[Kind | str, ...]) -> str:
    return ", ".join(map(repr, map(str, kinds))) or "none"


_TOKEN = re.compile(r"(?<![\w./-])[\w./-]*\w")


class UselessCallSettings(FilterSettings):
    """The numbers of useless calls that are allowed."""

    max_repeats: Annotated[int, Field(ge=0)] = 0
    """How many repeated calls a conversation may have that are trained on. One more is kept and not trained on if
    its step has no other calls."""
    max_unused: Annotated[int, Field(ge=0)] | None = None
    """How many results may stay unused. A result is unused if it has new words and none of its words is among the
    new words of later calls, answers and reasoning. By default unused results are allowed, because a call that
    finds nothing can still be needed."""


class UselessCallFilter(BuiltinFilter[UselessCallSettings]):
    """At most one call is made twice in a turn with the same arguments and the same result although nothing in
    between could have changed it, and that one is not trained on. Calls with the effect `once` are not repetitions,
    and the same call is allowed again after a change."""

    name = "useless_calls"
    reads_turns = True
    settings_type = UselessCallSettings

    async def check(self, candidate: Candidate) -> FilterVerdict:
        settings = self.settings
        items = list(exchanges(candidate.row.messages))
        repeats = _find_repeats(candidate.row, items)
        marks: dict[str, Json] = {}
        if len(repeats) > settings.max_repeats and (untrained := _find_alone(candidate.row, repeats)):
            marks["untrained"] = untrained
        if len(repeats) > settings.max_repeats + bool(marks):
            first = repeats[0].call
            return self.reject(
                f"{first.name}({first.arguments:.80}) is repeated with the same result, and nothing in between "
                "could have changed it",
                repeats=len(repeats),
            )
        if settings.max_unused is None:
            return self.accept(**marks)
        unused = list(_find_unused(candidate.row, items))
        if len(unused) > settings.max_unused:
            return self.reject(f"the results of {len(unused)} calls are not used: {', '.join(unused[:3])}")
        return self.accept(unused=len(unused), **marks)


def _find_alone(row: Row, repeats: Sequence[Exchange]) -> list[Json]:
    """Return the numbers of the assistant messages that have one of the repeated calls and no others."""
    said = [index for index, message in enumerate(row.messages) if message.role is Role.ASSISTANT]
    return [said.index(item.index) for item in repeats if len(row.messages[item.index].tool_calls) == 1]


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
        key = item.call.name, _normalize(item.call)
        if effect is not Effect.ONCE and seen.get(key) == item.result.content:
            repeats.append(item)
        elif effect is not Effect.PURE and not item.result.is_error:
            seen.clear()
        seen[key] = item.result.content
    return repeats


def _normalize(call: ToolCall) -> bytes:
    try:
        return msgspec.json.encode(call.parsed, order="sorted")
    except UNREADABLE:
        return call.arguments.encode("utf-8", "surrogatepass")


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
    reads_turns = True

    async def check(self, candidate: Candidate) -> FilterVerdict:
        row = candidate.row
        tools = {tool.name: tool for tool in row.tools}
        for item in exchanges(row.messages):
            if not item.result.is_error and (fault := _find_fault(item.call, tools)):
                return self.reject(f"the call {item.call.call_id!r}: {fault}")
        schema = self.resources.config.generation.conversation.output_schema
        for index in answers(row.messages) if schema is not None else ():
            try:
                value = decode_json(strip_answer(row.messages[index].content))
            except UNREADABLE as error:
                reason = f"{name_message(row.messages, index)} is not JSON: {error}"
                return self.reject_answer(candidate, [index], reason)
            if fault := find_output_fault(schema or {}, value):
                reason = f"{name_message(row.messages, index)} does not fit the schema: {fault}"
                return self.reject_answer(candidate, [index], reason)
        return self.accept()


def _find_fault(call: ToolCall, tools: dict[str, ToolSpec]) -> str | None:
    if call.name not in tools:
        return f"the row has no tool {call.name!r}"
    try:
        found = _checker(msgspec.json.encode(tools[call.name].parameters)).find_fault(call.parsed)
    except UNREADABLE as error:
        return f"the arguments of {call.name!r} are not JSON: {error}"
    return f"{call.name!r}: {'; '.join(found.splitlines()[:3])}" if found else None


@lru_cache(maxsize=256)
def _checker(schema: bytes) -> ArgumentChecker:
    return ArgumentChecker(msgspec.json.decode(schema))
