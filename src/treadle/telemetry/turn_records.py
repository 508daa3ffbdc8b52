"""The records of turns, for logs, and the fold of a run's events into them.

Invariant: the record of a turn is a function of the run's events up to its end, so it is the same whether it is
made while the run is driven, after a crash, or later from a journal.
"""

import hashlib
from collections.abc import Iterable, Iterator

from msgspec import Struct

from treadle.core import events as e
from treadle.core.judgement import Judgement
from treadle.core.lineage import Caller, Child, Parent
from treadle.core.tally import UNKNOWN, charge_of
from treadle.core.turns import STEP_CHANGES, StepFold, find_handlers
from treadle.core.types import RecalledItem, Route, StopReason, ToolCall, ToolSpec, Usage
from treadle.routing.judging import find_refusal
from treadle.telemetry.conventions import agent_name


class Fallback(Struct, frozen=True):
    """A model that was asked and failed, so that another one was asked."""

    model: str
    error_type: str
    """The name of the error's class."""


class CompactionRecord(Struct, frozen=True):
    reason: str
    tokens_before: int
    tokens_after: int
    error: str | None
    """Why there is no new summary; `None` if there is one, or none was needed."""


class TurnRecord(Struct, kw_only=True, gc=False):
    """What happened in one turn, without contents. Sums are over all inferences of the turn, lost ones included.

    A turn that was cancelled or ended with an error, and then went on, has a record for each of these parts. A
    record does not change once its turn, or part, has ended.
    """

    key: str = ""
    """`RUN_ID/TURN`, followed by `.PART` from the second part on. No two records have the same key."""
    run_id: str
    turn: int = 0
    """The number of the turn, from 1."""
    part: int = 1
    """The number of the part, from 1."""
    is_session: bool = False
    labels: dict[str, str] = {}
    """The entries of the run's metadata whose values are texts."""
    persona: str | None = None
    """The name of the agent's persona; `None` if it has none."""
    parent: Parent | None = None
    """The event of another run from which this run was forked. The records of this run leave out copied events."""
    caller: Caller | None = None
    """The tool call of another run that started this one."""
    started_at: float
    """The time of the start, in seconds since the epoch."""
    ended_at: float = 0.0
    """The time of the end, in seconds since the epoch."""
    duration_seconds: float = 0.0
    """The time from the start to the end, pauses included."""
    paused_seconds: float = 0.0
    """The part of `duration_seconds` in which nobody drove the run."""
    inference_seconds: float = 0.0
    tool_seconds: float = 0.0
    """The sum of the durations of all calls, also of calls that ran at the same time."""
    first_token_seconds: float | None = None
    """The time until the first piece of the first answer; `None` if nothing was streamed."""
    stop_reason: str = ""
    error: str | None = None
    error_type: str | None = None
    """The name of the class of the error that ended the turn; `None` if no inference failed."""
    fault: str | None = None
    model: str | None = None
    """The model that was asked last, as the user writes it."""
    models: list[str] = []
    """The models that answered, as their servers name them, in the order of their first answers."""
    route: Route | None = None
    """The choice of the model, with its reasons, and the scores of the tiers that were not chosen."""
    fallbacks: list[Fallback] = []
    """The models that failed before another one was asked."""
    steps: int = 0
    """The inferences that were completed."""
    failed_attempts: int = 0
    """The attempts at inferences that failed, or whose outcome was lost."""
    input_tokens: int = 0
    """The input tokens, including `cached_input_tokens`."""
    output_tokens: int = 0
    """The output tokens, including `reasoning_tokens`."""
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    uncounted_inferences: int = 0
    """The number of inferences whose tokens are not known. The sums of tokens do not include them."""
    cached_share: float | None = None
    """The share of `input_tokens` that the servers had in their caches; `None` if there are no input tokens."""
    cost_usd: float | None = None
    """The cost in US dollars; `None` if a part of the cost is not known."""
    known_cost_usd: float = 0.0
    """The part of the cost that is known."""
    cost_basis: str = "known"
    """`known`, or `unknown` if a part of the cost is not known."""
    tools: dict[str, int] = {}
    """How often each tool was called, by name. Calls that tools made are included."""
    tool_calls: int = 0
    tool_errors: int = 0
    """The calls that failed or were not run."""
    server_tools: dict[str, int] = {}
    """How often the models' servers called each of their own tools, by name."""
    skills: list[str] = []
    """The skills that were loaded."""
    recalled: tuple[RecalledItem, ...] = ()
    """The memories and pieces of documents that the model was told."""
    recalled_left_out: int = 0
    judgement: Judgement | None = None
    """The judgement of the user's message; `None` if the agent has no judge."""
    is_hinted: bool = False
    """True if the model was told to ask about what the message leaves open."""
    compactions: list[CompactionRecord] = []
    is_compacted: bool = False
    questions: int = 0
    answered_questions: int = 0
    approvals: int = 0
    """The calls that somebody decided about."""
    refused_approvals: int = 0
    refusals: list[str] = []
    """The model's refusals: the name of each tool that it wrongly said it cannot use, and `content` if the model or
    its provider's filter refused to answer."""
    injected_messages: int = 0
    """Messages that reached the model during the turn: those of the user, and Treadle's own."""
    reasoning_sha256: str | None = None
    """The hash of the model's thinking; `None` if the servers show none."""
    children: list[Child] = []
    """The runs that tool calls drove. Their tokens and costs are not in the sums, because these runs have records
    of their own."""

    def charge(self, usage: Usage, cost_usd: float | None) -> None:
        """Add tokens and their cost. `None` means that the cost is not known."""
        if not usage.is_reported:
            self.uncounted_inferences += 1
        else:
            self.input_tokens += usage.input_tokens
            self.output_tokens += usage.output_tokens
            self.cached_input_tokens += usage.cached_input_tokens
            self.reasoning_tokens += usage.reasoning_tokens
            self.cache_write_tokens += usage.cache_write_tokens
        if cost_usd is None:
            self.cost_basis = "unknown"
        else:
            self.known_cost_usd += cost_usd


_CANCELLED = StopReason.CANCELLED.value
_SKILL_TOOL = "use_skill"
"""The name of the tool that loads a skill."""
_SHORT = 12
"""Answers up to this length in characters say nothing about a tool."""
_REFUSAL_CHARS = 1000
"""How many characters of an answer are searched for a refusal."""
_SKILL_KEYS = ("name", "skill", "skill_name")


def read_turn_records(events: Iterable[e.Event]) -> Iterator[TurnRecord]:
    """Yield the record of each turn of the runs that `events` belong to, when it ends.

    `events` are those of a journal from their beginning; those of several runs may be mixed.
    """
    folds: dict[str, RecordFold] = {}
    for event in events:
        fold = folds.get(event.run_id)
        if fold is None:
            fold = folds[event.run_id] = RecordFold(event.run_id)
        yield from fold.add(event.seq, (event.body,))
        if isinstance(event.body, e.RunFinished) and event.body.stop_reason is not StopReason.ERROR:
            del folds[event.run_id]


class RecordFold:
    """The fold of one run's events into the records of its turns."""

    __slots__ = (
        "_fold",
        "_part",
        "_part_number",
        "_reasoning",
        "_route",
        "_run_id",
        "_tools",
    )

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._fold = StepFold()
        self._part_number = 1
        self._part: TurnRecord | None = None
        self._reasoning: hashlib._Hash | None = None
        """The hash of the model's thinking so far; `None` if there is none."""
        self._route: Route | None = None
        self._tools: tuple[ToolSpec, ...] = ()

    def add(self, first_seq: int, bodies: Iterable[e.DurableBody]) -> list[TurnRecord]:
        """Add the run's next events, and return the records of the turns, or parts, that end with them."""
        found: list[TurnRecord] = []
        fold = self._fold
        for seq, body in enumerate(bodies, first_seq):
            if (both := _BOTH.get(type(body))) is None:
                continue
            change, take = both
            if change is not None:
                change(fold, body)
            fold.at = body.at
            if take is None:
                continue
            record = take(self, body)
            if seq <= fold.copied_until:
                # What a fork copied was used by the run that it was copied from.
                fold.is_asking = False
                if self._part is not None:
                    self._part = self._begin(body.at)
            elif record is not None:
                found.append(record)
        return found

    def on_run_started(self, body: e.RunStarted) -> None:
        self._tools = body.tools

    def on_run_resumed(self, body: e.RunResumed) -> None:
        if body.agent is not None:
            self._tools = body.tools
        if self._part is not None:
            self._part.paused_seconds += self._fold.idle_seconds
        elif self._fold.is_turn_open:
            self._part_number += 1
            self._part = self._begin(body.at)
        self._lose(body)

    def _begin(self, at: float) -> TurnRecord:
        """Return the record of a turn, or part of a turn, that begins."""
        self._reasoning = None
        started = self._fold.started
        if started is None:
            return TurnRecord(run_id=self._run_id, started_at=at)
        return TurnRecord(
            run_id=self._run_id,
            started_at=at,
            is_session=started.is_session,
            labels={name: text for name, text in (started.metadata or {}).items() if isinstance(text, str)},
            persona=agent_name(started),
            parent=started.parent,
            caller=started.caller,
        )

    def _lose(self, body: e.DurableBody) -> None:
        """Count the inference whose outcome was lost, if there is one."""
        if self._fold.has_lost:
            part = self._open(body)
            part.failed_attempts += 1
            part.charge(*UNKNOWN)

    def on_turn_started(self, body: e.TurnStarted) -> None:
        self._part_number = 1
        part = self._open(body)
        part.started_at = body.at
        self._route = None
        if body.recalled is not None:
            part.recalled, part.recalled_left_out = body.recalled.items, body.recalled.left_out
        part.judgement, part.is_hinted = body.judgement, body.hint is not None
        if (charge := charge_of(body)) is not None:
            part.charge(*charge)

    def _open(self, body: e.DurableBody) -> TurnRecord:
        """Return the open part. What happens between two turns is a part of the next one."""
        if self._part is None:
            self._part = self._begin(body.at)
        return self._part

    def on_run_paused(self, body: e.RunPaused) -> TurnRecord | None:
        if self._part is None or body.reason != _CANCELLED:
            return None
        # If the run is resumed, the turn goes on as another part.
        return self._end(body.at, _CANCELLED)

    def on_turn_completed(self, body: e.TurnCompleted) -> TurnRecord | None:
        if body.stop_reason is StopReason.REFUSED:
            self._open(body).refusals.append("content")
        if self._tools and len(body.output) > _SHORT:
            refusal = find_refusal(body.output[:_REFUSAL_CHARS], tools=self._tools)
            if refusal is not None and refusal.tool not in self._open(body).refusals:
                self._open(body).refusals.append(refusal.tool)
        fault = None if body.fault is None else body.fault.value
        return self._end(body.at, body.stop_reason.value, body.error, fault)

    def on_inference_started(self, body: e.InferenceStarted) -> None:
        self._lose(body)
        if body.route is not None:
            self._route = body.route

    def on_inference_completed(self, body: e.InferenceCompleted) -> None:
        part, completion = self._part or self._open(body), body.completion
        message = completion.message
        part.steps += 1
        part.inference_seconds += body.duration_seconds
        if part.first_token_seconds is None:
            part.first_token_seconds = body.first_token_seconds
        if body.verdict is None:
            part.charge(completion.usage, completion.cost_usd)
        else:
            part.charge(*(charge_of(body) or UNKNOWN))
        name = completion.model or body.answered_by or self._fold.asked_model
        if name is not None and name not in part.models:
            part.models.append(name)
        if message.reasoning:
            self._reasoning = self._reasoning or hashlib.sha256()
            self._reasoning.update(message.reasoning.encode())
        for made in message.server_calls:
            part.server_tools[made.name] = part.server_tools.get(made.name, 0) + 1
        for call in message.tool_calls:
            if call.name == _SKILL_TOOL and (skill := _read_skill(call)):
                part.skills.append(skill)
        if body.refused_tool is not None and body.refused_tool not in part.refusals:
            part.refusals.append(body.refused_tool)
        part.error_type = None

    def on_inference_failed(self, body: e.InferenceFailed) -> None:
        part = self._open(body)
        part.failed_attempts += 1
        if (charge := charge_of(body)) is not None:
            part.charge(*charge)
        if body.retry_in_seconds is None:
            part.error_type = body.error_type
        elif body.model is not None:
            part.fallbacks.append(Fallback(body.model, body.error_type))

    def on_tool_completed(self, body: e.ToolCompleted) -> None:
        part, result = self._part or self._open(body), body.result
        part.tools[result.name] = part.tools.get(result.name, 0) + 1
        if body.parent_call_id is None:
            part.tool_seconds += body.duration_seconds
        part.tool_calls += 1
        if result.is_error:
            part.tool_errors += 1
        if body.child is not None:
            part.children.append(body.child)

    def on_context_compacted(self, body: e.ContextCompacted) -> None:
        part = self._open(body)
        if (charge := charge_of(body)) is not None:
            part.charge(*charge)
        if not body.is_empty:
            part.compactions.append(
                CompactionRecord(body.reason, body.tokens_before, body.tokens_after, body.error)
            )

    def on_message_injected(self, body: e.MessageInjected) -> None:
        if self._part is not None:
            self._part.injected_messages += 1

    def on_question_asked(self, body: e.QuestionAsked) -> None:
        self._open(body).questions += 1

    def on_question_answered(self, body: e.QuestionAnswered) -> None:
        if body.is_withdrawn:
            self._open(body).questions -= 1
        else:
            self._open(body).answered_questions += 1

    def on_approval_decided(self, body: e.ApprovalDecided) -> None:
        part = self._open(body)
        part.approvals += 1
        part.refused_approvals += not body.is_approved

    def _end(
        self,
        at: float,
        stop_reason: str,
        error: str | None = None,
        fault: str | None = None,
    ) -> TurnRecord | None:
        part, self._part = self._part, None
        if part is None:
            return None
        suffix = f".{self._part_number}" if self._part_number > 1 else ""
        part.key = f"{self._run_id}/{self._fold.turns}{suffix}"
        part.turn, part.part = self._fold.turns, self._part_number
        part.ended_at, part.duration_seconds = at, max(0.0, at - part.started_at)
        part.stop_reason, part.error, part.fault = stop_reason, error, fault
        part.model, part.route = self._fold.asked_model, self._route
        part.is_compacted = bool(part.compactions)
        if part.input_tokens:
            part.cached_share = part.cached_input_tokens / part.input_tokens
        if part.cost_basis == "known":
            part.cost_usd = part.known_cost_usd
        if self._reasoning is not None:
            part.reasoning_sha256 = self._reasoning.hexdigest()
        return part


_TAKE = find_handlers(RecordFold)

_BOTH = {kind: (STEP_CHANGES.get(kind), _TAKE.get(kind)) for kind in (*STEP_CHANGES, *_TAKE)}
"""The functions for a body that change the fold and the record, so that both are found with one look-up."""


def _read_skill(call: ToolCall) -> str | None:
    given = call.parsed_or(None)
    found = [given.get(key) for key in _SKILL_KEYS] if isinstance(given, dict) else []
    return next((name for name in found if isinstance(name, str)), None)
