"""The filter of useless calls: repetitions, and calls whose results nothing depends on."""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import or_
from typing import Annotated

import msgspec
from pydantic import Field

from treadle.core.types import Effect, Message
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, Settings, Verdict
from treadle.datagen.quality.transcripts import Exchange, exchanges
from treadle.export.rows import Row

_TOKEN = re.compile(r"(?<![\w./-])[\w./-]*\w")


class UselessCallSettings(Settings):
    """How many useless calls are tolerated."""

    max_repeats: Annotated[int, Field(ge=0)] = 0
    """How many repeated calls a conversation may have."""
    max_unused: Annotated[int, Field(ge=0)] | None = None
    """How many results may stay unused. A result counts as unused if no word of it occurs later, in a call, an
    answer or the reasoning, that did not occur before it. By default they are only counted, because a look that
    finds nothing can be needed."""


class UselessCallFilter(BuiltinFilter[UselessCallSettings]):
    """No call is made twice in a turn with the same arguments and the same result if nothing in between could have
    changed it. Calls with the effect `once` are not repetitions, and a look after a change is legitimate."""

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
        unused = list(_find_unused(candidate.row, items))
        if settings.max_unused is not None and len(unused) > settings.max_unused:
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
    """Yield the tool of each look that brought words, none of which occurs after it and not before it."""
    effects = {tool.name: tool.effect for tool in row.tools}
    written: list[set[str]] = [
        set() if item.call_id is not None else _tokens(_written(item)) for item in row.messages
    ]
    before = [set[str](), *accumulate(written, or_)]
    after = [*accumulate(reversed(written), or_)][::-1]
    for item in items:
        if item.result.is_error or effects.get(item.call.name) is not Effect.PURE:
            continue
        later = after[item.result_index] - before[item.result_index]
        brought = _tokens(item.result.content)
        if brought - before[item.result_index] and not brought & later:
            yield item.call.name


def _written(message: Message) -> str:
    calls = [call.arguments for call in message.tool_calls]
    return "\n".join([message.content, message.reasoning or "", *calls])


def _tokens(text: str) -> set[str]:
    return {item.casefold() for item in _TOKEN.findall(text)}
