"""Filters of the form of a conversation: its invariants, how it ended, its length, the kinds of tool use."""

from typing import Annotated

from pydantic import Field

from treadle.core.estimates import CHARS_PER_TOKEN
from treadle.core.transcript import check_transcript
from treadle.core.types import Role, StopReason
from treadle.datagen.quality.exchanges import answers, count_words
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, FilterSettings, FilterVerdict
from treadle.datagen.scenarios.scenario import Kind

Limit = Annotated[int, Field(ge=0)]


class TranscriptFilter(BuiltinFilter[FilterSettings]):
    """Each call has exactly one result, in order, before the next message of the assistant, no result stands for a
    call that was interrupted, and every turn ends with an answer."""

    name = "transcript"

    async def check(self, candidate: Candidate) -> FilterVerdict:
        """See `Filter.check`."""
        messages = candidate.row.messages
        if faults := check_transcript(messages):
            return self.reject("; ".join(faults[:3]))
        if doubtful := candidate.row.lineage.in_doubt:
            return self.reject(f"the call {doubtful[0]} was interrupted, so its result came from no tool")
        turns = sum([message.role is Role.USER for message in messages])
        ends = answers(messages)
        if not turns or len(ends) != turns:
            return self.reject(f"the conversation has {turns} user messages and {len(ends)} final answers")
        if empty := [index for index in ends if not messages[index].content.strip()]:
            return self.reject(f"the final answer in message {empty[0]} is empty")
        return self.accept()


class EndedFilter(BuiltinFilter[FilterSettings]):
    """The conversation was completed. One that reached a limit, was cancelled or refused is rejected."""

    name = "ended"

    async def check(self, candidate: Candidate) -> FilterVerdict:
        """See `Filter.check`."""
        reason = candidate.row.lineage.stop_reason
        if reason != StopReason.COMPLETED:
            return self.reject(f"the conversation ended with {reason!r} and not with an answer")
        return self.accept()


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
        """See `Filter.check`."""
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
        """See `Filter.check`."""
        planned, sample = candidate.spec.kind, candidate.row.lineage.sample
        shown = sample.kinds if sample is not None else ()
        if planned is None or planned in shown:
            return self.accept()
        text = f"the planned kind is {planned.value!r}, and the conversation shows {_join(shown)}"
        return self.reject(text) if self.settings.reject else self.accept(text, is_shown=False)


def _join(kinds: tuple[Kind | str, ...]) -> str:
    return ", ".join(map(repr, map(str, kinds))) or "none"
