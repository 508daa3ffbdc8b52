"""The rules of a workbench: which inner calls run, which questions are asked, and what further runs may use."""

from treadle.core.asking import Question, QuestionDecision, RefuseToAsk, decide_question
from treadle.core.calls import InnerDecision, RunInner, decide_inner
from treadle.core.limits import Allowance, allow
from treadle.core.state import State
from treadle.core.types import ToolCall

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


class RunRules(Rules):
    """The rules that follow from the state of a run."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        # Not the driver, so that there is no reference cycle.
        self._state = state

    def decide_inner(self, parent_id: str, number: int, name: str, arguments: str) -> InnerDecision:
        """See `core.inner.decide_inner`."""
        return decide_inner(self._state, parent_id, number, name, arguments)

    def decide_question(
        self, question: Question, asker_id: str, call_id: str, number: int
    ) -> QuestionDecision:
        """See `core.questions.decide_question`."""
        return decide_question(self._state, question, asker_id, call_id, number)

    def allow(self, drivers: frozenset[str]) -> Allowance:
        """See `Rules.allow`. Calls of one step that drive runs have equal shares."""
        calls = [item.call.name for item in self._state.turn.calls.values() if item.result is None]
        return allow(self._state, max(1, sum([name in drivers for name in calls])))
