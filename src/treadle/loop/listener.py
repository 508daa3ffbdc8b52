"""Those who are told of a run: the hooks of its agent, which get every durable event, the driver's own listener,
and others in this process."""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.events.narrowing import Event, Item
from treadle.core.state import State
from treadle.journal.driven import DrivenRun

Hook: TypeAlias = Callable[[Event], object]
"""A function that is called with each durable event. It runs on the event loop, so it must not block.

A hook may also have these methods: `catch_up(run_id, events)` is called with the events so far, in a thread,
before a run that exists goes on; `leave(run_id)` is called when this process no longer drives a run; and
`close()` is called by `Agent.close`. If it has a method `take(run_id, first_seq, bodies)`, this method is
called instead, with the bodies of several events at once, which costs less. If it has an attribute `is_patient`
that is true, it is called only when a turn has ended or the run is paused, and within long turns from time to
time. `trace_parent(run_id, started, body)` is called before the event is stored with which a turn, or a part of
one, begins; what it returns is kept in the event. `started` is the run's first event.
"""
MANY = 256
"""After this many events of one turn, a hook with a true `is_patient` is called even if the turn goes on."""
_METHODS = ("__call__", "take", "catch_up", "trace_parent", "leave", "close")


class Hooks:
    """The hooks of an agent. An exception of a hook is logged once, and never reaches the run."""

    __slots__ = ("_all", "_broken", "_takers", "is_patient", "traces")

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        """Check and keep the hooks. Raises: `ConfigError` for one that cannot be called, or must be awaited."""
        self._all = tuple(hooks)
        self.is_patient = all([getattr(hook, "is_patient", False) for hook in self._all])
        """True if all hooks are patient."""
        self.traces = any([hasattr(hook, "trace_parent") for hook in self._all])
        """True if a hook has a method `trace_parent`."""
        self._takers = [getattr(hook, "take", None) for hook in self._all]
        self._broken: set[int] = set()
        """The positions of the hooks whose exception was logged."""
        for hook in self._all:
            methods = [hook, *[getattr(hook, name, None) for name in _METHODS]]
            if not callable(hook) or any(map(inspect.iscoroutinefunction, methods)):
                raise ConfigError(
                    f"hooks has {hook!r:.200}; give functions that take an event and do not wait"
                )

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def all(self) -> tuple[Hook, ...]:
        return self._all

    def tell(self, run_id: str, first_seq: int, bodies: Sequence[e.DurableBody]) -> None:
        """Call each hook with the events that have these bodies."""
        for index, hook in enumerate(self._all):
            take = self._takers[index]
            if take is not None:
                self._try(index, take, run_id, first_seq, bodies)
                continue
            for seq, body in enumerate(bodies, first_seq):
                self._try(index, hook, e.Event(run_id, seq, body))

    def trace(self, run_id: str, state: State, bodies: Sequence[e.DurableBody]) -> None:
        """Set `trace_parent` in the events, not yet stored, with which a turn or a part of one begins."""
        started = state.started
        for body in bodies:
            if isinstance(body, e.RunStarted):
                started = body
            is_resumed = isinstance(body, e.RunResumed) and (state.turn.is_open or state.has_failed_turn)
            if is_resumed or isinstance(body, e.TurnStarted):
                found = self._call("trace_parent", run_id, started, body)
                force_setattr(body, "trace_parent", found)

    async def catch_up(self, run_id: str, read: Callable[[], Iterable[e.Event]]) -> None:
        """Tell the hooks about the events of a run that goes on. `read` returns them; it may block."""
        for index, hook in enumerate(self._all):
            if hasattr(hook, "catch_up"):
                await asyncio.to_thread(self._try, index, lambda take=hook.catch_up: take(run_id, read()))

    def leave(self, run_id: str) -> None:
        """Tell the hooks that this process no longer drives a run."""
        self._call("leave", run_id)

    def close(self) -> None:
        """Close the hooks that can be closed."""
        self._call("close")

    def _call(self, name: str, *arguments: object) -> Any:
        """Call a method of all hooks that have it, and return the last result that is not `None`."""
        result = None
        for index, hook in enumerate(self._all):
            method = getattr(hook, name, None)
            if method is not None:
                result = self._try(index, method, *arguments) or result
        return result

    def _try(self, index: int, function: Callable[..., object], *arguments: object) -> Any:
        """Return what a function of a hook returns; `None` if it fails."""
        try:
            result = function(*arguments)
            if inspect.iscoroutine(result):
                result.close()
                raise TypeError("it returned a coroutine, and hooks are not awaited")
            return result
        except Exception as error:
            if index not in self._broken:
                self._broken.add(index)
                told = (
                    "the hook %r raised an exception, which its run does not see; further ones are not logged"
                )
                logging.getLogger("treadle").error(told, self._all[index], exc_info=error)
            return None


Emit: TypeAlias = Callable[[Item], Awaitable[None] | None]
"""A listener: a function, or coroutine function, that is called with each durable event and each delta."""
DeltaListener: TypeAlias = Callable[[e.Delta], None]
"""A function that is called with each piece of an answer as it arrives."""


class Listener:
    """A queue in front of a listener, which gets one item after another, in order.

    If a listener returns an awaitable, it is awaited before the next item. If a listener raises an exception, its
    run stops, because `idle` raises the exception.
    """

    __slots__ = ("_emit", "_error", "_is_async", "_items", "_run_id", "_task")

    def __init__(self, run_id: str, emit: Emit) -> None:
        self._run_id = run_id
        self._emit: Emit | None = emit
        self._items: deque[Item] = deque()
        """The items that wait until an asynchronous listener has taken those before them."""
        self._task: asyncio.Task[None] | None = None
        """The task that awaits the listener; `None` if nothing waits for it."""
        self._is_async = False
        self._error: Exception | None = None

    def tell(self, item: e.Event | e.Ephemeral) -> None:
        """Pass the next item to the listener, or queue it while the listener is busy."""
        if self._task is not None:
            self._items.append(item)  # type: ignore[arg-type]
            return
        waiting = self._call(item)  # type: ignore[arg-type]
        if waiting is not None:
            self._is_async = True
            self._task = asyncio.ensure_future(self._go_on(waiting))

    def tell_delta(self, delta: e.Delta) -> None:
        """Pass a delta to the listener."""
        if self._emit is not None:
            self.tell(e.Ephemeral(self._run_id, delta))

    async def idle(self) -> None:
        """Wait until the listener has taken all items. Raises: what the listener raised."""
        if self._task is not None:
            # The listener is not cancelled together with the tool call or the step that waits for it here.
            await asyncio.wait([self._task])
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """Stop waiting for an asynchronous listener, and ignore its failure.

        A run that is cancelled ends even if its listener does not return.
        """
        if self._is_async or self._error is not None:
            self.end()

    def end(self) -> None:
        """Pass no more items to the listener."""
        self._emit = self._error = None
        self._items.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _call(self, item: Item) -> Awaitable[None] | None:
        if self._emit is None:
            return None
        try:
            found = self._emit(item)
            return found if found is None or inspect.isawaitable(found) else None
        except Exception as error:
            self._fail(error)
            return None

    async def _go_on(self, waiting: Awaitable[None] | None) -> None:
        try:
            if waiting is not None:
                await waiting
            while self._items:
                waiting = self._call(self._items.popleft())
                if waiting is not None:
                    await waiting
        except Exception as error:
            self._fail(error)
        finally:
            self._task = None

    def _fail(self, error: Exception) -> None:
        self._error, self._emit = error, None
        self._items.clear()


class Publisher(Struct, eq=False):
    """A function that passes deltas to the listener of a run, and to those who listen to it by its journal."""

    _state: State
    _driven: DrivenRun
    _own: DeltaListener | None

    def tell_delta(self, delta: e.Delta) -> None:
        if self._own is not None:
            self._own(delta)
        self._driven.say(self._state.seq, delta)


class Progress(Struct, eq=False):
    """A function that passes a tool's progress reports to a listener. Any thread may call it."""

    _listener: Listener | Publisher
    _loop: asyncio.AbstractEventLoop

    def __call__(self, call_id: str, text: str) -> None:
        with suppress(RuntimeError):  # a tool left a thread behind, and the event loop is closed
            self._loop.call_soon_threadsafe(self._listener.tell_delta, e.ToolProgress(call_id, text))
