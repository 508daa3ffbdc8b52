"""The configuration of rollouts as pydantic models. Field docstrings are the descriptions in the JSON Schema."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from treadle.core.errors import ConfigError, MistakesError
from treadle.core.mistakes import Keys
from treadle.core.overrides import apply_changes
from treadle.core.places import Problem
from treadle.core.types import Json
from treadle.jobs.attempt import find_model
from treadle.jobs.sections import AttemptSection, ConfigSection, Count, Number, Share, read_document
from treadle.models.config.tables import ModelTable
from treadle.renderers.registry import load_renderer
from treadle.rollout.sinks.registry import make_sinks
from treadle.runs.task import find_tasks
from treadle.scoring.advantages import AdvantageKind
from treadle.scoring.registry import make_scorers, read_rewards
from treadle.tools.toolset_parts import reference_of
from treadle.trajectory.tokens.masks import make_mask
from treadle.trajectory.tokens.trajectories import Decode
from treadle.workers.registry import WORKERS


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


class RolloutConfig(AttemptSection):
    """The configuration of rollouts."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][\w.-]*$", max_length=60)] = "rollout"
    """The beginning of the ids of all groups and runs."""
    model: str | ModelTable | None = None
    """The model: `provider:name`, a name of treadle.toml, `oracle`, or a mapping with `model` and settings. By
    default, the default model of treadle.toml."""
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
    """The reward from which on a rollout counts as solved."""
    no_variance: Literal["mark", "drop"] = "mark"
    """What happens with a group whose rewards are all equal: it is delivered with a mark, or dropped and replaced
    by another group."""
    overlong: Literal["keep", "mask", "drop"] = "keep"
    """What happens with a rollout that a limit cut off, or that has more than `max_row_tokens`: it is kept with its
    reward, kept without being trained on, or its group is dropped."""
    loss: str = "all"
    """Which sampled tokens sinks train on: `all`, `last_turn`, `no_reasoning`, several with commas between them, or
    a function of a message as `module:function`. `no_reasoning` needs `model.renderer`."""
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
    sinks: list[str] = []
    """Where groups go, such as `jsonl:groups.jsonl`, `parquet:DIR` or `atropos:URL`. Paths are relative to the
    current folder."""
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


@cache
def schema() -> dict[str, Json]:
    """Return the JSON Schema of a configuration file."""
    made: dict[str, Any] = RolloutConfig.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "treadle rollout"}


_KEYS = Keys(
    schema,
    {
        ("model",): "'provider:name', a name of treadle.toml, or a mapping with 'model' and settings",
        ("rewards", "*"): "a weight, or a mapping with 'weight' and settings",
        ("advantages",): "'group', 'group_mean', 'leave_one_out', 'reward' or 'none'",
    },
    renamed={("engine",): "workers", ("out",): "path"},
)


def load_config(
    path: str | Path | None = None,
    changes: Mapping[str, Json] | None = None,
    flags: Mapping[str, str] | None = None,
) -> RolloutConfig:
    """Return the configuration in a YAML or JSON file, or the default one, with `changes`.

    `changes` override the file, by key such as `retries.attempts`; `flags` are the options that error messages
    name in place of such keys. Raises: `ConfigError` that lists all mistakes, each with `file:line` or the option,
    the key and the nearest known key.
    """
    document = read_document(path)
    changes, flags = changes or {}, flags or {}
    value, problems = _with_model(document.value, changes), list(document.duplicates())
    config, found = _validate(apply_changes(value, changes))
    problems += found
    if problems:
        raise document.error(problems, changes, flags)
    assert config is not None
    return config


def _validate(
    value: dict[str, Any], *, is_model_given: bool = False
) -> tuple[RolloutConfig | None, list[Problem]]:
    """Return the configuration, or `None`, and its mistakes."""
    try:
        config = RolloutConfig.model_validate(value)
    except ValidationError as error:
        return None, _KEYS.explain(error.errors(include_url=False), value)
    return config, find_conflicts(config, is_model_given=is_model_given)


def make_config(given: Mapping[str, Any]) -> RolloutConfig:
    """Return the configuration with these values. A reward may be a function, or have one as its `scorer`.

    Raises: `ConfigError` that lists all mistakes.
    """
    given = dict(given)
    if isinstance(rewards := given.get("rewards"), Mapping):
        given["rewards"] = {name: _name_function(name, value) for name, value in rewards.items()}
    config, problems = _validate(given, is_model_given=True)
    if config is not None and not problems:
        return config
    lines = [f"{'.'.join(map(str, item.path))}: {item.text}" for item in problems]
    raise ConfigError(lines[0]) if len(lines) == 1 else MistakesError("\n".join(lines))


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
    checks: list[tuple[tuple[str, ...], Any]] = [
        (("tasks",), lambda: find_tasks(config.tasks)),
        (("sinks",), lambda: make_sinks(config.sinks, group_size=config.unit_size)),
        (("loss",), lambda: make_mask(config.loss)),
        (("rewards",), lambda: make_scorers(read_rewards(config.rewards))),
        (("workers",), lambda: WORKERS.load(config.workers.partition(":")[0])),
    ]
    if not is_model_given:
        checks.append((("model",), lambda: find_model(config.model)))
    for key, check in checks:
        try:
            check()
        except ConfigError as error:
            problems.append(Problem(key, str(error)))
    return problems


def _with_model(value: dict[str, Json], changes: Mapping[str, Json]) -> dict[str, Json]:
    """Return `value` with its model as a mapping, if `changes` have settings for it."""
    model = value.get("model")
    if isinstance(model, str) and any(key.startswith("model.") for key in changes):
        return value | {"model": {"model": model}}
    return value
