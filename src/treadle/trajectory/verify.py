"""Verifying a run: its tool calls are made again in a fresh sandbox, and every result is compared.

The sandbox begins with the files that the run began with. What cannot be made again is counted and named.
Calls that ran beside each other are made again one after another, as they ended or else as they began; their
files are compared when the last of them has ended, since a snapshot before may hold half of another's work.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.errors import ConfigError, ToolError
from treadle.core.state import State, apply
from treadle.core.types import (
    Effect,
    FinishReason,
    Json,
    ToolCall,
    ToolErrorKind,
    ToolResult,
    ToolSpec,
)
from treadle.journal.protocol import Journal
from treadle.loop.perform import read_call, run_tool
from treadle.loop.toolcalls import for_code, tell_edit
from treadle.sandbox.memory import MemorySandbox
from treadle.tools.context import Scope, ToolContext
from treadle.tools.protocol import Tool, ToolLike, ToolOutput
from treadle.tools.resolve import TOOLSETS, resolve_tools
from treadle.tools.schema.validation import ArgumentChecker
from treadle.trajectory.compare import is_same

_LOST = {
    ToolErrorKind.IN_DOUBT: "its outcome was lost",
    ToolErrorKind.NOT_RUN: "it was not run",
    ToolErrorKind.OVER_LIMIT: "it was not run",
    ToolErrorKind.REFUSED: "it was refused",
    ToolErrorKind.TIMEOUT: "it was stopped by a time-out",
}


class Difference(Struct, frozen=True):
    """One result that came out otherwise."""

    seq: int
    """Of the event that holds the recorded one."""
    call: str
    """The tool and the call's id."""
    recorded: str
    found: str

    def __str__(self) -> str:
        return f"{self.call} at seq {self.seq}: recorded {self.recorded!r:.200}, now {self.found!r:.200}"


class Verification(Struct, frozen=True):
    """What came of making a run's calls again."""

    run_id: str
    calls: int
    """Results in the run; each is matched, skipped or different."""
    matched: int
    skipped: int
    skips: tuple[str, ...]
    """Each call that was not made again, and why."""
    differences: tuple[Difference, ...]

    @property
    def is_verified(self) -> bool:
        """Every call was made again, and gave the same."""
        return not self.differences and not self.skipped


async def verify_run(journal: Journal, run_id: str, tools: Iterable[ToolLike] | None = None) -> Verification:
    """Make a run's `pure` and `idempotent` calls again, in order, and compare results and files.

    `tools` are the implementations; without them those of the built-in toolsets are taken, and the calls to
    other tools are skipped by name. What of a result may differ, `ToolSpec.may_differ` says. Simulated results
    are never taken for real ones. Raises: `RunNotFoundError`.
    """
    return await _Verifier(journal, run_id, tools).verify()


class _Recorded:
    """A tool of which only the definition is at hand."""

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec
        self.find_fault = ArgumentChecker(spec.parameters).find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str:
        raise AssertionError("a tool without its implementation is not run")


class _Inner(Struct, frozen=True):
    """A recorded call that another tool made."""

    seq: int
    """Of its result."""
    result: ToolResult
    started: e.ToolStarted | None
    """`None` for a call that was not run."""


class _Attempt(Struct):
    """What came of making the calls of one group again, in one order."""

    sandbox: MemorySandbox
    matched: int = 0
    skips: list[str] = []
    differences: list[Difference] = []

    def compare(self, seq: int, recorded: ToolResult, found: ToolResult | str, tool: Tool | None) -> bool:
        """Count one result; whether it is the same."""
        name = f"{recorded.name} ({recorded.call_id})"
        if isinstance(found, str):
            self.skips.append(f"{name}: {found}")
            return False
        same = is_same(recorded, found, () if tool is None else tool.spec.may_differ)
        if not same:
            self.differences.append(Difference(seq, name, recorded.content, found.content))
        self.matched += same
        return same


class _Verifier:
    def __init__(self, journal: Journal, run_id: str, tools: Iterable[ToolLike] | None) -> None:
        self._journal = journal
        self._run_id = run_id
        self._given = None if tools is None else resolve_tools(tools)
        self._specs: dict[str, ToolSpec] = {}
        self._tools: Mapping[str, Tool] = {}
        self._sandbox = MemorySandbox()
        self._state = State()
        self._calls: dict[str, tuple[ToolCall, FinishReason]] = {}
        self._started: dict[str, e.ToolStarted] = {}
        self._edits: dict[str, str] = {}
        """Call to the arguments that somebody gave in place of the model's."""
        self._inner: dict[str, dict[str, _Inner]] = {}
        """Call to the calls that it made itself, by id."""
        self._running: dict[str, None] = {}
        """Calls that were started and have no result yet, in the order in which they were started."""
        self._group: list[tuple[int, ToolResult]] = []
        """Results, each with its seq, since a moment when no call was running."""
        self._began: list[str] = []
        """The calls of the group, in the order in which they were started."""
        self._matched = 0
        self._skips: list[str] = []
        self._differences: list[Difference] = []

    async def verify(self) -> Verification:
        for event in self._journal.read(self._run_id):
            body = event.body
            self._state = apply(self._state, body)
            if isinstance(body, e.RunStarted):
                self._tools = self._implement(body.tools)
            elif isinstance(body, e.SnapshotTaken) and self._state.turn == 0:
                self._adopt_snapshot()
            elif isinstance(body, e.InferenceCompleted):
                completion = body.completion
                for call in completion.message.tool_calls:
                    self._calls[call.call_id] = call, completion.finish_reason
            elif isinstance(body, e.ApprovalDecided) and body.arguments is not None:
                self._edits[body.call_id] = body.arguments
            elif isinstance(body, e.ToolStarted):
                self._started[body.call_id] = body
                if body.parent_call_id is None:
                    self._running[body.call_id] = None
                    self._began.append(body.call_id)
            elif isinstance(body, e.ToolCompleted) and body.parent_call_id is not None:
                inner = _Inner(event.seq, body.result, self._started.get(body.result.call_id))
                self._inner.setdefault(body.parent_call_id, {})[body.result.call_id] = inner
            elif isinstance(body, e.ToolCompleted):
                self._running.pop(body.result.call_id, None)
                self._group.append((event.seq, body.result))
                if not self._running:
                    await self._compare_group(is_whole=True)
            elif isinstance(body, e.RunResumed):
                self._running.clear()
                await self._compare_group(is_whole=False)
        await self._compare_group(is_whole=False)
        calls = self._matched + len(self._skips) + len({item.seq for item in self._differences})
        return Verification(
            self._run_id, calls, self._matched, len(self._skips), tuple(self._skips), tuple(self._differences)
        )

    def _implement(self, specs: tuple[ToolSpec, ...]) -> dict[str, Tool]:
        self._specs = {spec.name: spec for spec in specs}
        if self._given is None:
            self._given = _built_in(set(self._specs))
        given = {tool.spec.name: tool for tool in self._given}
        return {
            spec.name: given[spec.name]
            if spec.name in given and given[spec.name].spec.parameters == spec.parameters
            else _Recorded(spec)
            for spec in specs
        }

    def _adopt_snapshot(self) -> None:
        """Take the recorded files for the sandbox's: what made them is not made again."""
        self._sandbox = MemorySandbox.restore(
            self._state.files, self._journal.read_blob, self._state.tool_states
        )

    @property
    def _recorded_snapshot_id(self) -> str:
        return self._state.snapshot_id or MemorySandbox().snapshot_id

    async def _compare_group(self, *, is_whole: bool) -> None:
        """Make the calls of the group again; files are compared if it `is_whole`, with nothing interrupted."""
        ended, began = self._group, {call_id: index for index, call_id in enumerate(self._began)}
        self._group, self._began = [], []
        if not ended:
            return
        best = await self._attempt(ended, is_whole=is_whole)
        in_start_order = sorted(ended, key=lambda item: began.get(item[1].call_id, -1))
        if best.differences and in_start_order != ended:
            other = await self._attempt(in_start_order, is_whole=is_whole)
            best = min(best, other, key=lambda item: len(item.differences))
        self._matched += best.matched
        self._skips += best.skips
        self._differences += best.differences
        self._sandbox = best.sandbox
        if self._sandbox.snapshot_id != self._recorded_snapshot_id:
            self._adopt_snapshot()

    async def _attempt(self, recorded: Sequence[tuple[int, ToolResult]], *, is_whole: bool) -> _Attempt:
        """Make calls again in the order given, each after the one before, in a copy of the sandbox."""
        attempt, scope = _Attempt(self._sandbox.copy()), Scope()
        is_last_same = False
        try:
            for seq, result in recorded:
                found = await self._make_again(result, attempt, scope)
                tool = self._tools.get(result.name)
                is_last_same = attempt.compare(seq, result, found, tool)
        finally:
            await scope.close()
        if is_whole and not attempt.skips:
            seq, last = recorded[-1]
            expected = self._state.snapshot_id or MemorySandbox().snapshot_id
            actual = attempt.sandbox.snapshot_id
            if actual != expected:
                name = f"files after {last.name} ({last.call_id})"
                attempt.differences.append(Difference(seq, name, expected, actual))
                attempt.matched -= is_last_same
        return attempt

    async def _make_again(self, recorded: ToolResult, attempt: _Attempt, scope: Scope) -> ToolResult | str:
        """The result now, or why there is none."""
        call, finish_reason = self._calls[recorded.call_id]
        edited = self._edits.get(call.call_id)
        if edited is not None:
            call = replace(call, arguments=edited)
        inner = _InnerCalls(self, call.call_id, attempt, scope)
        found = await self.run(call, recorded, attempt.sandbox, scope, inner, finish_reason)
        if isinstance(found, str):
            return found
        inner.finish()
        return found if edited is None else tell_edit(found, edited)

    async def run(
        self,
        call: ToolCall,
        recorded: ToolResult,
        sandbox: MemorySandbox,
        scope: Scope,
        inner: "_InnerCalls | None",
        finish_reason: FinishReason | None = None,
    ) -> ToolResult | str:
        """The result of one call now, or why it is not made again; `inner` makes the calls that it makes."""
        if recorded.error_kind in _LOST:
            return _LOST[recorded.error_kind]
        if recorded.is_simulated:
            return "its result was simulated"
        ready = read_call(call, self._tools, finish_reason)
        started = self._started.get(recorded.call_id)
        if isinstance(ready, ToolResult):
            return ready
        tool, arguments = ready
        if started is None:
            return "nothing says that it was run"
        if started.effect is Effect.ONCE:
            return "its effect is once"
        if isinstance(tool, _Recorded):
            return "its implementation is not at hand, or takes other arguments"
        context = ToolContext(
            self._run_id,
            call.call_id,
            started.step,
            sandbox,
            scope=scope,
            tools=tuple(self._specs.values()),
            make_caller=None if inner is None else lambda _: inner,
        )
        spec = self._specs[call.name]
        result, _ = await run_tool(call, tool, arguments, context, spec if inner else for_code(spec))
        return result

    def inner_of(self, call_id: str) -> Mapping[str, _Inner]:
        """The recorded calls that a call made, by id."""
        return self._inner.get(call_id, {})

    def tool_of(self, name: str) -> Tool | None:
        """The implementation at hand."""
        return self._tools.get(name)


class _InnerCalls:
    """Makes the calls that one call makes of other tools: again where that does no harm, else as recorded."""

    def __init__(self, verifier: _Verifier, parent_id: str, attempt: _Attempt, scope: Scope) -> None:
        self._verifier = verifier
        self._parent_id = parent_id
        self._recorded = verifier.inner_of(parent_id)
        self._attempt = attempt
        self._scope = scope
        self._made: set[str] = set()

    async def __call__(self, name: str, arguments: dict[str, Json]) -> ToolOutput:
        """See `ToolContext.call_tool`."""
        call_id = f"{self._parent_id}/{len(self._made) + 1}"
        self._made.add(call_id)
        call = ToolCall(call_id, name, msgspec.json.encode(arguments).decode())
        known = self._recorded.get(call_id)
        if known is None or not _is_call_of(known, call):
            raise ToolError(f"the recorded run did not call {name}({call.arguments}) here")
        attempt, result = self._attempt, known.result
        found = await self._verifier.run(call, result, attempt.sandbox, self._scope, None)
        attempt.compare(known.seq, result, found, self._verifier.tool_of(name))
        said = result if isinstance(found, str) else found
        return ToolOutput(said.content, said.is_error, said.is_simulated, said.structured)

    def finish(self) -> None:
        """Count the recorded calls that were not made now."""
        for call_id, known in self._recorded.items():
            if call_id not in self._made:
                absent = ToolResult(call_id, known.result.name, "not called", is_error=True)
                self._attempt.compare(known.seq, known.result, absent, None)


def _is_call_of(known: _Inner, call: ToolCall) -> bool:
    started = known.started
    if started is None:
        return known.result.name == call.name
    return (started.name, started.arguments) == (call.name, call.arguments)


def _built_in(names: set[str]) -> tuple[Tool, ...]:
    """The tools of the registered toolsets that can be loaded, until all `names` are found."""
    found: dict[str, Tool] = {}
    for toolset in (name for name in TOOLSETS.table if not name.endswith(":")):
        if names <= found.keys():
            break
        with contextlib.suppress(ConfigError):
            found = {**{tool.spec.name: tool for tool in resolve_tools([toolset])}, **found}
    return tuple(found.values())
