"""The class `Run`: the outcome of a run, and access to its events and files."""

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
    """The outcome of a run, with access to its events and files. For a session, the outcome of its last turn."""

    def __init__(self, run_id: str, state: State, journal: Journal) -> None:
        self.run_id = run_id
        self.state = state
        """The state after the last event."""
        self._journal = journal

    @classmethod
    def load(cls, run_id: str, journal: Journal, until_seq: int | None = None) -> "Run":
        """Return a run read from a journal, whether it is over or not, as of event `until_seq`.

        Raises: `RunNotFoundError`; `JournalError` if the run is damaged.
        """
        return cls(run_id, fold([event.body for event in journal.read(run_id, until_seq=until_seq)]), journal)

    @property
    def spec(self) -> AgentSpec:
        """The description of the agent that last drove the run; `Agent.from_spec` builds the agent from it."""
        if self.state.agent is None:
            raise ValueError(f"run {self.run_id!r} has not begun")
        return self.state.agent

    def __repr__(self) -> str:
        outcome = self.stop_reason or self.status
        return f"Run({self.run_id!r}, {outcome}, steps={self.steps}, output={self.output!r:.80})"

    @property
    def status(self) -> Status:
        """The status of the run; `paused` if it waits for an answer, an approval or to be resumed."""
        return self.state.status

    @property
    def stop_reason(self) -> StopReason | None:
        """The reason why the last turn ended; `None` if it has not ended."""
        return None if self.state.is_turn_open else self.state.stop_reason

    @property
    def output(self) -> str:
        """The final answer, or the model's last text if a limit or an error ended the turn."""
        return self.state.output

    @property
    def value(self) -> Json:
        """The final answer of a run with a `schema`, decoded from JSON.

        Raises: `ValueError` if the run has no schema or no answer that fits it; `error` says why.
        """
        if self.state.output_spec is None:
            raise ValueError(f"run {self.run_id!r} has no schema; its answer is `output`, a text")
        if self.stop_reason is None or self.error is not None:
            raise ValueError(f"run {self.run_id!r} has no answer: {self.error or 'its turn is not over'}")
        return msgspec.json.decode(self.output)

    def parse(self, kind: type[T]) -> T:
        """Return `value` as an instance of `kind`, the pydantic type that was given as `schema`.

        Raises: `ValueError` as `value` does, or if the answer does not fit `kind`.
        """
        from pydantic import TypeAdapter

        return TypeAdapter(kind).validate_python(self.value)

    @property
    def error(self) -> str | None:
        """What went wrong in the last turn; `None` if nothing did."""
        return self.state.error

    @property
    def fault(self) -> Fault | None:
        """The party responsible for `error`; `None` if nobody is."""
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
        """Cost of the whole run; `None` if the cost of an inference is unknown."""
        return self.state.cost_usd

    @property
    def reward(self) -> float | None:
        """The reward that the task's check gave; `None` if there is no task, or its check was not run."""
        return self.state.rewards.get("check")

    @property
    def questions(self) -> dict[str, str]:
        """The open questions, by id. Answer one with `Agent.resume(run_id, answers={id: text})`."""
        open_ids = {key for key, answer in self.state.questions.items() if answer is None}
        asked = [event.body for event in self.events] if open_ids else []
        return {
            body.question_id: body.text
            for body in asked
            if isinstance(body, QuestionAsked) and body.question_id in open_ids
        }

    @property
    def approvals(self) -> dict[str, ToolCall]:
        """The calls that wait for approval, by id. Decide with `Agent.resume(run_id, approvals={id: True})`."""
        return {item.call.call_id: item.call for item in self.state.waiting_calls}

    @cached_property
    def events(self) -> list[Event]:
        """The events up to this state, read from the journal on first access."""
        return self._journal.read(self.run_id, until_seq=self.state.seq)

    @property
    def files(self) -> Mapping[str, bytes]:
        """The sandbox's files as path to content, read from the journal."""
        return {path: self._journal.read_blob(digest) for path, digest in self.state.files.items()}

    @property
    def results(self) -> list[ToolResult]:
        """All tool results in the order in which they came, including those of calls that tools made."""
        return [event.body.result for event in self.events if isinstance(event.body, ToolCompleted)]

    def read_artifact(self, digest: str) -> bytes:
        """Return the content of an artifact of a result, by its hash.

        Raises: `JournalError` if the store does not have it.
        """
        return self._journal.read_blob(digest)
