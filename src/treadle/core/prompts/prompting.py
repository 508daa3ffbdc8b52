"""The next prompt: the part of the transcript that the model is shown, its size, and the room that is left.

The size is what the server counted at the newest inference, plus an estimate of what was added since. The
estimate is corrected by its error at earlier inferences of the run.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.log import Log
from treadle.core.prompts.estimates import count_chars, guess_of_chars, weigh_message, weigh_tools
from treadle.core.tokens.packed import ID_BYTES, as_packed
from treadle.core.tokens.token_record import Prior
from treadle.core.types import (
    Completion,
    Fault,
    FinishReason,
    Message,
    OutputMode,
    Request,
    Role,
    Usage,
)

if TYPE_CHECKING:
    from treadle.core.policy import Policy
    from treadle.core.state import State

_MOST_TOKENS_PER_CHAR = 4
_MEASURED_SHARE = 0.1
"""Estimates are compared with counts when the prompt fills this share of the room."""
_LEAST_MEASURED = 50
"""Estimates of fewer tokens say nothing about the rate."""
_RATES = (0.65, 4.0)
"""The lowest and the highest correction of estimates."""
MOST_OVERFLOWS = 3
"""How often prompts that the server refuses as too long are compacted in one turn."""
_REFUSED_SHARE = 0.9
"""The share of a prompt that the server refused as too long which counts as the room from then on."""


class PromptSize(Struct, gc=False):
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
    """The server's error message for that prompt."""
    compacted_tokens: float = 0.0
    """The size of the prompt after the newest compaction; 0 if there was none."""
    is_fresh: bool = False
    """True from a compaction until the next inference is completed."""
    last_usage: Usage = Usage()
    """Tokens of the newest inference."""
    unsent_chars: int = 0
    """Characters added to the transcript since the newest inference."""


class Shown(Struct, gc=False):
    """The part of the transcript that the model is shown, and what this part has told the model."""

    whole: Log[Message] | None = None
    """The transcript without compactions; `None` if the model is shown all of it."""
    has_parts: bool = False
    """True if a message has parts, so that a request may need their contents."""
    recalled: dict[int, int] = {}
    """The messages that begin with a block of recalled memories: the block's length in characters, by position."""
    told: dict[str, int] = {}
    """The versions of the memories that were recalled since the newest compaction, by id."""
    prior: Prior | None = None
    """The ids of the newest inference that has ids; `None` if there is none."""
    can_compact: bool = False
    """True if contexts are compacted: false for what earlier versions of Treadle recorded."""
    compactions: int = 0
    """How often the context was compacted in the run."""
    fencing: frozenset[str] = frozenset()
    """The names of the offered tools whose results are Treadle's own and fence what is foreign."""
    external: frozenset[str] = frozenset()
    """The names of the offered tools whose calls the program that uses the run makes."""
    tells_schema: bool = False
    """True if a message in the transcript tells the schema of answers."""
    is_schema_untold: bool = False
    """True if the model must be told the schema in the transcript, because the instructions do not hold it."""


# What events change.


def add_message(state: "State", message: Message) -> None:
    """Add a message to the transcript, whose size is counted elsewhere."""
    shown = state.shown
    state.messages = state.messages.append(message)
    if shown.whole is not None:
        shown.whole = shown.whole.append(message)
    if message.parts:
        shown.has_parts = True


def say(state: "State", message: Message) -> None:
    """Add a message to the transcript, which the model has not been sent."""
    add_message(state, message)
    state.size.unsent_chars += len(message.content)


def replace_instructions(state: "State", text: str) -> None:
    """Replace the system message; empty removes it. The transcript keeps the one that a turn has begun with."""
    shown, size, before = state.shown, state.size, state.messages
    has_one = bool(before) and before[0].role is Role.SYSTEM
    if state.turn.number:
        shown.whole = state.transcript
    head = [Message(Role.SYSTEM, text)] if text else []
    state.messages = Log([*head, *list(before)[has_one:]])
    shift = len(head) - has_one
    shown.recalled = {at + shift: chars for at, chars in shown.recalled.items()}
    state.turn.position += shift
    forget_ids(state)
    size.known_tokens = size.tools_tokens = 0.0
    size.known_messages, size.last_usage = 0, Usage()
    size.unsent_chars = sum(len(message.content) for message in state.messages)
    note_tools(state)


def note_tools(state: "State") -> None:
    """Note the size of the tools that are offered from now on."""
    if state.window is None and state.policy.compact_threshold is None:
        return
    size, tokens = state.size, weigh_tools(state.tools)
    size.known_tokens = max(0.0, size.known_tokens + tokens - size.tools_tokens)
    size.tools_tokens = tokens


def note_inference(state: "State", completion: Completion) -> Usage:
    """Note the tokens that the server counted, or an estimate, before the answer is added, and return them."""
    size, usage, message = state.size, completion.usage, completion.message
    spent = usage
    if not usage.is_reported:
        spent = Usage(guess_input_tokens(state), guess_of_chars(count_chars(message)), is_reported=False)
    room = state.policy.compact_threshold
    if state.window is not None or size.refused_tokens is not None:
        room = find_room(state)
    if usage.input_tokens > 0:
        if room is not None and not size.is_fresh and not is_surely_below(state, room * _MEASURED_SHARE):
            _learn_rate(state, usage.input_tokens)
        size.known_tokens = usage.input_tokens + usage.output_tokens
        size.known_messages = state.messages.size + 1
        if size.is_fresh:
            size.is_fresh = False
    elif room is not None:
        size.known_tokens = count_prompt(state) + weigh_message(message)
        size.known_messages, size.is_fresh = len(state.messages) + 1, False
    else:
        # The window may become known later. Then all messages are estimated.
        size.known_messages, size.known_tokens = 0, size.tools_tokens
    size.last_usage, size.unsent_chars = spent, 0
    return spent


def _learn_rate(state: "State", counted: int) -> None:
    """Compare the estimate of what was added with what the server counted."""
    size = state.size
    is_first = not size.known_messages
    added = sum([weigh_message(item) for item in state.messages.after(size.known_messages)])
    estimated, seen = (
        (added + size.tools_tokens, counted) if is_first else (added, counted - size.known_tokens)
    )
    if estimated < _LEAST_MEASURED:
        return
    low, high = _RATES
    rate = seen / estimated
    size.rate = min(high, max(low, rate, 0.7 * size.rate + 0.3 * rate))


def note_ids(state: "State", completion: Completion) -> None:
    """Keep the ids of the inference that was completed last, if its engine returned ids."""
    tokens, shown = completion.tokens, state.shown
    if tokens is None or tokens.prompt_token_ids is None or tokens.token_ids is None:
        return
    earlier = b"" if shown.prior is None else shown.prior.token_ids
    shared = earlier[: tokens.prompt_shared_tokens * ID_BYTES]
    shown.prior = Prior(
        b"".join([shared, as_packed(tokens.prompt_token_ids), as_packed(tokens.token_ids)]),
        len(state.messages),
        tokens.tokenizer,
        completion.finish_reason is FinishReason.LENGTH,
    )


def forget_ids(state: "State") -> None:
    """Record that the newest ids no longer stand for the beginning of the transcript."""
    if state.shown.prior is not None:
        state.shown.prior = replace(state.shown.prior, messages=0)


def fold_compaction(state: "State", body: e.ContextCompacted) -> None:
    """Replace what the model is shown, and note the new size."""
    before, shown, size, turn = state.messages, state.shown, state.size, state.turn
    size.is_fresh = True
    if body.is_empty and state.is_since(2, 5):
        size.compacted_tokens = float(body.tokens_before)
        if body.reason == "overflow":
            turn.spent.overflows = MOST_OVERFLOWS
        return
    shown.whole = state.transcript
    state.messages = Log(compact(before, body, shown.recalled))
    shown.has_parts = any([message.parts for message in state.messages])
    # What the replaced messages told may be gone.
    shown.is_schema_untold = shown.is_schema_untold or (shown.tells_schema and body.messages > 0)
    shown.compactions += 1
    shown.told = {}
    forget_ids(state)
    if body.reason == "overflow":
        size.refused_tokens = body.tokens_before
        size.refusal = None if turn.failure is None else turn.failure.error
        turn.spent.overflows += 1
        turn.failure = None
    size.compacted_tokens = size.known_tokens = float(body.tokens_after)
    size.known_messages = len(state.messages)
    size.last_usage = Usage()
    size.unsent_chars = sum(len(message.content) for message in state.messages)
    _move_places(state, body, before)


def _move_places(state: "State", body: e.ContextCompacted, before: Log[Message]) -> None:
    """Find out where the messages are now that begin the turn or begin with recalled memories."""
    shown, turn = state.shown, state.turn
    count, shift = body.messages, len(body.replacement) - body.messages
    places = (*shown.recalled, turn.position)
    moved = {at: at + shift for at in places if at >= count}
    gone = {*body.forgotten, *body.excerpts}
    for at in places:
        if at < min(count, len(before)):
            message = take_excerpt(before[at], body.excerpts.get(at), body.kept_parts.get(at))
            place, is_whole = find_kept(message, shown.recalled.get(at, 0), body.replacement)
            if place is not None:
                moved[at] = place
            if not is_whole:
                gone.add(at)
    shown.recalled = {
        moved[at]: chars for at, chars in shown.recalled.items() if at in moved and at not in gone
    }
    turn.position = moved.get(turn.position, 0)


def find_kept(
    message: Message, recalled_chars: int, replacement: Sequence[Message]
) -> tuple[int | None, bool]:
    """Return the position of `message` in the replacement, and whether it stands there with its recalled
    memories. The message is searched with and without the recalled memories that it begins with. The position
    is `None` if it is not found."""
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
    kept = []
    for at, message in enumerate(messages):
        if at in body.excerpts:
            message = take_excerpt(message, body.excerpts[at], body.kept_parts.get(at))
        elif at in body.forgotten:
            message = forget(message, recalled.get(at, 0))
        if at >= body.messages:
            kept.append(_shorten(message, body.shortened))
    return [*body.replacement, *kept]


def take_excerpt(message: Message, text: str | None, kept_parts: int | None = None) -> Message:
    """Return `message` with `text`, if given, in place of its own, and its first `kept_parts` (`None`: all)."""
    return (
        message
        if text is None
        else replace(message, content=text, own_chars=0, parts=message.parts[:kept_parts])
    )


def _shorten(message: Message, lines: Mapping[str, str]) -> Message:
    line = lines.get(message.call_id) if message.call_id is not None else None
    return message if line is None else replace(message, content=line, parts=(), own_chars=0)


def forget(message: Message, chars: int) -> Message:
    """Return `message` without the recalled memories that it begins with."""
    return replace(message, content=message.content[chars:].lstrip("\n"), own_chars=0) if chars else message


# What follows for the next request.


def make_request(state: "State", *, has_tools: bool) -> Request:
    """Return the next request to the model. With `has_tools` false it offers no tools except the answer tool."""
    output, specs, prior = state.output_spec, state.tools, state.shown.prior
    if prior is not None and not prior.messages:
        prior = None
    place = place_of(state)
    if output is None:
        return Request(state.messages, specs if has_tools else (), prior=prior, place=place)
    if output.mode is not OutputMode.TOOL:
        schema = output.schema if output.mode is OutputMode.NATIVE else None
        return Request(state.messages, specs if has_tools else (), schema, prior=prior, place=place)
    if has_tools and len(specs) > 1:
        return Request(state.messages, specs, prior=prior, place=place)
    if len(specs) > 1:  # else it stays the same tuple: models cache what they encoded from it
        specs = tuple([spec for spec in specs if spec.name == output.tool])
    return Request(state.messages, specs, None, output.tool, prior=prior, place=place)


def place_of(state: "State", *more: str) -> str:
    """Return the `Request.place` of a run's own requests, or of those that `more` tells from them."""
    caller = None if state.started is None else state.started.caller
    return "/".join([caller.place, *more] if caller is not None and caller.place else more)


def find_room(state: "State") -> int | None:
    """Return how many tokens the prompt may have; `None` if that is not known."""
    refused = state.size.refused_tokens
    room = None if refused is None else int(refused * _REFUSED_SHARE)
    if state.window is None:
        return room
    own = max(1, state.window.tokens - state.window.output_tokens)
    return own if room is None else min(own, room)


def find_goals(policy: "Policy", room: int | None) -> tuple[float, float] | None:
    """Return the size of the prompt above which it is compacted, and the one that a compacted prompt should have;
    `None` if `room`, that of the prompt, is not known and the policy names no size."""
    share = 1.0 if policy.compact_at is None else policy.compact_at
    named = policy.compact_threshold
    if named is not None and (room is None or named < share * room):
        room, share = named, 1.0
    return None if room is None else (share * room, policy.compact_to * room)


def find_trigger(state: "State", room: int | None) -> float | None:
    """Return the size of the prompt above which it is compacted; `None`: no size is known.

    After a compaction that could not reach its goal, the prompt must first grow by half of the tokens that a
    compaction is meant to save, so that it is not compacted at every step; after one that left it above the
    trigger, as the tools and the instructions alone may, by half of its size.
    """
    if (goals := find_goals(state.policy, room)) is None:
        return None
    trigger, goal = goals
    if compacted := state.size.compacted_tokens:
        saved = compacted if compacted > trigger and state.is_since(2, 8) else trigger - goal
        trigger = max(trigger, compacted + saved / 2)
    return trigger if room is None else min(room, trigger)


def is_surely_below(state: "State", limit: float) -> bool:
    """Return whether the prompt is below `limit` even if each character since the newest inference took the most
    tokens. It takes the same time however long the messages are."""
    size = state.size
    if not size.known_messages or state.shown.has_parts or state.turn.steering:
        return False
    added = len(state.messages) - size.known_messages
    most = _MOST_TOKENS_PER_CHAR * (size.unsent_chars + 4 * added)
    return size.known_tokens + most < limit


def count_prompt(state: "State") -> int:
    """Return the tokens of the next prompt, as far as they are known; the rest is estimated."""
    size, turn = state.size, state.turn
    added = sum([weigh_message(item) for item in state.messages.after(size.known_messages)])
    if turn.asked is None:
        added += sum([weigh_message(item) for _, item in turn.steering])
    return ceil(size.known_tokens + size.rate * added)


def guess_input_tokens(state: "State") -> int:
    """Estimate the tokens of the next prompt: those of the newest inference, plus the text added since."""
    return state.size.last_usage.total_tokens + guess_of_chars(state.size.unsent_chars)


def guess_next_tokens(state: "State") -> int:
    """Estimate the tokens of the next inference, its answer included: they are reserved before it is sent.

    While an inference runs, the estimate is for that inference, without the messages that came later.
    """
    turn = state.turn
    new = sum([len(message.content) for _, message in turn.steering]) if turn.asked is None else 0
    return guess_input_tokens(state) + guess_of_chars(new) + state.size.last_usage.output_tokens


def blame_overflow(state: "State") -> Fault:
    """Return whose fault it is that a prompt does not fit: the model's, if it has worked in the turn already."""
    return Fault.MODEL if state.turn.spent.steps else Fault.USER


def explain_overflow(state: "State", refusal: str, room: int | None = None) -> str:
    """Return the error of a turn whose prompt does not fit even after compacting: what is too large.

    `refusal` is what the server said about it; empty if it was not asked, because there is only `room`.
    """
    size, messages = state.size, list(state.messages)

    def weigh(items: list[Message]) -> int:
        return sum([int(size.rate * weigh_message(item)) for item in items])

    position = state.turn.position
    newest = [at for at, item in enumerate(messages) if item.role is Role.ASSISTANT][-1:] or [len(messages)]
    sizes = {
        "the system message": weigh([item for item in messages if item.role is Role.SYSTEM]),
        "the definitions of the tools": int(size.tools_tokens or weigh_tools(state.tools)),
        "the user's message": weigh(messages[position : position + 1]),
        "the newest step": weigh(messages[newest[0] :]),
    }
    estimated = weigh(messages) + sizes["the definitions of the tools"]
    whole = count_prompt(state) if size.known_messages else estimated
    share = min(1.0, whole / max(1, estimated))  # no part is larger than the whole
    largest = sorted(sizes.items(), key=lambda item: -item[1])
    told = ", ".join([f"{name} about {int(share * tokens):,}" for name, tokens in largest if tokens])
    known = "" if room is None else f", and there is room for {room:,}"
    refusal = refusal or size.refusal or ""
    is_compacted = state.policy.compact_at is not None and state.shown.can_compact
    return (
        f"the prompt is too long{' even after compacting' * is_compacted}: it has about {whole:,} "
        f"tokens{known}. Of these, {told}.{f' The server said: {refusal}' if refusal else ''}"
    )
