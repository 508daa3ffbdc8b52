"""The task set `conversations:FILE`: the rows of a dataset, whose conversations are run anew.

A run begins with the first message of a row's user; the next one follows each time the model has answered. No tool
is run: a call gets the result that the row has for it. What is expected are the calls of the row and its last
answer.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ExportError
from treadle.core.types import Effect, Json, Message, Role, ToolSpec
from treadle.export.exporter import FORMATS, read_row
from treadle.export.row_files import detect_format, read_objects
from treadle.export.rows import Row
from treadle.journal.named_files import suggest_path
from treadle.runs.task import Grade, TaskSet, get_task, split_reference
from treadle.scoring.call_matching import ExpectedCall
from treadle.scoring.call_scorers import ComparedCalls, score_calls
from treadle.scoring.expectations import CallMade, Expectation
from treadle.tasks.solver import Ask, Solver, Step, WantedCall
from treadle.tools.context import ToolContext
from treadle.tools.protocol import ToolOutput
from treadle.tools.schema.validation import ArgumentChecker

_SET = "conversations:"
_STATE = "conversation"
_LOG = logging.getLogger("treadle")
_TOLD = 3
"""How many faults of rows a warning has."""
_NOT_FOUND = ToolOutput('{"error": "Tool not found in ground truth"}', is_error=True, is_simulated=True)
"""The result of a call of a tool that the row never calls. Source: DeepFabric 4.13, `evaluation/evaluator.py`."""


def find_row_file(path: Path) -> Path:
    """Return the file of rows at a path, which may be the folder of a dataset. Raises: `ConfigError`."""
    path = path.expanduser()
    if (path / "rows.jsonl").exists():
        path = path / "rows.jsonl"
    if not path.exists():
        hint = suggest_path(path, "give a file of rows, as `treadle export` writes it")
        raise ConfigError(f"there is no file {str(path)!r}{hint}")
    return path


def iterate_rows(path: Path, left_out: dict[int, str] | None = None) -> Iterator[tuple[int, str, Row]]:
    """Yield the rows of a file in any format, each with its number, from 1, and its place in words. `left_out` gets
    the place and the fault of each row that cannot be read, by number; without it, such a row is an error.

    Raises: `ConfigError` if the file has no rows; `ExportError` if a line is not a JSON object.
    """
    try:
        format = detect_format(path)
        row_format = FORMATS.load(format)
        for number, (place, raw) in enumerate(read_objects(path, format), 1):
            try:
                row = read_row(raw, row_format)
            except ExportError as error:
                if left_out is None:
                    raise ExportError(f"{place} is not a row of the format {format}: {error}") from error
                left_out[number] = f"{place}: {error}"
                continue
            yield number, place, row
    except ExportError as error:
        raise ExportError(f"{str(path)!r}: {error}") from error


def warn_of_rows(path: Path, faults: Mapping[int, str], what: str = "left out") -> None:
    """Log how many rows of a file have faults, and the first of them."""
    if faults:
        told = "; ".join([fault for _, fault in sorted(faults.items())[:_TOLD]])
        _LOG.warning("%s: %s %s of its rows: %s", path, what, f"{len(faults):,}", told)


def hash_rows(path: Path) -> str:
    """Return the SHA-256 of a file of rows, or of the files in a folder of rows. Raises: `ConfigError`."""
    path, digest = find_row_file(path), sha256()
    for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
        with file.open("rb") as opened:
            digest.update(file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def find_row_files(tasks: Iterable[str]) -> list[Path]:
    """Return the files that have the conversations among tasks."""
    sets = dict.fromkeys([split_reference(task)[0] for task in tasks if task.startswith(_SET)])
    return [Path(name.removeprefix(_SET)) for name in sets]


def find_undefined(row: Row) -> str | None:
    """Return the fault of a row that calls a tool which it does not define, so that no model can; else `None`.

    A call that failed is a mistake of the recorded model, and no fault of the row.
    """
    known = {spec.name for spec in row.tools}
    answers = [message for message in row.messages if message.role is Role.ASSISTANT]
    trained = [item for at, item in enumerate(answers) if at not in row.untrained]
    failed = find_failed(row)
    for call in [call for message in trained for call in message.tool_calls]:
        if call.name not in known and call.call_id not in failed:
            return f"it calls {call.name!r}, which is not among its tools"
    return None


def find_failed(row: Row) -> set[str | None]:
    """Return the ids of the calls of a row whose results are errors."""
    return {message.call_id for message in row.messages if message.role is Role.TOOL and message.is_error}


def find_expected_calls(row: Row, number: int, message: Message) -> list[ExpectedCall] | None:
    """Return the calls of an answer that a good model makes; `None` if the row is not trained on it, or if a call
    is not readable or failed because there is no such tool. `number` is that of the answer, from 0."""
    known, failed = {spec.name for spec in row.tools}, find_failed(row)
    is_misnamed = any(call.name not in known and call.call_id in failed for call in message.tool_calls)
    return None if number in row.untrained or is_misnamed else read_recorded_calls(message)


def read_recorded_calls(message: Message) -> list[ExpectedCall] | None:
    """Return the calls of an answer; `None` if the arguments of one are not a JSON object."""
    read = [(call.name, call.parsed_or(None)) for call in message.tool_calls]
    calls = [ExpectedCall(name, arguments) for name, arguments in read if isinstance(arguments, dict)]
    return calls if len(calls) == len(read) else None


def open_conversations(text: str) -> TaskSet:
    """Return the conversations of a file of rows. Raises: `ConfigError`; `ExportError` if the file is damaged."""
    if not text:
        raise ConfigError("give a file of rows, as in conversations:rows.jsonl")
    path = find_row_file(Path(text))
    known = path.stat()
    return _open(text, path, (known.st_mtime_ns, known.st_size))


@lru_cache(maxsize=4)
def _open(text: str, path: Path, version: tuple[int, int]) -> "ConversationSet":
    return ConversationSet(f"{_SET}{text}", path)


class RecordedResult(Struct, frozen=True):
    """A result that a row has."""

    content: str
    is_error: bool


class ConversationTask:
    """The conversation of one row; see `treadle.runs.task.Task`."""

    seed: int | None = None
    files: Mapping[str, bytes] = {}

    def __init__(self, owner: str, task_id: str, row: Row) -> None:
        """Make the task of a row. Raises: `ConfigError` if its conversation does not begin with the user."""
        self.task_set, self.task_id = owner, task_id
        first, *rest = row.messages
        is_told = first.role is Role.SYSTEM
        self.instructions = first.content if is_told else None
        self._turns = list(_split_turns(rest if is_told else row.messages))
        self.max_turns = len(self._turns)
        if not self._turns:
            raise ConfigError(f"the row of {owner}:{task_id} does not begin with a message of the user")
        self.input = self._turns[0][0]
        self.specs = row.tools
        self.tools: Sequence[str] = (
            (f"conversation-tools:{owner.removeprefix(_SET)}:{task_id}",) if row.tools else ()
        )
        self.results = _read_results(row)
        answers = [message for message in row.messages if message.role is Role.ASSISTANT]
        calls: list[ExpectedCall] = []
        allowed: list[ExpectedCall] = []
        for at, item in enumerate(answers):
            expected = find_expected_calls(row, at, item)
            calls += expected or ()
            allowed += (read_recorded_calls(item) or ()) if expected is None else ()
        last = row.messages[-1]
        is_answered = last.role is Role.ASSISTANT and not last.tool_calls
        self.data = Expectation(
            calls=calls,
            allowed=allowed,
            answer=last.content if is_answered else None,
            is_conversation=True,
        )

    def reply(self, messages: Sequence[Message]) -> str | None:
        """Return what the user of the row says next; `None` after his last message."""
        texts = {text for text, _ in self._turns}  # Treadle adds messages of the role too, such as nudges
        said = sum([message.role is Role.USER and message.content in texts for message in messages])
        return self._turns[said][0] if said < len(self._turns) else None

    def check(self, output: str, files: Mapping[str, bytes]) -> Grade:
        """Refuse: `check_transcript` grades the calls. Raises: `ConfigError`."""
        raise ConfigError(
            "the conversation of a row is graded by its calls, which are in the transcript of a run"
        )

    def check_transcript(self, messages: Sequence[Message]) -> Grade:
        """Return 1 if the calls are those of the row, by value, and else 0."""
        schemas = {spec.name: spec.parameters for spec in self.specs}
        made = [CallMade(call, 0, None) for message in messages for call in message.tool_calls]
        compared = ComparedCalls.make(self.data, made, schemas)
        assert compared is not None
        score = score_calls(compared)
        return Grade(score.reward, score.detail)

    def find_solver(self, prompt: str) -> Solver | None:
        """Return a solver that makes the calls of the row and gives its answers; `None` for another prompt."""
        return self._solve() if prompt.strip() == self.input.strip() else None

    def _solve(self) -> Solver:
        said = ""
        for number, (_, answers) in enumerate(self._turns):
            if number:
                yield Ask(said)
            for message in answers:
                calls = read_recorded_calls(message)
                if message.tool_calls and calls:
                    yield Step([WantedCall(call.name, call.arguments) for call in calls], may_fail=True)
                said = message.content
        return said


def _split_turns(messages: Sequence[Message]) -> Iterator[tuple[str, list[Message]]]:
    """Yield what the user says, each with the answers to it; nothing if the user does not begin."""
    said: list[str] = []
    answers: list[Message] = []
    for message in messages:
        if message.role is Role.USER:
            if answers:
                yield "\n\n".join(said), answers
                said, answers = [], []
            said.append(message.content)
        elif not said:
            return
        elif message.role is Role.ASSISTANT:
            answers.append(message)
    if answers:
        yield "\n\n".join(said), answers


def _read_results(row: Row) -> dict[str, dict[bytes, list[RecordedResult]]]:
    """Return the results of a row by the name of the tool and the arguments, in the order of the calls."""
    found: dict[str, dict[bytes, list[RecordedResult]]] = {}
    waiting: dict[str | None, ExpectedCall] = {}
    for message in row.messages:
        for call, read in zip(message.tool_calls, read_recorded_calls(message) or (), strict=False):
            waiting[call.call_id] = read
        if message.role is Role.TOOL and (made := waiting.pop(message.call_id, None)) is not None:
            results = found.setdefault(made.name, {}).setdefault(_key(made.arguments), [])
            results.append(RecordedResult(message.content, message.is_error))
    return found


def _key(arguments: Json) -> bytes:
    return msgspec.json.encode(arguments, order="sorted")


class ConversationSet:
    """The conversations of a file. Ids are `row-N`, from 1."""

    def __init__(self, name: str, path: Path) -> None:
        """Read a file. Rows that cannot be read or run are left out, with a warning. Raises: `ConfigError` if none
        is left; `ExportError` if the file is damaged."""
        self.name = name
        self._rows: dict[str, Row] = {}
        left_out: dict[int, str] = {}
        for number, place, row in iterate_rows(path, left_out):
            if fault := _find_fault(row):
                left_out[number] = f"{place}: {fault}"
            else:
                self._rows[f"row-{number}"] = row
        self._left_out = {f"row-{number}": told for number, told in left_out.items()}
        if not self._rows:
            raise ConfigError(
                f"{str(path)!r} has no conversation that can be run; give another file of rows. "
                f"{next(iter(left_out.values()))}"
            )
        warn_of_rows(path, left_out)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[ConversationTask]:
        return map(self.get, self._rows)

    def get(self, task_id: str) -> ConversationTask:
        if task_id in self._left_out:
            raise ConfigError(f"{self.name}:{task_id} cannot be run: {self._left_out[task_id]}")
        row = get_task(self.name, self._rows, task_id)
        return ConversationTask(self.name, task_id, row)


def _find_fault(row: Row) -> str | None:
    """Return why a conversation cannot be run; `None` if it can."""
    first, *rest = row.messages
    if (rest[0] if first.role is Role.SYSTEM and rest else first).role is not Role.USER:
        return "it does not begin with a message of the user"
    return find_undefined(row)


class ConversationTool:
    """A tool whose calls get the results of a row."""

    def __init__(self, spec: ToolSpec, results: Mapping[bytes, Sequence[RecordedResult]]) -> None:
        # Calls wait for each other, because a call that is made again gets the next result.
        self.spec = replace(spec, effect=Effect.IDEMPOTENT, is_concurrent=False)
        self._check = ArgumentChecker(dict(spec.parameters)).find_fault
        self._results = results

    def find_fault(self, arguments: Json) -> str | None:
        """See `Tool.find_fault`. The arguments of the row's own calls always fit."""
        return None if _key(arguments) in self._results else self._check(arguments)

    async def call(self, arguments: dict[str, Json], context: ToolContext[Any]) -> ToolOutput:
        """Return the result of the call with the same arguments, or else of the first call of the tool."""
        key = _key(arguments)
        if (found := self._results.get(key)) is not None:
            result = found[0 if len(found) == 1 else min(self._count(key, context), len(found) - 1)]
        elif self._results:
            result = next(iter(self._results.values()))[0]
        else:
            return _NOT_FOUND
        return ToolOutput(result.content, is_error=result.is_error, is_simulated=True)

    def _count(self, key: bytes, context: ToolContext[Any]) -> int:
        """Return how often the call was made before in this run, and count it."""
        if context.sandbox is None:
            return 0
        counts = msgspec.json.decode(context.sandbox.read_state(_STATE) or b"{}", type=dict[str, int])
        place = f"{self.spec.name}:{key.decode()}"
        number = counts.get(place, 0)
        context.sandbox.write_state(_STATE, msgspec.json.encode({**counts, place: number + 1}))
        return number


class ConversationTools:
    """The tools of one row, the toolset `conversation-tools:FILE:row-N`. See `Toolset`."""

    def __init__(self, text: str) -> None:
        """Make the tools. Raises: `ConfigError`; `ExportError` if the file is damaged."""
        path, _, task_id = text.rpartition(":")
        task = open_conversations(path).get(task_id)
        assert isinstance(task, ConversationTask)
        self._tools = [ConversationTool(spec, task.results.get(spec.name, {})) for spec in task.specs]

    def tools(self) -> Sequence[ConversationTool]:
        return self._tools
