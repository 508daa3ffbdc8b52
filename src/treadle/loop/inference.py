"""The performer of inferences: it sends the request of the state, and returns the outcome as events."""

import asyncio
import time
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import answering
from treadle.core import events as e
from treadle.core.actions import CheckAnswer, Infer
from treadle.core.asking import FindFault
from treadle.core.errors import (
    AuthenticationError,
    ConfigError,
    ContextOverflowError,
    HandshakeError,
    ProviderError,
    RefusedError,
    RequestError,
    UnsupportedPartError,
)
from treadle.core.limits import can_ask_again, guess_cost_usd
from treadle.core.parts import describe, digests_of_parts
from treadle.core.prompts.prompting import count_prompt, find_room, guess_next_tokens, make_request
from treadle.core.state import State
from treadle.core.steering import count_messages
from treadle.core.tokens.packed import ID_BYTES, as_packed, count_shared
from treadle.core.tokens.token_record import Prior, TokenRecord
from treadle.core.types import Artifact, Fault, Message, Request, Role, StopReason, ToolCall, Usage
from treadle.journal.protocol import Clock
from treadle.loop.compaction import count_tokens
from treadle.loop.outbox import Outbox
from treadle.models.protocol import Hold, Model, Watch, check_parts, estimate_cost_usd

_SAFETY = 3
"""How far estimates may be off for a prompt not to be counted by the model's tokenizer."""


class Inference:
    """The performer of one run's inferences, with one model."""

    def __init__(
        self, model: Model, read_blob: Callable[[str], bytes] | None = None, clock: Clock = time
    ) -> None:
        """Make a performer. `read_blob` returns content from the store by its hash; it may block."""
        self.model = model
        self._model = model
        """The model that is asked: a tier of the run's own, or that model itself."""
        self._name = model.name
        """The name of the model that is asked."""
        self._patience_seconds: float | None = None
        """The longest wait that the model's server may ask for; `None`: no limit."""
        self._contents = _Contents(read_blob)
        self._clock = clock
        self.on_delta: Callable[[e.Delta], None] | None = None
        """The function that gets each piece of an answer as it arrives; `None`: answers are not streamed."""
        self.said: list[str] = []
        """The pieces of the text of the answer that is being streamed."""
        self._is_begun = False
        """True if a request was sent, so that an earlier wait that a server asked for is over."""
        self._hide: _Hide | None = None
        """The replacement of parts that the model does not accept; `None` until there was one."""
        self._call_ids: set[str] | None = None

    async def perform(self, state: State, action: Infer, outbox: Outbox) -> None:
        """Ask the model for its next message."""
        step = action.step
        self.said.clear()
        outbox.put(
            e.InferenceStarted(
                step=step,
                messages=state.messages.size
                if not state.turn.steering
                else count_messages(state, has_tools=action.has_tools),
                has_tools=action.has_tools,
                model=self._name,
                reserved_cost_usd=None
                if state.policy.max_cost_usd is None
                else _guess_cost_usd(state, self._model),
            )
        )
        messages = state.messages
        await outbox.kept()

        failures = _Failures(state, step, outbox, self.said, self.on_delta is not None)
        begin = self._clock.monotonic()
        try:
            request = make_request(state, has_tools=action.has_tools)
            if state.shown.has_parts:
                await self._contents.load(digests_of_parts(messages))
                request = replace(request, contents=self._contents)
            if state.window is not None or state.size.refused_tokens is not None:
                check_room(state, self._model, request)
            pieces = None if self.on_delta is None else self._make_pieces(self.on_delta, state, step)
            watch = Watch(pieces, failures, patience_seconds=self._patience_seconds)
            if state.policy.deadline_seconds is not None:
                watch.left_seconds = max(0.0, state.policy.deadline_seconds - state.work_seconds)
            if state.hold is not None and not self._is_begun:
                watch.held = find_hold(state.hold, self._clock.time())
            self._is_begun = True
            if self._hide is None:
                try:
                    completion = await self._model.infer(request, watch)
                except UnsupportedPartError:
                    # The model is told in words of parts of tools' results that it cannot be sent.
                    self._hide = _Hide(self._model)
            if self._hide is not None:
                messages = messages.derive(self._hide)
                completion = await self._model.infer(replace(request, messages=messages), watch)
        except Exception as error:
            outbox.put(replace(describe_failure(error, step), attempt=failures.attempt + 1))
            return
        finally:
            failures.outbox = None
        seconds = self._clock.monotonic() - begin
        if completion.message.tool_calls:
            told = {} if pieces is None else pieces.call_ids
            message = make_ids_unique(completion.message, step, self._find_call_ids(state), told)
            if message is not completion.message:
                completion = replace(completion, message=message)
        if completion.tokens is not None:
            completion = replace(completion, tokens=share_prompt(completion.tokens, state.shown.prior))
        blobs, answered_by, refused_tool = completion.contents, watch.answered_by, None
        if (
            state.agent is not None
            and state.agent.context is not None
            and state.agent.context.judge is not None
        ):
            # Imported here because only agents with a judge need the patterns.
            from treadle.routing.judging import find_refused_tool

            refused_tool = find_refused_tool(state, completion.message)
        if blobs is not None:
            completion = replace(completion, contents=None)
        done = e.InferenceCompleted(
            step=step,
            completion=completion,
            duration_seconds=seconds,
            first_token_seconds=None if pieces is None or pieces.at is None else pieces.at - begin,
            answered_by=None if answered_by is None or answered_by == self._name else answered_by,
            refused_tool=refused_tool,
        )
        outbox.put(done, blobs=blobs)

    def _find_call_ids(self, state: State) -> set[str]:
        """Return the ids of all calls of the run."""
        if self._call_ids is None:
            self._call_ids = call_ids_of(state.transcript)
        return self._call_ids

    def _make_pieces(self, on_delta: Callable[[e.Delta], None], state: State, step: int) -> "_Pieces":
        return _Pieces(on_delta, self._clock, self.said, step, partial(self._find_call_ids, state))


def check_room(state: State, model: Model, request: Request) -> None:
    """Check that a prompt fits, if the model has a tokenizer and the prompt is not estimated to be far smaller.

    Raises: `ContextOverflowError` before anything is sent.
    """
    if getattr(model, "count_tokens", None) is None or state.policy.compact_at is None:
        return
    room = find_room(state)
    if room is None or not state.shown.can_compact or _SAFETY * count_prompt(state) < room:
        return
    tokens = count_tokens(model, request)
    if tokens is not None and tokens > room:
        raise ContextOverflowError(f"the prompt has {tokens:,} tokens, and there is room for {room:,}")


class _Pieces(Struct, eq=False):
    """A function that passes the pieces of an answer on, and keeps the time of the first one and all texts.

    The pieces of calls have the ids that the calls get in the run.
    """

    _on_delta: Callable[[e.Delta], None]
    _clock: Clock
    _said: list[str]
    _step: int
    _find_used: Callable[[], set[str]]
    """A function that returns the ids of all calls before."""
    at: float | None = None
    """When the first piece came, by the monotonic clock; `None` if none came."""
    call_ids: dict[int, tuple[str, str]] = {}
    """The id that the server gave each call, and its id in the run, by the position of the call."""

    def __call__(self, delta: e.Delta) -> None:
        if self.at is None:
            self.at = self._clock.monotonic()
        if type(delta) is e.TextDelta:
            self._said.append(delta.text)
        elif type(delta) is e.ToolCallDelta and (delta.call_id or delta.index not in self.call_ids):
            call_id = self._find_id(delta.index, delta.call_id or "")
            delta = delta if delta.call_id == call_id else replace(delta, call_id=call_id)
        self._on_delta(delta)

    def _find_id(self, index: int, told: str) -> str:
        known = self.call_ids.get(index)
        if known is None or known[0] not in ("", told):
            others = [made for at, (_, made) in self.call_ids.items() if at != index]
            known = told, make_id(told, self._step, index, {*self._find_used(), *others})
        self.call_ids[index] = told, known[1]
        return known[1]


class _Hide(Struct, eq=False, weakref=True):
    """A function for `Log.derive` that replaces parts which a model cannot be sent by texts about them. The parts
    of the user's messages stay, so that the user hears that they cannot be sent."""

    _model: Model

    def __call__(self, messages: list[Message], is_first: bool) -> list[Message]:
        return [self._hide(item) if item.parts and item.role is not Role.USER else item for item in messages]

    def _hide(self, message: Message) -> Message:
        hidden = [part for part in message.parts if not self._can_send(part)]
        texts = [f"[{describe(part)} cannot be shown to you]" for part in hidden]
        parts = tuple([part for part in message.parts if part not in hidden])
        return replace(message, content="\n".join([message.content, *texts]), parts=parts)

    def _can_send(self, part: Artifact) -> bool:
        try:
            check_parts(self._model, [part])
        except UnsupportedPartError:
            return False
        return getattr(self._model, "check_part", None) is not None


def _guess_cost_usd(state: State, model: Model) -> float | None:
    """Estimate what the next inference costs; `None` if nothing is known about the price."""
    tokens = guess_next_tokens(state)
    if state.turn.spent.cost_usd:
        return guess_cost_usd(state, tokens)
    output_tokens = state.size.last_usage.output_tokens
    return estimate_cost_usd(model, Usage(tokens - output_tokens, output_tokens))


class _Failures(Struct, eq=False):
    """Records the failed attempts of one inference. The errors that a model keeps may refer to it for long, so its
    outbox is taken away when the inference ends."""

    state: State
    step: int
    outbox: Outbox | None
    """The outbox; `None`: nothing is recorded any more."""
    said: list[str]
    is_heard: bool
    attempt: int = 0
    """The number of the newest attempt that failed."""
    telling: "asyncio.Future[None] | None" = None

    def __call__(self, error: ProviderError, attempt: int, delay_seconds: float) -> None:
        """See `Watch.on_failure`. Raises: `error` if the budgets do not allow another attempt."""
        if self.outbox is None:
            return
        self.said.clear()
        if error.may_be_billed and not can_ask_again(self.state, lost=1):
            raise error
        failure = describe_failure(error, self.step)
        number = attempt or self.attempt + 1
        self.outbox.put(replace(failure, attempt=number, retry_in_seconds=delay_seconds))
        self.attempt = attempt or self.attempt  # a wait is no attempt
        if self.is_heard:
            self.telling = asyncio.ensure_future(self.outbox.kept())
            # An error of the store or of the listener is raised where the next events are kept.
            self.telling.add_done_callback(lambda done: done.cancelled() or done.exception())


class _Contents(dict[str, bytes]):
    """The contents of message parts by hash, read from the store in a thread and kept for the whole run."""

    def __init__(self, read_blob: Callable[[str], bytes] | None) -> None:
        super().__init__()
        self._read_blob = read_blob

    async def load(self, digests: Iterable[str]) -> None:
        """Read the contents that are not loaded yet. Raises: `JournalError`."""
        missing = [item for item in dict.fromkeys(digests) if item not in self]
        if missing and self._read_blob is not None:
            found = await asyncio.to_thread(lambda read: [read(item) for item in missing], self._read_blob)
            self.update(zip(missing, found, strict=True))


def find_hold(hold: tuple[float, float, str | None], now: float) -> Hold | None:
    """Return the rest of a wait that the journal records; `None` if the wait is over."""
    until, seconds, model = hold
    # A clock that was set back must not prolong the wait.
    left = min(seconds, until - now)
    return Hold(model, left) if left > 0 else None


def describe_failure(error: Exception, step: int) -> e.InferenceFailed:
    """Return the event for an inference that failed and is not tried again."""
    stop_reason, fault = StopReason.ERROR, Fault.INFRASTRUCTURE
    if isinstance(error, ContextOverflowError):
        stop_reason, fault = StopReason.CONTEXT_OVERFLOW, Fault.MODEL
    elif isinstance(error, RefusedError):
        stop_reason, fault = StopReason.REFUSED, Fault.MODEL
    elif isinstance(error, AuthenticationError | HandshakeError | RequestError | ConfigError):
        fault = Fault.USER
    text = (
        str(error) if isinstance(error, ProviderError | ConfigError) else f"{type(error).__name__}: {error}"
    )
    return e.InferenceFailed(
        step=step,
        error=text,
        error_type=type(error).__name__,
        fault=fault,
        status=error.status if isinstance(error, ProviderError) else None,
        stop_reason=stop_reason,
        model=error.model if isinstance(error, ProviderError) else None,
        retry_after_seconds=error.retry_after_seconds if isinstance(error, ProviderError) else None,
        may_be_billed=isinstance(error, ProviderError) and error.may_be_billed,
    )


def call_ids_of(messages: Iterable[Message]) -> set[str]:
    return {call.call_id for message in messages for call in message.tool_calls}


def make_ids_unique(
    message: Message, step: int, seen: set[str], told: Mapping[int, tuple[str, str]] = {}
) -> Message:
    """Return `message` with a new id for every call that has no id or an id that the run has already used.

    `told` are the ids that a stream has given to calls already, as `_Pieces.call_ids`. All ids are added to `seen`.
    """
    calls: list[ToolCall] | None = None
    for index, call in enumerate(message.tool_calls):
        known = told.get(index)
        is_told = known is not None and known[0] == call.call_id and known[1] not in seen
        call_id = known[1] if known is not None and is_told else make_id(call.call_id, step, index, seen)
        seen.add(call_id)
        if call_id != call.call_id:
            calls = calls or list(message.tool_calls)
            calls[index] = replace(call, call_id=call_id)
    return message if calls is None else replace(message, tool_calls=tuple(calls))


def make_id(given: str, step: int, index: int, seen: Container[str]) -> str:
    """Return the id of a call: the `given` one, if it is not empty and not among the `seen` ids of the run.

    New ids consist of the step and the position, so that a second run makes the same ids. An id with a slash is
    replaced too, because ids of inner calls contain slashes.
    """
    if given and given not in seen and "/" not in given:
        return given
    stem = f"{(given or 'call').replace('/', '-')}_{step}_{index}"
    while stem in seen:
        stem += "_"
    return stem


def share_prompt(tokens: TokenRecord, prior: Prior | None) -> TokenRecord:
    """Return `tokens` without the leading prompt ids that equal the ids of the inference before, so that the
    journal has no repetitions."""
    if not tokens.prompt_token_ids or prior is None:
        return tokens
    prompt = as_packed(tokens.prompt_token_ids)
    shared = count_shared(prompt, prior.token_ids)
    experts = tokens.routed_experts
    if experts is not None and shared * ID_BYTES == len(prior.token_ids):
        # The last token of the inference before was not sent through the model then. A prompt that continues only
        # a part of that inference begins another branch, which needs the experts of all its tokens.
        experts = experts.after(shared - 1)
    return replace(
        tokens,
        prompt_token_ids=prompt[shared * ID_BYTES :],
        prompt_shared_tokens=shared,
        routed_experts=experts,
    )


async def check_answer(
    find_fault: FindFault | None, state: State, action: CheckAnswer, outbox: Outbox
) -> None:
    """Check an answer with `find_fault`; without one, only against the run's schema."""
    # Imported here because only runs with a schema need the validator.
    from treadle.tools.schema.answer_schema import find_output_fault

    outbox.put(*answering.check_answer(state, action, find_fault or find_output_fault))
