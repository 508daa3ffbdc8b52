"""A model that grades a run by a rubric."""

import hashlib
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError, ServerError
from treadle.core.fence import fence
from treadle.core.types import Fault, Json, Message, Role
from treadle.journal.protocol import Journal
from treadle.models.protocol import Model, identity_of
from treadle.runs.ensure import ensure_run
from treadle.runs.options import StreamOptions
from treadle.runs.run import Run
from treadle.scoring.protocol import Score, Subject

_INSTRUCTIONS = (
    "You grade one conversation between a user and an agent that uses tools. Judge it only by the rubric. Give a "
    "score from 0, useless, to 1, perfect, and the reason in one sentence."
)
T = TypeVar("T")
_MAX_CHARS = 4000
"""How much of each message the judge reads."""


class RubricJudgement(BaseModel):
    """A judge's answer."""

    model_config = ConfigDict(title="Judgement")

    score: Annotated[float, Field(ge=0, le=1)]
    reason: str


def make_judge(model: Model, journal: Journal) -> Agent[RubricJudgement]:
    """Return the agent that grades conversations."""
    return Agent(model, instructions=_INSTRUCTIONS, schema=RubricJudgement, journal=journal)


def read_judgement(run: Run[RubricJudgement]) -> RubricJudgement:
    """Return the judgement of a judge's run. Raises: as `check_judgement` does."""
    return check_judgement(run)


def check_judgement(run: Run[T]) -> T:
    """Return the value of a judge's run.

    Raises: `ServerError` if the run has no judgement; `ConfigError` if no request to the judge can succeed.
    """
    if run.fault is Fault.USER:
        raise ConfigError(f"the judge of run {run.run_id!r} cannot be asked: {run.error}")
    if run.error is not None or run.stop_reason != "completed":
        raise ServerError(
            f"the judge gave no judgement in run {run.run_id!r}: {run.error or run.stop_reason}"
        )
    return run.value


def write_messages(messages: Iterable[Message]) -> list[dict[str, Json]]:
    """Return a conversation as a judge reads it: without system messages, and with long messages shortened."""
    return [_write_message(message) for message in messages if message.role is not Role.SYSTEM]


class JudgeScorer:
    """The score that a model gives by a rubric.

    The judgement is a run in the same journal. It is asked for once for the same run, model and rubric, so that
    grading again costs nothing.
    """

    def __init__(self, name: str = "judge", *, model: str | Model, rubric: str) -> None:
        """Make a scorer. `model` is a model or its name. Raises: `ConfigError`."""
        if not isinstance(rubric, str) or not rubric.strip():
            raise ConfigError(f"the rubric of the reward {name!r} is {rubric!r}; write what a good run does")
        self.name = name
        if isinstance(model, str):
            from treadle.models.config.recipe import make_model

            model = make_model(model)
        self._model = model
        self._rubric = rubric
        self._key = hashlib.sha256(f"{identity_of(self._model)}\n{rubric}".encode()).hexdigest()[:8]

    async def score(self, subject: Subject) -> Score | None:
        """See `Scorer.score`. Raises: `ServerError` if the judge gave no judgement."""
        run = subject.run
        run_id = f"{run.run_id}-{self.name}-{self._key}"
        options: StreamOptions = {"metadata": {"role": "judge", "run": run.run_id}}
        judge = make_judge(self._model, subject.journal)
        found = read_judgement(await ensure_run(judge, run_id, self._write(subject), options=options))
        return Score(found.score, found.reason)

    def _write(self, subject: Subject) -> str:
        said = msgspec.json.encode(write_messages(subject.run.messages)).decode()
        return f"The rubric:\n{self._rubric}\n\nThe conversation:\n{fence('conversation', said)}"


def _write_message(message: Message) -> dict[str, Json]:
    written: dict[str, Any] = {"role": message.role.value, "content": message.content[:_MAX_CHARS]}
    if message.tool_calls:
        written["calls"] = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return written
