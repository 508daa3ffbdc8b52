"""Verifying a run: its tool calls are made again in a fresh sandbox, and every result is compared.

The sandbox begins with the files that the run began with. What cannot be made again is counted and named.
"""

from collections.abc import Iterable, Mapping

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
from treadle.tools.resolve import TOOLSETS, resolve_tools
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


class _Verifier:
    def __init__(self, journal: Journal, run_id: str, tools: Iterable[ToolLike] | None) -> None:
        self._journal = journal
        self._run_id = run_id
        self._given = resolve_tools(tools if tools is not None else list(TOOLSETS))
        self._tools: Mapping[str, Tool] = {}
        self._sandbox = MemorySandbox()
        self._state = State()
        self._calls: dict[str, tuple[ToolCall, FinishReason]] = {}
        self._started: dict[str, e.ToolStarted] = {}
        self._is_snapshot_new = False
        self._matched = 0
        self._skips: list[str] = []
        self._differences: list[Difference] = []

    async def verify(self) -> Verification:
        for event in self._journal.read(self._run_id):
            body = event.body
            self._state = apply(self._state, body)
            if isinstance(body, e.RunStarted):
                self._tools = self._implement(body.tools)
            elif isinstance(body, e.SnapshotTaken):
                self._is_snapshot_new = True
                if self._state.turn == 0:
                    self._adopt_snapshot()
            elif isinstance(body, e.InferenceCompleted):
                completion = body.completion
                for call in completion.message.tool_calls:
                    self._calls[call.call_id] = call, completion.finish_reason
            elif isinstance(body, e.ToolStarted):
                self._started[body.call_id] = body
            elif isinstance(body, e.ToolCompleted):
                await self._compare(event.seq, body.result)
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
        self._is_snapshot_new = False

    async def _compare(self, seq: int, recorded: ToolResult) -> None:
        name = f"{recorded.name} ({recorded.call_id})"
        found = await self._make_again(recorded)
        if isinstance(found, str):
            self._skips.append(f"{name}: {found}")
            if self._is_snapshot_new:
                self._adopt_snapshot()
            return
        is_same = (found.content, found.is_error) == (recorded.content, recorded.is_error)
        if not is_same:
            self._differences.append(Difference(seq, name, recorded.content, found.content))
        if self._is_snapshot_new or self._state.snapshot_id is not None:
            expected = self._state.snapshot_id or ""
            if self._sandbox.snapshot_id != expected:
                self._differences.append(
                    Difference(seq, f"files after {name}", expected, self._sandbox.snapshot_id)
                )
                is_same = False
                self._adopt_snapshot()
        self._is_snapshot_new = False
        self._matched += is_same

    async def _make_again(self, recorded: ToolResult) -> ToolResult | str:
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
        context = ToolContext(self._run_id, call.call_id, started.step, self._sandbox)
        return await run_tool(call, tool, arguments, context)
