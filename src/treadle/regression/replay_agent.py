"""The replay of a recording: today's agent is driven with the recorded answers of the model.

The agent's instructions, tools, policy and schema are those of today, and its loop is the usual one. The recording
gives what came from outside: the user's messages, answers and decisions, the model's answers, the recalled
memories, the files at the beginning, the time and the run's id, and the results of tools as `ToolReplay` says. Each
request is compared with the recorded one. The first that differs ends the replay, unless differences are accepted.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.asking import Answer, Question
from treadle.core.errors import ConfigError
from treadle.core.inbox import Steer
from treadle.core.prompts.prompting import make_request
from treadle.core.spec import AgentSpec
from treadle.core.state import State, Status, advance
from treadle.core.types import Completion, Delivery, Json, Message, Request
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal
from treadle.loop.driver import Driver
from treadle.loop.listener import Hooks
from treadle.models.protocol import Model, Watch, pass_on
from treadle.regression.recorded_parts import (
    DescribedTool,
    RecordedCompaction,
    RecordedJudge,
    RecordedKnowledge,
    RecordedModel,
    RecordedTools,
    ReplayJournal,
    StandingClock,
    ToolReplay,
)
from treadle.regression.recorded_runs import RecordedRun
from treadle.regression.request_differences import (
    Divergence,
    Normalize,
    RequestDifference,
    compare_models,
    compare_policies,
    find_differences,
    is_other_agent,
)
from treadle.runs.agent_parts import AgentParts, Toolboxes
from treadle.runs.begin import Beginning, begin
from treadle.runs.drive import open_turn
from treadle.runs.options import Given
from treadle.runs.resume import load_task_of
from treadle.tools.protocol import ApprovalRequest, Approver, Asker, Decision


class ReplaySettings(Struct, frozen=True, kw_only=True):
    tools: ToolReplay = ToolReplay.RECORDED
    normalize: Normalize = str
    """The function that replaces what may differ in texts, on both sides."""
    is_accepting: bool = False
    """True if the replay goes on after a request that differs, with the answer that was recorded."""
    is_live: bool = False
    """True if the model of today answers, so that nothing is compared."""
    metadata: Mapping[str, Json] = {}
    """Data that is stored with the run, besides the recorded one."""


class Replayed(Struct, frozen=True):
    divergence: Divergence | None
    """The first place that differs; `None` if nothing does."""
    journal: MemoryJournal
    """The journal with the run of today."""
    requests: int
    """How many requests were compared."""
    differing: int
    """How many requests differ, as far as the replay went."""


class RecordedRequest(Struct):
    """A recorded request, and what followed it."""

    seq: int
    """The number of its `inference_started` event."""
    turn: int
    at: float
    request: Request
    completion: Completion
    steers: list[Message]
    """The messages that the user sent until the next request."""


def read_requests(recorded: RecordedRun) -> list[RecordedRequest]:
    """Return the requests of a recording that were answered, in order."""
    state, found = State(), []
    asked: tuple[int, int, float, Request] | None = None
    for event in recorded.events:
        body = event.body
        advance(state, body)
        if isinstance(body, e.InferenceStarted):
            asked = event.seq, state.turn.number, body.at, make_request(state, has_tools=body.has_tools)
        elif isinstance(body, e.InferenceCompleted) and asked is not None:
            found.append(RecordedRequest(*asked, replace(body.completion, tokens=None), []))
        elif isinstance(body, e.MessageInjected) and body.delivery is Delivery.STEER and found:
            found[-1].steers.append(body.message)
    return found


async def replay_recording(
    recorded: RecordedRun, agent: AgentParts, settings: ReplaySettings = ReplaySettings()
) -> Replayed:
    """Drive `agent` with what is recorded, and return where it differs first.

    Raises: `ConfigError` if the agent cannot be driven at all, as when its task is not installed, or if differences
    are to be accepted and the recording has too few answers.
    """
    replay = _Replay(recorded, agent, settings)
    await replay.drive()
    return Replayed(replay.divergence, replay.parts.replay_journal, replay.asked, replay.differing)


class _Replay:
    def __init__(self, recorded: RecordedRun, agent: AgentParts, settings: ReplaySettings) -> None:
        self.recorded, self.settings = recorded, settings
        self.requests = read_requests(recorded)
        self.asked = self.differing = 0
        self.divergence: Divergence | None = None
        self.turns = recorded.bodies_of(e.TurnStarted)
        self._ended = {body.turn: body for body in recorded.bodies_of(e.TurnCompleted)}
        self._compacted = Counter(_find_compactions(recorded))
        self._changes = {
            opened.body.turn: [before.body]
            for before, opened in pairwise(recorded.events)
            if isinstance(opened.body, e.TurnStarted) and isinstance(before.body, e.SnapshotTaken)
        }
        self._refusal: str | None = None
        """Why the recording cannot be updated from its own answers; `None` if it can."""
        self.parts = _TodaysParts(agent, self)

    async def drive(self) -> None:
        """Drive all turns, until something differs."""
        recorded, parts, settings, started = self.recorded, self.parts, self.settings, self.recorded.started
        task = load_task_of(started)
        first = self.turns[0].message
        beginning = Beginning(
            recorded.run_id,
            files=self._files() if task is None else None,
            metadata={**(started.metadata or {}), **settings.metadata},
            attached=(first.parts, {}),
            is_session=started.is_session,
            history=started.history,
        )
        driver = await begin(parts, task or first.content, Given(parts.answer, parts.deps), beginning)
        bench = driver.bench
        tools = RecordedTools(recorded, settings.tools, bench, by_id=not settings.is_live)
        bench.stand_in = tools.answer
        if not settings.is_live:
            driver.compaction = RecordedCompaction(parts.model, bench, recorded)
        try:
            for turn in self.turns:
                if driver.state.turn.number < turn.turn:
                    for _ in range(self._compacted[turn.turn]):
                        await driver.compact()
                    snapshot, blobs = tools.restore(self._changes.get(turn.turn, []))
                    opened = await open_turn(parts, driver, turn.message)
                    driver.put(*snapshot, opened, blobs=blobs or None)
                await driver.drive()
                if not settings.is_live:
                    self._check_turn(driver, turn.turn)
                if self._refusal is not None and settings.is_accepting:
                    raise ConfigError(
                        f"the recording {recorded.name!r} cannot be updated from its own answers, because "
                        f"{self._refusal}; ask the model anew with --update --live"
                    )
                if driver.state.turn.is_open or (self.divergence is not None and not settings.is_accepting):
                    return
            self._end(driver)
        finally:
            await driver.leave()

    def _end(self, driver: Driver) -> None:
        """Append the events after the last turn."""
        started, end = self.recorded.started, driver.state.ending
        if started.is_session and not self.settings.is_live:
            driver.put(e.RunPaused(reason="closed"))
        elif driver.state.status is not Status.FINISHED and end.stop_reason is not None:
            driver.put(e.RunFinished(stop_reason=end.stop_reason, error=end.error, fault=end.fault))

    def _note(
        self, where: str, seq: int, differences: list[RequestDifference], *, is_other: bool = False
    ) -> None:
        """Note a difference; the first one is the divergence."""
        self.differing += 1
        if self.divergence is None:
            recorded, found = self.recorded.started.spec, self.parts.spec
            hints = compare_policies(recorded, found)
            self.divergence = Divergence(where, seq, (*differences, *hints), is_other)

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
        if self.divergence is not None and not self.settings.is_accepting:
            return
        state, ended = driver.state, self._ended[number]
        before = f"{ended.stop_reason.value}: {ended.output}"
        if state.turn.is_open:
            calls = [item.call.name for item in state.turn.calls.values() if item.result is None]
            after = f"the turn waits for an answer or an approval, which was not recorded: {', '.join(calls)}"
            self._refusal = after
        else:
            after = f"{state.ending.stop_reason}: {state.ending.output}"
        expected = sum([item.turn <= number for item in self.requests])
        if self.asked < expected:
            before = f"the model is asked {expected} times, then {before}"
            after = f"the model is asked {self.asked} times, then {after}"
        if self.settings.normalize(before) != self.settings.normalize(after):
            seq = self.requests[min(self.asked, len(self.requests)) - 1].seq
            self._note(f"the end of turn {number}", seq, [RequestDifference("the end", before, after)])

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Compare a request with the recorded one, and return the recorded answer. Raises: `ConfigError`."""
        self.asked += 1
        where = f"request {self.asked} of {len(self.requests)}"
        if self.asked > len(self.requests):
            self._refusal = "the agent makes more requests than were recorded"
            last = request.messages[-1]
            text = f"after the last answer, {last.role.value} says: {last.content}"
            self._note(where, self.requests[-1].seq, [RequestDifference("a request that is new", None, text)])
            raise ConfigError("the recording has no further answer")
        expected = self.requests[self.asked - 1]
        # Results that were made again may differ as their tools say.
        is_again = self.settings.tools is not ToolReplay.RECORDED
        may_differ = {tool.name: tool.may_differ for tool in request.tools if is_again and tool.may_differ}
        differences = find_differences(expected.request, request, self.settings.normalize, may_differ)
        if self.asked == 1:
            differences[:0] = compare_models(self.recorded.started.spec, self.parts.spec)
        if differences:
            self._note(where, expected.seq, differences, is_other=is_other_agent(expected.request, request))
        if self.divergence is not None and not self.settings.is_accepting:
            raise ConfigError("the request differs from the recorded one")
        for message in expected.steers:
            self.parts.journal.post(self.recorded.run_id, Steer(message))
        if watch.on_delta is not None:
            pass_on(expected.completion.message, watch.on_delta)
        return expected.completion

    def now(self) -> float:
        """Return the time of the newest recorded request."""
        asked = self.requests[: self.asked][-1:]
        return asked[0].at if asked else self.recorded.started.at

    def approve(self, request: ApprovalRequest) -> Decision | None:
        """Decide about a call as it was recorded, in a live run about any call of the same tool."""
        names = {
            call.call_id: call.name for item in self.requests for call in item.completion.message.tool_calls
        }
        for said in self.recorded.bodies_of(e.ApprovalDecided):
            is_of_tool = self.settings.is_live and names.get(said.call_id) == request.call.name
            if said.call_id == request.call.call_id or is_of_tool:
                return Decision(said.is_approved, said.reason, None if is_of_tool else said.arguments)
        return Decision(False, "Nobody can be asked in a test.") if self.settings.is_live else None

    def ask(self, question: Question) -> Answer | None:
        """Answer a question as it was recorded, in a live run any question with the same text."""
        texts = {body.question_id: body.text for body in self.recorded.bodies_of(e.QuestionAsked)}
        for said in self.recorded.bodies_of(e.QuestionAnswered):
            is_same = self.settings.is_live and texts.get(said.question_id) == question.text
            if said.question_id == question.question_id or is_same:
                return Answer(said.text, is_declined=not said.text)
        return Answer(is_declined=True) if self.settings.is_live else None


def _find_compactions(recorded: RecordedRun) -> Iterator[int]:
    """Yield the number of the next turn for each compaction that was asked for between two turns."""
    state = State()
    for event in recorded.events:
        if isinstance(event.body, e.ContextCompacted) and not state.turn.is_open:
            yield state.turn.number + 1
        advance(state, event.body)


class _TodaysParts(AgentParts):
    """The parts of today's agent, with the recording in the place of what is outside."""

    def __init__(self, agent: AgentParts, replay: _Replay) -> None:
        settings, started = replay.settings, replay.recorded.started
        self._spec, self.replay_journal = agent.spec, ReplayJournal(replay.recorded.journal)
        recorded = RecordedModel(agent.model, started, replay.infer)
        self.model = agent.model if settings.is_live else cast("Model", recorded)
        self.instructions, self.policy, self.has_policy = agent.instructions, agent.policy, True
        self.files, self.answer, self.hooks, self.failures = None, agent.answer, Hooks(), None
        self.approver: Approver = replay.approve
        self.asker: Asker = replay.ask
        self.clock = agent.clock if settings.is_live else StandingClock(replay.now)
        self.known = None
        if agent.known is not None:
            self.known = cast("Any", RecordedKnowledge(agent.known, replay.turns))
        self.judge = agent.judge
        if agent.judge is not None and not settings.is_live and not getattr(agent.judge, "is_instant", False):
            self.judge = RecordedJudge(replay.turns)
        extra = () if agent.known is None else agent.known.tools
        tools = [tool for tool in agent.kit.own.tools.values() if tool not in extra]
        self.deps = agent.deps
        if settings.tools is ToolReplay.RECORDED:
            tools = [DescribedTool(tool) for tool in tools]
        self.kit = Toolboxes(tools, self.model, extra)

    @property
    def spec(self) -> AgentSpec:
        return self._spec

    @property
    def journal(self) -> Journal:
        return cast("Journal", self.replay_journal)
