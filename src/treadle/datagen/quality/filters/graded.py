"""Filters that grade a conversation: by its task's check, by making its calls again, and by a model."""

import asyncio
from typing import Annotated, Literal

from msgspec.structs import replace
from pydantic import Field

from treadle.core.errors import ConfigError, TransportError
from treadle.core.events import Rewarded, SnapshotTaken, TurnCompleted
from treadle.core.types import Json
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.conversations.dialogue import labels
from treadle.datagen.quality.exchanges import answers
from treadle.datagen.quality.protocol import (
    BuiltinFilter,
    Candidate,
    Filter,
    FilterSettings,
    FilterVerdict,
    Resources,
)
from treadle.datagen.scenarios.scenario import Kind, write_facts
from treadle.models.protocol import Model
from treadle.runs.task import Grade, check_task, load_task
from treadle.sandbox.in_memory import SharedFiles
from treadle.sandbox.protocol import RunFiles
from treadle.scoring.scorers import check_judgement, make_judge, write_messages
from treadle.trajectory.run_verification import Implementations, verify_events
from treadle.workers.registry import HereWorkers

_OFF_TASK = (Kind.NO_TOOL, Kind.REFUSAL)


class CheckSettings(FilterSettings):
    """The lowest acceptable grade."""

    min_grade: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The lowest grade of a kept row."""


class CheckFilter(BuiltinFilter[CheckSettings]):
    """The check of the environment's task gives the last answer and the final files at least the grade `min_grade`.

    Environments without a task pass, and so do conversations of the kinds `no_tool` and `refusal`, in which the
    task is not done.
    """

    name = "check"
    cost = 1
    settings_type = CheckSettings

    async def check(self, candidate: Candidate) -> FilterVerdict:
        reference = candidate.environment.task
        if reference is None:
            return self.accept("the environment has no task")
        if candidate.spec.kind in _OFF_TASK:
            return self.accept(f"the planned kind is {candidate.spec.kind.value!r}")
        messages = candidate.row.messages
        ends = answers(messages)
        answer = messages[ends[-1]].content if ends else ""
        is_of_run = candidate.row.lineage.task == reference
        grade = _find_grade(candidate, answer) if is_of_run else None
        if grade is None:
            grade = await check_task(load_task(reference), answer, await _read_files(candidate), messages)
        if grade.reward < self.settings.min_grade:
            return self.reject(
                f"the grade of {reference} is {grade.reward:g}: {grade.detail}", grade=grade.reward
            )
        return self.accept(grade=grade.reward)


def _find_grade(candidate: Candidate, answer: str) -> Grade | None:
    """Return the grade that the run has for `answer`; `None` if it was graded with another text or not at all."""
    grade: Grade | None = None
    is_same = False
    for event in candidate.events:
        if isinstance(event.body, TurnCompleted):
            is_same, grade = event.body.output == answer, None
        elif isinstance(event.body, Rewarded) and event.body.name == "check" and is_same:
            grade = Grade(event.body.reward, event.body.detail or "")
    return grade


async def _read_files(candidate: Candidate) -> RunFiles:
    """Return the final files of a run."""
    digests: dict[str, str] = {}
    states: dict[str, str] = {}
    for event in candidate.events:
        if isinstance(event.body, SnapshotTaken):
            for path in event.body.delta.deleted:
                digests.pop(path, None)
            digests.update(event.body.delta.changed)
            states.update(event.body.delta.states)
    return await asyncio.to_thread(RunFiles.load, digests, states, candidate.journal.read_blob)


class VerifiedSettings(FilterSettings):
    """The treatment of conversations that cannot be verified."""

    unverifiable: Literal["keep", "reject"] = "keep"
    """What to do if a call cannot be made again, because its effect is `once`, it was simulated, or its tool is not
    available. `keep` keeps the row without marking it as verified; `reject` rejects the sample."""


class VerifiedFilter(BuiltinFilter[VerifiedSettings]):
    """The calls, made again in a fresh sandbox, give the recorded results.

    The row is marked as verified if it has calls and all of them were made again. After a difference, no further
    rows with calls of that tool are marked.
    """

    name = "verified"
    cost = 1
    settings_type = VerifiedSettings

    def __init__(self, settings: VerifiedSettings, resources: Resources) -> None:
        super().__init__(settings, resources)
        self._implementations = Implementations(resources.tools)
        self._unsteady: set[str] = set()
        """The tools that gave another result when a call was made again. Rows with them are no longer marked."""

    async def check(self, candidate: Candidate) -> FilterVerdict:
        files = candidate.environment.files
        found = await verify_events(
            candidate.journal,
            candidate.run_id,
            candidate.events,
            self._implementations,
            files=files if isinstance(files, SharedFiles) else None,
        )
        counts: dict[str, Json] = {"calls": found.calls, "matched": found.matched}
        if found.differences:
            self._unsteady.update(item.tool for item in found.differences)
            return self.reject(str(found.differences[0]), **counts)
        if found.skipped:
            reason = f"{found.skipped} of {found.calls} calls were not made again: {found.skips[0]}"
            is_kept = self.settings.unverifiable == "keep"
            if found.unreached and not is_kept:
                raise TransportError(reason)
            return self.accept(reason, **counts) if is_kept else self.reject(reason, **counts)
        if not found.calls:
            return self.accept("there are no calls", **counts)
        names = {call.name for message in candidate.row.messages for call in message.tool_calls}
        if unsteady := sorted(names & self._unsteady):
            reason = (
                f"the tool {unsteady[0]!r} gave another result when a call of another sample was made again"
            )
            return self.accept(reason, **counts)
        return self.accept(is_verified=True, **counts)


class JudgeFilter(Filter[FilterSettings]):
    """The judge model's score by `quality.judge.rubric` is at least `quality.judge.min_score`.

    It is used if `quality.judge` is given. The judgement is a run in the dataset's journal, so it is not paid for
    twice.
    """

    name = "judge"
    cost = 2

    def __init__(self, settings: FilterSettings, resources: Resources) -> None:
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
    def is_on(cls, config: GenerationConfig) -> bool:
        return config.quality.judge is not None

    async def check(self, candidate: Candidate) -> FilterVerdict:
        """See `Filter.check`. Raises: as `check_judgement` does."""
        config = self.resources.config
        sample_id = candidate.spec.sample_id
        attempt = candidate.run_id.rpartition("-")[2]
        metadata = labels(config.name, "judge", sample_id, int(attempt) if attempt.isdecimal() else 1)
        workers = candidate.workers or HereWorkers()
        run = await workers.run(
            make_judge(self._model, candidate.journal),
            f"{candidate.run_id}-judge",
            _write_request(candidate, self._section.rubric),
            metadata=metadata,
        )
        found = check_judgement(run)
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
