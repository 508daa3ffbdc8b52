"""The view of a step: what the model saw, and which parts of the transcript were left out."""

from collections.abc import Sequence

from msgspec import Struct

from treadle.context.compaction_summary import is_summary
from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.prompts.estimates import weigh_message, weigh_tools
from treadle.core.prompts.prompting import find_kept, find_room, take_excerpt
from treadle.core.state import State, advance
from treadle.core.types import UNREPORTED, Message, Usage, Window


class SeenMessage(Struct, frozen=True, omit_defaults=True):
    """A message as the model saw it."""

    message: Message
    tokens: int
    """The estimated size of the message in tokens."""
    number: int | None = None
    """The position in the whole transcript, from 1; `None` for a summary."""
    is_summary: bool = False
    is_cut: bool = False
    """True if the model saw only an excerpt, or a line in place of the result."""
    recalled_chars: int = 0
    """How many characters of recalled memories the message begins with."""


class LeftOut(Struct, frozen=True, omit_defaults=True):
    """A message of the transcript that the model did not see, or saw only in part."""

    message: Message
    number: int
    """The position in the whole transcript, from 1."""
    tokens: int
    """The estimated size in tokens of the part that was left out."""
    why: str
    """`summarised`, `dropped`, `cut` (a result or a long message) or `forgotten` (recalled memories)."""
    seq: int
    """The number of the event that left it out."""


class StepView(Struct, frozen=True, omit_defaults=True):
    """The view of one step: what the model saw in it."""

    step: int
    seq: int
    """The number of the event that started the inference."""
    model: str | None
    messages: tuple[SeenMessage, ...]
    tools: tuple[str, ...]
    """The names of the tools that were offered."""
    tools_tokens: int
    """The estimated size of their definitions."""
    tokens: int
    """The size of the prompt in tokens as the server counted it, or the estimate from before the request."""
    is_counted: bool
    """True if the server counted `tokens`."""
    usage: Usage
    """The token counts of the server; `is_reported` is false if it did not count, or gave no answer."""
    window: Window | None
    room: int | None
    """How many tokens the prompt could have; `None` if that was not known."""
    left_out: tuple[LeftOut, ...]


def view_step(events: Sequence[e.Event], step: int) -> StepView:
    """Return what the model saw at `step`, in its newest attempt. Raises: `ConfigError` without such a step."""
    asked = [
        event for event in events if isinstance(event.body, e.InferenceStarted) and event.body.step == step
    ]
    if not asked:
        last = max(
            (event.body.step for event in events if isinstance(event.body, e.InferenceStarted)), default=0
        )
        raise ConfigError(
            f"the run has no step {step}; its steps are 1 to {last}" if last else "the run has no steps"
        )
    start = asked[-1].body
    assert isinstance(start, e.InferenceStarted)
    reader = _Reader()
    for event in events[: asked[-1].seq]:
        reader.take(event)
    done = next(
        (
            event.body
            for event in events[asked[-1].seq :]
            if isinstance(event.body, e.InferenceCompleted) and event.body.step == step
        ),
        None,
    )
    return reader.view(start, asked[-1].seq, UNREPORTED if done is None else done.completion.usage)


class _Reader:
    """A fold of events that knows which message of the transcript each message that the model sees is."""

    def __init__(self) -> None:
        self._state = State()
        self._numbers: list[int | None] = []
        """The position in the transcript of each message that the model sees; `None` for a summary."""
        self._gone: dict[int, LeftOut] = {}

    def take(self, event: e.Event) -> None:
        state, body = self._state, event.body
        if isinstance(body, e.ContextCompacted):
            self._compact(event.seq, body)
            advance(state, body)
            return
        known = len(state.transcript)
        advance(state, body)
        self._numbers += range(known + 1, len(state.transcript) + 1)

    def _compact(self, seq: int, body: e.ContextCompacted) -> None:
        seen = list(self._state.messages)
        kept: list[int | None] = [None] * len(body.replacement)
        old: list[tuple[Message, int | None]] = []
        for at, number in enumerate(self._numbers[: body.messages]):
            message = take_excerpt(seen[at], body.excerpts.get(at), body.kept_parts.get(at))
            place, _ = find_kept(message, self._state.shown.recalled.get(at, 0), body.replacement)
            if place is not None and kept[place] is None:
                kept[place] = number
                if at in body.excerpts:
                    self._leave_out(seen[at], number, "cut", seq)
            elif number is not None:
                old.append((seen[at], number))
        for index, (message, number) in enumerate(old):
            self._leave_out(message, number, "dropped" if index < body.dropped else "summarised", seq)
        rest = list(enumerate(zip(seen, self._numbers, strict=True)))[body.messages :]
        for at, (message, number) in rest:
            if message.call_id in body.shortened or at in body.excerpts:
                self._leave_out(message, number, "cut", seq)
            elif at in body.forgotten:
                self._leave_out(message, number, "forgotten", seq)
        self._numbers = [*kept, *self._numbers[body.messages :]]

    def _leave_out(self, message: Message, number: int | None, why: str, seq: int) -> None:
        if number is not None:
            whole = self._state.transcript[number - 1]
            self._gone[number] = LeftOut(whole, number, self._size(whole), why, seq)

    def _size(self, message: Message) -> int:
        return int(weigh_message(message) * self._state.size.rate)

    def view(self, start: e.InferenceStarted, seq: int, usage: Usage) -> StepView:
        """Return the view at the inference that `start` began."""
        state = self._state
        cut = {number for number, item in self._gone.items() if item.why == "cut"}
        messages = tuple(
            [
                SeenMessage(
                    message,
                    self._size(message),
                    number,
                    is_summary(message),
                    number in cut,
                    state.shown.recalled.get(at, 0),
                )
                for at, (message, number) in enumerate(zip(state.messages, self._numbers, strict=True))
            ]
        )
        tools = state.tools if start.has_tools else ()
        tools_tokens = int(weigh_tools(tools) * state.size.rate)
        guessed = tools_tokens + sum([item.tokens for item in messages])
        counted = usage.input_tokens
        return StepView(
            step=start.step,
            seq=seq,
            model=start.model,
            messages=messages,
            tools=tuple([tool.name for tool in tools]),
            tools_tokens=tools_tokens,
            tokens=counted or guessed,
            is_counted=counted > 0,
            usage=usage,
            window=state.window,
            room=find_room(state),
            left_out=tuple([self._gone[number] for number in sorted(self._gone)]),
        )
