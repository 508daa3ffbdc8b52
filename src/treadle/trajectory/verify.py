"""Verifying a run: its tool calls are made again in a fresh sandbox, and every result is compared.

The sandbox begins with the files that the run began with. What cannot be made again is counted and named.
Calls that ran beside each other are made again one after another, as they ended or else as they began; their
files are compared when the last of them has ended, since a snapshot before may hold half of another's work.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from treadle.core import events as e
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
from treadle.perform import read_call, run_tool
from treadle.sandbox.memory import MemorySandbox
from treadle.tools.protocol import Tool, ToolContext, ToolLike
from treadle.tools.resolve import resolve_tools
from treadle.tools.validation import ArgumentChecker

_LOST = {
    ToolErrorKind.IN_DOUBT: "its outcome was lost",
    ToolErrorKind.NOT_RUN: "it was not run",
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
    other tools are skipped by name. Raises: `RunNotFoundError`.
    """
    return await _Verifier(journal, run_id, tools).verify()


class _Recorded:
    """A tool of which only the definition is at hand."""

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec
        self.find_fault = ArgumentChecker(spec.parameters).find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str:
        raise AssertionError("a tool without its implementation is not run")


class _Attempt(Struct):
    """What came of making the calls of one group again, in one order."""

    sandbox: MemorySandbox
    matched: int = 0
    skips: list[str] = []
    differences: list[Difference] = []


class _Verifier:
    def __init__(self, journal: Journal, run_id: str, tools: Iterable[ToolLike] | None) -> None:
        self._journal = journal
        self._run_id = run_id
        self._given = resolve_tools(tools if tools is not None else ["files"])
        self._tools: Mapping[str, Tool] = {}
        self._sandbox = MemorySandbox()
        self._state = State()
        self._calls: dict[str, tuple[ToolCall, FinishReason]] = {}
        self._started: dict[str, e.ToolStarted] = {}
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
            elif isinstance(body, e.ToolStarted):
                self._started[body.call_id] = body
                self._running[body.call_id] = None
                self._began.append(body.call_id)
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
        given = {tool.spec.name: tool for tool in self._given}
        return {
            spec.name: given[spec.name]
            if spec.name in given and given[spec.name].spec.parameters == spec.parameters
            else _Recorded(spec)
            for spec in specs
        }

    def _adopt_snapshot(self) -> None:
        """Take the recorded files for the sandbox's: what made them is not made again."""
        self._sandbox = MemorySandbox.restore(self._state.files, self._journal.read_blob)

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
        attempt = _Attempt(self._sandbox.copy())
        is_same = False
        for seq, result in recorded:
            name = f"{result.name} ({result.call_id})"
            found = await self._make_again(result, attempt.sandbox)
            if isinstance(found, str):
                attempt.skips.append(f"{name}: {found}")
                continue
            is_same = (found.content, found.is_error) == (result.content, result.is_error)
            if not is_same:
                attempt.differences.append(Difference(seq, name, result.content, found.content))
            attempt.matched += is_same
        if is_whole and not attempt.skips:
            seq, last = recorded[-1]
            expected, actual = self._recorded_snapshot_id, attempt.sandbox.snapshot_id
            if actual != expected:
                name = f"files after {last.name} ({last.call_id})"
                attempt.differences.append(Difference(seq, name, expected, actual))
                attempt.matched -= is_same
        return attempt

    async def _make_again(self, recorded: ToolResult, sandbox: MemorySandbox) -> ToolResult | str:
        """The result now, or why there is none."""
        if recorded.error_kind in _LOST:
            return _LOST[recorded.error_kind]
        call, finish_reason = self._calls[recorded.call_id]
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
        context = ToolContext(self._run_id, call.call_id, started.step, sandbox)
        return await run_tool(call, tool, arguments, context)
