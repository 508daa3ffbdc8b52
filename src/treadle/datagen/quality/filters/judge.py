"""The filter that asks a model to grade a conversation by a rubric."""

from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.datagen.config.model import Config
from treadle.datagen.conversations.bill import labels
from treadle.datagen.prompts import write_facts
from treadle.datagen.quality.protocol import Candidate, Filter, Resources, Settings, Verdict
from treadle.models.protocol import Model
from treadle.scoring.rubric import make_judge, read_judgement, write_messages
from treadle.workers.runners import HereRunner


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
        sample_id = candidate.spec.sample_id
        attempt = candidate.run_id.rpartition("-")[2]
        metadata = labels(config.name, "judge", sample_id, int(attempt) if attempt.isdecimal() else 1)
        runner = candidate.runner or HereRunner()
        run = await runner.run(
            make_judge(self._model, candidate.journal),
            f"{candidate.run_id}-judge",
            _write_request(candidate, self._section.rubric),
            metadata=metadata,
        )
        found = read_judgement(run)
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
        "conversation": write_messages(candidate.row.messages),
    }
    return f"Grade this conversation.\n\n{write_facts(facts)}"
