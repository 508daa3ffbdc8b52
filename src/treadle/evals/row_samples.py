"""Samples of a dataset: at each answer of a row, the model is asked once for the next message.

The run begins with the row's conversation up to there. It is relayed, so that no tool is run: the calls of the
answer get a result that says so, and the run ends. What the row says is the run's label `expected`; the scorer
`calls` compares it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.inbox import GiveResult
from treadle.core.types import Delivery, Json, Message, Role
from treadle.evals.evaluation_config import ROWS, choose
from treadle.export.rows import Row
from treadle.jobs.attempt import Attempt
from treadle.jobs.seeded_agents import SeededAgents
from treadle.runs.begin import Beginning, begin
from treadle.runs.drive import drive
from treadle.runs.ensure import IfExists, ensure_begun, waits_for_user
from treadle.runs.options import Given
from treadle.runs.resume import resume_run
from treadle.runs.run import Run
from treadle.runs.task import SimpleTask
from treadle.scoring.expectations import LABEL
from treadle.tasks.conversation_set import (
    find_expected_calls,
    find_row_file,
    find_undefined,
    iterate_rows,
    warn_of_rows,
)
from treadle.tools.client_tools import ClientTools
from treadle.tools.schema.tool_definitions import Shape, write_definitions

_NOT_RUN = "the call was not run, because only the next message is evaluated"


class RowAnswer(Struct, frozen=True):
    """One answer of a row, and what comes before it."""

    task: SimpleTask
    """The newest message of the user, under the name of the answer."""
    instructions: str | None
    history: tuple[Message, ...]
    """The messages before that of the user."""
    since: tuple[Message, ...]
    """The messages after that of the user."""
    definitions: Sequence[dict[str, Json]]
    """The definitions of the tools."""
    expected: dict[str, Json]
    """What the row says, as an `Expectation`."""


def read_answers(paths: Sequence[str], most: int | None = None) -> dict[str, RowAnswer]:
    """Return the answers of all rows, or at most `most` of them, by name: `rows:FILE#ROW.ANSWER`, both from 1.

    Raises: `ConfigError` if a file cannot be read or has no answers; `ExportError` if one is damaged.
    """
    found = {f"{ROWS}{path}#{name}": answer for path in paths for name, answer in _read_file(Path(path))}
    return {name: found[name] for name in choose(list(found), most)}


def _read_file(given: Path) -> Iterator[tuple[str, RowAnswer]]:
    path, count = find_row_file(given), 0
    left_out: dict[int, str] = {}
    undefined: dict[int, str] = {}
    for number, at, row in iterate_rows(path, left_out):
        if fault := find_undefined(row):
            undefined[number] = f"{at}: {fault}"
        for place, answer in _split(row, f"{path.name}#{number}"):
            count += 1
            yield f"{number}.{place}", answer
    warn_of_rows(path, left_out)
    warn_of_rows(path, undefined, "no model can make the calls of")
    if not count:
        raise ConfigError(f"{str(path)!r} has no answer after a message of a user; give another file of rows")


def _split(row: Row, name: str) -> Iterator[tuple[int, RowAnswer]]:
    """Yield the answers of a row that are to be trained on, with their numbers."""
    messages = row.messages
    instructions = messages[0].content if messages[0].role is Role.SYSTEM else None
    first = 0 if instructions is None else 1
    written = write_definitions(row.tools, Shape.OPENAI)[0] if row.tools else []
    definitions = msgspec.convert(written, list[dict[str, Json]])
    answers = [at for at, message in enumerate(messages) if message.role is Role.ASSISTANT]
    for number, at in enumerate(answers):
        asked = max([place for place in range(at) if messages[place].role is Role.USER], default=None)
        made = find_expected_calls(row, number, messages[at])
        if asked is None or made is None:
            continue
        calls: Json = [{"name": call.name, "arguments": call.arguments} for call in made]
        yield (
            number + 1,
            RowAnswer(
                SimpleTask(task_id=f"{name}.{number + 1}", input=messages[asked].content),
                instructions,
                tuple(messages[first:asked]),
                tuple(messages[asked + 1 : at]),
                definitions,
                {"calls": calls} if calls else {"calls": calls, "answer": messages[at].content},
            ),
        )


class DriveAnswer(Struct, frozen=True):
    """A function that drives the run of one answer; see `DriveAttempt`."""

    answer: RowAnswer

    async def __call__(self, agents: SeededAgents, attempt: Attempt) -> Run[object]:
        """Return the run with the model's next message, begun or continued."""
        answer = self.answer
        toolsets = [ClientTools(answer.definitions)] if answer.definitions else []
        agent = agents.make(
            answer.task, attempt.seed, toolsets=toolsets, instructions=answer.instructions, max_steps=1
        )
        given = Given(agent.answer, is_relayed=True)

        async def start() -> Run[object]:
            metadata = {**attempt.metadata, LABEL: answer.expected}
            beginning = Beginning(
                attempt.run_id, metadata=metadata, is_lazy=bool(answer.since), history=answer.history
            )
            driver = await begin(agent, answer.task.input, given, beginning)
            if answer.since:
                driver.put(
                    *[e.MessageInjected(message=item, delivery=Delivery.STEER) for item in answer.since]
                )
            return await drive(agent, driver, None, given)

        run = await ensure_begun(agent, attempt.run_id, start, given, IfExists(accepts_waiting=True))
        if waits_for_user(run):
            for call_id in run.external_calls:
                agent.journal.post(attempt.run_id, GiveResult(call_id, _NOT_RUN))
            run = await resume_run(agent, attempt.run_id, given)
        return run
