"""The verification of a run: its tool calls are made again in a new sandbox, and every result is compared.

The sandbox has the initial files of the run. Calls that cannot be made again are counted and named. Calls that
ran at the same time form a group: they are made again one after another, first in the order in which they ended
and, if a result differs, in the order in which they began. Files are compared after the last call of a group,
because an earlier snapshot may contain half of another call's work.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.errors import ConfigError, RunNotFoundError, UntrustedError
from treadle.core.policy import Policy
from treadle.core.spec import AgentSpec, PartSpec
from treadle.core.state import State, advance
from treadle.core.types import (
    Effect,
    FileDelta,
    FinishReason,
    Json,
    ToolCall,
    ToolErrorKind,
    ToolResult,
    ToolSpec,
)
from treadle.journal.protocol import Journal
from treadle.loop.calls.results import Order, read_call
from treadle.loop.calls.workbench import Workbench
from treadle.loop.outbox import Collected
from treadle.runs.agent_parts import AGENT, is_agent, read_agent, settle_trust
from treadle.sandbox.in_memory import FilesId, MemorySandbox, SharedFiles
from treadle.tools.context import ToolContext
from treadle.tools.protocol import Tool, ToolLike
from treadle.tools.read_again import ReadMessage, ReadResult
from treadle.tools.resolve import demands_of_tools, parts_of, resolve_tools
from treadle.tools.schema.validation import ArgumentChecker
from treadle.tools.toolbox import Toolbox
from treadle.trajectory.rerun import UNREACHED, Difference, Inner, RecordedRules, Rerun

_LOST = {
    ToolErrorKind.IN_DOUBT: "its outcome was lost",
    ToolErrorKind.NOT_RUN: "it was not run",
    ToolErrorKind.OVER_LIMIT: "it was not run",
    ToolErrorKind.REFUSED: "it was refused",
    ToolErrorKind.TIMEOUT: "it was stopped by a time-out",
}
_UNAVAILABLE = "its implementation is not available, or takes other arguments"


class Unavailable:
    """A tool that was defined in the recorded run and has no implementation here."""

    def __init__(self, spec: ToolSpec, *, drives_runs: bool = False) -> None:
        self.spec = spec
        self.drives_runs = drives_runs
        """True if the tool is an agent, whose runs are verified in place of its calls."""
        self.find_fault = ArgumentChecker(spec.parameters).find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str:
        raise AssertionError("a tool without its implementation is not run")


class Implementations:
    """The implementations of recorded tools. Successive runs with the same tools share the implementations that
    were found."""

    def __init__(self, tools: Iterable[ToolLike] | None = None, *, is_trusted: bool = True) -> None:
        """Keep `tools`. If the runs are trusted, tools that they name are used too."""
        self._given = () if tools is None else resolve_tools(tools)
        self._is_trusted = is_trusted
        self._toolbox = Toolbox({})
        self._toolbox_for: tuple[tuple[PartSpec, ...], tuple[ToolSpec, ...], Policy] | None = None

    def toolbox(self, parts: tuple[PartSpec, ...], specs: tuple[ToolSpec, ...], policy: Policy) -> Toolbox:
        """Return the tools with the definitions `specs`, for an agent with these parts.

        All runs of an agent get the same objects.
        """
        if (parts, specs, policy) != self._toolbox_for:
            agents = {part.name.removeprefix(AGENT) for part in parts if is_agent(part)}
            given = {
                tool.spec.name: tool for tool in self._find(parts, {spec.name for spec in specs} - agents)
            }
            tools = {
                spec.name: given[spec.name]
                if spec.name in given and given[spec.name].spec.parameters == spec.parameters
                else Unavailable(spec, drives_runs=spec.name in agents)
                for spec in specs
            }
            self._toolbox = Toolbox(tools, policy)
            self._toolbox_for = parts, specs, policy
        return self._toolbox

    def _find(self, parts: tuple[PartSpec, ...], names: set[str]) -> Sequence[Tool]:
        """Return the implementations of the named tools, in which a later one replaces others of its name."""
        given = {tool.spec.name for tool in self._given}
        if not self._is_trusted or names <= given:
            return self._given
        named = resolve_tools([part for part in parts if part.missing is None and not is_agent(part)])
        others = _built_in(names - given - {tool.spec.name for tool in named})
        again = [tool for tool in (ReadResult(), ReadMessage()) if tool.spec.name in names]
        return (*again, *others, *named, *self._given)


def _built_in(names: set[str]) -> tuple[Tool, ...]:
    """Return the tools of the protected built-in toolsets that can be loaded, until all `names` are found."""
    found: dict[str, Tool] = {}
    for toolset in ("files", "shell", "python"):
        if names <= found.keys():
            break
        with contextlib.suppress(ConfigError):
            found = {**{tool.spec.name: tool for tool in resolve_tools([toolset])}, **found}
    return tuple(found.values())


class Verification(Struct, frozen=True):
    run_id: str
    calls: int
    """How many tool results the run has. Each one is equal, skipped or different."""
    matched: int
    """How many results were equal."""
    skipped: int
    """How many calls were not made again."""
    skips: tuple[str, ...]
    """A text for each call that was not made again, with the reason."""
    differences: tuple[Difference, ...]

    @property
    def unavailable(self) -> tuple[str, ...]:
        """The texts in `skips` of calls whose tool is missing."""
        return tuple([skip for skip in self.skips if skip.endswith(_UNAVAILABLE)])

    @property
    def unreached(self) -> tuple[str, ...]:
        """The texts in `skips` of calls that failed because of a fault of the infrastructure."""
        return tuple([skip for skip in self.skips if f": {UNREACHED}: " in skip])

    @property
    def is_verified(self) -> bool:
        """True if every call was made again and gave the same result."""
        return not self.differences and not self.skipped


async def verify_run(
    journal: Journal,
    run_id: str,
    tools: Iterable[ToolLike] | None = None,
    *,
    trust: bool = False,
    files: SharedFiles | None = None,
    shared: Implementations | None = None,
) -> Verification:
    """Make a run's `pure` and `idempotent` calls again, in order, and compare results and files.

    The implementations are `tools`, then the tools that the run's agent specs name, then the built-in toolsets;
    calls of other tools are skipped. `ToolSpec.may_differ` says which differences are allowed.
    Calls with simulated results are skipped too. In place of a call of an agent, the run that it drove is verified.
    `trust` records that a run which comes from elsewhere is trusted; without it, such a run is verified only if its
    tools work in memory. If the run began with exactly `files`, they are not read from the journal.
    Trusted runs use the implementations `shared`, if given, so that servers are not started for each run.

    Raises: `RunNotFoundError`; `UntrustedError` that names what the tools of a run from elsewhere would do.
    """
    is_trusted = await asyncio.to_thread(settle_trust, journal, run_id, trust=trust)
    if not is_trusted:
        if demands := await asyncio.to_thread(_demands_of, journal, run_id, tools):
            raise UntrustedError(f"run {run_id!r}", demands)
        tools = ["files"]
    events = await asyncio.to_thread(journal.read, run_id)
    if shared is None or not is_trusted:
        shared = Implementations(tools, is_trusted=is_trusted)
    return await verify_events(journal, run_id, events, shared, files=files)


async def verify_events(
    journal: Journal,
    run_id: str,
    events: Sequence[e.Event],
    implementations: Implementations,
    *,
    files: SharedFiles | None = None,
) -> Verification:
    """Make the calls of a run again, as `verify_run` does. `events` are those of the whole run."""
    return await Verifier(journal, run_id, implementations, files).verify(events)


def _demands_of(journal: Journal, run_id: str, tools: Iterable[ToolLike] | None) -> tuple[str, ...]:
    """Return what happens here if the calls of a run are made again."""
    if tools is not None:
        names = [part.name for part in parts_of(tools)]
        return tuple([f"make the recorded calls with {name!r}" for name in names if name != "files"])
    bodies = [event.body for event in journal.read(run_id)]
    specs = [body.spec for body in bodies if isinstance(body, e.RunStarted)]
    specs += [body.agent for body in bodies if isinstance(body, e.RunResumed) and body.agent is not None]
    return tuple([demand for spec in specs for part in _tools_of(spec) for demand in demands_of_tools(part)])


def _tools_of(spec: AgentSpec) -> Iterator[PartSpec]:
    """Yield the tools of an agent and of the agents that it calls."""
    for part in spec.tools:
        if not is_agent(part):
            yield part
        elif part.missing is None:
            yield from _tools_of(read_agent(part))


class Verifier:
    """The verification of one run, event by event."""

    def __init__(
        self,
        journal: Journal,
        run_id: str,
        implementations: Implementations,
        files: SharedFiles | None,
    ) -> None:
        self._files = files
        self._journal = journal
        self._run_id = run_id
        self._implementations = implementations
        self._toolbox = Toolbox({})
        self._sandbox = MemorySandbox.restore({}, journal.read_stored)
        self._recorded: dict[str, str] = {}
        """The recorded files: path to hash."""
        self._recorded_id: FilesId | None = None
        """The id of the recorded files. Journals of older versions have ids of another kind, so it is computed.
        `None`: there was no snapshot yet."""
        self._events: Sequence[e.Event] = ()
        self._taken = 0
        """The number of events that were taken."""
        self._has_turn = False
        """True once the first turn has begun."""
        self._state = State()
        """The state after the first of the events that were taken; see `state`."""
        self._folded = 0
        """How many events `_state` has."""
        self._calls: dict[str, tuple[ToolCall, FinishReason]] = {}
        self._started: dict[str, e.ToolStarted] = {}
        self._ended_at: dict[str, float] = {}
        """The times of the results, by call id."""
        self._edits: dict[str, str] = {}
        """Arguments from the approver that replaced the model's, by call id."""
        self._inner: dict[str, dict[str, Inner]] = {}
        """The inner calls of each call, by id."""
        self._running: set[str] = set()
        """Calls that were started and have no result yet."""
        self._group: list[tuple[int, ToolResult]] = []
        """The results of the current group, each with the number of its event."""
        self._began: list[str] = []
        """The ids of the group's calls, in the order in which they were started."""
        self._children: dict[str, str] = {}
        """The runs that calls have driven, by call id."""
        self._verified: dict[str, Verification] = {}
        """The verifications of these runs, by call id."""
        self._matched = 0
        self._skips: list[str] = []
        self._differences: list[Difference] = []

    async def verify(self, events: Sequence[e.Event]) -> Verification:
        self._events = events
        for self._taken, event in enumerate(events, 1):
            body = event.body
            if type(body) is e.RunResumed:
                # Calls before it were made with the tools before it.
                self._running.clear()
                await self._compare_group(is_whole=False)
            self._take(event.seq, body)
            if type(body) is e.ToolCompleted and body.parent_call_id is None and not self._running:
                await self._compare_group(is_whole=True)
        await self._compare_group(is_whole=False)
        for found in self._verified.values():
            self._matched += found.matched
            self._skips += found.skips
            self._differences += [replace(item, run_id=found.run_id) for item in found.differences]
        calls = (
            self._matched + len(self._skips) + len({(item.run_id, item.seq) for item in self._differences})
        )
        return Verification(
            self._run_id, calls, self._matched, len(self._skips), tuple(self._skips), tuple(self._differences)
        )

    def _take(self, seq: int, body: e.DurableBody) -> None:
        if isinstance(body, e.ToolStarted):
            self._started[body.call_id] = body
            if body.parent_call_id is None:
                self._running.add(body.call_id)
                self._began.append(body.call_id)
        elif isinstance(body, e.ToolCompleted):
            self._take_result(seq, body)
        elif isinstance(body, e.InferenceCompleted):
            for call in body.completion.message.tool_calls:
                self._calls[call.call_id] = call, body.completion.finish_reason
        elif isinstance(body, e.SnapshotTaken):
            self._identify(body.delta)
            if not self._has_turn:
                self._begin(body.delta)
        elif isinstance(body, e.TurnStarted):
            # The user of a task may have changed files before the turn.
            if self._has_turn and not self._group and self._sandbox.snapshot_id != self._recorded_snapshot:
                self._adopt_snapshot()
            self._has_turn = True
        elif isinstance(body, e.ApprovalDecided) and body.arguments is not None:
            self._edits[body.call_id] = body.arguments
        elif (
            isinstance(body, e.RunStarted)
            or (isinstance(body, e.RunResumed) and body.agent is not None)
            or (isinstance(body, e.ContextCompacted) and body.tools)
        ):
            state = self.state
            parts = state.agent.tools if state.agent is not None else ()
            self._toolbox = self._implementations.toolbox(parts, state.tools, state.policy)

    def _take_result(self, seq: int, body: e.ToolCompleted) -> None:
        result = body.result
        self._ended_at[result.call_id] = body.at
        if body.child is not None:
            self._children[result.call_id] = body.child.run_id
        if body.parent_call_id is not None:
            inner = Inner(seq, result, self._started.get(result.call_id))
            self._inner.setdefault(body.parent_call_id, {})[result.call_id] = inner
        else:
            self._running.discard(result.call_id)
            self._group.append((seq, result))

    def _adopt_snapshot(self) -> None:
        """Replace the sandbox by one with the recorded files, because the calls that made them do not run again."""
        recorded = self.state.sandbox
        self._sandbox = MemorySandbox.restore(recorded.files, self._journal.read_stored, recorded.tool_states)

    def _begin(self, delta: FileDelta) -> None:
        """Open a sandbox with the files that the run began with."""
        if self._files is not None and self._files.is_delta(delta):
            self._sandbox = self._files.open(is_reported=True)
        else:
            self._adopt_snapshot()

    def _identify(self, delta: FileDelta) -> None:
        """Update the recorded files and their id."""
        files = self._recorded
        if self._recorded_id is None and self._files is not None and self._files.is_delta(delta):
            self._recorded_id = self._files.identify()
            files.update(delta.changed)
            return
        self._recorded_id = self._recorded_id or FilesId()
        for path, digest in (*delta.changed.items(), *dict.fromkeys(delta.deleted).items()):
            self._recorded_id.change(path, files.pop(path, None), digest)
            if digest is not None:
                files[path] = digest

    async def _compare_group(self, *, is_whole: bool) -> None:
        """Make the calls of the group again. Files are compared only if it `is_whole`: no call was interrupted."""
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
        if self._sandbox.snapshot_id != self._recorded_snapshot:
            self._adopt_snapshot()

    async def _attempt(self, recorded: Sequence[tuple[int, ToolResult]], *, is_whole: bool) -> Rerun:
        """Make calls again, one after another in the given order, in a copy of the sandbox if there are several,
        which have another order too."""
        sandbox = self._sandbox if len(recorded) == 1 else self._sandbox.copy(is_reported=True)
        attempt = Rerun(sandbox)
        rules = RecordedRules(self, attempt)
        bench = Workbench(
            self._toolbox,
            run_id=self._run_id,
            sandbox=attempt.sandbox,
            rules=rules,
            journal=self._journal,
        )
        is_last_same = False
        try:
            for seq, result in recorded:
                found = await self._make_again(result, bench, rules)
                is_last_same = attempt.compare(
                    seq, result, found, self.tool_of(result.name), self.span_of(result.call_id)
                )
        finally:
            await bench.scope.close()
        drives = any(result.call_id in self._children for _, result in recorded)
        if is_whole and not attempt.skips and not drives:
            seq, last = recorded[-1]
            expected, actual = self._recorded_snapshot, attempt.sandbox.snapshot_id
            if actual != expected:
                name = f"files after {last.name} ({last.call_id})"
                attempt.differences.append(Difference(seq, name, expected, actual))
                attempt.matched -= is_last_same
        return attempt

    async def _make_again(
        self, recorded: ToolResult, bench: Workbench, rules: RecordedRules
    ) -> ToolResult | str:
        """Make one call again. Return its new result, or the reason why it was not made."""
        call, finish_reason = self._calls[recorded.call_id]
        edited, started = self._edits.get(call.call_id), self._started.get(call.call_id)
        run = call if edited is None else replace(call, arguments=edited)
        is_cut_off = finish_reason is FinishReason.LENGTH
        if recorded.call_id in self._children and recorded.error_kind not in _LOST:
            return await self._verify_child(recorded)
        if (reason := self.find_reason(run, recorded, is_cut_off=is_cut_off)) is not None:
            return reason
        outbox = Collected()
        order = Order(call, 1 if started is None else started.step, is_cut_off=is_cut_off, edited=edited)
        found = await bench.make(order, outbox)
        rules.compare(call.call_id, outbox.bodies)
        return found

    async def _verify_child(self, recorded: ToolResult) -> ToolResult | str:
        """Verify the run that a call has driven, in place of the call. Return the recorded result, or the reason
        why the run is not verified."""
        run_id = self._children[recorded.call_id]
        if recorded.call_id not in self._verified:
            try:
                events = await asyncio.to_thread(self._journal.read, run_id)
            except RunNotFoundError:
                return f"the run {run_id!r} that it drove is not in the journal"
            found = Verifier(self._journal, run_id, self._implementations, None)
            self._verified[recorded.call_id] = await found.verify(events)
        return recorded

    def find_reason(self, call: ToolCall, recorded: ToolResult, *, is_cut_off: bool = False) -> str | None:
        """Return why a call is not made again; `None` if it is made again or can be refused without running it."""
        if recorded.error_kind in _LOST:
            return _LOST[recorded.error_kind]
        if recorded.is_simulated:
            return "its result was simulated"
        started, tool = self._started.get(recorded.call_id), self._toolbox.tools.get(recorded.name)
        is_plain = tool is not None and type(tool) is not Unavailable
        is_plain = is_plain and recorded.name not in self._toolbox.drivers
        if is_plain and started is not None and started.effect is not Effect.ONCE:
            return None
        ready = read_call(call, self._toolbox.tools, is_cut_off=is_cut_off)
        if isinstance(ready, ToolResult):
            return None
        if started is None:
            return "nothing says that it was run"
        if recorded.name in self._toolbox.drivers:
            return "it drove a run of its own"
        if started.effect is Effect.ONCE:
            return "its effect is once"
        return _UNAVAILABLE if isinstance(ready[0], Unavailable) else None

    @property
    def state(self) -> State:
        """The state of the run after the events that were taken. Few runs need more of it than the beginning."""
        for event in self._events[self._folded : self._taken]:
            advance(self._state, event.body)
        self._folded = self._taken
        return self._state

    @property
    def _recorded_snapshot(self) -> str:
        """The id of the recorded files."""
        return str(self._recorded_id or FilesId())

    def inner_of(self, call_id: str) -> Mapping[str, Inner]:
        """Return the recorded inner calls of a call, by id."""
        return self._inner.get(call_id, {})

    def span_of(self, call_id: str) -> tuple[float, float]:
        """Return when a recorded call began and ended."""
        end = self._ended_at[call_id]
        started = self._started.get(call_id)
        return (end if started is None else started.at), end

    def tool_of(self, name: str) -> Tool | None:
        """Return the implementation of a tool; `None` if it is unknown."""
        return self._toolbox.tools.get(name)
