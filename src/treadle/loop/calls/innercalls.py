"""Inner calls: calls of other tools that a running tool makes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from treadle.core import events as e
from treadle.core.calls import RunInner, refuse_after_doubt
from treadle.core.errors import ToolError
from treadle.core.types import Json, ToolCall, ToolResult
from treadle.journal.protocol import DONE
from treadle.loop.calls.questions import Rules
from treadle.loop.outbox import Outbox
from treadle.tools.protocol import ToolOutput

MakeInner: TypeAlias = Callable[[RunInner, str, int, Outbox], Awaitable[ToolResult]]
"""A function that makes an inner call. It takes the decision, the id of the outer call, the step and the outbox."""


class InnerCalls:
    """The inner calls of one running call, made one after another."""

    __slots__ = (
        "_count",
        "_is_over",
        "_lock",
        "_make_call",
        "_outbox",
        "_parent_id",
        "_rules",
        "_running",
        "_step",
        "is_in_doubt",
    )

    def __init__(self, rules: Rules, make_call: MakeInner, parent_id: str, step: int, outbox: Outbox) -> None:
        """Make an object for the inner calls of the running call `parent_id`."""
        self._rules = rules
        self._make_call = make_call
        self._parent_id = parent_id
        self._step = step
        self._outbox = outbox
        self._count = 0
        self._lock: asyncio.Lock | None = None
        self._running: asyncio.Task[Any] | None = None
        """The task that waits for a call."""
        self._is_over = False
        self.is_in_doubt = False
        """True if the tool made different inner calls than before it was interrupted."""

    async def call(self, name: str, arguments: dict[str, Json]) -> ToolOutput:
        """Make an inner call; see `ToolContext.call_tool`."""
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if self._is_over:
                raise ToolError(f"{name!r} was not called: the call that wanted to make it has ended")
            self._count += 1
            self._running = asyncio.current_task()
            try:
                result = await self._make(name, msgspec.json.encode(arguments).decode())
            finally:
                self._running = None
        return ToolOutput(result.content, result.is_error, result.is_simulated, result.structured)

    def leaves_doubt(self, last_once: int) -> bool:
        """Return whether the outcome of the outer call, which has returned, is unknown.

        It is unknown if an interrupted attempt made inner calls that cannot be undone, the last of them with the
        number `last_once`, and this attempt made other calls in their place, or ended before that number.
        """
        return self.is_in_doubt or self._count < last_once

    def end(self) -> None:
        """Refuse further inner calls, and cancel one that is still running after the outer call has ended."""
        self._is_over = True
        if self._running is not None:
            self._running.cancel()

    def put(self, *bodies: e.DurableBody, blobs: Mapping[str, bytes] | None = None) -> None:
        """Take events as `Outbox.put` does. Events that come after the outer call has ended are dropped."""
        if not self._is_over:
            self._outbox.put(*bodies, blobs=blobs)

    def kept(self) -> Awaitable[None]:
        """See `Outbox.kept`."""
        return DONE if self._is_over else self._outbox.kept()

    async def _make(self, name: str, arguments: str) -> ToolResult:
        if self.is_in_doubt:
            return refuse_after_doubt(ToolCall(f"{self._parent_id}/{self._count}", name, arguments))
        decided = self._rules.decide_inner(self._parent_id, self._count, name, arguments)
        if isinstance(decided, RunInner):
            return await self._make_call(decided, self._parent_id, self._step, self)
        if decided.is_doubtful:
            self.is_in_doubt = True
        elif not decided.is_recorded:
            self.put(e.ToolCompleted(step=self._step, result=decided.result, parent_call_id=self._parent_id))
        return decided.result
