"""The filter that asks a model to grade a conversation by a rubric."""

from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import BaseModel, Field

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError, ServerError
from treadle.core.types import Json, Message, Role
from treadle.datagen.config.model import Config
from treadle.datagen.conversations.bill import labels
from treadle.datagen.prompts import write_facts
from treadle.datagen.quality.protocol import Candidate, Filter, Resources, Settings, Verdict
from treadle.engines.runners import HereRunner
from treadle.models.protocol import Model

_INSTRUCTIONS = (
    "You grade one conversation between a user and an agent that uses tools. Judge it only by the rubric. Give a "
    "score from 0, useless, to 1, perfect, and the reason in one sentence."
)
_MAX_CHARS = 4000
"""How much of each message the judge reads."""


class Judgement(BaseModel):
    """A judge's answer."""

    score: Annotated[float, Field(ge=0, le=1)]
    reason: str


class JudgeFilter(Filter[Settings]):
    """The judge model's score by `quality.judge.rubric` is at least `quality.judge.min_score`.

    It is used if `quality.judge` is given. The judgement is a run in the dataset's journal, so it is not paid for
    twice.
    """

    name = "judge"
    cost = 2

    def __init__(self, settings: Settings, resources: Resources) -> None:
        super().__init__(settings, resources)
        judge = resources.config.quality.judge
        if judge is None:
            raise ConfigError(
                "quality.filters.judge: the judge needs the section 'quality.judge' with a rubric"
            )
        if resources.judge is None:
            raise ConfigError(
                "quality.judge: there is no model for it; give 'models.judge' or 'models.default'"
            )
        self._section = judge
        self._model: Model = resources.judge

    @classmethod
    def is_on(cls, config: Config) -> bool:
        """See `Filter.is_on`."""
        return config.quality.judge is not None

    async def check(self, candidate: Candidate) -> Verdict:
        """See `Filter.check`. Raises: `ServerError` if the judge gave no judgement."""
        config = self.resources.config
        agent: Agent[Judgement] = Agent(
            self._model, instructions=_INSTRUCTIONS, schema=Judgement, journal=candidate.journal
        )
        run_id, sample_id = f"{candidate.run_id}-judge", candidate.spec.sample_id
        attempt = candidate.run_id.rpartition("-")[2]
        metadata = labels(config.name, "judge", sample_id, int(attempt) if attempt.isdecimal() else 1)
        runner = candidate.runner or HereRunner()
        run = await runner.run(
            agent, run_id, _write_request(candidate, self._section.rubric), metadata=metadata
        )
        if run.error is not None or run.stop_reason != "completed":
            raise ServerError(
                f"the judge gave no judgement in run {run_id!r}: {run.error or run.stop_reason}"
            )
        found: Judgement = run.value
        if found.score < self._section.min_score:
            reason = f"the score is {found.score:g}, below {self._section.min_score:g}: {found.reason}"
            verdict = self.reject(reason, score=found.score)
        else:
            verdict = self.accept(found.reason, score=found.score)
        return replace(verdict, usage=run.usage, cost_usd=run.cost_usd)


def _write_request(candidate: Candidate, rubric: str) -> str:
    facts = {
        "write": "judgement",
        "rubric": rubric,
        "goal": candidate.scenario.goal,
        "conversation": [
            _write_message(item) for item in candidate.row.messages if item.role is not Role.SYSTEM
        ],
    }
    return f"Grade this conversation.\n\n{write_facts(facts)}"


def _write_message(message: Message) -> dict[str, Json]:
    written: dict[str, Any] = {"role": message.role.value, "content": message.content[:_MAX_CHARS]}
    if message.tool_calls:
        written["calls"] = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return written
