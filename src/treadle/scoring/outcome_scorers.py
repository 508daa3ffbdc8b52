"""Scorers of what a run brought about: its final answer, its final files, and what it needed for them."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.texts.json_text import is_deep
from treadle.core.types import Json
from treadle.runs.run import Run, find_changes
from treadle.runs.task import Task, check_task
from treadle.scoring.call_matching import MatchRules, is_same_value
from treadle.scoring.expectations import find_expectation
from treadle.scoring.protocol import Score, Subject
from treadle.scoring.reference_runs import ReferenceRun, find_reference

_ANSWER_LINE = re.compile(
    r"^[\s>*_#`-]*answer[\s*_`]*[:=][\s*_`]*(.*?)[\s*_`]*$", re.IGNORECASE | re.MULTILINE
)
_NUMBER = re.compile(r"(?<![\w.])[-−]?[$€£]?\d[\d,']*(?:\.\d+)?(?![\w]|\.\d)")


class FinalAnswerScorer:
    """1 if the final answer is the expected one, and else 0.

    If the answer has a line `Answer: ...`, its last one counts. A number is compared by value with the only
    number of the answer; with `contains`, with any; so is a text.
    """

    def __init__(
        self,
        name: str = "final_answer",
        *,
        answer: Json = None,
        contains: bool = False,
        ignore_case: bool = True,
        tolerance: float = 1e-6,
    ) -> None:
        """Make a scorer. `answer` is right for all tasks that expect no answer of their own. `tolerance` is
        relative and for numbers. Raises: `ConfigError`."""
        if not tolerance >= 0:
            raise ConfigError(f"tolerance of the reward {name!r} is {tolerance!r}; give 0 or more")
        self.name = name
        self._answer = answer
        self._contains = contains
        self._rules = MatchRules(ignores_case=ignore_case)
        self._tolerance = tolerance

    async def score(self, subject: Subject) -> Score | None:
        expected = find_expectation(subject).answer
        expected = self._answer if expected is None else expected
        if expected is None:
            return None
        lines = _ANSWER_LINE.findall(subject.run.output)
        said = lines[-1] if lines else subject.run.output
        rights = expected if isinstance(expected, list) else [expected]
        if not rights:
            raise ConfigError(f"no answer is right for the reward {self.name!r}, as 'answer' is []; give one")
        is_right = any(self._is_right(said, right) for right in rights)
        detail = (
            "the answer is right"
            if is_right
            else f"the answer is {said.strip()!r:.100} in place of {rights[0]!r:.100}"
        )
        return Score(float(is_right), detail)

    def _is_right(self, said: str, right: Json) -> bool:
        if isinstance(right, bool):
            right = "yes" if right else "no"
        if isinstance(right, int | float):
            found = [float(re.sub(r"[$€£,']", "", text.replace("−", "-"))) for text in _NUMBER.findall(said)]
            close = [abs(number - right) <= self._tolerance * max(1.0, abs(right)) for number in found]
            return any(close) if self._contains else close == [True] or (bool(close) and all(close))
        wanted, text = str(right), said.strip().strip("\"'`*_.")
        if self._contains:
            wanted, text = wanted.casefold(), said.casefold()
            return wanted in text
        return is_same_value(wanted.strip("\"'`*_."), text, rules=self._rules)


class FinalStateScorer:
    """The share of the expected changes to files that the run made; 0 if it changed a file that was to stay.

    Without expected files it is the verdict of the task's check on the files and the answer. JSON is compared by
    value, and in text white space at the ends of lines does not matter.
    """

    def __init__(self, name: str = "final_state", *, allow_others: bool = False) -> None:
        """Make a scorer. With `allow_others`, other files may change too."""
        self.name = name
        self._allows_others = allow_others

    async def score(self, subject: Subject) -> Score | None:
        expected, task = find_expectation(subject).files, subject.task
        if expected is not None:
            return await asyncio.to_thread(self._compare, subject.run, expected)
        return None if task is None else await check_run(task, subject.run)

    def _compare(self, run: Run[object], expected: Mapping[str, str | None]) -> Score:
        files = run.files
        wrong = [path for path, text in expected.items() if not is_same_content(path, text, files.get(path))]
        changes = find_changes(run)
        others = [path for path in (*changes.written, *changes.deleted) if path not in expected]
        if others and not self._allows_others:
            return Score(0.0, f"{others[0]} should have been left alone")
        value = 1 - len(wrong) / len(expected) if expected else 1.0
        return Score(value, f"{wrong[0]} is not as expected" if wrong else "the files are as expected")


async def check_run(task: Task, run: Run[Any]) -> Score:
    """Return the verdict of `Task.check` on a run."""
    files = await asyncio.to_thread(lambda: run.files)
    grade = await check_task(task, run.output, files, list(run.state.transcript))
    return Score(grade.reward, grade.detail)


def is_same_content(path: str, expected: str | None, found: bytes | None) -> bool:
    """Return whether a file has the expected text; `None` if it should not exist, or does not."""
    if expected is None or found is None:
        return expected is None and found is None
    try:
        text = found.decode()
        if path.endswith(".json"):
            is_read = not is_deep(expected) and not is_deep(text)
            return is_read and is_same_value(json.loads(expected), json.loads(text))
    except ValueError:
        return False
    return [line.rstrip() for line in expected.rstrip().split("\n")] == [
        line.rstrip() for line in text.rstrip().split("\n")
    ]


_MEASURES = ("steps", "tokens", "cost", "seconds")


class EfficiencyScorer:
    """How little a run needed against a reference such as the oracle: the mean over `measures` of what the
    reference needed divided by what the run needed, at most 1. A run that its task's check does not pass has 0.

    It says nothing about runs whose task the reference cannot do. The metrics are the quotients by measure. The
    tokens of a reference that is free, such as the oracle, cost what those of the run did.
    """

    def __init__(
        self, name: str = "efficiency", *, reference: str = "oracle", measures: Sequence[str] = ("steps",)
    ) -> None:
        """Make a scorer. `measures` are `steps`, `tokens`, `cost` and `seconds`."""
        if isinstance(measures, str) or not measures or not set(measures) <= set(_MEASURES):
            raise ConfigError(
                f"measures of the reward {name!r} are {measures!r}; give a list of {', '.join(_MEASURES)}"
            )
        self.name = name
        self._reference = reference
        self._measures = tuple(measures)

    async def score(self, subject: Subject) -> Score | None:
        reference, run, task = await find_reference(self._reference, subject), subject.run, subject.task
        if reference is None or task is None:
            return None
        if (await check_run(task, run)).reward < 1:
            return Score(0.0, "the task was not solved")
        tokens = run.usage.input_tokens + run.usage.output_tokens
        pairs: dict[str, tuple[float | None, float | None]] = {
            "steps": (reference.steps, subject.steps),
            "tokens": (reference.tokens, tokens),
            "cost": (_find_cost(reference, run, tokens), run.cost_usd),
            "seconds": (reference.seconds, run.state.work_seconds),
        }
        metrics = {}
        for name in self._measures:
            best, used = pairs[name]
            if best is not None and used is not None:
                metrics[name] = 1.0 if used <= best else best / used
        if not metrics:
            return None
        return Score(
            fmean(metrics.values()),
            f"it took {subject.steps} steps, and {reference.steps} are enough",
            metrics,
        )


def _find_cost(reference: ReferenceRun, run: Run[Any], tokens: int) -> float | None:
    """Return what a reference cost; `None` if it is not known. `tokens` are those of the run."""
    if reference.cost_usd == 0 and run.cost_usd and tokens:
        return run.cost_usd * reference.tokens / tokens
    return reference.cost_usd
