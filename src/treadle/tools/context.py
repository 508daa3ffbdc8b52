"""The context of a running tool: facts about its call, and the resources that its run holds."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic

from typing_extensions import TypeVar

from treadle.core.asking import Answer, Question
from treadle.core.errors import NotAskedError, ToolError
from treadle.core.limits import Allowance
from treadle.core.lineage import Child
from treadle.core.types import Json, ToolCall, ToolResult, ToolSpec
from treadle.journal.protocol import Journal
from treadle.sandbox.protocol import Sandbox
from treadle.tools.protocol import Approver, Decision, ToolOutput

T = TypeVar("T")
DepsT = TypeVar("DepsT", default=Any)
# With a default, `ToolContext` without a parameter is complete for strict type checkers.


class _NoDeps:
    def __repr__(self) -> str:
        return "NO_DEPS"


NO_DEPS: Final = _NoDeps()
"""The value of `deps` if none were given."""


class Scope:
    """The resources that tools hold for one run while a process drives it: folders, connections, sessions.

    Everything in it is closed, in reverse order of opening, when the run is no longer driven.
    """

    __slots__ = ("_closers", "_items", "_lock", "is_run_over")

    def __init__(self) -> None:
        self.is_run_over = False
        """True if the run is finished and will not be driven again. It is set before the last `close`."""
        self._items: dict[Hashable, Any] = {}
        self._closers: list[AbstractAsyncContextManager[Any]] = []
        self._lock: asyncio.Lock | None = None

    async def get(self, key: Hashable, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Return the run's item under `key`. The first call makes the item and enters it as a context manager.

        The item may be exited in another task than the one that entered it. Exceptions on entering are passed
        on.
        """
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if key not in self._items:
                manager = make()
                self._items[key] = await manager.__aenter__()
                self._closers.append(manager)
            item: T = self._items[key]
        return item

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to close."""
        return not self._closers

    async def close(self) -> None:
        """Close everything in the scope. It is empty afterwards and can be used again."""
        while self._closers:
            manager = self._closers.pop()
            try:
                await manager.__aexit__(None, None, None)
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a tool failed to release what it held for a run", "exception": error}
                )
        self._items.clear()


class ToolContext(Generic[DepsT]):
    """The resources of a run that a running call can use. A parameter with this annotation receives it.

    `ToolContext[Database]` says that the tool needs a `Database` as `deps`.

    A context that you make yourself, as in a test of a tool, does not belong to a run: there is nobody to ask,
    no other tool to call, no journal, and nobody who watches. The workbench makes the contexts of runs.
    """

    __slots__ = ("_deps", "call_id", "run_id", "sandbox", "scope", "step", "tools")

    def __init__(
        self,
        run_id: str,
        call_id: str,
        step: int,
        sandbox: Sandbox | None = None,
        *,
        scope: Scope | None = None,
        tools: Sequence[ToolSpec] = (),
        deps: object = NO_DEPS,
    ) -> None:
        """Make a context for a call outside of a run."""
        self.run_id = run_id
        self.call_id = call_id
        self.step = step
        """The step's number in the run, counted from 1."""
        self.sandbox = sandbox
        """The run's files. `None` if the run has no sandbox."""
        self.scope = scope if scope is not None else Scope()
        """The resources that tools hold for the run as long as it is driven."""
        self.tools = tools
        """All tools of the run, including this one."""
        self._deps = deps

    @property
    def deps(self) -> DepsT:
        """The object that was given as `deps` to the agent or to the run. It is never stored.

        Raises: `ToolError` if none was given.
        """
        if self._deps is NO_DEPS:
            raise ToolError("context.deps was not given: pass deps=... to the agent, the run or the session")
        return self._deps  # type: ignore[return-value]

    def deps_or(self, deps: object) -> object:
        """Return `deps`, or those of the run if `deps` is `NO_DEPS`."""
        return self._deps if deps is NO_DEPS else deps

    @property
    def files(self) -> Sandbox:
        """The run's files, for tools that need them. Raises: `ToolError` if the run has no sandbox."""
        if self.sandbox is None:
            raise ToolError("this run has no files; whoever starts it must give it some with `files={...}`")
        return self.sandbox

    @property
    def place(self) -> str:
        """Where the call stands in its run; see `Caller.place`. It is the same in a run that is made again."""
        return ""

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for every attempt at this call, in every process, for services that accept one."""
        return f"{self.run_id}/{self.call_id}"

    @property
    def is_heard(self) -> bool:
        """True if somebody watches the run. If not, `progress` has no effect."""
        return False

    def progress(self, text: str) -> None:
        """Report progress to those who watch the run. It is not journalled. Any thread may call this."""

    async def find_result(self, call_id: str) -> ToolResult | None:
        """Return the whole result of an earlier call of this run, even if the model saw only a part of it.

        It is `None` if the run has no such result.
        """
        return None

    async def find_message(self, number: int) -> str | None:
        """Return the whole text of an earlier message of the user; `None` if the run has no such message.

        `number` is its position in the run's transcript, from 1.
        """
        return None

    async def call_tool(self, name: str, arguments: dict[str, Json]) -> ToolOutput:
        """Call another tool of the run. The call is journalled as an inner call of this one.

        A call that fails returns an output with `is_error`. Raises: `ToolError` if there is no run.
        """
        raise ToolError(f"{name!r} cannot be called from here")

    async def ask(self, question: Question | str) -> Answer:
        """Return the user's answer to a question.

        If nobody answers now, a call of a `pure` or `idempotent` tool ends here without a result, and the run
        pauses. When the answer has come, the call runs again from its beginning, and the same question returns the
        answer at once. A `once` tool cannot run again, so it can only ask somebody who answers now.

        Raises: `NotAskedError` if the policy allows no more questions in this turn, if the same question is open,
        or if nobody can be asked.
        """
        raise NotAskedError("Nobody can be asked here.")

    async def consult(self, call: ToolCall) -> Decision | None:
        """Return what the agent's approver says about a call of this tool, for tools that ask only in some cases.

        It is `None` if nobody decides now.
        """
        return None

    @property
    def journal(self) -> Journal | None:
        """The journal of the run, for tools that drive runs of their own; `None` outside of a run."""
        return None

    @property
    def approver(self) -> Approver | None:
        """The function that decides about the run's calls."""
        return None

    @property
    def hooks(self) -> Any:
        """The `Hooks` of the run, for tools that drive runs of their own; `None` outside of a run."""
        return None

    def allowance(self) -> Allowance:
        """Return what a run that this call drives may use of the budgets of this run."""
        return Allowance()

    def note_child(self, child: Child) -> None:
        """Say which run this call has driven, and what that run has used. It is recorded with the call's result."""


NO_CONTEXT: ToolContext[Any] = ToolContext("", "", 0)
"""The context that is given to tools with a false `takes_context`. These tools do not use it."""
