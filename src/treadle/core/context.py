"""The size of the prompt and the room for it: what `apply` notes about them, and what `decide` asks.

The size is what the server counted at the newest inference, plus an estimate of what was added since. The estimate
is corrected by how far off it was at earlier inferences of the run.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.log import Log
from treadle.core.tokens import weigh_message, weigh_tools
from treadle.core.types import Message, Role

if TYPE_CHECKING:
    from treadle.core.state import State

_MOST_TOKENS_PER_CHAR = 4
_MEASURED_SHARE = 0.1
"""Estimates are compared with counts when the prompt fills this share of the room."""
_LEAST_MEASURED = 50
"""Estimates of fewer tokens say nothing about the rate."""
_RATES = (0.65, 4.0)
"""The lowest and the highest correction of estimates."""
_REFUSED_SHARE = 0.9
"""The share of a prompt that the server refused as too long which counts as the room from then on."""


class Context(Struct, gc=False):
    """The known and estimated sizes of the prompt."""

    known_messages: int = 0
    """How many of the messages `known_tokens` covers, from the first."""
    known_tokens: float = 0.0
    """The tokens of the tools and of these messages."""
    tools_tokens: float = 0.0
    """The estimated tokens of the tools."""
    rate: float = 1.0
    """The factor by which estimates are corrected. It rises at once and falls slowly."""
    refused_tokens: int | None = None
    """The size of the newest prompt that the server refused as too long; `None` if it refused none."""
    refusal: str | None = None
    """What the server said about it."""
    compacted_tokens: float = 0.0
    """The size of the prompt after the newest compaction; 0 if there was none."""
    is_fresh: bool = False
    """True from a compaction until the next inference is completed."""
    turn_at: int = 0
    """The position of the message that began the newest turn."""
    recalled: dict[int, int] = field(default_factory=dict)
    """The positions of messages that begin with a block of recalled memories, and how many characters it has."""


def copy_context(context: Context) -> Context:
    """Return a copy that can be changed without changing `context`."""
    return replace(context, recalled=dict(context.recalled))


def find_room(state: "State") -> int | None:
    """Return how many tokens the prompt may have; `None` if that is not known."""
    refused = state.context.refused_tokens
    room = None if refused is None else int(refused * _REFUSED_SHARE)
    if state.window is None:
        return room
    own = max(1, state.window.tokens - state.window.output_tokens)
    return own if room is None else min(own, room)


def find_trigger(state: "State", room: int) -> float:
    """Return the size of the prompt above which it is compacted.

    After a compaction that could not reach its goal, the prompt must first grow by half of what a compaction is
    meant to gain, so that it is not compacted at every step.
    """
    policy = state.policy
    share = 1.0 if policy.compact_at is None else policy.compact_at
    least_growth = (share - policy.compact_to) / 2 * room
    grown = state.context.compacted_tokens + least_growth if state.context.compacted_tokens else 0.0
    return min(room, max(share * room, grown))


def is_surely_below(state: "State", limit: float) -> bool:
    """Return whether the prompt is below `limit` even if each character since the newest inference took the most
    tokens. It takes the same time however long the messages are."""
    context = state.context
    if not context.known_messages or state.has_parts or state.steering:
        return False
    added = len(state.messages) - context.known_messages
    most = _MOST_TOKENS_PER_CHAR * (state.unsent_chars + 4 * added)
    return context.known_tokens + most < limit


def count_prompt(state: "State") -> int:
    """Return the tokens of the next prompt, as far as they are known; the rest is estimated."""
    context = state.context
    added = sum([weigh_message(item) for item in state.messages.after(context.known_messages)])
    if state.asked is None:
        added += sum([weigh_message(item) for _, item in state.steering])
    return ceil(context.known_tokens + context.rate * added)


def note_tools(state: "State") -> None:
    """Note the size of the tools that are offered from now on."""
    if state.window is None:
        return
    context, tokens = state.context, weigh_tools(state.tools)
    context.known_tokens = max(0.0, context.known_tokens + tokens - context.tools_tokens)
    context.tools_tokens = tokens


def note_inference(state: "State", body: e.InferenceCompleted) -> None:
    """Note what the server counted, before the answer is added to the messages."""
    context, usage = state.context, body.completion.usage
    room = None
    if state.window is not None or context.refused_tokens is not None:
        room = find_room(state)
    if usage is not None and usage.input_tokens > 0:
        if room is not None and not context.is_fresh and not is_surely_below(state, room * _MEASURED_SHARE):
            _learn_rate(context, usage.input_tokens, state)
        context.known_tokens = usage.input_tokens + usage.output_tokens
    elif room is not None:
        context.known_tokens = count_prompt(state) + weigh_message(body.completion.message)
    else:
        # The window may become known later. Then all messages are estimated.
        context.known_messages, context.known_tokens = 0, context.tools_tokens
        return
    context.known_messages = len(state.messages) + 1
    context.is_fresh = False


def _learn_rate(context: Context, counted: int, state: "State") -> None:
    """Compare the estimate of what was added with what the server counted."""
    is_first = not context.known_messages
    added = sum([weigh_message(item) for item in state.messages.after(context.known_messages)])
    estimated, seen = (
        (added + context.tools_tokens, counted) if is_first else (added, counted - context.known_tokens)
    )
    if estimated < _LEAST_MEASURED:
        return
    low, high = _RATES
    rate = seen / estimated
    context.rate = min(high, max(low, rate, 0.7 * context.rate + 0.3 * rate))


def note_compaction(state: "State", body: e.ContextCompacted, before: Log[Message]) -> None:
    """Note what a compaction changed. `before` are the messages before it."""
    context = state.context
    count, shift = body.messages, len(body.replacement) - body.messages
    if body.reason == "overflow":
        context.refused_tokens = body.tokens_before
        context.refusal = None if state.failure is None else state.failure.error
    context.compacted_tokens = context.known_tokens = float(body.tokens_after)
    context.known_messages = len(state.messages)
    context.is_fresh = True
    moved = {at: at + shift for at in (*context.recalled, context.turn_at) if at >= count}
    gone = set(body.forgotten)
    for at in (*context.recalled, context.turn_at):
        if at < min(count, len(before)):
            place, is_whole = find_kept(before[at], context.recalled.get(at, 0), body.replacement)
            if place is not None:
                moved[at] = place
            if not is_whole:
                gone.add(at)
    context.recalled = {
        moved[at]: chars for at, chars in context.recalled.items() if at in moved and at not in gone
    }
    context.turn_at = moved.get(context.turn_at, 0)


def find_kept(
    message: Message, recalled_chars: int, replacement: Sequence[Message]
) -> tuple[int | None, bool]:
    """Return the position of `message` in the replacement, with or without the recalled memories that it begins
    with (`None` if it is not there), and whether it is there with them."""
    if message in replacement:
        return replacement.index(message), True
    short = forget(message, recalled_chars)
    return (replacement.index(short) if short in replacement else None), False


def compact(
    messages: Iterable[Message], body: e.ContextCompacted, recalled: Mapping[int, int]
) -> list[Message]:
    """Return the messages that the model sees after a compaction.

    `recalled` says how many characters of recalled memories messages begin with, by position.
    """
    kept = [
        _shorten(forget(message, recalled.get(at, 0)) if at in body.forgotten else message, body.shortened)
        for at, message in enumerate(messages)
        if at >= body.messages
    ]
    return [*body.replacement, *kept]


def _shorten(message: Message, lines: Mapping[str, str]) -> Message:
    line = lines.get(message.call_id) if message.call_id is not None else None
    return message if line is None else replace(message, content=line, parts=())


def forget(message: Message, chars: int) -> Message:
    """Return `message` without the recalled memories that it begins with."""
    return replace(message, content=message.content[chars:].lstrip("\n")) if chars else message


def explain_overflow(state: "State", room: int) -> str:
    """Return the error of a turn whose prompt does not fit even after compacting: what is too large."""
    context, messages = state.context, list(state.messages)
    sizes = {
        "the system message": sum([_size(item, context) for item in messages if item.role is Role.SYSTEM]),
        "the definitions of the tools": int(context.tools_tokens or weigh_tools(state.tools)),
        "the user's message": _size(messages[context.turn_at], context) if messages else 0,
    }
    sizes["the newest step"] = sum([_size(item, context) for item in messages[_newest_step(messages) :]])
    largest = sorted(sizes.items(), key=lambda item: -item[1])
    told = ", ".join([f"{name} about {tokens:,}" for name, tokens in largest if tokens])
    said = "" if context.refusal is None else f" The server said: {context.refusal}"
    return (
        f"the prompt is too long even after compacting: it has about {count_prompt(state):,} tokens, and there is "
        f"room for {room:,}. Of these, {told}.{said}"
    )


def _size(message: Message, context: Context) -> int:
    return int(context.rate * weigh_message(message))


def _newest_step(messages: list[Message]) -> int:
    """Return the position of the newest message of the model; the number of messages if there is none."""
    return next(
        (at for at in range(len(messages) - 1, -1, -1) if messages[at].role is Role.ASSISTANT), len(messages)
    )
