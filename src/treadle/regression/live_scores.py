"""Live runs: the model of today answers what was recorded, and scorers judge. Thresholds with significance."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, variance

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.types import Json
from treadle.export.whole import write_whole
from treadle.journal.memory import MemoryJournal
from treadle.models.config.tables import RegressionTable
from treadle.regression.recorded_parts import ToolReplay
from treadle.regression.recorded_runs import RecordedRun
from treadle.regression.replay_agent import ReplaySettings, replay_recording
from treadle.runs.agent_parts import AgentParts
from treadle.scoring.expectations import LABEL, find_made_calls
from treadle.scoring.grade import NotGradableError, grade
from treadle.scoring.registry import RewardSpec, make_scorers, mean_reward, read_rewards
from treadle.scoring.statistics import compare_paired, estimate_mean, find_needed_tasks, reaches

SCORES = "scores.json"
"""The file in the folder of the recordings that has the scores of the last `--live --update`."""


class LiveScores(Struct, frozen=True):
    """The scores of the live runs of one recording."""

    scores: tuple[float, ...]
    """The weighted mean of the scorers, for each run."""
    reasons: tuple[str, ...] = ()
    """What the scorers said about runs below 1."""
    error: str | None = None
    """Why a run has no score, which is never a score of 0; `None` if all have one."""


class ThresholdVerdict(Struct, frozen=True):
    """What the scores of all recordings say about a threshold."""

    name: str
    """The threshold."""
    is_kept: bool
    text: str
    is_decided: bool = True
    """False if the scores are too few to be sure."""


async def score_live(
    recorded: RecordedRun, agent: AgentParts, tools: ToolReplay, specs: Sequence[RewardSpec], samples: int
) -> tuple[LiveScores, MemoryJournal | None]:
    """Run `agent` on what was recorded, `samples` times, and grade the runs.

    Return the scores, and the journal of the first run that has one.

    Raises: `ConfigError` for a scorer that cannot be used; `ScoringError` if one fails.
    """
    specs = specs or read_rewards({"calls": 1.0} if recorded.started.task is None else {"check": 1.0})
    scorers = make_scorers(specs)
    metadata = recorded.started.metadata or {}
    settings = ReplaySettings(
        tools=tools, is_live=True, metadata={LABEL: metadata.get(LABEL) or _expect(recorded)}
    )
    scores: list[float] = []
    reasons: list[str] = []
    error: str | None = None
    first: MemoryJournal | None = None
    for _ in range(samples):
        journal = (await replay_recording(recorded, agent, settings)).journal
        try:
            graded = await grade(journal, recorded.run_id, scorers, trust=True)
        except NotGradableError as failed:
            error = str(failed)
            continue
        score = mean_reward(graded.rewards, specs)
        if score is None:
            raise ConfigError(f"no scorer has anything to say about {recorded.name!r}; give test.rewards")
        scores.append(score)
        first = first or journal
        if scores[-1] < 1:
            reasons += [f"{name}: {text}" for name, text in graded.details.items() if text]
    return LiveScores(tuple(scores), tuple(dict.fromkeys(reasons)), error), first


def _expect(recorded: RecordedRun) -> Json:
    """Return what the recorded run did, as what is expected of another."""
    calls = find_made_calls([event.body for event in recorded.events])
    made: list[Json] = [
        {"name": item.call.name, "arguments": item.arguments}
        for item in calls
        if isinstance(item.arguments, dict)
    ]
    return {"calls": made, "answer": recorded.run.output}


def judge_scores(
    table: RegressionTable, scores: Mapping[str, Sequence[float]], before: Mapping[str, Sequence[float]]
) -> list[ThresholdVerdict]:
    """Return a verdict for each threshold, with how many recordings would be needed where it cannot be decided."""
    found: list[ThresholdVerdict] = []
    groups = [list(group) for group in scores.values() if group]
    estimate = estimate_mean(groups, table.level)
    if estimate is not None and table.min_score is not None:
        is_kept = reaches(estimate.mean, table.min_score)
        said = f"mean score {estimate}, {'at least' if is_kept else 'below'} min_score {table.min_score:g}"
        is_decided = not estimate.low < table.min_score <= estimate.high
        if not is_decided:
            means = [fmean(group) for group in groups]
            gap = estimate.mean - table.min_score
            need = ""
            if abs(gap) > 1e-9 and len(means) > 1 and (spread := variance(means)) > 0:
                need = f": about {find_needed_tasks(gap, spread, table.level):,} recordings would show it"
            said = f"{said}; not significant{need}"
        found.append(ThresholdVerdict("min_score", is_kept, said, is_decided))
    if table.must_not_drop:
        difference = compare_paired(scores, before, table.level)
        if difference is None:
            raise ConfigError(
                "must_not_drop compares with stored scores, and these recordings have none; store them with "
                "`treadle test --live --update`"
            )
        is_significant = difference.p_value < 1 - table.level
        said = (
            f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}] against the stored scores, "
            f"p = {difference.p_value:.3g} over {difference.tasks} recording{'' if difference.tasks == 1 else 's'}"
        )
        has_dropped = difference.mean < 0
        if has_dropped and not is_significant:
            needed = difference.needed_tasks
            said = f"{said}: not significant" + (
                f", about {needed:,} recordings would show it" if needed else ""
            )
        is_decided = is_significant or not has_dropped
        found.append(
            ThresholdVerdict("must_not_drop", not (has_dropped and is_significant), said, is_decided)
        )
    return found


def read_scores(folder: Path) -> dict[str, list[float]]:
    """Return the stored scores by the names of recordings. Raises: `ConfigError` if the file cannot be read."""
    path = folder / SCORES
    if not path.exists():
        return {}
    try:
        return {
            str(name): [float(item) for item in scores]
            for name, scores in json.loads(path.read_text()).items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{str(path)!r} has no scores: {error}; write it with --live --update") from error


def write_scores(folder: Path, scores: Mapping[str, Sequence[float]]) -> None:
    """Store scores, besides those of other recordings."""
    kept = {**read_scores(folder), **scores}
    write_whole([json.dumps(dict(sorted(kept.items())), indent=1).encode()], folder / SCORES)
