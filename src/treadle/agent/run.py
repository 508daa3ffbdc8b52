"""What a caller gets of a run: its outcome, and the way to its events."""

from collections.abc import Mapping
from functools import cached_property
from typing import TypeVar

import msgspec

from treadle.core.events import Event, QuestionAsked, ToolCompleted
from treadle.core.spec import AgentSpec
from treadle.core.state import State, Status, fold
from treadle.core.types import Fault, Json, Message, StopReason, ToolCall, ToolResult, Usage
from treadle.journal.protocol import Journal

T = TypeVar("T")


class Run:
    """The outcome of a run, and the way to its events. A session's is as of its last turn."""

    def __init__(self, run_id: str, state: State, journal: Journal) -> None:
        self.run_id = run_id
        self.state = state
        """The fold of the events."""
        self._journal = journal

    @classmethod
    def load(cls, run_id: str, journal: Journal) -> "Run":
        """Read a run from a journal, whether it is over or not. Raises: `RunNotFoundError`."""
        return cls(run_id, fold([event.body for event in journal.read(run_id)]), journal)

    @property
    def spec(self) -> AgentSpec:
        """The agent that drove the run last, with which it can be built again."""
        if self.state.agent is None:
            raise ValueError(f"run {self.run_id!r} has not begun")
        return self.state.agent

    def __repr__(self) -> str:
        outcome = self.stop_reason or self.status
        return f"Run({self.run_id!r}, {outcome}, steps={self.steps}, output={self.output!r:.80})"

    @property
    def status(self) -> Status:
        """`paused` if it waits for an answer."""
        return self.state.status

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the last turn ended; `None` while it has not."""
        return None if self.state.is_turn_open else self.state.stop_reason

    @property
    def output(self) -> str:
        """The final answer, or what the model said last before a limit."""
        return self.state.output

    @property
    def value(self) -> Json:
        """The final answer as JSON, of a run with a `schema`.

        Raises: `ValueError` if the run gave no such answer; `error` says why.
        """
        if self.state.output_spec is None:
            raise ValueError(f"run {self.run_id!r} has no schema; its answer is `output`, a text")
        if self.stop_reason is None or self.error is not None:
            raise ValueError(f"run {self.run_id!r} has no answer: {self.error or 'its turn is not over'}")
        return msgspec.json.decode(self.output)

    def parse(self, kind: type[T]) -> T:
        """`value` as the pydantic type that the schema came from. Raises: `ValueError`."""
        from pydantic import TypeAdapter

        return TypeAdapter(kind).validate_python(self.value)

    @property
    def error(self) -> str | None:
        """What went wrong, if it did."""
        return self.state.error

    @property
    def fault(self) -> Fault | None:
        """Whose fault that was."""
        return self.state.fault

    @property
    def messages(self) -> list[Message]:
        """The transcript, the system message included."""
        return list(self.state.messages)

    @property
    def steps(self) -> int:
        """How many inferences were completed."""
        return self.state.step

    @property
    def usage(self) -> Usage:
        """Tokens of the whole run."""
        return self.state.usage

    @property
    def cost_usd(self) -> float | None:
        """Of the whole run; `None` if the cost of some inference is unknown."""
        return self.state.cost_usd

    @property
    def reward(self) -> float | None:
        """What the task's check gave; `None` if there was none, or it was not made."""
        return self.state.rewards.get("check")

    @property
    def questions(self) -> dict[str, str]:
        """Open questions: id to text. Answer one with `Agent.resume(run_id, answers={id: text})`."""
        open_ids = {key for key, answer in self.state.questions.items() if answer is None}
        asked = [event.body for event in self.events] if open_ids else []
        return {
            body.question_id: body.text
            for body in asked
            if isinstance(body, QuestionAsked) and body.question_id in open_ids
        }

    @property
    def approvals(self) -> dict[str, ToolCall]:
        """Calls that wait for a yes, by id. Decide with `Agent.resume(run_id, approvals={id: True})`."""
        return {item.call.call_id: item.call for item in self.state.waiting_calls}

    @cached_property
    def events(self) -> list[Event]:
        """The events up to this state, read from the journal when first asked for."""
        return [event for event in self._journal.read(self.run_id) if event.seq <= self.state.seq]

    @property
    def files(self) -> Mapping[str, bytes]:
        """The sandbox's files, read from the journal."""
        return {path: self._journal.read_blob(digest) for path, digest in self.state.files.items()}

    @property
    def results(self) -> list[ToolResult]:
        """All tool results, in the order in which they came, those of calls that tools made too."""
        return [event.body.result for event in self.events if isinstance(event.body, ToolCompleted)]

    def read_artifact(self, digest: str) -> bytes:
        """The content of one of the `artifacts` of a result. Raises: `JournalError` if the store has it not."""
        return self._journal.read_blob(digest)
