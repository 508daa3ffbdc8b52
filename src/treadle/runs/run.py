"""The class `Run`: the outcome of a run, its answer as a value of a type, and access to its events and files."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from inspect import isroutine
from pathlib import Path
from typing import Any, Generic, cast, get_args, overload

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import TypeVar

from treadle.core import events as e
from treadle.core.asking import Question, open_questions, to_question
from treadle.core.calls import external_calls, waiting_calls
from treadle.core.errors import ConfigError, SandboxError
from treadle.core.events import ToolCompleted
from treadle.core.events.narrowing import Event
from treadle.core.spec import AgentSpec
from treadle.core.state import State, Status, fold
from treadle.core.texts.json_text import decode_json
from treadle.core.types import Fault, Json, Message, StopReason, ToolCall, ToolResult, Usage
from treadle.journal.protocol import Journal
from treadle.sandbox.paths import normalize_file
from treadle.sandbox.protocol import RunFiles

# With a default, `Run` and `AnswerType` without a parameter are complete for strict type checkers.
T_co = TypeVar("T_co", covariant=True, default=Any)


class AnswerType(Generic[T_co]):
    """A type of answers, made from the `schema` of an agent or a run."""

    def __init__(
        self,
        name: str,
        schema: dict[str, Json] | None,
        read: Callable[[str], T_co],
        checked: dict[str, Json] | None = None,
    ) -> None:
        """Make a type. Answers need to fit only `checked`, if it is given."""
        self.name = name
        self.schema = schema
        """The JSON Schema that the model is asked to fit; `None` if answers are plain text."""
        self._read = read
        self._checked = checked or schema

    def read(self, text: str) -> T_co:
        """Return an answer as a value of the type. Raises: `ValueError` if it does not fit."""
        try:
            return self._read(text)
        except ValueError as error:
            raise ValueError(
                f"the answer {text!r:.200} does not fit {self.name}: {_explain(error)}"
            ) from error

    def find_fault(self, schema: dict[str, Json], value: Json) -> str | None:
        """Return what in `value` does not fit `schema` or the type's own validators; `None` if all fits."""
        from treadle.tools.schema.answer_schema import find_output_fault

        return find_output_fault(self.find_checked(schema), value) or self.find_type_fault(schema, value)

    def find_checked(self, schema: dict[str, Json]) -> dict[str, Json]:
        """Return the schema that answers need to fit, if the model was asked to fit `schema`.

        Constrained decoding needs a schema that allows no further keys; a type may ignore them.
        """
        return self._checked or {} if schema == self.schema else schema

    def find_type_fault(self, schema: dict[str, Json], value: Json) -> str | None:
        """Return what the type's own validators refuse in `value`, which fits `schema`; `None` if they refuse
        nothing.

        They are not asked if `schema` is not that of the type, because another agent recorded it.
        """
        if schema != self.schema:
            return None
        try:
            self._read(msgspec.json.encode(value).decode())
        except ValueError as error:
            return _explain(error)
        return None


TEXT: AnswerType[str] = AnswerType("str", None, str)


def answer_type(schema: Any) -> AnswerType[Any]:
    """Return the type of answers for the `schema` that a caller gives.

    Raises: `ConfigError` if `schema` is neither a JSON Schema nor a type that has one.
    """
    if schema is None or schema is str:
        return TEXT
    if isinstance(schema, dict):
        from treadle.tools.schema.answer_schema import check_schema

        return AnswerType("JSON", check_schema(schema), msgspec.json.decode)
    if isroutine(schema):
        raise _unusable(schema, TypeError("it is a function"))
    try:
        return _typed(schema)
    except TypeError as error:
        raise _unusable(schema, error) from error


@lru_cache(maxsize=256)
def _typed(kind: Any) -> AnswerType[Any]:
    from pydantic import PydanticUserError, TypeAdapter

    from treadle.tools.schema.answer_schema import close_schema

    name = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    read: Callable[[str], Any]
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        schema, checked, read = adapter.json_schema(), adapter.json_schema(), adapter.validate_json
    except PydanticUserError as refused:
        # Types with structs of msgspec in them.
        try:
            schema, checked = msgspec.json.schema(kind), msgspec.json.schema(kind)
        except (TypeError, ValueError):
            raise _unusable(kind, refused) from refused
        read = msgspec.json.Decoder(kind).decode
    return AnswerType(name, close_schema(schema), read, checked)


def _unusable(schema: object, error: Exception) -> ConfigError:
    advice = "give a pydantic model, a dataclass, another type that pydantic knows, or a JSON Schema"
    kind = type(schema)
    if hasattr(kind, "model_json_schema") or isinstance(schema, msgspec.Struct):
        advice = f"give the class {kind.__name__} and not an object of it"
    # The rest of what pydantic says is advice on other ways to declare a type.
    reason = str(error).partition(". ")[0].partition("\n")[0]
    return ConfigError(f"schema is {schema!r}, from which no JSON Schema can be made ({reason}); {advice}")


def _explain(error: ValueError) -> str:
    """Return the problems that a validator found, in one line."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    found = [(item["loc"], item["msg"].removeprefix("Value error, ")) for item in errors()]
    return "; ".join(f"/{'/'.join(map(str, where))}: {text}" if where else text for where, text in found)


V = TypeVar("V")


class Run(Generic[T_co]):
    """The outcome of a run, with access to its events and files. For a session, the outcome of its last turn."""

    def __init__(
        self, run_id: str, state: State, journal: Journal, answer: AnswerType[T_co] | None = None
    ) -> None:
        self.run_id = run_id
        self.state = state
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
            return cast("T_co", decode_json(self.output) if has_schema else self.output)
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
        """The whole transcript, with the system message and what the model no longer saw at the end."""
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

    @property
    def external_calls(self) -> dict[str, ToolCall]:
        """The calls of external tools that wait for results, by id. Post a `GiveResult` for each to the inbox."""
        return {item.call.call_id: item.call for item in external_calls(self.state)}

    @cached_property
    def events(self) -> list[Event]:
        """Return the events up to this state, read from the journal on first access."""
        found = self._journal.read(self.run_id, until_seq=self.state.seq)
        return cast("list[Event]", found)

    @property
    def files(self) -> Mapping[str, bytes]:
        """The sandbox's files as path to content, read from the journal."""
        kept = self.state.sandbox
        return RunFiles.load(kept.files, kept.tool_states, self._journal.read_blob)

    @property
    def results(self) -> list[ToolResult]:
        """All tool results in the order in which they came, including those of calls that tools made."""
        return [event.body.result for event in self.events if isinstance(event.body, ToolCompleted)]

    def read_artifact(self, digest: str) -> bytes:
        """Return the content of an artifact of a result, by its hash.

        Raises: `JournalError` if the store does not have it.
        """
        return self._journal.read_blob(digest)


class FileChanges(Struct, frozen=True):
    """The files that a run added, changed and deleted in its sandbox."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    deleted: tuple[str, ...]

    @property
    def written(self) -> tuple[str, ...]:
        """The added and the changed files."""
        return tuple(sorted(self.added + self.changed))


def find_changes(run: Run) -> FileChanges:
    """Return the changes from the files at the beginning of the run to its files now."""
    before: dict[str, str] = {}
    for event in run.events:
        if isinstance(event.body, e.SnapshotTaken):
            before = dict(event.body.delta.changed)
        elif isinstance(event.body, e.TurnStarted):
            break
    # The files of skills come with `use_skill`, and are not the run's work.
    after = {
        path: digest for path, digest in run.state.sandbox.files.items() if not path.startswith(".skills/")
    }
    before = {path: digest for path, digest in before.items() if not path.startswith(".skills/")}
    return FileChanges(
        added=tuple(sorted(path for path in after if path not in before)),
        changed=tuple(sorted(path for path in after if path in before and after[path] != before[path])),
        deleted=tuple(sorted(path for path in before if path not in after)),
    )


def write_files(run: Run, paths: Iterable[str], out: Path, *, is_forced: bool = False) -> None:
    """Write files of a run to the folder `out`. With `is_forced`, files that exist are replaced.

    Nothing is written outside `out`, even if `out` contains symlinks or the journal has paths that lead out of it.
    Raises: `ConfigError` if a file exists or cannot be written.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {str(out)!r} is a file; give a folder")
    try:
        targets = {path: _place(out, path, is_forced=is_forced) for path in paths}
        for path, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(run.read_artifact(run.state.sandbox.files[path]))
    except SandboxError as error:
        raise ConfigError(f"cannot write to {str(out)!r}: {error}") from error
    except OSError as error:
        raise ConfigError(
            f"cannot write {error.filename!r}: {error.strerror}; run {run.run_id!r} still has the files"
        ) from error


def _place(out: Path, path: str, *, is_forced: bool) -> Path:
    """Return where to write a file. Raises: `ConfigError`, `SandboxError`."""
    target = out / normalize_file(path)
    if not target.parent.resolve().is_relative_to(out.resolve()) or target.is_symlink():
        raise ConfigError(f"cannot write {str(target)!r}: a symlink leads out of {str(out)!r}")
    if target.exists() and not is_forced:
        raise ConfigError(f"{str(target)!r} exists; give a new folder, or --force to replace files")
    return target
