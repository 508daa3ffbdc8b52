"""The agents of a job that attempts tasks: one for each attempt, whose model has the attempt's seed."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.jobs.sections import AgentSection
from treadle.journal.protocol import Journal
from treadle.loop.listener import Hook
from treadle.models.config.logprobs_probe import find_logprobs_mode
from treadle.models.config.presets import is_oracle
from treadle.models.config.probe import find_token_settings, settings_of
from treadle.models.config.recipe import Config as ModelFile
from treadle.models.config.recipe import JobUse, load_config
from treadle.models.config.tables import ModelTable
from treadle.models.protocol import Model, check_vocabulary
from treadle.models.tokens.weights import Weights
from treadle.runs.task import Task
from treadle.tools.user_code import FirstFailures

MakeModel: TypeAlias = Callable[[Task, int], Model]
"""A function of a task and a sampling seed that returns the model of a rollout."""


class SeededAgent(Agent[Any]):
    vary: Callable[[Mapping[str, Any]], Model]
    """A function that returns its model with further options of `treadle.model`."""


class SeededAgents:
    """The agents of a job, one for each attempt, which differ in the seed of their model."""

    def __init__(
        self,
        settings: AgentSection,
        model: str | ModelTable | Model | MakeModel | None,
        journal: Journal,
        hooks: Iterable[Hook] = (),
        wrap: Callable[[Model], Model] = lambda model: model,
        weights: Weights | None = None,
    ) -> None:
        """Make agents whose runs are kept in `journal`.

        `model` is a model, its name or settings, or a function that makes one for each run. `wrap` is applied to
        each model, and `weights` are those of the models behind servers. Raises: `ConfigError` if the model cannot
        be made.
        """
        self.journal = journal
        self._settings = settings
        self._policy = replace(settings.policy(), charges_lost=False)
        self._failures = FirstFailures()
        self._has_checked_ids = False
        self._hooks = tuple(hooks)
        self._wrap = wrap
        self._weights = weights
        self._make_model = (
            find_model(model) if model is None or isinstance(model, str | ModelTable) else _maker(model)
        )

    async def prepare(self) -> None:
        """Find out whether the model's server returns token ids, and has the vocabulary of the renderer.

        Raises: `TransportError`; `ConfigError` for the renderer of another model.
        """
        if isinstance(self._make_model, ConfiguredModel):
            await self._make_model.ask_for_tokens()
            self._has_checked_ids = True

    def make(
        self,
        task: Task,
        seed: int,
        *,
        toolsets: Sequence[Any] | None = None,
        instructions: str | None = None,
        max_steps: int | None = None,
    ) -> SeededAgent:
        """Return the agent of a rollout. What is given takes the place of the settings; for the instructions, only
        where these have none. Raises: `ConfigError` if it cannot be made."""
        settings = self._settings
        agent = SeededAgent(
            self._make(task, seed, {}),
            instructions=settings.instructions or instructions,
            tools=settings.tools if toolsets is None else toolsets,
            policy=self._policy if max_steps is None else replace(self._policy, max_steps=max_steps),
            journal=self.journal,
            hooks=self._hooks,
        )
        agent.failures = self._failures
        agent.kit.has_checked_ids |= self._has_checked_ids
        agent.vary = partial(self._make, task, seed)
        return agent

    def _make(self, task: Task, seed: int, options: Mapping[str, Any]) -> Model:
        if isinstance(self._make_model, ConfiguredModel):
            model = self._make_model(task, seed, options)
        else:
            model = self._make_model(task, seed)  # a model that the program made keeps its settings
        if self._weights is not None:
            with contextlib.suppress(ConfigError):  # models in this process have no server
                self._weights.attach(model)
        return self._wrap(model)


def find_model(given: str | ModelTable | None) -> MakeModel:
    """Return the function that makes the models of a configuration. Raises: `ConfigError` if it cannot make one."""
    file = load_config()
    table = file.table_of(given)
    if is_oracle(table.model, {"base_url": table.base_url}):
        if isinstance(given, ModelTable):
            raise ConfigError(
                f"the model {table.model!r} takes no settings and no renderer; give its name alone"
            )
        return lambda task, seed: file.model(table.model, task=task, job=JobUse(seed=seed))
    if table.seed is not None:
        raise ConfigError(
            f"the model has the seed {table.seed!r}, which would make the rollouts of a group equal; "
            "remove it, and give the seed of the rollouts"
        )
    return ConfiguredModel(given, table, file)


class ConfiguredModel:
    """The function that makes the models of a configuration."""

    def __init__(self, given: str | ModelTable | None, table: ModelTable, file: ModelFile) -> None:
        """Keep the name and the settings. Raises: `ConfigError` if no model can be made from them."""
        self._given = given
        self._table = table
        self._file = file
        self._options: dict[str, Any] = {}
        self._first = file.model(given, job=JobUse(seed=0))

    def __call__(self, task: Task, seed: int, options: Mapping[str, Any] = {}) -> Model:
        """Return the model of a rollout with further `options`. It samples with `seed` if its server takes one."""
        return self._file.model(self._given, job=JobUse(seed=seed), **{**self._options, **options})

    async def ask_for_tokens(self) -> None:
        """Ask the server which engine it is. If it is known to return token ids, models ask for them from now on,
        unless the configuration says otherwise, and record what their logprobs are of. Raises: `TransportError`;
        `ConfigError` for the renderer of another model."""
        table = self._table
        await check_vocabulary(self._first)
        is_open = table.renderer is None and table.logprobs is None and table.return_token_ids is None
        asked = await find_token_settings(self._first)
        self._options = asked if is_open else {}
        if asked and table.logprobs_mode is None and (is_open or table.renderer or table.logprobs):
            mode = await find_logprobs_mode(self._make, settings_of(self._first))
            self._options |= {} if mode is None else {"logprobs_mode": mode}

    def _make(self, **options: Any) -> Model:
        return self._file.model(self._given, job=JobUse(seed=0), **options)


def _maker(model: Model | MakeModel) -> MakeModel:
    if not hasattr(model, "infer"):
        if not callable(model):
            raise ConfigError(
                f"the model is {model!r:.100}; give a name, a mapping of settings, a Model, or a function of a "
                "task and a seed that returns one"
            )
        return model
    made = cast("Model", model)
    return lambda task, seed: made
