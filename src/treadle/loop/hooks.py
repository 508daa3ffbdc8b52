"""The hooks of an agent: functions that are called with every durable event of its runs."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from msgspec.structs import force_setattr

from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.events.narrowing import Event
from treadle.core.state import State

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
            if not callable(hook) or inspect.iscoroutinefunction(hook):
                raise ConfigError(
                    f"hooks has {hook!r:.200}; give functions that take an event and do not wait"
                )

    def __bool__(self) -> bool:
        return bool(self._all)

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
            return function(*arguments)
        except Exception as error:
            if index not in self._broken:
                self._broken.add(index)
                told = (
                    "the hook %r raised an exception, which its run does not see; further ones are not logged"
                )
                logging.getLogger("treadle").error(told, self._all[index], exc_info=error)
            return None
