"""The task set `files`: office and code tasks over a folder of files. Each task is generated from its id."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

from treadle.core.errors import ConfigError
from treadle.runs.task import Grade
from treadle.tasks.draws import Draw, fraction
from treadle.tasks.files.grading import Case, TaskFamily, grade, read_families
from treadle.tasks.solver import Habit, Solver

SEEDS = 1000
"""The number of tasks in each family. They are numbered from 0."""

TEST_SEEDS = 5
"""How many tasks of each family the split `test` has."""

INSTRUCTIONS = (
    "You work on a folder of files through tools; paths are relative to its root. Look at the files before you "
    "change or conclude anything, and change nothing that you were not asked to change. When you are done, "
    "reply with a short message whose last line is `Answer: ` followed by what was asked for."
)

FAMILIES = read_families()
"""The families. Iteration over the tasks mixes them in this order."""


class FilesTask:
    """One task of the set. Its case is generated when it is first needed."""

    def __init__(self, family: TaskFamily, seed: int) -> None:
        self._family = family
        self.task_set = "files"
        self.task_id = f"{family.name}-{seed:04d}"
        self.seed = seed
        self.instructions = INSTRUCTIONS
        self.tools: Sequence[str] = ("files",)

    @cached_property
    def _drawn(self) -> tuple[Case, str]:
        draw = Draw(f"files/{self.task_id}")
        case = self._family.generate(draw)
        return case, self._family.word(case, draw)

    @property
    def input(self) -> str:
        """The user's message."""
        return self._drawn[1]

    @cached_property
    def files(self) -> Mapping[str, bytes]:
        """Return the initial files: path to content."""
        return {path: text.encode() for path, text in sorted(self._drawn[0].files.items())}

    def check(self, output: str, files: Mapping[str, bytes]) -> Grade:
        """Grade the final answer and the final files."""
        case = self._drawn[0]
        return grade(output, case.expected, self.files, case.changes, files)

    def find_solver(self, prompt: str) -> Solver | None:
        """Return a solver for the task of this set whose input is `prompt`, or `None` if there is no such task."""
        return find_solver(prompt)

    def __repr__(self) -> str:
        return f"FilesTask({self.task_id!r})"


@lru_cache(maxsize=256)
def _make(family: TaskFamily, seed: int) -> FilesTask:
    """Return a task. Recent ones are kept, because a task is loaded by its id at each stage of the work on it."""
    return FilesTask(family, seed)


class FilesTaskSet:
    """The set of all tasks: each family with each seed."""

    name = "files"

    @cached_property
    def splits(self) -> Mapping[str, Sequence[str]]:
        """Return the ids of two splits: `test` has the last numbers of each family, and `train` all others."""
        ids = {False: list[str](), True: list[str]()}
        for task in self:
            ids[task.seed >= SEEDS - TEST_SEEDS].append(task.task_id)
        return {"train": ids[False], "test": ids[True]}

    def __len__(self) -> int:
        return len(FAMILIES) * SEEDS

    def __iter__(self) -> Iterator[FilesTask]:
        for seed in range(SEEDS):
            for family in FAMILIES:
                yield FilesTask(family, seed)

    def get(self, task_id: str) -> FilesTask:
        """Return the task with this id. Raises: `ConfigError` that names similar ids."""
        name, _, number = task_id.rpartition("-")
        seed = _read_seed(number)
        for family in FAMILIES:
            if family.name == name and seed is not None:
                return _make(family, seed)
        near = difflib.get_close_matches(name or task_id, [family.name for family in FAMILIES], 3, 0.4)
        ids = [f"{item}-{seed or 0:04d}" for item in near] or [f"{FAMILIES[0].name}-0000"]
        raise ConfigError(
            f"the task set 'files' has no task {task_id!r}; near ids are {', '.join(ids)}. "
            f"An id is a family and a number from 0000 to {SEEDS - 1:04d}"
        )


def _read_seed(number: str) -> int | None:
    is_number = len(number) == 4 and number.isascii() and number.isdecimal()
    return int(number) if is_number and int(number) < SEEDS else None


TASK_SET = FilesTaskSet()


def find_solver(prompt: str) -> Solver | None:
    """Return a solver for the task whose input is `prompt`, or `None` if the set has no such task."""
    found = identify(prompt.strip())
    return found[0].solve(*found[1:]) if found else None


@lru_cache(maxsize=4096)
def identify(prompt: str) -> tuple[TaskFamily, Mapping[str, str], Habit] | None:
    """Return the family, the values and the habit of the solver for the task whose input is `prompt`."""
    for family in FAMILIES:
        for wording in family.prompts:
            values = wording.match(prompt)
            if values is not None:
                batch = (1, 2, 3, 4, 8)[int(fraction(prompt, "batch") * 5)]
                return family, values, Habit(batch, fraction(prompt, "terse") < 0.25)
    return None
