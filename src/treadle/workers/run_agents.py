"""The agents of a worker, built from the specs of the runs that it drives, and kept."""

import asyncio
import os
from collections.abc import Iterable
from copy import copy
from typing import Any

import msgspec
from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.core.policy import Policy
from treadle.core.spec import AgentSpec, PartSpec
from treadle.core.state import State
from treadle.journal.protocol import Journal
from treadle.loop.hooks import Hook, Hooks
from treadle.models.config.presets import is_oracle
from treadle.models.config.recipe import make_model
from treadle.models.protocol import Model
from treadle.runs.resume import load_task_of

_MAX_AGENTS = 64
_MAX_MODELS = 256


class RunAgents:
    """The agents of the runs of a journal. Runs whose agents have the same model, tools and schema share one."""

    def __init__(self, journal: Journal, hooks: Iterable[Hook] = ()) -> None:
        self.built = 0
        """How many agents were built."""
        self._journal = journal
        self._hooks = Hooks(hooks)
        self._agents: dict[bytes, Agent[Any] | ConfigError] = {}
        self._models: dict[bytes, Model] = {}
        self._building = asyncio.Lock()

    async def agent_for(self, state: State) -> Agent[Any]:
        """Return the agent that drives a run in `state`. Raises: `ConfigError` if it cannot be built here."""
        assert state.agent is not None
        # The system message, the policy and the files of a run are in its journal, and runs of a group differ in
        # the seed of their samples.
        spec = replace(state.agent, instructions=None, policy=Policy(), files=None, task_set=None)
        settings = dict(spec.model.settings or {})
        has_seed = settings.pop("seed", None) is not None
        base = replace(spec, model=replace(spec.model, settings=settings or None))
        oracle = await asyncio.to_thread(_make_oracle, spec.model, state)
        agent = await self._find(base, oracle)
        if oracle is not None or has_seed:
            agent = copy(agent)
            agent.model = await asyncio.to_thread(self._find_model, spec.model) if oracle is None else oracle
        return agent

    async def _find(self, spec: AgentSpec, model: Model | None) -> Agent[Any]:
        key = msgspec.json.encode(spec)
        if key not in self._agents:
            async with self._building:
                if key not in self._agents:
                    _keep(self._agents, key, await asyncio.to_thread(self._build, spec, model), _MAX_AGENTS)
        found = self._agents[key]
        if isinstance(found, ConfigError):
            raise found
        return found

    def _build(self, spec: AgentSpec, model: Model | None) -> Agent[Any] | ConfigError:
        """Return the agent of a spec, or why it cannot be built here. `model` replaces its model. Blocks."""
        try:
            _require_key(spec.model)
            agent = Agent.from_spec(spec, model=model, journal=self._journal)
        except ConfigError as error:
            return error
        self.built += 1
        # Each run keeps its own policy.
        agent.has_policy = False
        agent.hooks = self._hooks
        return agent

    def _find_model(self, part: PartSpec) -> Model:
        key = msgspec.json.encode(part)
        found = self._models.get(key)
        return found if found is not None else _keep(self._models, key, make_model(part), _MAX_MODELS)

    async def close(self) -> None:
        """Close the agents and their hooks."""
        for agent in self._agents.values():
            if isinstance(agent, Agent):
                await agent.close()
        self._hooks.close()


def _make_oracle(part: PartSpec, state: State) -> Model | None:
    """Return the oracle of the run's task, if that is the run's model. Blocks. Raises: `ConfigError`."""
    if not is_oracle(part.name, part.settings or {}):
        return None
    return make_model(part, task=load_task_of(state.started))


def _require_key(part: PartSpec) -> None:
    """Check that a key which was there when the run began is there too. Raises: `ConfigError`.

    The server of a user may need no key, so the model itself would be built without one.
    """
    settings = part.settings or {}
    variable = settings.get("api_key_env")
    if variable and settings.get("base_url") is not None and not os.environ.get(str(variable)):
        raise ConfigError(
            f"no API key for the model {part.name!r} at {settings['base_url']}: set the environment variable "
            f"{variable} where the worker runs"
        )


def _keep(kept: dict[bytes, Any], key: bytes, value: Any, limit: int) -> Any:
    """Keep a value under its key, in place of the oldest one if there are too many, and return it."""
    if len(kept) >= limit:
        kept.pop(next(iter(kept)), None)
    kept[key] = value
    return value
