"""Task sets whose tasks are drawn from templates: each task is made again from its id.

An id is a template, a level of difficulty if the set has levels, and a number, such as `cancel-hard-0042`. In sets
with levels a template belongs to the split `train` or to the split `test`, so that no shape of a task in the one is
in the other. In others the last numbers of each template are the split `test`.
"""

import difflib
import fnmatch
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from importlib import import_module
from itertools import starmap
from typing import Protocol

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.texts.documents import read_data
from treadle.core.types import Json, Message, Role, ToolCall
from treadle.runs.task import Grade
from treadle.tasks.draws import Draw, Wording, fraction
from treadle.tasks.simulated_user import SimulatedUser
from treadle.tasks.solver import Habit, Solver, is_failure

LEVELS = ("easy", "medium", "hard")
SEEDS = 1000
"""The number of tasks of each template at each level. They are numbered from 0."""
TEST_SEEDS = 5
"""How many tasks of each template the split `test` has, in a set without levels."""
ERROR_COST = 0.1
"""What a step loses of its reward for each of its calls that failed."""

_ID = re.compile(rf"(\w+?)-(?:({'|'.join(LEVELS)})-)?(\d{{4}})", re.ASCII)


class Goal(Protocol):
    """The outcome that a task asks for."""

    def grade(
        self, output: str, before: Mapping[str, bytes], after: Mapping[str, bytes]
    ) -> Grade | Awaitable[Grade]:
        """Grade the final answer and the files `after` the run, which began with the files `before`."""
        ...


class Milestone(Struct, frozen=True):
    """A call that brings a task nearer to its end. The first one that succeeds counts."""

    tool: str
    arguments: Mapping[str, Json] = {}
    """The arguments that the call must have; others may be added."""


class GeneratedCase(Struct, frozen=True):
    """One drawn task of a template, with the outcome that it asks for."""

    values: dict[str, str]
    """The values for the fields of the prompt. A prompt fits if it has exactly these fields."""
    files: dict[str, bytes]
    goal: Goal
    shape: tuple[object, ...] = ()
    """The path to the outcome, without names and numbers. No shape of the split `test` is in `train`."""
    milestones: tuple[Milestone, ...] = ()
    """The calls that steps are rewarded for; together they are worth 1."""
    user: SimulatedUser | None = None
    """The user, if the task may take more than one turn; `None` if the user says nothing after the prompt."""


class TaskTemplate(Struct, frozen=True):
    """One shape of tasks."""

    name: str
    split: str
    """`train` or `test`; empty in a set without levels."""
    prompts: tuple[Wording, ...]
    generate: Callable[..., GeneratedCase]
    """A function of a draw and, in a set with levels, a level, the index in `LEVELS`."""
    solve: Callable[[Mapping[str, str], Habit], Solver]
    """A function that returns a solver, given the values in the prompt."""

    def word(self, case: GeneratedCase, draw: Draw) -> str:
        """Return a prompt for the case. Raises: `ConfigError` if the template has none for its values."""
        fitting = [prompt for prompt in self.prompts if prompt.fields == case.values.keys()]
        if not fitting:
            raise ConfigError(f"template {self.name!r} has no prompt for the values {sorted(case.values)}")
        return draw.pick(fitting).render(case.values)


class GeneratedTask:
    """One task of a generated set. Its case is drawn when it is first needed."""

    def __init__(self, owner: "GeneratedSet", template: TaskTemplate, level: str, seed: int) -> None:
        """Make a task; `level` is empty in a set without levels."""
        self._owner = owner
        self._template = template
        self._level = (LEVELS.index(level),) if level else ()
        self.task_set = owner.name
        self.task_id = name_task(template, level, seed)
        self.seed = seed
        self.instructions = owner.instructions
        self.tools: Sequence[str] = owner.tools

    @cached_property
    def _drawn(self) -> tuple[GeneratedCase, str]:
        draw = Draw(f"{self.task_set}/{self.task_id}")
        case = self._template.generate(draw, *self._level)
        return case, self._template.word(case, draw)

    @property
    def input(self) -> str:
        """The user's first message."""
        return self._drawn[1]

    @property
    def files(self) -> Mapping[str, bytes]:
        """The initial files: path to content."""
        return self._drawn[0].files

    def check(self, output: str, files: Mapping[str, bytes]) -> Grade | Awaitable[Grade]:
        """Grade the final answer and the final files."""
        return self._drawn[0].goal.grade(output, self.files, files)

    def find_solver(self, prompt: str) -> Solver | None:
        """Return a solver for the task of this set whose input is `prompt`, or `None` if there is no such task."""
        return self._owner.find_solver(prompt)

    def __repr__(self) -> str:
        return f"<task {self.task_set}:{self.task_id}>"


class SteppedTask(GeneratedTask):
    """A generated task that rewards single steps."""

    def score_steps(self, messages: Sequence[Message]) -> list[float]:
        """Return the reward of each assistant message in `messages`: its share of the milestones, less a cost for
        each call that failed."""
        left = list(self._drawn[0].milestones)
        share = 1 / len(left) if left else 0.0
        results = {item.call_id: item for item in messages if item.role is Role.TOOL}
        rewards = []
        for message in messages:
            if message.role is not Role.ASSISTANT:
                continue
            reward = 0.0
            for call in message.tool_calls:
                result = results.get(call.call_id)
                if result is None or is_failure(result):
                    reward -= ERROR_COST
                elif (met := next((item for item in left if _is_met(item, call)), None)) is not None:
                    left.remove(met)
                    reward += share
            rewards.append(round(reward, 4))
        return rewards


class TalkingTask(SteppedTask):
    """A generated task with a simulated user."""

    def reply(self, messages: Sequence[Message]) -> str | None:
        """Return what the user says after `messages`; `None` if the user has no more to say."""
        user = self._drawn[0].user
        return None if user is None else user.reply(messages)


def _is_met(milestone: Milestone, call: ToolCall) -> bool:
    parsed = call.parsed_or(None)
    arguments = parsed if isinstance(parsed, dict) else {}
    return milestone.tool == call.name and all(
        arguments.get(key) == value for key, value in milestone.arguments.items()
    )


def _join_lines(text: str) -> str:
    return " ".join([line.strip() for line in text.strip().splitlines()])


def name_task(template: TaskTemplate, level: str, seed: int) -> str:
    """Return the id of a task; `level` is empty in a set without levels."""
    return f"{template.name}-{level}-{seed:04d}" if level else f"{template.name}-{seed:04d}"


class GeneratedSet:
    """The set of all tasks of some templates: each template at each level with each number."""

    def __init__(
        self,
        name: str,
        package: str,
        *,
        tools: Sequence[str],
        instructions: str,
        has_levels: bool = True,
        has_user: bool = False,
    ) -> None:
        """Make a set whose templates stand in `wordings.toml` of a package.

        Each entry names a module of the package, with functions `generate_NAME` and `solve_NAME`, a split if the
        set has levels, and wordings.
        """
        self.name = name
        self.tools = tuple(tools)
        self.instructions = instructions
        self._package = package
        self._levels = LEVELS if has_levels else ("",)
        self._kind = TalkingTask if has_user else SteppedTask if has_levels else GeneratedTask
        self._make = lru_cache(maxsize=256)(self._make_task)
        self.identify = lru_cache(maxsize=4096)(self._identify)
        """Return the template, values and habit of the task that a prompt asks for; `None` without one."""

    def _make_task(self, template: TaskTemplate, level: str, seed: int) -> GeneratedTask:
        """Return a task. Recent ones are kept, because a task is loaded by its id at each stage of its work."""
        return self._kind(self, template, level, seed)

    @cached_property
    def templates(self) -> tuple[TaskTemplate, ...]:
        """Return the templates. Iteration over the tasks mixes them in this order."""
        found = []
        for name, entry in read_data(self._package, "wordings").items():
            module = import_module(f"{self._package}.{entry['module']}")
            generate, solve = getattr(module, f"generate_{name}"), getattr(module, f"solve_{name}")
            prompts = tuple([Wording(_join_lines(text)) for text in entry["wordings"]])
            found.append(TaskTemplate(name, entry.get("split", ""), prompts, generate, solve))
        return tuple(found)

    @cached_property
    def splits(self) -> Mapping[str, Sequence[str]]:
        """Return the ids of the splits `train` and `test`, which have no template in common if there are levels."""
        found: dict[str, list[str]] = {"train": [], "test": []}
        for template, level, seed in self._places():
            split = "test" if seed >= SEEDS - TEST_SEEDS else "train"
            found[template.split or split].append(name_task(template, level, seed))
        if len(self._levels) > 1:
            names = [template.name for template in self.templates]
            for ids in found.values():
                ids.sort(key=lambda task_id: names.index(task_id.partition("-")[0]))
        return found

    def _places(self, start: str = "") -> Iterator[tuple[TaskTemplate, str, int]]:
        """Yield the template, the level and the number of each task whose id may begin with `start`."""
        kinds = [
            (one, level)
            for level in self._levels
            for one in self.templates
            if (head := name_task(one, level, 0)[:-4]).startswith(start) or start.startswith(head)
        ]
        return ((*kind, seed) for seed in range(SEEDS) for kind in kinds)

    def __len__(self) -> int:
        return len(self.templates) * len(self._levels) * SEEDS

    def __iter__(self) -> Iterator[GeneratedTask]:
        return starmap(self._make_task, self._places())

    def match(self, pattern: str) -> list[GeneratedTask]:
        """Return the tasks whose ids fit a pattern."""
        fits = re.compile(fnmatch.translate(pattern)).match
        start = re.split(r"[*?[]", pattern)[0]
        return [self._make_task(*place) for place in self._places(start) if fits(name_task(*place))]

    def get(self, task_id: str) -> GeneratedTask:
        """Return the task with this id. Raises: `ConfigError` that names similar ids."""
        found = _ID.fullmatch(task_id)
        name, level, number = ("", None, "0") if found is None else found.groups("")
        seed = int(number) if int(number) < SEEDS else None
        for template in self.templates:
            if template.name == name and level in self._levels and seed is not None:
                return self._make(template, level, seed)
        names = {template.name: template for template in self.templates}
        near = difflib.get_close_matches(name or task_id.partition("-")[0], names, 3, 0.4) or list(names)[:1]
        ids = [name_task(names[item], self._levels[0], seed or 0) for item in near]
        parts = f"a template, a level ({', '.join(LEVELS)})" if len(self._levels) > 1 else "a template"
        raise ConfigError(
            f"the task set {self.name!r} has no task {task_id!r}; near ids are {', '.join(ids)}. An id is {parts} "
            f"and a number from 0000 to {SEEDS - 1:04d}"
        )

    def find_solver(self, prompt: str) -> Solver | None:
        """Return a solver for the task whose input is `prompt`, or `None` if the set has no such task."""
        found = self.identify(prompt.strip())
        return None if found is None else found[0].solve(found[1], found[2])

    def _identify(self, prompt: str) -> tuple[TaskTemplate, Mapping[str, str], Habit] | None:
        for template in self.templates:
            for wording in template.prompts:
                values = wording.match(prompt)
                if values is not None:
                    batch = (1, 2, 3, 4, 8)[int(fraction(prompt, "batch") * 5)]
                    return template, values, Habit(batch, fraction(prompt, "terse") < 0.25)
        return None
