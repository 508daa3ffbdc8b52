"""The replay of a recording: today's agent is driven with the recorded answers of the model.

The agent's instructions, tools, policy and schema are those of today, and its loop is the usual one. The recording
gives what came from outside: the user's messages, answers and decisions, the model's answers, the recalled memories,
the files at the beginning, the time and the run's id, and the results of tools as `ToolReplay` says. Each request is
compared with the recorded one, and the first that differs ends the replay, unless differences are accepted.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.actions import Compact
from treadle.core.asking import Answer, Question
from treadle.core.errors import ConfigError
from treadle.core.inbox import Steer
from treadle.core.judgement import Judgement
from treadle.core.prompting import make_request
from treadle.core.spec import AgentSpec
from treadle.core.state import State, Status, advance
from treadle.core.types import (
    Completion,
    Delivery,
    Effect,
    Json,
    Message,
    Recalled,
    Request,
    ToolErrorKind,
    ToolResult,
    ToolSpec,
)
from treadle.journal.memory import MemoryJournal
from treadle.loop.calls.results import Order, failed
from treadle.loop.calls.workbench import Workbench
from treadle.loop.compaction import Compaction
from treadle.loop.driver import Driver
from treadle.loop.listener import Hooks
from treadle.loop.outbox import Outbox
from treadle.models.protocol import Model, Watch, pass_on
from treadle.regression.recorded_runs import RecordedRun
from treadle.regression.request_differences import (
    Divergence,
    Normalize,
    RequestDifference,
    compare_models,
    compare_policies,
    find_differences,
)
from treadle.runs.agent_parts import AgentParts, Toolboxes
from treadle.runs.begin import Beginning, begin
from treadle.runs.drive import open_turn
from treadle.runs.options import Given
from treadle.runs.resume import load_task_of
from treadle.tools.context import NO_DEPS, ToolContext
from treadle.tools.protocol import ApprovalRequest, Decision, Tool
from treadle.trajectory.rerun import normalize as normalize_result

_OF_MODELS = frozenset(
    ("can_call_tools", "check_part", "estimate_cost_usd", "has_price", "max_output_tokens", "output_mode", "takes_schema")
)
"""The attributes of a model that say what it can do, without asking its server."""
_NEVER_RUN = (ToolErrorKind.NOT_RUN, ToolErrorKind.OVER_LIMIT, ToolErrorKind.REFUSED, ToolErrorKind.INVALID_ARGUMENTS)


class ToolReplay(StrEnum):
    """Which calls are made by the tools of today; the others get their recorded results."""

    RECORDED = "recorded"
    """None."""
    LIVE_READ_ONLY = "live-read-only"
    """Those of tools with the effect `pure`."""
    LIVE = "live"
    """All but those that drive runs of their own."""

    def is_live(self, effect: Effect) -> bool:
        """Return whether calls with this effect are made."""
        return self is ToolReplay.LIVE or (self is ToolReplay.LIVE_READ_ONLY and effect is Effect.PURE)


class ReplaySettings(Struct, frozen=True, kw_only=True):
    """The settings of a replay."""

    tools: ToolReplay = ToolReplay.RECORDED
    normalize: Normalize = str
    """The function that replaces what may differ in texts, on both sides."""
    is_accepting: bool = False
    """True if the replay goes on after a request that differs, with the answer that was recorded."""


class Replayed(Struct, frozen=True):
    """The outcome of a replay."""

    divergence: Divergence | None
    """The first place that differs; `None` if nothing does."""
    journal: MemoryJournal
    """The journal with the run of today."""
    run_id: str
    differing: int = 0
    """How many requests differ, as far as the replay went."""


class RecordedRequest(Struct):
    """A recorded request, and what followed it."""

    seq: int
    """The number of its `inference_started` event."""
    step: int
    at: float
    request: Request
    completion: Completion
    steers: list[Message]
    """The messages that the user sent until the next request."""


def read_requests(recorded: RecordedRun) -> list[RecordedRequest]:
    """Return the requests of a recording that were answered, in order."""
    state, found = State(), []
    asked: tuple[int, float, Request] | None = None
    for event in recorded.events:
        body = event.body
        advance(state, body)
        if isinstance(body, e.InferenceStarted):
            asked = event.seq, body.at, make_request(state, has_tools=body.has_tools)
        elif isinstance(body, e.InferenceCompleted) and asked is not None:
            completion = replace(body.completion, tokens=None)
            found.append(RecordedRequest(asked[0], body.step, asked[1], asked[2], completion, []))
        elif isinstance(body, e.MessageInjected) and body.delivery is Delivery.STEER and found:
            found[-1].steers.append(body.message)
    return found


async def replay_recording(recorded: RecordedRun, agent: AgentParts, settings: ReplaySettings) -> Replayed:
    """Drive `agent` with what is recorded, and return where it differs first.

    Raises: `ConfigError` if the agent cannot be driven at all, as when its task is not installed.
    """
    replay = _Replay(recorded, agent, settings)
    await replay.drive()
    return Replayed(replay.divergence, replay.parts.journal, recorded.run_id, replay.differing)


class _Replay:
    """One replay in progress: the model, the tools, the user and the clock of the run of today."""

    def __init__(self, recorded: RecordedRun, agent: AgentParts, settings: ReplaySettings) -> None:
        self.recorded, self.settings = recorded, settings
        self.requests = read_requests(recorded)
        self.asked = 0
        """How many requests the run of today has made."""
        self.differing = 0
        self.divergence: Divergence | None = None
        self.calls = _read_calls(recorded)
        bodies = [event.body for event in recorded.events]
        self.turns = [body for body in bodies if isinstance(body, e.TurnStarted)]
        self.ended = {body.turn: body for body in bodies if isinstance(body, e.TurnCompleted)}
        self.answers = {body.question_id: body for body in bodies if isinstance(body, e.QuestionAnswered)}
        self.decisions = {body.call_id: body for body in bodies if isinstance(body, e.ApprovalDecided)}
        self.compactions = [body for body in bodies if isinstance(body, e.ContextCompacted)]
        self.parts = _TodaysParts(agent, self)

    async def drive(self) -> None:
        """Drive all turns, until one differs."""
        recorded, parts, started = self.recorded, self.parts, self.recorded.started
        if differences := compare_models(started.spec, parts.spec):
            self.note("the model", 1, differences)
        given = Given(parts.answer, parts.deps)
        task = load_task_of(started)
        first = self.turns[0].message
        beginning = Beginning(
            recorded.run_id,
            files=self._files() if task is None else None,
            metadata=started.metadata,
            attached=(first.parts, {}),
            is_session=started.is_session,
            history=started.history,
        )
        driver = await begin(parts, task or first.content, given, beginning)
        driver.bench.stand_in = _Tools(self, driver.bench).answer
        driver.compaction = _RecordedCompaction(parts.model, driver.bench, self)
        try:
            for turn in self.turns:
                if driver.state.turn.number < turn.turn:
                    driver.put(await open_turn(parts, driver, turn.message))
                await driver.drive()
                self._check_turn(driver, turn.turn)
                if self.is_over:
                    return
            for body in [event.body for event in recorded.events]:
                if isinstance(body, e.Rewarded):
                    driver.put(body)
            if started.is_session:
                driver.put(e.RunPaused(reason="closed"))
            elif driver.state.status is not Status.FINISHED:
                end = self.ended[driver.state.turn.number]
                driver.put(e.RunFinished(stop_reason=end.stop_reason, error=end.error, fault=end.fault))
        finally:
            await driver.leave()

    @property
    def is_over(self) -> bool:
        """True if a difference ends the replay."""
        return self.divergence is not None and not self.settings.is_accepting

    def note(self, where: str, seq: int, differences: list[RequestDifference]) -> None:
        """Note a difference; the first one is the divergence."""
        self.differing += 1
        if self.divergence is None:
            hints = compare_policies(self.recorded.started.spec, self.parts.spec)
            self.divergence = Divergence(where, seq, (*differences, *hints))

    def _files(self) -> Mapping[str, bytes]:
        """Return the files that the recorded run began with."""
        for event in self.recorded.events:
            if isinstance(event.body, e.TurnStarted):
                break
            if isinstance(event.body, e.SnapshotTaken):
                changed = event.body.delta.changed
                return {path: self.recorded.journal.read_blob(digest) for path, digest in changed.items()}
        return {}

    def _check_turn(self, driver: Driver, number: int) -> None:
        """Compare the end of a turn with the recorded one."""
        if self.is_over:
            return
        state, ended = driver.state, self.ended[number]
        if state.turn.is_open:
            waiting = ", ".join([item.call.name for item in state.turn.calls.values() if item.result is None])
            text = f"the turn waits for an answer or an approval{f': {waiting}' if waiting else ''}"
            self._refuse_to_accept(text)
            self.note(f"the end of turn {number}", self._last_seq(), [RequestDifference("the turn", None, text)])
            return
        before = f"{ended.stop_reason.value}: {ended.output}"
        after = f"{state.ending.stop_reason}: {state.ending.output}" if state.ending.stop_reason else ""
        expected = sum([self._turn_of(item) <= number for item in self.requests])
        if self.asked < expected:
            before = f"the model is asked {expected} times"
            after = f"the model is asked {self.asked} times, then the turn ends: {after}"
        if self.settings.normalize(before) != self.settings.normalize(after):
            self.note(
                f"the end of turn {number}", self._last_seq(), [RequestDifference("the end", before, after)]
            )

    def _turn_of(self, item: RecordedRequest) -> int:
        """Return the number of the turn in which a request was made."""
        begun = [event.body.turn for event in self.recorded.events[: item.seq] if isinstance(event.body, e.TurnStarted)]
        return begun[-1]

    def _last_seq(self) -> int:
        return self.requests[min(self.asked, len(self.requests)) - 1].seq if self.requests else 1

    def _refuse_to_accept(self, why: str) -> None:
        if self.settings.is_accepting:
            raise ConfigError(
                f"the recording {self.recorded.name!r} cannot be updated from its own answers, because {why}; ask the "
                "model anew with --update --live"
            )

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Compare a request with the recorded one, and return the recorded answer. Raises: `ConfigError`."""
        self.asked += 1
        where = f"request {self.asked} of {len(self.requests)}"
        if self.asked > len(self.requests):
            last = [f"{item.role.value}: {item.content:.2000}" for item in list(request.messages)[-1:]]
            self._refuse_to_accept("the agent makes more requests than were recorded")
            self.note(where, self._last_seq(), [RequestDifference("the request, which is new", None, *last)])
            raise ConfigError("the recording has no further answer")
        expected = self.requests[self.asked - 1]
        differences = find_differences(expected.request, request, self._normalizer(expected.request))
        if differences:
            self.note(where, expected.seq, differences)
        if self.is_over:
            raise ConfigError("the request differs from the recorded one")
        for message in expected.steers:
            self.parts.journal.post(self.recorded.run_id, Steer(message))
        if watch.on_delta is not None:
            pass_on(expected.completion.message, watch.on_delta)
        return expected.completion

    def _normalizer(self, request: Request) -> Normalize:
        """Return the function that makes two texts of a request equal if what differs may differ."""
        rules = [rule for tool in request.tools for rule in tool.may_differ]
        if self.settings.tools is ToolReplay.RECORDED or not rules:
            return self.settings.normalize
        return lambda text: normalize_result(self.settings.normalize(text), rules)

    def approve(self, request: ApprovalRequest) -> Decision | None:
        """Decide about a call as it was recorded."""
        said = self.decisions.get(request.call.call_id)
        return None if said is None else Decision(said.is_approved, said.reason, said.arguments)

    def ask(self, question: Question) -> Answer | None:
        """Answer a question as it was recorded."""
        said = self.answers.get(question.question_id)
        return None if said is None else Answer(said.text, is_declined=not said.text)


class _TodaysParts:
    """The parts of today's agent, with the recording in the place of what is outside; see `AgentParts`."""

    def __init__(self, agent: AgentParts, replay: _Replay) -> None:
        self.spec: AgentSpec = agent.spec
        self.journal = _ReplayJournal(replay.recorded.journal)
        self.model: Model = _RecordedModel(agent.model, replay)
        self.instructions, self.policy, self.has_policy = agent.instructions, agent.policy, True
        self.files, self.answer, self.hooks, self.failures = None, agent.answer, Hooks(), None
        self.approver, self.asker = replay.approve, replay.ask
        self.clock = _RecordedClock(replay)
        self.known = None if agent.known is None else cast("Any", _RecordedKnowledge(agent.known, replay))
        self.judge = agent.judge
        if agent.judge is not None and not getattr(agent.judge, "is_instant", False):
            self.judge = _RecordedJudge(replay)
        extra = () if agent.known is None else agent.known.tools
        tools = [tool for tool in agent.kit.own.tools.values() if tool not in extra]
        self.deps = agent.deps
        if replay.settings.tools is ToolReplay.RECORDED:
            self.deps = NO_DEPS
            tools = [_Described(tool) for tool in tools]
        self.kit = Toolboxes(tools, self.model, extra)


class _ReplayJournal(MemoryJournal):
    """The journal of the run of today. It has the contents of the recorded one too."""

    def __init__(self, recorded: MemoryJournal) -> None:
        super().__init__()
        self._blobs.update(recorded._blobs)


class _RecordedModel:
    """A model that gives the recorded answers. It says of itself what the model of today says."""

    def __init__(self, inner: Model, replay: _Replay) -> None:
        self._inner, self._replay = inner, replay
        self.name = inner.name
        window = replay.recorded.started.window
        self.context_tokens = None if window is None else window.tokens

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_MODELS:
            raise AttributeError(name)
        return getattr(self._inner, name)

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """See `Model.infer`."""
        return await self._replay.infer(request, watch)


class _RecordedCompaction(Compaction):
    """The compactions of a run, as they were recorded."""

    def __init__(self, model: Model, bench: Workbench, replay: _Replay) -> None:
        super().__init__(model, bench)
        self._own_bench, self._left = bench, list(replay.compactions)

    async def make(self, state: State, action: Compact) -> e.ContextCompacted | None:
        """See `Compaction.make`."""
        if not self._left:
            return await super().make(state, action)
        event = self._left.pop(0)
        if event.tools:
            self._own_bench.offer_reading()
        return replace(event, at=0.0, inbox=None)


class _RecordedClock:
    """A clock that stands at the time of the newest recorded request."""

    def __init__(self, replay: _Replay) -> None:
        self._replay = replay

    def time(self) -> float:
        """Return the seconds since the epoch."""
        requests, asked = self._replay.requests, self._replay.asked
        return requests[min(asked, len(requests)) - 1].at if asked and requests else self._replay.recorded.started.at

    def monotonic(self) -> float:
        """Return the seconds of a clock that stands, so that no time limit ends the replay."""
        return 0.0


class _RecordedKnowledge:
    """What an agent knows, with the recorded memories. Nothing is remembered."""

    writes_back = False

    def __init__(self, known: Any, replay: _Replay) -> None:
        self._known, self._replay = known, replay

    def __getattr__(self, name: str) -> Any:
        return getattr(self._known, name)

    async def recall(self, text: str, *, turn_key: str, **_: object) -> Recalled | None:
        """Return what was recalled for a turn."""
        number = int(turn_key.rpartition("/")[2])
        return next((turn.recalled for turn in self._replay.turns if turn.turn == number), None)


class _RecordedJudge:
    """A judge that says what was recorded."""

    def __init__(self, replay: _Replay) -> None:
        self._judgements = [turn.judgement for turn in replay.turns]

    async def judge(self, message: str, facts: object = None) -> Judgement:
        """See `MessageJudge.judge`."""
        judgement = self._judgements.pop(0) if self._judgements else None
        if judgement is None:
            raise ConfigError("the recording has no judgement")
        return judgement


class _Described:
    """A tool that can be described and checks arguments, and cannot be called."""

    def __init__(self, tool: Tool) -> None:
        self.spec, self.find_fault = tool.spec, tool.find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str:
        """Raises: `ConfigError`."""
        raise ConfigError(f"the recording has no result of {self.spec.name}")


class _RecordedCall(Struct):
    """The events of one recorded call, in order; the last one has its result."""

    bodies: list[e.DurableBody]
    is_driver: bool = False
    """True if the call drove a run of its own."""


def _read_calls(recorded: RecordedRun) -> dict[str, _RecordedCall]:
    """Return the events of the model's calls, by call id."""
    found: dict[str, _RecordedCall] = {}
    snapshots: list[e.DurableBody] = []
    for event in recorded.events:
        body = event.body
        if isinstance(body, e.ToolStarted):
            own = found.setdefault(body.parent_call_id or body.call_id, _RecordedCall([]))
            if body.parent_call_id is None:
                own.bodies.clear()  # an earlier attempt was lost
                body = replace(body, attempt=1)
            own.bodies.append(body)
        elif isinstance(body, e.SnapshotTaken):
            snapshots = [body]
        elif isinstance(body, e.ToolCompleted):
            own = found.setdefault(body.parent_call_id or body.call_id, _RecordedCall([]))
            own.bodies += [*snapshots, replace(body, inbox=None)]
            own.is_driver = own.is_driver or body.child is not None
            snapshots = []
        elif isinstance(body, e.QuestionAsked) and body.call_id in found:
            found[body.call_id].bodies.append(body)
        elif isinstance(body, e.QuestionAnswered):
            asking = [own for own in found.values() if _asks(own, body.question_id)]
            for own in asking:
                own.bodies.append(replace(body, inbox=None))
    return found


def _asks(own: _RecordedCall, question_id: str) -> bool:
    return any(isinstance(body, e.QuestionAsked) and body.question_id == question_id for body in own.bodies)


class _Tools:
    """What answers the calls of the run of today; see `Workbench.stand_in`."""

    def __init__(self, replay: _Replay, bench: Workbench) -> None:
        self._replay, self._bench = replay, bench

    async def answer(self, order: Order, spec: ToolSpec, outbox: Outbox) -> ToolResult | None:
        """Put the recorded events of a call into the outbox, and return its result; `None` if the call is made."""
        known = self._replay.calls.get(order.call.call_id)
        is_driver = known is not None and known.is_driver
        if self._replay.settings.tools.is_live(spec.effect) and not is_driver and not spec.is_external:
            return None
        done = known.bodies[-1] if known is not None else None
        if known is None or not isinstance(done, e.ToolCompleted) or done.result.error_kind in _NEVER_RUN:
            text = "The recording has no result of this call, which was not run then."
            done = e.ToolCompleted(step=order.step, result=failed(order.call, ToolErrorKind.NOT_RUN, text))
            outbox.put(done)
            return done.result
        for body in known.bodies:
            if isinstance(body, e.SnapshotTaken):
                self._restore(body)
                snapshot, files = self._bench.take_snapshot()
                outbox.put(*snapshot, blobs=files)
            else:
                outbox.put(replace(body, at=0.0, worked_seconds=None))
        return done.result

    def _restore(self, body: e.SnapshotTaken) -> None:
        """Make the changes of a recorded snapshot in the sandbox, for the calls that run after it."""
        sandbox, read = self._bench.sandbox, self._replay.recorded.journal.read_blob
        if sandbox is None:
            return
        for path in body.delta.deleted:
            if path in sandbox.paths():
                sandbox.delete(path)
        for path, digest in body.delta.changed.items():
            sandbox.write(path, read(digest))
        for name, digest in body.delta.states.items():
            sandbox.write_state(name, read(digest))
