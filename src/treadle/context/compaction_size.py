"""The sizes of a run's context window and of its messages, and the event that a plan and its summary lead to."""

import asyncio
from collections.abc import Sequence
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from treadle.context.compaction_plan import Plan, Seen, Sizes
from treadle.context.compaction_summary import ContextSummary, list_results, read_summary, write_summary
from treadle.core import events as e
from treadle.core.errors import TreadleError
from treadle.core.policy import Policy
from treadle.core.prompts.estimates import weigh_message, weigh_tools
from treadle.core.prompts.prompting import compact, find_goals, find_room, forget
from treadle.core.state import State
from treadle.core.types import Completion, Message, Role, ToolSpec, Usage, Window
from treadle.models.protocol import Model, context_tokens_of, innermost, output_tokens_of
from treadle.tools.read_again import READ_RESULT, find_readers, is_cut_out

_SUMMARY_SHARE = 24
_SUMMARY_TOKENS = (64, 1_000)
"""The shortest and the longest limit of a summary."""
_INDEX_SHARE = 0.5
"""The part of the longest summary that the list of results may have."""
_REQUEST_TOKENS = 2_000
"""The room for a summary and for the instructions of its request, where the window is not known."""
_REFUSED_SHARES = 0.9, 0.5, 0.06
"""The share of a refused prompt that is the room, by how often the turn's prompt was refused before. The last one
is small, because the turn ends if its prompt is refused once more."""


class Measured(Struct, frozen=True):
    """A run's context with its sizes."""

    seen: Seen
    sizes: Sizes
    tokens: int
    """The size of the prompt in tokens."""
    room: int
    """How many tokens the prompt may have."""
    ratio: float
    """The factor by which estimates of tokens are corrected. It comes from the server's counts."""


class Summarised(Struct, frozen=True):
    """The outcome of a request for a summary."""

    text: str = ""
    """The summary; empty if there is none."""
    left_out: int = 0
    """How many of the old messages are not in the summary."""
    error: str | None = None
    model: str | None = None
    """The name of the model that was asked; `None` if no model was asked."""
    usage: Usage | None = None
    cost_usd: float | None = 0.0
    sampled: Completion | None = None
    """The answer, if its engine returned the ids of its tokens."""


def measure(
    state: State,
    tokens: int,
    *,
    is_refused: bool,
    is_whole: bool = False,
    spare: Sequence[ToolSpec] = (),
) -> Measured:
    """Return the sizes of a run's context. `tokens` is the size of the prompt, and `spare` are tools that the model
    can be offered besides.

    If the server refused the prompt, or the window is not known, the room is a little less than the prompt. If
    neither is known to be too small, no message has to become an excerpt, and the request for a summary may have
    all of the conversation if it `is_whole`.
    """
    messages = tuple(state.messages)
    weights = [weigh_message(message) for message in messages]
    tools = state.size.tools_tokens or weigh_tools(state.tools)
    ratio = tokens / max(1.0, tools + sum(weights))
    room = find_room(state)
    is_unknown = room is None and not is_refused
    if room is None or is_refused:
        share = _REFUSED_SHARES[min(state.turn.spent.overflows, len(_REFUSED_SHARES) - 1)]
        room = min(int(tokens * share), room or tokens)
        room = 2 * room + _REQUEST_TOKENS if is_whole and is_unknown else room
    goals = find_goals(state.policy, None if is_unknown else room)
    most, goal = goals or (inf, state.policy.compact_to * room)
    low, high = _SUMMARY_TOKENS
    seen = Seen(
        messages,
        [ratio * weight for weight in weights],
        state.turn.position,
        state.turn.is_open,
        state.shown.recalled,
        find_readers((*state.tools, *spare)),
        _number(state),
    )
    summary = min(high, max(low, goal / state.policy.compact_to / _SUMMARY_SHARE))
    return Measured(
        seen, Sizes(ratio * tools, goal, (goal + most) / 2, most, summary), tokens, max(1, room), ratio
    )


def _number(state: State) -> dict[int, int]:
    """Return the numbers in the whole transcript of the user's messages that the model sees, by position."""
    found, numbers = {}, len(state.transcript)
    whole = list(state.transcript)
    for at, message in reversed(list(enumerate(state.messages))):
        if message.role is not Role.USER:
            continue
        text = forget(message, state.shown.recalled.get(at, 0)).content
        for number in range(numbers, 0, -1):
            said = whole[number - 1]
            if said.role is Role.USER and (said.content.endswith(text) or is_cut_out(text, said.content)):
                found[at], numbers = number, number - 1
                break
    return found


def index_of(measured: Measured, plan: Plan) -> tuple[str, ...]:
    """Return the list of the results among the old messages, if the model can read them again."""
    if READ_RESULT not in measured.seen.readers:
        return ()
    room = _INDEX_SHARE * measured.sizes.summary / max(1.0, measured.ratio)
    return list_results(plan.old, read_summary(plan.earlier).index, room)


def make_event(
    measured: Measured, plan: Plan, reason: str, summarised: Summarised, spare: Sequence[ToolSpec] = ()
) -> e.ContextCompacted:
    """Return the event of a compaction. Without a summary, the earlier one stays, and old messages are dropped.

    It offers the tools `spare` if it cuts something that they read again.
    """
    index = index_of(measured, plan) if plan.messages else ()
    replacement: Sequence[Message] = ()
    dropped = 0
    if plan.messages:
        earlier = read_summary(plan.earlier)
        dropped = summarised.left_out if summarised.text else len(plan.old)
        note = write_summary(
            ContextSummary(summarised.text or earlier.text, earlier.left_out + dropped, index)
        )
        replacement = (*plan.head, note, *plan.asked)
    event = e.ContextCompacted(
        messages=plan.messages,
        replacement=tuple(replacement),
        usage=summarised.usage,
        shortened=plan.shortened,
        excerpts=plan.excerpts,
        kept_parts=plan.kept_parts,
        forgotten=plan.forgotten,
        dropped=dropped,
        reason=reason,
        tokens_before=measured.tokens,
        model=summarised.model,
        cost_usd=summarised.cost_usd,
        error=summarised.error,
        sampled=summarised.sampled,
        tools=tuple(spare) if plan.excerpts or plan.shortened or index else (),
    )
    after = compact(tuple(measured.seen.messages), event, measured.seen.recalled)
    weights = [weigh_message(message) for message in after]
    size = measured.sizes.tools + measured.ratio * (weigh_tools(event.tools) + sum(weights))
    return replace(event, tokens_after=int(size) + 1)


_MOST_OUTPUT_TOKENS = 8_192
"""How many tokens are kept free for the answer if the model leaves its length to the server."""
_OUTPUT_SHARE = 8
_PROBE_SECONDS = 3.0


async def look_up_window(model: Model) -> tuple[int, str] | None:
    """Return the context window of `model` in tokens, and where the number comes from; `None` if it is not known.

    A server is asked only if it is of a kind that tells the window, and waits for at most a few seconds.
    """
    # A table of models may have to be loaded first.
    tokens = (
        await asyncio.to_thread(context_tokens_of, model)
        if hasattr(model, "inner")
        else context_tokens_of(model)
    )
    inner = innermost(model)
    if tokens is not None:
        is_said = inner is model or isinstance(getattr(inner, "context_tokens", None), int)
        return tokens, "said" if is_said else "preset"
    find = getattr(inner, "find_context_tokens", None)
    if find is None or not getattr(inner, "tells_window", False):
        return None
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            probed = await find()
    except (TreadleError, OSError):
        return None
    return (probed, "probe") if isinstance(probed, int) and probed > 0 else None


def make_window(known: tuple[int, str] | None, model: Model, policy: Policy) -> Window | None:
    """Return the window of a run. The window in the policy takes precedence over the `known` window of the model.

    The room for the answer is what the model asks for, but at most half of the window.
    """
    if policy.context_tokens is not None:
        known = policy.context_tokens, "said"
    if known is None:
        return None
    tokens, source = known
    said = output_tokens_of(model)
    room = min(_MOST_OUTPUT_TOKENS, tokens // _OUTPUT_SHARE) if said is None else min(said, tokens // 2)
    return Window(tokens, room, source)
