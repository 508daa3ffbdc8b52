"""The configuration of rollouts as pydantic models, and the plan: which group is about which task.

Field docstrings are the descriptions in the JSON Schema. The plan depends on the configuration and the number of
the group, and with a curriculum on the pass rates that were known when the group was planned. The ledger keeps what
was planned.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct
from pydantic import Field

from treadle.core.errors import ConfigError, MistakesError
from treadle.core.texts.places import KeyPath, Problem
from treadle.jobs.ledger import JobCounts, LedgerEntry, PlannedItem
from treadle.jobs.sections import (
    AttemptSection,
    ConfigReader,
    ConfigSection,
    Count,
    JobName,
    Number,
    Share,
    find_idle_keys,
    find_mistakes,
    first_tasks,
    tool_checks,
)
from treadle.jobs.seeded_agents import find_model
from treadle.models.config.tables import ModelTable
from treadle.renderers.registry import load_renderer
from treadle.rollout.sinks.registry import make_sinks
from treadle.runs.task import find_tasks
from treadle.scoring.advantages import AdvantageKind
from treadle.scoring.registry import make_scorers, read_rewards
from treadle.tasks.draws import Draw, fraction, pick_weighted
from treadle.tools.toolset_parts import reference_of
from treadle.trajectory.tokens.masks import make_mask
from treadle.trajectory.tokens.trajectories import Decode
from treadle.workers.registry import check_workers


class CurriculumSection(ConfigSection):
    """The choice of tasks by the share of rollouts that solved them. New tasks are drawn too."""

    by: Literal["task", "family"] = "task"
    """What has a pass rate: each task, or all tasks whose ids are equal up to the last dash."""
    target: Share = 0.5
    """The pass rate of the tasks that are drawn most often."""
    width: Annotated[float, Field(gt=0, le=1)] = 0.5
    """How far the pass rate of a task may be from `target`. Tasks that are farther away are drawn as rarely as
    `floor` says."""
    floor: Annotated[float, Field(gt=0, le=1)] = 0.05
    """The weight of tasks that are too easy or too hard; a new task has the weight 1."""


class TreeSection(ConfigSection):
    """Rollouts that share the beginning of another rollout of their group. The shared beginning is sampled and paid
    for once."""

    roots: Count = 1
    """How many rollouts of a group begin from the start. Each of the others is forked from one of them."""


class HeldOutSection(ConfigSection):
    """The evaluation of each version of the weights, on tasks that are not trained on. It is made in the same job,
    when the work begins, when the version changes, and at the end."""

    tasks: Annotated[list[str], Field(min_length=1)]
    """The tasks, written like the key `tasks` of the rollouts. The rollouts must not use any of them."""
    epochs: Count = 1
    """How often each version attempts each task."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """The largest share of the window that these attempts use at a time."""


class RolloutConfig(AttemptSection):
    """The configuration of rollouts."""

    name: JobName = "rollout"
    """The beginning of the ids of all groups and runs."""
    model: str | ModelTable | None = None
    """The model: `provider:name`, a name of treadle.toml, `oracle`, or a mapping with `model` and settings. By
    default, the default model of treadle.toml."""
    command: str | None = None
    """A program that is the agent, such as `python my_agent.py`: it is started for each rollout, and what it asks
    the model is recorded. By default, Treadle's own loop is the agent."""
    order: Literal["shuffled", "given"] = "shuffled"
    """The order in which tasks are taken. All are taken once before one is taken again."""
    groups: Count = 100
    """How many groups are delivered."""
    group_size: Count = 8
    """How many rollouts of its task a group has."""
    ahead: Number | None = None
    """How many complete groups may wait for a slow receiver before no new ones begin. Default: as many as fill the
    window."""
    deliver: Literal["group", "rollout"] = "group"
    """`group` delivers a group when all of its rollouts have ended; `rollout` each rollout at once, without
    advantages."""
    advantages: AdvantageKind | Literal["none"] = AdvantageKind.GROUP
    """How advantages are computed from the rewards of a group; `none`: not at all."""
    solved_at: float = 1.0
    """The score from which on a rollout counts as solved: the weighted mean of its rewards, as in evaluations. The
    reward is their sum."""
    no_variance: Literal["mark", "drop"] = "mark"
    """What happens with a group whose rewards are all equal: it is delivered with a mark, or dropped and replaced
    by another group."""
    overlong: Literal["keep", "mask", "drop"] = "keep"
    """What happens with a rollout that a limit cut off, or that has more than `max_row_tokens`: it is kept with its
    reward, kept without being trained on, or its group is dropped."""
    loss: str = "all"
    """Which sampled tokens sinks train on: `all`, `last_turn`, `no_failed_calls`, `no_reasoning`, several with
    commas between them, or a function of a message as `module:function`. `no_reasoning` needs `model.renderer`."""
    max_row_tokens: Count | None = None
    """The most tokens of one trajectory that the trainer accepts."""
    max_staleness: Number | None = None
    """How many versions the weights may be ahead of those that sampled the oldest token of a group when it is
    delivered. An older group is dropped."""
    max_dropped: Count = 4
    """The work stops when this many groups were planned for each wanted one."""
    curriculum: CurriculumSection | None = None
    """The choice of tasks by their pass rate."""
    tree: TreeSection | None = None
    """Rollouts that are forked from others of their group."""
    held_out: HeldOutSection | None = None
    """The evaluation of each version of the weights on held-out tasks."""
    sinks: list[str] = []
    """Where groups go, such as `jsonl:groups.jsonl`, `parquet:DIR` or `atropos:URL`, and their curves, such as
    `tensorboard:DIR`. Paths are relative to the current folder."""
    path: Path = Path("rollouts")
    """The folder with the state of the work; the same folder continues it."""

    @property
    def unit_size(self) -> int:
        """How many rollouts are delivered together."""
        return self.group_size if self.deliver == "group" else 1

    def find_decode(self) -> Decode | None:
        """Return the function that converts token ids to text; `None` if the model has no renderer.

        Raises: `ConfigError`.
        """
        name = self.model.renderer if isinstance(self.model, ModelTable) else None
        return None if name is None else load_renderer(name).decode


def make_config(given: Mapping[str, Any]) -> RolloutConfig:
    """Return the configuration with these values. A reward may be a function, or have one as its `scorer`.

    Raises: `ConfigError` that lists all mistakes.
    """
    given = dict(given)
    if isinstance(rewards := given.get("rewards"), Mapping):
        given["rewards"] = {name: _name_function(name, value) for name, value in rewards.items()}
    config, problems = READER.validate(given, partial(find_conflicts, is_model_given=True))
    if config is not None and not problems:
        return config
    raise (
        ConfigError(str(problems[0])) if len(problems) == 1 else MistakesError("\n".join(map(str, problems)))
    )


def _name_function(name: str, value: Any) -> Any:
    """Return the value of a reward with the reference of its function in place of the function."""
    if isinstance(value, Mapping):
        scorer = value.get("scorer")
        return {**value, **_name_function(name, scorer)} if callable(scorer) else value
    if not callable(value):
        return value
    part = reference_of(value)
    # Rewards are computed in this process, which has its main module.
    is_in_main = part.name.startswith("__main__:") and "<" not in part.name
    if part.missing is not None and not is_in_main:
        raise ConfigError(
            f"rewards.{name}: {part.name!r} cannot be found again by its name; define it at the top level of a "
            "module"
        )
    return {"scorer": part.name}


def find_conflicts(config: RolloutConfig, *, is_model_given: bool = False) -> list[Problem]:
    """Return what cannot work: values that exclude each other, and names that do not exist."""
    problems: list[Problem] = []
    tree, size = config.tree, config.group_size
    if tree is not None and tree.roots > size:
        problems.append(
            Problem(
                ("tree", "roots"),
                f"{tree.roots} is more than group_size, which is {size}; give a smaller number",
            )
        )
    if tree is not None and config.deliver == "rollout":
        problems.append(Problem(("deliver",), "a tree needs whole groups; write 'group', or delete 'tree'"))
    if config.no_variance == "drop" and (size == 1 or config.deliver == "rollout"):
        text = (
            "a single rollout has no variance, so that all would be dropped; write 'mark', or deliver groups"
        )
        problems.append(Problem(("no_variance",), text))
    if config.overlong == "keep" and config.max_row_tokens is not None:
        problems.append(
            Problem(("max_row_tokens",), "it has no effect with overlong: keep; write 'mask' or 'drop'")
        )
    problems += _find_idle(config)
    checks: dict[KeyPath, Callable[[], object]] = {
        ("tasks",): partial(_check_tasks, config),
        ("sinks",): lambda: make_sinks(config.sinks, group_size=config.unit_size),
        ("loss",): lambda: make_mask(config.loss),
        ("rewards",): lambda: make_scorers(read_rewards(config.rewards)),
        ("workers",): lambda: check_workers(config.workers),
        **tool_checks(config.agent.tools, "agent", "tools"),
    }
    if config.held_out is not None:
        checks["held_out", "tasks"] = partial(_check_held_out, config.tasks, config.held_out.tasks)
    if not is_model_given:
        checks["model",] = lambda: find_model(config.model)
    return problems + find_mistakes(checks)


def _find_idle(config: RolloutConfig) -> list[Problem]:
    """Return the keys that were given and would have no effect."""
    given, problems = config.model_fields_set, []
    if config.deliver == "rollout" and "advantages" in given and config.advantages != "none":
        text = "single rollouts have no advantages; delete it, or deliver groups"
        problems.append(Problem(("advantages",), text))
    if config.curriculum is not None and "order" in given:
        problems.append(Problem(("order",), "a curriculum draws the tasks; delete it"))
    if config.loss != "all" and not config.sinks:
        text = "it is about what sinks train on, and there are none; give sinks (--sink), or delete it"
        problems.append(Problem(("loss",), text))
    has_command = config.command is not None
    for name, is_given in (("workers", config.workers != "here"), ("tree", config.tree)):
        if has_command and is_given:
            problems.append(Problem((name,), f"a command has no {name}; delete it"))
    return problems + find_idle_keys(config, has_command=has_command)


def _check_tasks(config: RolloutConfig) -> None:
    """Raise a `ConfigError` if the tasks do not exist, or if the command cannot work on them."""
    find_tasks(config.tasks)
    for task in first_tasks(config.tasks) if config.command else ():
        for name, what in (
            ("reply", "has a simulated user"),
            ("check_transcript", "grades the calls of its tools"),
        ):
            if hasattr(task, name):
                raise ConfigError(
                    f"the task set {task.task_set!r} {what}, which a command does not get; give other tasks, or "
                    "delete 'command'"
                )


def _check_held_out(trained: Sequence[str], held_out: Sequence[str]) -> None:
    """Raise a `ConfigError` if a held-out task is trained on too."""
    if both := set(find_tasks(trained)) & set(find_tasks(held_out)):
        raise ConfigError(
            f"{len(both)} of these tasks are trained on too, such as {min(both)}; give disjoint sets, such as "
            "files:train for the rollouts and files:test here"
        )


READER = ConfigReader(
    RolloutConfig,
    "treadle rollout",
    find_conflicts,
    {
        ("model",): "'provider:name', a name of treadle.toml, or a mapping with 'model' and settings",
        ("rewards", "*"): "a weight, or a mapping with 'weight' and settings",
        ("advantages",): "'group', 'group_mean', 'leave_one_out', 'reward' or 'none'",
    },
    renamed={("engine",): "workers", ("out",): "path"},
)
"""The reader of configuration files, and their JSON Schema."""


class GroupSpec(Struct, frozen=True):
    """The plan of one item of the ledger: a group, or one rollout of a group."""

    group: int
    """The number of the group, from 1."""
    task: str
    """The task as `SET:ID`."""
    rollouts: tuple[int, ...]
    """The positions in the group of the rollouts to make."""
    attempt: int = 1
    """The number of the attempt at the group; each has runs and seeds of its own."""

    def unit_id(self, name: str) -> str:
        """Return the id of the unit that is delivered: a group, or a single rollout."""
        return f"{name}-{self.group}" if len(self.rollouts) != 1 else self.run_id(name, self.rollouts[0])

    def run_id(self, name: str, index: int) -> str:
        """Return the id of the run of the rollout at `index`, given the name of the rollouts."""
        again = "" if self.attempt == 1 else f"-{self.attempt}"
        return f"{name}-{self.group}-{index}{again}"

    def seed_of(self, seed: int, index: int) -> int:
        """Return the sampling seed of the rollout at `index`, given the seed of the plan."""
        place = (self.group, index) if self.attempt == 1 else (self.group, index, self.attempt)
        return int(fraction(seed, *place) * 2**31)


class GroupPlan:
    """The plan of the groups of one configuration."""

    def __init__(self, config: RolloutConfig, tasks: Sequence[str]) -> None:
        """Make a plan over `tasks`, each as `SET:ID`."""
        self._config = config
        self._tasks = tasks
        self._epoch: tuple[int, Sequence[str]] = (-1, tasks)
        self._newest = GroupSpec(0, "", ())
        """The newest planned group, which its later rollouts belong to if they are delivered one by one."""
        self._rates = None if config.curriculum is None else PassRates(config.curriculum, tasks)

    @property
    def wanted(self) -> int:
        """How many items are wanted: groups, or rollouts if they are delivered one by one."""
        config = self._config
        return config.groups * (config.group_size if config.deliver == "rollout" else 1)

    def make_item(self, number: int, counts: JobCounts) -> PlannedItem:
        """Return the item with this number."""
        size = self._config.group_size
        indices = tuple(range(size))
        group = number
        if self._config.deliver == "rollout":
            group, index = (number - 1) // size + 1, (number - 1) % size
            indices = (index,)
        task = self._newest.task if group == self._newest.group else self._choose(group)
        self._newest = GroupSpec(group, task, indices)
        return PlannedItem(number, "", task, msgspec.to_builtins(self._newest))

    def restore(self, entries: Iterable[LedgerEntry], items: Iterable[PlannedItem]) -> None:
        """Record what an earlier process has planned and counted."""
        for entry in entries:
            self._note(msgspec.convert(entry.spec, GroupSpec))
            details = entry.details if isinstance(entry.details, dict) else {}
            self.observe(entry.spec["task"], details.get("solved", 0), details.get("graded", 0))
        for item in items:
            self._note(msgspec.convert(item.spec, GroupSpec))

    def observe(self, task: str, solved: int, graded: int) -> None:
        """Record how many of the graded rollouts of a task have solved it."""
        if self._rates is not None and graded:
            self._rates.observe(task, solved, graded)

    def _note(self, spec: GroupSpec) -> None:
        if spec.group > self._newest.group:
            self._newest = spec

    def _choose(self, group: int) -> str:
        if self._rates is not None:
            return self._rates.draw(Draw(f"{self._config.seed}/task/{group}"))
        epoch, position = divmod(group - 1, len(self._tasks))
        if self._config.order == "given":
            return self._tasks[position]
        if self._epoch[0] != epoch:
            draw = Draw(f"{self._config.seed}/epoch/{epoch}")
            self._epoch = (epoch, draw.shuffled(self._tasks))
        return self._epoch[1][position]


class PassRates:
    """The pass rates of tasks or families, and draws that prefer the ones near a target."""

    def __init__(self, settings: CurriculumSection, tasks: Sequence[str]) -> None:
        self._settings = settings
        self._members: dict[str, list[str]] = {}
        for task in tasks:
            self._members.setdefault(self._key(task), []).append(task)
        self._counts: dict[str, tuple[int, int]] = {}

    def observe(self, task: str, solved: int, graded: int) -> None:
        """Add the rollouts of a group."""
        key = self._key(task)
        before = self._counts.get(key, (0, 0))
        self._counts[key] = before[0] + solved, before[1] + graded

    def draw(self, draw: Draw) -> str:
        """Return a task."""
        weights = {key: self._weight(key) * len(tasks) for key, tasks in self._members.items()}
        return draw.pick(self._members[pick_weighted(weights, draw.below(2**31) / 2**31)])

    def _key(self, task: str) -> str:
        return task.rpartition("-")[0] or task if self._settings.by == "family" else task

    def _weight(self, key: str) -> float:
        known = self._counts.get(key)
        if known is None:
            return 1.0
        settings = self._settings
        distance = abs(known[0] / known[1] - settings.target)
        return max(settings.floor, 1.0 - distance / settings.width)
