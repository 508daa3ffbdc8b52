"""The filter of leaks: texts from the prompts of the generation that do not belong in the conversation."""

import re
from collections.abc import Iterator
from functools import lru_cache

from treadle.core.types import Message, Role
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, Settings, Verdict
from treadle.datagen.quality.transcripts import WORD, quote

_RUN_WORDS = 12
"""How many words in a row of the system message an assistant message may not repeat."""
_MARKUP = re.compile(
    r"</?facts>|<\|\w+\|>|\[/?(?:INST|TOOL_CALLS|TOOL_RESULTS)\]|</?tool_(?:call|response)s?>|</?think>"
    r"|<｜[^｜\n]{1,40}｜>|<start_of_turn>|<end_of_turn>"
)
_MACHINE = re.compile(
    r"\bas an? (?:AI|artificial intelligence|(?:large )?language) (?:language )?model\b"
    r"|\bmy (?:system (?:prompt|message)|instructions|training data|knowledge cutoff)\b"
    r"|\bI(?:['’]m| am) (?:ChatGPT|Claude|Gemini|a large language model)\b",
    re.IGNORECASE,
)
_STAGE = re.compile(
    r"\b(?:simulated user|user simulator|my persona|as the (?:simulated )?user,)\b"
    r"|\A\s*(?:user|human|persona)\s*:",
    re.IGNORECASE,
)


class LeakFilter(BuiltinFilter[Settings]):
    """No message contains a prompt's facts, special tokens of a chat template, or the persona's name before the
    user has given it; no answer says that it comes from a language model or repeats the system message; and no user
    message says that the user is simulated, or contains the withheld fact before the agent has asked for it."""

    name = "leaks"

    async def check(self, candidate: Candidate) -> Verdict:
        """See `Filter.check`."""
        for index, found, what in _find(candidate):
            return self.reject(f"message {index} {what}: {quote(found)}")
        return self.accept()


def _find(candidate: Candidate) -> Iterator[tuple[int, str, str]]:
    messages = candidate.row.messages
    told = ""
    system = messages[0].content if messages and messages[0].role is Role.SYSTEM else ""
    runs = _runs_of_system(system)
    for index, message in enumerate(messages):
        text = message.content
        is_spoken = message.role in (Role.USER, Role.ASSISTANT)
        if is_spoken and (found := _MARKUP.search(text)):
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
