"""The class `Run`: the outcome of a run, and access to its events and files."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, cast, overload

import msgspec
from msgspec.structs import replace

from treadle.core.asking import Question, open_questions, to_question
from treadle.core.calls import waiting_calls
from treadle.core.errors import ConfigError
from treadle.core.events import ToolCompleted
from treadle.core.events.narrowing import Event
from treadle.core.spec import AgentSpec
from treadle.core.state import State, Status, fold
from treadle.core.types import Fault, Json, Message, StopReason, ToolCall, ToolResult, Usage
from treadle.journal.protocol import Journal
from treadle.runs.answer_type import AnswerType, answer_type

if TYPE_CHECKING:
    # With a default, `Run` without a parameter is complete for strict type checkers.
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)
V = TypeVar("V")


class Run(Generic[T_co]):
    """The outcome of a run, with access to its events and files. For a session, the outcome of its last turn."""

    def __init__(
        self, run_id: str, state: State, journal: Journal, answer: AnswerType[T_co] | None = None
    ) -> None:
        self.run_id = run_id
        self.state = state
        """The state after the last event."""
        self._journal = journal
        self._answer = answer

    @overload
    @classmethod
    def load(
        cls, run_id: str, journal: Journal, until_seq: int | None = None, *, schema: type[V]
    ) -> "Run[V]": ...
    @overload
    @classmethod
    def load(
        cls, run_id: str, journal: Journal, until_seq: int | None = None, *, schema: Any = None
    ) -> "Run[Any]": ...
    @classmethod
    def load(
        cls, run_id: str, journal: Journal, until_seq: int | None = None, *, schema: Any = None
    ) -> "Run[Any]":
        """Return a run read from a journal, finished or not, up to event `until_seq`.

        `schema` is the type of `value`; without it, `value` is decoded JSON if the run has a schema, else a text.
        Raises: `RunNotFoundError`; `JournalError` if the run is damaged; `ConfigError` for a `schema` that is not
        a type.
        """
        if not hasattr(journal, "read"):
            raise ConfigError(
                f"journal is of type {type(journal).__name__!r}; give what `open_journal` returns"
            )
        answer = None if schema is None else answer_type(schema)
        return Run(
            run_id, fold([event.body for event in journal.read(run_id, until_seq=until_seq)]), journal, answer
        )

    @property
    def spec(self) -> AgentSpec:
        """The description of the agent that last drove the run; `Agent.from_spec` builds the agent from it.

        Reading it blocks, because the journal is asked whether the run is trusted.
        """
        if self.state.agent is None:
            raise ValueError(f"run {self.run_id!r} has not begun")
        return replace(self.state.agent, is_foreign=not self._journal.is_trusted(self.run_id))

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
        return None if self.state.turn.is_open else self.state.ending.stop_reason

    @property
    def output(self) -> str:
        """The final answer, or the model's last text if a limit or an error ended the turn."""
        return self.state.ending.output

    @property
    def value(self) -> T_co:
        """The final answer as a value of the type that was given as `schema`, checked each time it is read.

        Without a schema it is the text of the answer. Raises: `ValueError` if there is no answer (`error` says
        why), or if the answer does not fit the type.
        """
        if self.stop_reason is None or self.error is not None:
            raise ValueError(f"run {self.run_id!r} has no answer: {self.error or 'its turn is not over'}")
        has_wrap_up = self.state.turn.is_wrapped_up and self.output
        if self.stop_reason is not StopReason.COMPLETED and not has_wrap_up:
            raise ValueError(f"run {self.run_id!r} has no answer: it ended with {self.stop_reason}")
        if self._answer is None:
            has_schema = self.state.output_spec is not None
            return cast("T_co", msgspec.json.decode(self.output) if has_schema else self.output)
        try:
            return self._answer.read(self.output)
        except ValueError as error:
            raise ValueError(f"run {self.run_id!r}: {error}") from error

    @property
    def metadata(self) -> Mapping[str, Json]:
        """The data that was given when the run began."""
        started = self.state.started
        return {} if started is None else started.metadata or {}

    @property
    def error(self) -> str | None:
        """What went wrong in the last turn; `None` if nothing did."""
        return self.state.ending.error

    @property
    def fault(self) -> Fault | None:
        """The party responsible for `error`; `None` if nobody is."""
        return self.state.ending.fault

    @property
    def error_type(self) -> str | None:
        """The name of the class of the model's error, such as `RateLimitError`; `None` if there is no error, or if
        it was not raised by the model."""
        failure = self.state.ending.failure
        return None if failure is None else failure.error_type

    @property
    def error_status(self) -> int | None:
        """The HTTP status of the model's error, such as 429; `None` if no server gave one."""
        failure = self.state.ending.failure
        return None if failure is None else failure.status

    @property
    def messages(self) -> list[Message]:
        """The whole transcript, including the system message and the messages that the model no longer saw at
        the end."""
        return list(self.state.transcript)

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
        return self.state.turn.rewards.get("check")

    @property
    def questions(self) -> dict[str, str]:
        """The open questions, by id. Answer one with `Agent.resume(run_id, answers={id: text})`."""
        return {key: question.text for key, question in self.open_questions.items()}

    @property
    def open_questions(self) -> dict[str, Question]:
        """The open questions with their options, by id."""
        return {body.question_id: to_question(body, self.run_id) for body in open_questions(self.state)}

    @property
    def approvals(self) -> dict[str, ToolCall]:
        """The calls that wait for approval, by id. Decide with `Agent.resume(run_id, approvals={id: True})`."""
        return {item.call.call_id: item.call for item in waiting_calls(self.state)}

    @cached_property
    def events(self) -> list[Event]:
        """The events up to this state, read from the journal on first access."""
        found = self._journal.read(self.run_id, until_seq=self.state.seq)
        return cast("list[Event]", found)

    @property
    def files(self) -> Mapping[str, bytes]:
        """The sandbox's files as path to content, read from the journal."""
        return {path: self._journal.read_blob(digest) for path, digest in self.state.sandbox.files.items()}

    @property
    def results(self) -> list[ToolResult]:
        """All tool results in the order in which they came, including those of calls that tools made."""
        return [event.body.result for event in self.events if isinstance(event.body, ToolCompleted)]

    def read_artifact(self, digest: str) -> bytes:
        """Return the content of an artifact of a result, by its hash.

        Raises: `JournalError` if the store does not have it.
        """
        return self._journal.read_blob(digest)
