"""Filters of what is said: leaked prompts, placeholders, refusals, and the language of a conversation."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator

from treadle.core.registry import did_you_mean
from treadle.core.types import Json, Message, Role, ToolCall, ToolSpec
from treadle.datagen.quality.exchanges import WORD, answers, exchanges, leaves_of, name_message, quote
from treadle.datagen.quality.languages import LANGUAGES, detect_language, pattern
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, FilterSettings, FilterVerdict
from treadle.datagen.scenarios.kinds import is_question
from treadle.datagen.scenarios.scenario import Kind
from treadle.routing.judging.inabilities import find_decline, is_refusal

_RUN_WORDS = 12
"""How many words in a row of the system message an assistant message may not repeat."""
_MARKUP, _MACHINE, _STAGE = [pattern("prompts", name) for name in ("markup", "machine", "stage")]


class LeakFilter(BuiltinFilter[FilterSettings]):
    """No message contains a prompt's facts, special tokens of a chat template, or the persona's name before the
    user has given it; no answer says that it comes from a language model or repeats the system message; and no user
    message says that the user is simulated, or contains the withheld fact before the agent has asked for it."""

    name = "leaks"
    reads_turns = True

    async def check(self, candidate: Candidate) -> FilterVerdict:
        for index, found, what in _find_leaks(candidate):
            named = name_message(candidate.row.messages, index)
            return self.reject_answer(candidate, [index], f"{named} {what}: {quote(found)}")
        return self.accept()


def _find_leaks(candidate: Candidate) -> Iterator[tuple[int, str, str]]:
    messages = candidate.row.messages
    told = ""
    system = messages[0].content if messages and messages[0].role is Role.SYSTEM else ""
    runs = _runs_of_system(system)
    for index, message in enumerate(messages):
        text = message.content
        is_spoken = message.role in (Role.USER, Role.ASSISTANT)
        # The control tokens that a user writes are defused before the model sees them.
        written = text.replace("&lt;", "<") if message.role is Role.USER else text
        if is_spoken and (found := _MARKUP.search(written)):
            yield index, found[0], "has markup"
        if message.role is Role.ASSISTANT:
            yield from _find_in_answer(index, message, candidate.spec.persona.name, told, runs)
        elif message.role is Role.USER:
            if found := _STAGE.search(text):
                yield index, found[0], "speaks of the simulation"
            withheld = candidate.scenario.withheld.strip()
            if not told and withheld and withheld.casefold() in text.casefold():
                yield index, withheld, "tells the withheld fact"
        if message.role is not Role.SYSTEM:
            told += f"\n{text}"


def _find_in_answer(
    index: int, message: Message, persona: str, told: str, runs: frozenset[tuple[str, ...]]
) -> Iterator[tuple[int, str, str]]:
    text = message.content
    if (found := _MACHINE.search(text)) and found[0].casefold() not in told.casefold():
        yield index, found[0], "speaks of the model"
    if persona and not message.tool_calls and persona in text and persona.split()[0] not in told:
        yield index, persona, "has the persona's name, which the user has not given"
    shared = runs & _runs(text) if runs else runs
    if shared and (shared := shared - _runs(told)):
        yield index, " ".join(min(shared)), "repeats the system message"


@lru_cache(maxsize=64)
def _runs_of_system(text: str) -> frozenset[tuple[str, ...]]:
    """Return `_runs` of a system message. Most samples of a dataset have the same one."""
    return _runs(text)


def _runs(text: str) -> frozenset[tuple[str, ...]]:
    words = [item.casefold() for item in WORD.findall(text)]
    return frozenset(
        [tuple(words[start : start + _RUN_WORDS]) for start in range(len(words) - _RUN_WORDS + 1)]
    )


_MAX_CHARS = 200
"""Longer texts are documents, such as templates, in which placeholders can be intended."""
_MARK = pattern("placeholders", "part")
_WHOLE = re.compile(rf"\A(?:{pattern('placeholders', 'whole').pattern})\Z", re.IGNORECASE)


class PlaceholderFilter(BuiltinFilter[FilterSettings]):
    """No call and no final answer has a placeholder, such as `{{x}}`, `<your_name>`, `path/to/file`, `TODO` as a
    whole value, an address at `example.com`, or `null` for a required parameter that cannot be null. What the
    user or a tool wrote before is not a placeholder."""

    name = "placeholders"
    reads_turns = True

    async def check(self, candidate: Candidate) -> FilterVerdict:
        messages = candidate.row.messages
        tools = {tool.name: tool for tool in candidate.row.tools}
        for item in exchanges(messages):
            found = _find_placeholders(item.call, tools.get(item.call.name))
            seen = [message.content for message in messages[: item.index] if message.tool_calls == ()]
            for where, mark in found:
                if not any(mark in text for text in seen):
                    return self.reject(f"{item.call.name}: {where} is the placeholder {quote(mark)}")
        for index in answers(messages):
            seen = [message.content for message in messages[:index]]
            for mark in _MARK.findall(messages[index].content):
                if not any(mark in text for text in seen):
                    reason = f"{name_message(messages, index)} has the placeholder {quote(mark)}"
                    return self.reject_answer(candidate, [index], reason)
        return self.accept()


def _find_placeholders(call: ToolCall, tool: ToolSpec | None) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each placeholder in the arguments of a call."""
    values = call.parsed_or(None)
    if not isinstance(values, dict):
        return
    schema = {} if tool is None else tool.parameters
    for name in schema.get("required", ()):
        if (
            name in values
            and values[name] is None
            and not _can_be_null(schema.get("properties", {}).get(name))
        ):
            yield name, "null"
    for name, value in values.items():
        for text in [item for item in leaves_of(value) if isinstance(item, str)]:
            if _WHOLE.match(text.strip()):
                yield name, text
            elif len(text) <= _MAX_CHARS:
                for mark in _MARK.finditer(text):
                    yield name, mark[0]


def _can_be_null(schema: Json) -> bool:
    if not isinstance(schema, dict):
        return True
    kinds = schema.get("type")
    choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if None in schema.get("enum", ()) or any(map(_can_be_null, choices)):
        return True
    return (kinds is None and not choices) or kinds == "null" or (isinstance(kinds, list) and "null" in kinds)


class RefusalFilter(BuiltinFilter[FilterSettings]):
    """No final answer refuses or gives up, unless the planned kind is `refusal`.

    Only English wordings are recognised.
    """

    name = "refusals"
    reads_turns = True

    async def check(self, candidate: Candidate) -> FilterVerdict:
        if candidate.spec.kind is Kind.REFUSAL:
            return self.accept("the planned kind is 'refusal'")
        for index in answers(candidate.row.messages):
            text = candidate.row.messages[index].content
            if (found := find_decline(text)) is not None:
                reason = f"{name_message(candidate.row.messages, index)} {found[0]}: {quote(found[1])}"
                return self.reject_answer(candidate, [index], reason)
            has_tried = candidate.row.messages[index - 1].role is Role.TOOL
            if not has_tried and is_refusal(text) and not is_question(text, at_end=True):
                named = name_message(candidate.row.messages, index)
                reason = f"{named} refuses without a tool call: {quote(text)}"
                return self.reject_answer(candidate, [index], reason)
        return self.accept()


def _check_code(code: str | None) -> str | None:
    if code is not None and code not in LANGUAGES:
        hint = did_you_mean(code, LANGUAGES, "give an ISO 639-1 code")
        raise ValueError(
            f"the language {code!r} cannot be recognised{hint} Known: {', '.join(sorted(LANGUAGES))}"
        )
    return code


class LanguageSettings(FilterSettings):
    """The language of the rows."""

    language: Annotated[str | None, AfterValidator(_check_code)] = None
    """The ISO 639-1 code of the language that every user message and every final answer must have. By default, the
    answers must have the language of the user's first message."""


class LanguageFilter(BuiltinFilter[LanguageSettings]):
    """The user and the answers use the wanted language.

    The detector is small and offline: it recognises about 30 languages by script and frequent words. Texts whose
    language it cannot recognise pass, such as short texts, code and tables.
    """

    name = "language"
    reads_turns = True
    settings_type = LanguageSettings

    async def check(self, candidate: Candidate) -> FilterVerdict:
        messages = candidate.row.messages
        spoken = [index for index, item in enumerate(messages) if item.role is Role.USER]
        checked = [*spoken, *answers(messages)]
        wanted = self.settings.language
        if wanted is None:
            wanted = detect_language(messages[spoken[0]].content) if spoken else None
            checked = checked[1:]
        if wanted is None:
            return self.accept("the language was not recognised")
        for index in sorted(checked):
            found = detect_language(messages[index].content)
            if found not in (None, wanted):
                reason = f"{name_message(messages, index)} is in {found!r} and not in {wanted!r}"
                return self.reject_answer(candidate, [index], reason, language=found)
        return self.accept(language=wanted)
