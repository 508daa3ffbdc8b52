"""Rollouts of the prompts that a trainer chooses: the common part of all adapters."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from pydantic import ValidationError

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError, ExportError
from treadle.core.types import Json
from treadle.export.groups import GROUP_LABEL, PHASE_LABEL, Rollout, load_rollout
from treadle.export.token_exporter import Branch, LossMask, read_branch
from treadle.jobs.attempt import ids_of
from treadle.jobs.sections import AgentSection, ConfigSection, JobName, RetrySection
from treadle.journal.registry import open_journal
from treadle.renderers.protocol import Renderer
from treadle.rollout.trainers.trainer_engine import TrainerEngine
from treadle.runs.begin import make_run_id
from treadle.runs.ensure import ensure_run
from treadle.runs.options import Given
from treadle.runs.retries import Outcome, RetryPolicy, find_infrastructure_fault, find_lost_tool
from treadle.runs.run import Run
from treadle.runs.task import TASK_SETS, Task, load_task, split_reference
from treadle.trajectory.tokens.masks import make_mask
from treadle.trajectory.tokens.trajectories import TokenGrade

Prompt: TypeAlias = str | list[dict[str, Json]]
"""A prompt as trainers have it: a text, or messages in OpenAI's form."""
Branches: TypeAlias = Literal["refuse", "longest"]
"""What happens with a rollout of several branches, if a trainer takes one sequence for each prompt."""


class TrainerConfig(ConfigSection):
    """The settings of an adapter that runs the agents itself."""

    training: JobName | None = None
    """The name of the training. With it, the rollouts of a step are kept: a trainer that goes back to a checkpoint
    gets the same rollouts for the same steps again. Another training needs another name or journal."""
    agent: AgentSection = AgentSection()
    """The agent. A task brings its own instructions and tools."""
    task_key: str = "task"
    """The column of a row with the reference of its task, such as `files:csv_sum-0042`; the trainer's own columns
    are searched too. A row without it has its prompt as the user's message, and no reward."""
    renderer: str | None = None
    """The renderer, such as `family:qwen3`; by default the chat template of the trainer's tokenizer."""
    journal: str | None = None
    """The journal of the runs: a path, or the address of a store."""
    branches: Branches = "refuse"
    """What happens with a rollout of several branches, if the trainer takes one sequence for each prompt: it is an
    error, or the longest branch is taken."""
    loss: str = "all"
    """Which sampled tokens are trained on, as for the sinks of `treadle rollout`."""
    retries: RetrySection = RetrySection()
    """What happens after a fault of the infrastructure."""


class TrainerStep(Struct, frozen=True, kw_only=True):
    """The place of a rollout in a training."""

    training: str | None
    """The name of the training; `None` if its steps are not tied to their rollouts."""
    step: int
    """The trainer's step that the rollout is for."""
    phase: str = "train"
    """`train`, or `eval` for a rollout that is not trained on."""
    prompt: Json
    """The prompt, and all else that a rollout depends on."""
    instance: str = ""
    """The trainer's id of the prompt."""
    repetition: int = 0
    """The position of the rollout among those of its prompt."""

    @property
    def group_id(self) -> str:
        """The id that all rollouts of the prompt have in this step."""
        told = msgspec.json.encode([self.prompt, self.instance], order="sorted")
        return f"{self.training}-{self.phase}-{self.step}-{sha256(told).hexdigest()[:16]}"

    @property
    def run_id(self) -> str:
        """The id of the rollout's run. With the name of a training, it is the same whenever the trainer asks."""
        return make_run_id() if self.training is None else f"{self.group_id}-{self.repetition}"

    @property
    def metadata(self) -> dict[str, Json]:
        """The labels of the run."""
        known: dict[str, Json] = {PHASE_LABEL: self.phase, "trainer_step": self.step}
        return known if self.training is None else {**known, GROUP_LABEL: self.group_id}


class FailedRollout(Struct, frozen=True):
    """A rollout that could not be made because of the infrastructure."""

    run_id: str
    fault: str

    def __str__(self) -> str:
        return f"run {self.run_id}: {self.fault}"


async def roll(
    agent: Agent[Any], task: str | Task, place: TrainerStep, retries: RetryPolicy
) -> Rollout | FailedRollout:
    """Return the rollout of an agent on a task, or what kept it from being made.

    If the journal has it from an earlier time that the trainer was at this step, it is not made again. A run that
    ends with a fault of the infrastructure is continued as `retries` says, and one that lost a tool is made anew.
    """
    given, fault = Given(agent.answer, agent.deps, retries=retries), None
    ids = ids_of(place.run_id)[: retries.attempts]
    for run_id in ids:
        try:
            outcome: Outcome = await ensure_run(agent, run_id, task, given, {"metadata": place.metadata})
        except Exception as error:
            outcome = error
        if (fault := find_infrastructure_fault(outcome)) is not None:
            break
        if not isinstance(outcome, Run):
            assert isinstance(outcome, Exception)
            raise outcome
        if (fault := await asyncio.to_thread(find_lost_tool, outcome)) is None:
            rollout, _ = await asyncio.to_thread(load_rollout, agent.journal, run_id)
            return rollout
    return FailedRollout(run_id, fault or "")


class PromptedRollouts:
    """The rollouts of the prompts of one trainer, whose engine samples."""

    def __init__(self, config: TrainerConfig) -> None:
        """Open the journal. Raises: `JournalError`; `ConfigError` for a loss mask that cannot be made."""
        self.config = config
        self._journal = open_journal(config.journal)

    async def make(
        self, engine: TrainerEngine, renderer: Renderer, row: "PromptRow", place: TrainerStep
    ) -> Rollout | FailedRollout:
        """Return the rollout of a row. Raises: `ConfigError` if the row has no such task or cannot be a prompt."""
        section = self.config.agent
        model = engine.model(renderer)
        instructions, text = (None, "") if row.task is not None else split_prompt(row.prompt)
        agent = Agent(
            model,
            instructions=section.instructions or instructions,
            tools=section.tools,
            policy=section.policy(),
            journal=self._journal,
        )
        task = text if row.task is None else load_task(row.task)
        return await roll(agent, task, place, self.config.retries.policy())

    def mask(self, renderer: Renderer) -> LossMask:
        return make_mask(self.config.loss, decode=renderer.decode)


@lru_cache(maxsize=8)
def _open_rollouts(told: bytes) -> PromptedRollouts:
    return PromptedRollouts(TrainerConfig.model_validate_json(told))


def open_rollouts(settings: Mapping[str, Json]) -> PromptedRollouts:
    """Return the rollouts with these settings; the same object for the same settings.

    Raises: `ConfigError` for a key or value that is wrong; `JournalError`.
    """
    return _open_rollouts(read_settings(settings).model_dump_json().encode())


def read_settings(settings: Mapping[str, Any]) -> TrainerConfig:
    """Return the settings of an adapter. Raises: `ConfigError` for a key or value that is wrong."""
    try:
        return TrainerConfig.model_validate(dict(settings))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise ConfigError(
            f"the settings of the adapter cannot be used: {'; '.join(problems)}; the keys are "
            f"{', '.join(TrainerConfig.model_fields)}"
        ) from None


class PromptRow(Struct, frozen=True):
    """One row of a trainer's data set."""

    prompt: Prompt
    task: str | None
    """The reference of its task; `None` if it has none."""

    @classmethod
    def of(cls, prompt: Any, columns: Mapping[str, Any], key: str) -> "PromptRow":
        """Return a row. The task is in the column `key`, or under this key in the column `extra_info`."""
        extra = columns.get("extra_info")
        found = columns.get(key, extra.get(key) if isinstance(extra, Mapping) else None)
        messages = prompt if isinstance(prompt, str) else [dict(item) for item in prompt]
        return cls(messages, None if found is None else str(found))


def split_prompt(prompt: Prompt) -> tuple[str | None, str]:
    """Return the system message of a prompt, if it has one, and the message of the user.

    Raises: `ConfigError` if there is anything else.
    """
    messages: list[dict[str, Json]] = (
        [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    )
    roles = [item.get("role") for item in messages]
    texts = [text for item in messages if (text := _read_text(item.get("content"))) is not None]
    if roles not in (["user"], ["system", "user"]) or len(texts) < len(roles):
        raise ConfigError(
            f"a prompt has messages with the roles {roles}; give one text message of the user, with or without a "
            "system message before it, or the column of a task"
        )
    return (texts[0] if len(texts) > 1 else None), texts[-1]


def _read_text(content: Any) -> str | None:
    """Return the text of a message, which may have parts of text; `None` if it has anything else."""
    if not isinstance(content, list | tuple):
        return content if isinstance(content, str) else None
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
    return "".join(texts) if all(isinstance(text, str) for text in texts) else None  # type: ignore[arg-type]


def find_task(given: str | Task) -> str | Task:
    """Return the task that a text refers to; a text that is no reference is the user's message.

    Raises: `ConfigError` if there is no such task, or if `given` is neither a text nor a task.
    """
    if not isinstance(given, str) and not hasattr(given, "task_id"):
        raise ConfigError(f"the task of a prompt is {given!r:.100}; give a Task, a reference or a text")
    if not isinstance(given, str) or any(map(str.isspace, given)):
        return given
    name, task_id = split_reference(given)
    return load_task(given) if task_id and (name in TASK_SETS or ":" in name) else given


def read_sampled(rollout: Rollout, mask: LossMask, needs: TokenGrade) -> list[Branch]:
    """Return the branches of a rollout that have sampled tokens, checked.

    Raises: `ExportError` if there are none, or one is below the grade `needs`.
    """
    found = [
        read_branch(rollout, 0, item, mask, needs) for item in rollout.trajectories if item.sampled_tokens
    ]
    if not found:
        raise ExportError(f"run {rollout.run_id!r} has no tokens that the engine returned")
    return found


def choose_branch(found: Sequence[Branch], branches: Branches, trainer: str) -> tuple[Branch, int]:
    """Return the branch for a trainer that takes one, and how many sampled tokens are in the others.

    Raises: `ExportError` if there are several, and `branches` says that none is to be left out.
    """
    chosen = max(found, key=lambda branch: branch.trajectory.sampled_tokens)
    left_out = sum([branch.trajectory.sampled_tokens for branch in found if branch is not chosen])
    if left_out and branches == "refuse":
        kinds = ", ".join(sorted({item.trajectory.drift.kind for item in found if item.trajectory.drift}))
        raise ExportError(
            f"run {chosen.rollout.run_id!r} has {len(found)} branches ({kinds}), and {trainer} takes one for each "
            f"prompt; use branches='longest', which leaves out {left_out} sampled tokens, or another sink"
        )
    return chosen, left_out
