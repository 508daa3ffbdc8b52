"""Candidates from real runs: the oracle on tasks of the set `files`, and scripts with real tools."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from treadle import Agent, ScriptedModel, open_journal, task_set
from treadle.core.types import Message, Role
from treadle.datagen.config.generation_config import GenerationConfig, Topics
from treadle.datagen.quality.pipeline import Pipeline
from treadle.datagen.quality.protocol import Candidate, FilterVerdict
from treadle.datagen.scenarios.scenario import (
    Difficulty,
    Environment,
    Kind,
    SampleSpec,
    Scenario,
    UserPersona,
)
from treadle.export.rows import Row, SampleInfo, load_row
from treadle.journal.protocol import Journal
from treadle.models.scripted import Answer
from treadle.testbed import oracle_for

PERSONA = UserPersona(name="Ana Lima", role="baker", style="brief", expertise="novice")


def config(**quality: Any) -> GenerationConfig:
    return GenerationConfig.model_validate({"topics": Topics(prompt="files"), "quality": quality})


def spec(kind: Kind | None = Kind.CHAINED) -> SampleSpec:
    return SampleSpec(
        number=1,
        topic_id="t",
        topic=("files",),
        kind=kind,
        difficulty=Difficulty.EASY,
        persona=PERSONA,
        turns=1,
        seed=1,
    )


def candidate(
    journal: Journal,
    run_id: str,
    *,
    kind: Kind | None = Kind.CHAINED,
    task: str | None = None,
    withheld: str = "",
) -> Candidate:
    row = load_row(journal, run_id)
    sample = SampleInfo(sample_id="s000001", dataset="d", kinds=("chained",))
    return Candidate(
        row=replace(row, lineage=replace(row.lineage, sample=sample)),
        run_id=run_id,
        spec=spec(kind),
        scenario=Scenario(message="", withheld=withheld),
        environment=Environment(task=task),
        events=journal.read(run_id),
        journal=journal,
    )


async def solve(task_id: str, mistake_rate: float = 0.0) -> Candidate:
    """Return the candidate of a task that the oracle solved."""
    task = task_set("files").get(task_id)
    journal = open_journal("memory:")
    agent = Agent(
        oracle_for(task, mistake_rate=mistake_rate) or "",
        tools=["files"],
        journal=journal,
        instructions=task.instructions,
    )
    await agent.run(task, run_id="s000001-1")
    return candidate(journal, "s000001-1", task=f"files:{task_id}")


async def play(
    request: str,
    *answers: Answer,
    tools: Sequence[Any] = ("files",),
    files: dict[str, str] | None = None,
    **more: Any,
) -> Candidate:
    """Return the candidate of a run with a scripted model."""
    journal = open_journal("memory:")
    agent = Agent(ScriptedModel(list(answers)), tools=list(tools), files=files, journal=journal)
    await agent.run(request, run_id="s000001-1")
    return candidate(journal, "s000001-1", **more)


def changed(found: Candidate, change: Callable[[list[Message]], Sequence[Message]]) -> Candidate:
    """Return a candidate whose transcript was changed after the run."""
    row = Row(tuple(change(list(found.row.messages))), found.row.tools, found.row.lineage)
    return replace(found, row=row)


def with_answer(found: Candidate, text: str) -> Candidate:
    return changed(found, lambda messages: [*messages[:-1], replace(messages[-1], content=text)])


def without_system(found: Candidate) -> Candidate:
    return changed(found, lambda messages: [item for item in messages if item.role is not Role.SYSTEM])


async def verdict(found: Candidate, name: str, settings: Any = True, **quality: Any) -> FilterVerdict:
    """Return the verdict of one filter, made from a configuration."""
    pipeline = Pipeline(config(filters={name: settings}, **quality))
    (chosen,) = [item for item in pipeline.filters if item.name == name]
    first, second = await chosen.check(found), await chosen.check(found)
    assert first == second
    return first
