"""Random histories of runs: `decide` says what comes next, and hypothesis draws the outcome."""

from hypothesis import strategies as st
from msgspec.structs import replace

from treadle.context.compaction_plan import make_plan
from treadle.context.compaction_size import Summarised, make_event, measure
from treadle.core import events as e
from treadle.core.actions import Append, AskApprover, AskUser, CheckAnswer, Compact, Infer, RequestApprovals
from treadle.core.answering import check_answer
from treadle.core.asking import AskNow, Question, decide_question, open_questions
from treadle.core.calls import waiting_calls
from treadle.core.decide import decide
from treadle.core.limits import can_ask_again
from treadle.core.lineage import Caller, Child
from treadle.core.policy import Approval, Autonomy, InDoubt, Policy
from treadle.core.prompts.prompting import count_prompt
from treadle.core.spec import AgentSpec, PartSpec
from treadle.core.state import ESCALATED, State, Status, apply
from treadle.core.steering import count_messages
from treadle.core.types import (
    UNREPORTED,
    Completion,
    Delivery,
    Effect,
    Fault,
    FinishReason,
    Json,
    Message,
    OutputMode,
    OutputSpec,
    Recalled,
    Role,
    Route,
    StopReason,
    ToolCall,
    ToolErrorKind,
    ToolResult,
    ToolSpec,
    Usage,
    Window,
)

policies = st.builds(
    Policy,
    max_steps=st.none() | st.none() | st.integers(0, 4),
    max_tokens=st.none() | st.none() | st.none() | st.integers(0, 400),
    max_tool_calls=st.none() | st.none() | st.none() | st.integers(0, 4),
    max_cost_usd=st.none() | st.none() | st.none() | st.floats(0, 1),
    deadline_seconds=st.none() | st.none() | st.none() | st.floats(0, 30),
    in_doubt=st.sampled_from(InDoubt),
    autonomy=st.sampled_from(Autonomy),
    text_markers=st.booleans(),
    compact_at=st.sampled_from([None, 0.8, 0.8]),
    compact_threshold=st.sampled_from([None, None, 200]),
    keep_turns=st.integers(0, 2),
    max_output_attempts=st.integers(1, 3),
    approve=st.dictionaries(st.sampled_from(["t", "u", "*", "once"]), st.sampled_from(Approval), max_size=2),
)
steps_of_time = st.sampled_from([0.0, 0.5, 4.0, -1.0])
steps_of_work = st.sampled_from([0.0, 0.5, 4.0])
costs = st.none() | st.floats(0, 0.3)
LONG = "some words of a long text " * 30
texts = st.sampled_from(
    ["", "a", "some words of text", 'é\n"{', "[ASK_USER] a?", "so\n[FINAL] b [ASK_USER]", "1", LONG]
)
windows = st.none() | st.builds(Window, st.sampled_from([600, 1200, 3000]), st.just(50), st.just("said"))
outputs = st.none() | st.just(OutputSpec({"type": "integer"}, OutputMode.TEXT))
recollections = st.none() | st.sampled_from([Recalled("<memory>m</memory>"), Recalled(LONG)])
TIERS = ("small", "mid", "frontier")


def find_fault(schema: dict[str, Json], value: Json) -> str | None:
    """Return what in an answer does not fit the schema of `outputs`."""
    return None if isinstance(value, int) else "it is no number"


class History:
    """A run in progress."""

    def __init__(self, draw: st.DrawFn, policy: Policy, *, is_session: bool) -> None:
        self.draw = draw
        self.bodies: list[e.DurableBody] = []
        self.states: list[State] = [State()]
        self.at = 1000.0
        self.inferences = 0
        self.interruptions = 4
        self.messages = 3
        self.is_routed = draw(st.booleans())
        """True if the agent has tiers."""
        self.is_timed = draw(st.booleans())
        """True if events say how long the turn was worked on, as new journals of runs with a deadline do."""
        self.add(
            e.RunStarted(
                at=self.at,
                version=draw(st.sampled_from([e.VERSION, e.VERSION, "2.1", "2.0"])),
                agent=AgentSpec(model=PartSpec(name="m"), instructions="x", policy=policy),
                is_session=is_session,
                window=draw(windows),
                output=draw(outputs),
                caller=draw(st.none() | st.just(Caller("above", "c"))),
                tools=tuple(
                    [ToolSpec(name, "", {}, max_calls=draw(st.none() | st.integers(0, 3))) for name in "tu"]
                ),
            )
        )
        self.open_turn()
        self.first = self.state.turn.said
        """The first message of the user."""

    @property
    def state(self) -> State:
        return self.states[-1]

    def send(self) -> None:
        """Sometimes add a message that the user sends at this moment, but only a limited number of times."""
        if self.messages and self.draw(st.integers(0, 7)) == 7:
            self.messages -= 1
            message = Message(Role.USER, self.draw(texts))
            self.add(
                e.MessageInjected(at=0.0, message=message, delivery=self.draw(st.sampled_from(Delivery)))
            )

    def add(self, body: e.DurableBody) -> None:
        self.at += self.draw(steps_of_time)
        worked = (
            0.0 if isinstance(body, e.TurnStarted) else self.state.work_seconds + self.draw(steps_of_work)
        )
        body = replace(body, at=self.at, worked_seconds=worked if self.is_timed else None)
        self.bodies.append(body)
        self.states.append(apply(self.state, body))

    def open_turn(self) -> None:
        seq, message = self.state.queued[0] if self.state.queued else (None, None)
        message = message or Message(Role.USER, self.draw(texts))
        self.add(
            e.TurnStarted(
                at=0.0,
                turn=self.state.turn.number + 1,
                message=message,
                recalled=self.draw(recollections),
                queued_seq=seq,
            )
        )

    def is_interrupted(self) -> bool:
        """Return True sometimes, but only a limited number of times."""
        if self.interruptions and self.draw(st.integers(0, 5)) == 5:
            self.interruptions -= 1
            return True
        return False

    def interrupt(self) -> None:
        """Add what follows when the process is killed, or when the caller cancels and resumes."""
        if self.draw(st.booleans()):
            self.add(e.RunPaused(at=0.0, reason="cancelled"))
        self.resume()

    def resume(self) -> None:
        """Add a resume: with the same agent, or as another process of a newer version records it."""
        state, agent = self.state, self.state.agent
        if agent is None or self.draw(st.booleans()):
            self.add(e.RunResumed(at=0.0))
            return
        other = replace(agent, model=PartSpec(name=self.draw(st.sampled_from(["m", "n"]))))
        output = state.output_spec
        if output is not None and self.draw(st.booleans()):
            output = OutputSpec(
                output.schema, self.draw(st.sampled_from([OutputMode.TEXT, OutputMode.NATIVE]))
            )
        self.add(
            e.RunResumed(at=0.0, agent=other, tools=state.tools, output=output, window=self.draw(windows))
        )

    def compact(self, action: Compact) -> None:
        """Compact the context, with a summary or without one, as `loop.compaction` does."""
        state, is_asked = self.state, action.reason == "asked"
        measured = measure(state, count_prompt(state), is_refused=action.reason == "overflow")
        plan = make_plan(measured.seen, measured.sizes, state.policy.keep_turns, is_asked=is_asked)
        if is_asked and plan.is_empty:
            return
        summarised = Summarised()
        if plan.old:
            usage, cost = Usage(20, 5), self.draw(costs)
            summarised = self.draw(
                st.sampled_from(
                    [
                        Summarised("what was said", model="m", usage=usage, cost_usd=cost),
                        Summarised("what was said", left_out=1, model="m", usage=usage, cost_usd=cost),
                        Summarised(error="x", model="m"),
                        Summarised(error="no room"),
                    ]
                )
            )
        self.add(make_event(measured, plan, action.reason, summarised))

    def go(self) -> None:
        """Continue until nothing is left to do. After some steps the model makes no more calls."""
        while True:
            self.send()
            action = decide(self.state)
            if action is None and self.state.status is not Status.PAUSED:
                return
            assert len(self.bodies) < 400, "it never ends"
            if action is None:
                open_ids = [body.question_id for body in open_questions(self.state)]
                self.resume()
                for key in open_ids:
                    self.answer(key)
                for item in waiting_calls(self.state):
                    self.decide_about(item.call)
            elif isinstance(action, Append):
                for body in action.bodies:
                    self.add(body)
            elif self.is_interrupted():
                self.interrupt()
            elif isinstance(action, Infer):
                self.infer(action)
            elif isinstance(action, Compact):
                self.compact(action)
            elif isinstance(action, CheckAnswer):
                for body in check_answer(self.state, action, find_fault):
                    self.add(body)
            elif isinstance(action, RequestApprovals):
                for item in action.calls:
                    self.add(e.ApprovalRequested(at=0.0, call_id=item.call.call_id))
            elif isinstance(action, AskApprover):
                if self.draw(st.booleans()):
                    self.decide_about(action.calls[0].call)
                else:
                    self.add(e.RunPaused(at=0.0, reason="approval"))
            elif isinstance(action, AskUser):
                answered = action.questions[: self.draw(st.integers(0, 2))]
                for asked in answered:
                    self.answer(asked.question_id)
                if not answered:
                    self.add(e.RunPaused(at=0.0, reason="question"))
            else:
                for item in action.calls:
                    if self.is_interrupted():
                        self.interrupt()
                        break
                    if not self.call(item.call, item.attempt + 1):
                        break

    def answer(self, question_id: str) -> None:
        text = self.draw(st.sampled_from(["it was done", ""]))
        self.add(e.QuestionAnswered(at=0.0, question_id=question_id, text=text))

    def ask(self, call: ToolCall, effect: Effect) -> bool:
        """Let a running call ask a question; return True if the call waits for the answer."""
        question = Question(self.draw(st.sampled_from(["a?", "b?", "c?", f"{call.call_id}?"])))
        decided = decide_question(self.state, question, call.call_id, call.call_id)
        if not isinstance(decided, AskNow):
            return False
        assert self.state.turn.spent.questions < self.state.policy.autonomy.max_questions
        self.add(decided.body)
        kind = self.draw(st.sampled_from(["answered", "withdrawn" if effect is Effect.ONCE else "waits"]))
        if kind == "answered":
            self.answer(decided.body.question_id)
        elif kind == "withdrawn":
            question_id = decided.body.question_id
            self.add(e.QuestionAnswered(at=0.0, question_id=question_id, text="", is_withdrawn=True))
        return kind == "waits"

    def decide_about(self, call: ToolCall) -> None:
        is_approved = self.draw(st.booleans())
        self.add(e.ApprovalDecided(at=0.0, call_id=call.call_id, is_approved=is_approved))

    def infer(self, action: Infer) -> None:
        self.inferences += 1
        self.add(
            e.InferenceStarted(
                at=0.0,
                step=action.step,
                messages=count_messages(self.state, has_tools=action.has_tools),
                has_tools=action.has_tools,
                reserved_cost_usd=0.05,
                route=self.choose(),
            )
        )
        self.send()
        kind = self.draw(
            st.sampled_from(
                ["calls"] * 4 + ["answer", "answer", "fails", "retries", "overflows", "escalates"]
            )
        )
        if kind == "overflows":
            failed = self.failure(action.step, retry=None, is_billed=False)
            self.add(
                replace(failed, stop_reason=StopReason.CONTEXT_OVERFLOW, error_type="ContextOverflowError")
            )
            return
        route = self.state.turn.route
        following = next(
            (tier for tier in TIERS if route and TIERS.index(tier) > TIERS.index(route.tier)), None
        )
        if kind == "escalates" and following is not None:
            failed = replace(self.failure(action.step, retry=None, is_billed=False), next_tier=following)
            if self.draw(st.booleans()):
                failed = replace(failed, error_type=ESCALATED, usage=Usage(9, 9), cost_usd=self.draw(costs))
            self.add(failed)
            return
        if kind == "retries":
            is_billed = self.draw(st.booleans()) and can_ask_again(self.state, lost=1)
            self.add(self.failure(action.step, retry=1.0, is_billed=is_billed))
            kind = "answer"
        if kind == "fails":
            self.add(self.failure(action.step, retry=None, is_billed=self.draw(st.booleans())))
            return
        calls: tuple[ToolCall, ...] = ()
        if kind == "calls" and self.inferences < 8:
            count = self.draw(st.integers(1, 3))
            calls = tuple(
                ToolCall(f"c{self.inferences}_{i}", self.draw(st.sampled_from("tu")), "{}")
                for i in range(count)
            )
        reason = self.draw(st.sampled_from(FinishReason))
        message = Message(Role.ASSISTANT, self.draw(texts), calls)
        usage = self.draw(st.just(UNREPORTED) | st.builds(Usage, st.integers(0, 80), st.integers(0, 80)))
        completion = Completion(message, reason, usage, self.draw(costs))
        self.add(e.InferenceCompleted(at=0.0, step=action.step, completion=completion))

    def choose(self) -> Route | None:
        """Return the choice of a model if one is made for the next inference."""
        route, tried = self.state.turn.route, self.state.turn.tried
        if not self.is_routed or (route is not None and route.tier not in tried):
            return None
        return Route(next(tier for tier in TIERS if tier not in tried), "m")

    def failure(self, step: int, retry: float | None, *, is_billed: bool) -> e.InferenceFailed:
        return e.InferenceFailed(
            at=0.0,
            step=step,
            error="x",
            error_type="ServerError",
            fault=Fault.INFRASTRUCTURE,
            retry_in_seconds=retry,
            may_be_billed=is_billed,
        )

    def call(self, call: ToolCall, attempt: int) -> bool:
        """Run a call, and return False if the process was killed meanwhile."""
        effect = self.draw(st.sampled_from(Effect))
        self.add(
            e.ToolStarted(
                at=0.0,
                step=self.state.step,
                call_id=call.call_id,
                name=call.name,
                effect=effect,
                attempt=attempt,
            )
        )
        if self.draw(st.booleans()) and self.ask(call, effect):
            return None
        for number in range(self.draw(st.integers(0, 2))):
            self.call_within(call, f"{call.call_id}/{number + 1}")
        if self.is_interrupted():
            self.add(e.RunResumed(at=0.0))
            return False
        self.send()
        kind = self.draw(st.sampled_from([None, None, ToolErrorKind.FAILED, ToolErrorKind.UNKNOWN_TOOL]))
        result = ToolResult(call.call_id, call.name, self.draw(texts), kind is not None, kind)
        child = self.draw(
            st.none() | st.none() | st.builds(Child, st.just("sub"), st.just(Usage(3, 4)), costs)
        )
        self.add(e.ToolCompleted(at=0.0, step=self.state.step, result=result, child=child))
        return True

    def call_within(self, parent: ToolCall, call_id: str) -> None:
        most, open_calls = (
            self.state.policy.max_tool_calls,
            self.state.turn.open_calls,
        )
        if most is not None and self.state.turn.spent.tool_calls + open_calls >= most:
            return
        step, parent_id = self.state.step, parent.call_id
        if self.draw(st.booleans()):
            self.add(
                e.ToolStarted(
                    at=0.0, step=step, call_id=call_id, name="u", effect=Effect.ONCE, parent_call_id=parent_id
                )
            )
        result = ToolResult(call_id, "u", "inner")
        self.add(e.ToolCompleted(at=0.0, step=step, result=result, parent_call_id=parent_id))


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Return the events of a run of one turn, or of a session of up to three turns."""
    is_session = draw(st.booleans())
    history = History(draw, draw(policies), is_session=is_session)
    history.go()
    if is_session:
        turns = draw(st.integers(0, 2))
        while turns > 0 or history.state.queued:
            turns -= 1
            if draw(st.integers(0, 3)) == 3:
                history.compact(Compact("asked"))
            history.open_turn()
            history.go()
    return history


LIMITS = frozenset(
    (StopReason.MAX_STEPS, StopReason.MAX_TOKENS, StopReason.MAX_COST, StopReason.MAX_TOOL_CALLS)
)
