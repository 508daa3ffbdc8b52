"""Questions to the user: who is asked, and what happens to the call that asks while nobody answers.

The rules of a workbench are here too: which inner calls run, which questions are asked, and what further runs use.
So are the inner calls of a running tool.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.actions import AskUser
from treadle.core.asking import (
    Answer,
    AskNow,
    Question,
    QuestionDecision,
    RecallAnswer,
    RefuseToAsk,
    decide_question,
    key_of,
    read_answer,
    to_answer,
    to_question,
)
from treadle.core.calls import InnerDecision, RunInner, decide_inner, refuse_after_doubt
from treadle.core.errors import ConfigError, NotAskedError, ToolError
from treadle.core.limits import Allowance, allow
from treadle.core.prompts.prompting import place_of
from treadle.core.state import State
from treadle.core.texts.masking import Mask
from treadle.core.types import Effect, Json, ToolCall, ToolResult
from treadle.journal.protocol import DONE
from treadle.loop.outbox import Outbox
from treadle.tools.protocol import Asker, Decision, ToolOutput

T = TypeVar("T")
MAX_UNFIT = 3
"""How many answers to one question may fail to fit it."""


class ParkedError(BaseException):
    """Raised in a tool whose question nobody answers now. The call ends without a result and runs again later.

    It is not an `Exception`, so that a tool's own `except Exception` does not catch it.
    """


class Arrivals:
    """The answers and decisions that arrive from outside while somebody is asked, by id. The first one counts."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._arrived: set[str] = set()
        self.on_wait: Callable[[], None] | None = None
        """The function that is called when somebody is asked; it may find what has arrived before."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def first(self, key: str, asked: Coroutine[Any, Any, T]) -> T:
        """Return what `asked` returns, or what arrives for `key` before; then `asked` is cancelled."""
        arriving: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting[key] = arriving
        asking = asyncio.ensure_future(asked)
        try:
            if self.on_wait is not None:
                self.on_wait()
            await asyncio.wait((asking, arriving), return_when=asyncio.FIRST_COMPLETED)
            return arriving.result() if arriving.done() else asking.result()
        finally:
            del self._waiting[key]
            if not asking.done():
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    def settle_all(self, bodies: Iterable[e.DurableBody]) -> None:
        """Pass on the answers and decisions in events, which are recorded already."""
        for body in bodies:
            if isinstance(body, e.QuestionAnswered):
                self.settle(body.question_id, to_answer(body.text))
            elif isinstance(body, e.ApprovalDecided):
                self.settle(body.call_id, Decision(body.is_approved, body.reason, body.arguments))

    def settle(self, key: str, value: object) -> None:
        """Pass on the answer or decision for `key`, which is recorded already."""
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            self._arrived.add(key)
            waiting.set_result(value)

    def has_recorded(self, key: str) -> bool:
        """Return whether the answer or decision that `first` returned for `key` was recorded already."""
        return key in self._arrived


class Questioner:
    """The object that puts a run's questions to the user, one at a time."""

    def __init__(self, run_id: str, asker: Asker | None, rules: "Rules") -> None:
        self.run_id = run_id
        self.asker = asker
        self.rules = rules
        self.deadline: asyncio.Timeout | None = None
        """The timer of the run's deadline. It stands still while the user is asked."""
        self.arrivals = Arrivals()
        """The answers and decisions that arrive from outside while somebody is asked."""
        self._lock: asyncio.Lock | None = None
        self._postponed: set[str] = set()
        """The ids of the questions that the user did not answer since the run was driven."""

    def begin(self) -> None:
        """Allow every question to be asked again, because the run is driven anew."""
        self._postponed.clear()

    async def consult(self, body: e.QuestionAsked) -> Answer | None:
        """Return the user's answer; `None` if nobody answers now."""
        if self.asker is None:
            return None
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if body.question_id in self._postponed:
                return None
            with held(self.deadline):
                asked = self._ask(to_question(body, self.run_id))
                answer = await self.arrivals.first(body.question_id, asked)
        if answer is None:
            self._postponed.add(body.question_id)
        return answer

    async def perform(self, state: State, action: AskUser, outbox: Outbox) -> None:
        """Put open questions to the user. Record the answers, or a pause if there are none."""
        await outbox.kept()
        has_answers = False
        for body in action.questions:
            answer = await self.consult(body)
            if answer is not None:
                self.record(body, answer, outbox)
                has_answers = True
        if not has_answers:
            outbox.put(e.RunPaused(reason="question"))

    def record(self, body: e.QuestionAsked, answer: Answer, outbox: Outbox) -> None:
        """Put an answer into the outbox. An answer that came from outside is recorded already, and is left out."""
        if not self.arrivals.has_recorded(body.question_id):
            outbox.put(e.QuestionAnswered(question_id=body.question_id, text=answer.text))

    async def _ask(self, question: Question) -> Answer | None:
        """Ask until the answer fits. An asker that fails has no answer, and its exception is reported."""
        assert self.asker is not None
        for _ in range(MAX_UNFIT):
            try:
                said = self.asker(question)
                if inspect.isawaitable(said):
                    said = await said
                if not isinstance(said, Answer | str | int | dict | None):
                    raise TypeError(
                        f"it returned {said!r:.200}; return a str, an int, a dict, an Answer or None"
                    )
                return None if said is None else read_answer(question, said, find_form_fault)
            except ConfigError as error:
                question = replace(question, fault=str(error))
            except Exception as error:
                _report(f"the asker failed at the question {question.text!r:.200}", error)
                return None
        _report(f"the asker gave {MAX_UNFIT} unfit answers: {question.fault}", None)
        return None


class Asking(Struct, eq=False):
    """The questions of one running call of the model, and of the calls that it makes."""

    _questioner: Questioner
    _call_id: str
    _outbox: Outbox
    _counts: dict[tuple[str, str], int] = {}
    _known: dict[tuple[str, ...], Answer] = {}
    """The answers to questions with secrets, by the call, the text and the options with their secrets."""
    running: list[tuple[Effect, asyncio.Timeout | None]] = []
    """The effect and the timer of the call, and those of a call that it makes. The timers stand still while the
    user is asked."""
    open_ids: list[str] = []
    """The ids of the questions that were asked and not answered."""
    is_parked: bool = False
    """True if the call waits for an answer, so that it has no result."""
    is_over: bool = False
    """True if the call has ended, so that it can ask nothing more."""

    async def ask(self, call_id: str, question: Question, original: Question) -> Answer:
        """Ask for the running call `call_id`; see `ToolContext.ask`.

        `question` is the `original` without secrets.
        """
        said = call_id, original.text, *[option.label for option in original.options]
        known = self._known.get(said)
        key = call_id, key_of(question)
        number = self._counts[key] = self._counts.get(key, 0) + 1
        if self.is_over:
            raise NotAskedError(NOBODY)
        if question.schema is not None:
            from treadle.tools.schema.answer_schema import check_schema

            check_schema(question.schema)
        decided = self._questioner.rules.decide_question(question, call_id, self._call_id, number)
        if isinstance(decided, RecallAnswer):
            answer = decided.answer
        elif isinstance(decided, AskNow):
            answer = await self._ask(decided, known)
        elif known is None:
            raise NotAskedError(decided.reason)
        else:
            answer = known
        if question != original and question.schema is None:
            self._known.setdefault(said, answer)
        return answer if known is None else replace(answer, is_repeated=True)

    async def _ask(self, decided: AskNow, known: Answer | None) -> Answer:
        """Ask, unless the answer is `known`, and record it. Raises: `NotAskedError`, `ParkedError`."""
        questioner, outbox = self._questioner, self._outbox
        can_park = all([effect is not Effect.ONCE for effect, _ in self.running])
        if known is None and not can_park and questioner.asker is None:
            raise NotAskedError(NOBODY)
        body = decided.body
        self.open_ids.append(body.question_id)
        if not decided.is_recorded:
            outbox.put(body)
        await outbox.kept()
        with held(*[timer for _, timer in self.running]):
            # A repeated question is recorded too, so that a call that runs again counts the same questions.
            answer = await questioner.consult(body) if known is None else known
        if self.is_over:
            raise NotAskedError(NOBODY)
        if answer is not None:
            questioner.record(body, answer, outbox)
            self.open_ids.remove(body.question_id)
            await outbox.kept()
            return answer
        if can_park:
            self.is_parked = True
            raise ParkedError
        self.withdraw()
        raise NotAskedError(NOBODY)

    def withdraw(self) -> None:
        """Record that nobody waits for the answers to the open questions any more."""
        bodies = [e.QuestionAnswered(question_id=key, text="", is_withdrawn=True) for key in self.open_ids]
        self.open_ids.clear()
        self._outbox.put(*bodies)


@contextmanager
def held(*timers: asyncio.Timeout | None) -> Iterator[None]:
    """Stop timers while the `with` block runs."""
    loop = asyncio.get_running_loop()
    left: list[tuple[asyncio.Timeout, float]] = []
    for timer in timers:
        when = None if timer is None or timer.expired() else timer.when()
        if timer is not None and when is not None:
            left.append((timer, when - loop.time()))
            timer.reschedule(None)
    try:
        yield
    finally:
        for timer, seconds in left:
            # The call may have ended without waiting for the answer.
            with suppress(RuntimeError):
                timer.reschedule(loop.time() + seconds)


def find_form_fault(schema: dict[str, Json], value: Json) -> str | None:
    """Return why the answer to a form does not fit its schema; `None` if it fits."""
    # Imported here because only forms need the validator.
    from treadle.tools.schema.answer_schema import find_output_fault

    return find_output_fault(schema, value)


def _report(message: str, error: Exception | None) -> None:
    """Tell the event loop about an asker that failed."""
    context: dict[str, object] = {"message": message}
    if error is not None:
        context["exception"] = error
    asyncio.get_running_loop().call_exception_handler(context)


NOBODY = "Nobody can be asked now."


class Rules:
    """The rules for calls outside of a run: each inner call runs, no question is asked, and nothing is limited."""

    def decide_inner(self, parent_id: str, number: int, name: str, arguments: str) -> InnerDecision:
        """Decide about an inner call of the call `parent_id`; `number` counts its inner calls from 1."""
        return RunInner(ToolCall(f"{parent_id}/{number}", name, arguments), 1)

    def decide_question(
        self, question: Question, asker_id: str, call_id: str, number: int
    ) -> QuestionDecision:
        """Decide about a question of the call `asker_id`, which is part of the model's call `call_id`.

        `number` is how often the call has asked it.
        """
        return RefuseToAsk(NOBODY)

    def allow(self, drivers: frozenset[str]) -> Allowance:
        """Return what a run may use that a call drives. `drivers` are the names of the tools that drive runs."""
        return Allowance()

    def find_place(self, step: int, call_id: str) -> str:
        """Return the place of a call; see `Caller.place`."""
        return ""


class RunRules(Rules):
    """The rules that follow from the state of a run."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        # Not the driver, so that there is no reference cycle.
        self._state = state

    def decide_inner(self, parent_id: str, number: int, name: str, arguments: str) -> InnerDecision:
        return decide_inner(self._state, parent_id, number, name, arguments)

    def decide_question(
        self, question: Question, asker_id: str, call_id: str, number: int
    ) -> QuestionDecision:
        return decide_question(self._state, question, asker_id, call_id, number)

    def allow(self, drivers: frozenset[str]) -> Allowance:
        """See `Rules.allow`. Calls of one step that drive runs have equal shares."""
        calls = [item.call.name for item in self._state.turn.calls.values() if item.result is None]
        return allow(self._state, max(1, sum([name in drivers for name in calls])))

    def find_place(self, step: int, call_id: str) -> str:
        """See `Rules.find_place`. A server may give calls random ids, so their order counts."""
        calls = list(self._state.turn.calls)
        outer, _, inner = (call_id, "", "") if call_id in calls else call_id.rpartition("/")
        number = calls.index(outer) if outer in calls else len(calls)
        return place_of(self._state, f"{step}.{number}", *([inner] if inner else ()))


MakeInner: TypeAlias = Callable[[RunInner, str, str, int, Outbox], Awaitable[ToolResult]]
"""A function that makes an inner call. It takes the decision, the arguments, the id of the outer call, the step and
the outbox."""


class InnerCalls(Struct, eq=False):
    """The inner calls of one running call, made one after another. See `Outbox`."""

    _rules: Rules
    _make_call: MakeInner
    _mask: Mask
    """The secrets that the arguments in the journal must not contain."""
    _parent_id: str
    """The id of the running call."""
    _step: int
    _outbox: Outbox
    _count: int = 0
    _lock: asyncio.Lock | None = None
    _running: asyncio.Task[Any] | None = None
    """The task that waits for a call."""
    _is_over: bool = False
    is_in_doubt: bool = False
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
        return DONE if self._is_over else self._outbox.kept()

    async def _make(self, name: str, arguments: str) -> ToolResult:
        if self.is_in_doubt:
            return refuse_after_doubt(ToolCall(f"{self._parent_id}/{self._count}", name, arguments))
        shown = self._mask.hide(arguments)
        decided = self._rules.decide_inner(self._parent_id, self._count, name, shown)
        if isinstance(decided, RunInner):
            return await self._make_call(decided, arguments, self._parent_id, self._step, self)
        if decided.is_doubtful:
            self.is_in_doubt = True
        elif not decided.is_recorded:
            self.put(e.ToolCompleted(step=self._step, result=decided.result, parent_call_id=self._parent_id))
        return decided.result
