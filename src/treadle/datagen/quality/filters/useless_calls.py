"""The filter of useless calls: repetitions, and calls whose results nothing depends on."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from pydantic import Field

from treadle.core.types import Effect, Message
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, Settings, Verdict
from treadle.datagen.quality.transcripts import Exchange, exchanges
from treadle.export.rows import Row

_TOKEN = re.compile(r"(?<![\w./-])[\w./-]*\w")


class UselessCallSettings(Settings):
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

    async def check(self, candidate: Candidate) -> Verdict:
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
