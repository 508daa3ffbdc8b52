"""The configuration of rollouts as pydantic models. Field docstrings are the descriptions in the JSON Schema."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from treadle.core.policy import Policy
from treadle.core.types import Json
from treadle.models.config.tables import ModelTable
from treadle.renderers.registry import load_renderer
from treadle.scoring.advantages import AdvantageKind
from treadle.trajectory.tokens.drift import Decode

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """A part of the configuration. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class AgentSection(Section):
    """The agent. A task brings its own instructions and tools."""

    instructions: str | None = None
    """The system message, in place of that of the task."""
    tools: list[str] = []
    """Toolsets, in place of those of the task, as for `treadle run --tools`."""
    max_steps: Count = 50
    """The most inferences of a rollout that may call tools."""
    max_tokens: Count | None = None
    """The most input and output tokens of a rollout."""
    max_tool_calls: Number | None = None
    """The most tool calls of a rollout."""
    deadline_seconds: Annotated[float, Field(gt=0)] | None = None
    """The longest time of work on a rollout."""
    parallel_tool_calls: Count = 8
    """The most tool calls of one step that run at the same time."""
    max_result_chars: Count | None = None
    """The longest tool result in characters."""
    context_tokens: Count | None = None
    """The context window of the model, if it is not known or should be smaller."""
    compact_at: Share | None = 0.8
    """The share of the room for the prompt at which the context is compacted; `null`: never."""

    def policy(self) -> Policy:
        """Return the policy of the agent."""
        given = self.model_dump(exclude={"instructions", "tools"})
        return Policy(**given)


class Curriculum(Section):
    """The choice of tasks by the share of rollouts that solved them. New tasks are drawn too."""

    by: Literal["task", "family"] = "task"
    """What has a pass rate: each task, or all tasks whose ids are equal up to the last dash."""
    target: Share = 0.5
    """The pass rate of the tasks that are drawn most often."""
    width: Annotated[float, Field(gt=0, le=1)] = 0.5
    """How far from `target` the pass rate of a task may be until it is drawn as rarely as `floor` says."""
    floor: Annotated[float, Field(gt=0, le=1)] = 0.05
    """The weight of tasks that are too easy or too hard; a new task has the weight 1."""


class Tree(Section):
    """Rollouts that share the beginning of another rollout of their group. The shared beginning is sampled and paid
    for once."""

    roots: Count = 1
    """How many rollouts of a group begin from the start. Each of the others is forked from one of them."""


class Retries(Section):
    """What happens after a fault of the infrastructure: a server that fails, a lost connection, a failing grader.
    Such a fault is never a reward of 0."""

    attempts: Count = 4
    """How often each rollout is tried, the first time included."""
    delay_seconds: Annotated[float, Field(ge=0)] = 1.0
    """The delay before the second attempt. It doubles from one attempt to the next, up to 30 seconds."""


class Limits(Section):
    """The limits of all rollouts together. At a limit, the work stops."""

    max_cost_usd: Annotated[float, Field(ge=0)] | None = None
    """The most that all requests together may cost. The model then needs a price."""
    max_tokens: Number | None = None
    """The most tokens of all requests together, input and output."""
    max_seconds: Annotated[float, Field(gt=0)] | None = None
    """The longest time of work, the sum over all processes."""


class Config(Section):
    """The configuration of rollouts."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][\w.-]*$", max_length=60)] = "rollout"
    """The beginning of the ids of all groups and runs."""
    seed: int = 0
    """The seed of the tasks, of the sampling of each rollout, and of the forks."""
    model: str | ModelTable | None = None
    """The model: `provider:name`, a name of treadle.toml, `oracle`, or a mapping with `model` and settings. By
    default, the default model of treadle.toml."""
    tasks: Annotated[list[str], Field(min_length=1)] = ["files"]
    """The tasks: a task set, `SET:ID`, or a pattern such as `files:csv_sum-*`. `SET` is the name of an installed
    set, or `file.py:ATTRIBUTE` or `package.module:ATTRIBUTE`."""
    order: Literal["shuffled", "given"] = "shuffled"
    """The order in which tasks are taken. All are taken once before one is taken again."""
    groups: Count = 100
    """How many groups are delivered."""
    group_size: Count = 8
    """How many rollouts of its task a group has."""
    window: Annotated[int, Field(ge=1, le=100_000)] = 64
    """How many rollouts are driven at the same time. They may be of different groups."""
    ahead: Number | None = None
    """How many complete groups may wait for a slow receiver before no new ones begin. Default: as many as fill the
    window."""
    workers: str = "here"
    """Where the runs are driven: `here`, `local:N` (N processes), or `ray`."""
    deliver: Literal["group", "rollout"] = "group"
    """`group` delivers a group when all of its rollouts have ended; `rollout` each rollout at once, without
    advantages."""
    agent: AgentSection = AgentSection()
    """The agent."""
    rewards: Annotated[dict[str, float | dict[str, Json]], Field(min_length=1)] = {"check": 1.0}
    """The parts of the reward by name, each with its weight or a mapping of settings: `check` (the check of the
    task), `tool_use`, `length`, `judge`, or a function as `module:function`."""
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
    curriculum: Curriculum | None = None
    """The choice of tasks by their pass rate."""
    tree: Tree | None = None
    """Rollouts that are forked from others of their group."""
    retries: Retries = Retries()
    """What happens after a fault of the infrastructure."""
    limits: Limits = Limits()
    """The limits of all rollouts together."""
    sinks: list[str] = []
    """Where groups go, such as `jsonl:groups.jsonl`, `parquet:DIR` or `atropos:URL`. Paths are relative to the
    current folder."""
    path: Path = Path("rollouts")
    """The folder with the state of the work; the same folder continues it."""
    journal: str | None = None
    """The journal of the runs: a path, or the address of a store. Default: `runs.db` in the folder."""

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
