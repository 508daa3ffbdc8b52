"""The agents that continue runs of a journal, built from the specs of these runs and kept."""

import os
import threading
from collections.abc import Iterable
from copy import copy
from typing import Any

import msgspec
from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.core.events import RunStarted
from treadle.core.policy import Policy
from treadle.core.spec import AgentSpec, PartSpec
from treadle.journal.protocol import Journal
from treadle.loop.hooks import Hook, Hooks
from treadle.models.config.presets import is_oracle
from treadle.models.config.recipe import make_model
from treadle.models.protocol import Model
from treadle.runs.resume import load_task_of
from treadle.tools.protocol import ToolLike

_MAX_AGENTS = 64
_MAX_MODELS = 256


class RunAgents:
    """The agents of the runs of a journal. Runs whose agents have the same model, tools and schema share one.

    Any thread may use it.
    """

    def __init__(
        self,
        journal: Journal,
        hooks: Iterable[Hook] = (),
        *,
        api_key: str | None = None,
        tools: Iterable[ToolLike] | None = None,
    ) -> None:
        """Keep what all agents share. `api_key` and `tools` replace those of the specs, if they are given."""
        self.built = 0
        """How many agents were built."""
        self._journal = journal
        self._hooks = Hooks(hooks)
        self._api_key = api_key
        self._tools = tools if tools is None else tuple(tools)
        self._agents: dict[bytes, Agent[Any] | ConfigError] = {}
        self._models: dict[bytes, Model] = {}
        self._lock = threading.Lock()

    def agent_for(self, spec: AgentSpec, started: RunStarted | None) -> Agent[Any]:
        """Return an agent of `spec` that continues the run which began with `started`. Blocks.

        The run keeps its own policy, instructions and files, which are in its journal. Raises: `ConfigError` if the
        agent cannot be built here.
        """
        # Runs of a group differ in the seed of their samples, and in nothing that has to be built again.
        settings = dict(spec.model.settings or {})
        has_own_model = is_oracle(spec.model.name, settings) or settings.pop("seed", None) is not None
        model = replace(spec.model, settings=settings or None)
        base = replace(spec, model=model, instructions=None, policy=Policy(), files=None, task_set=None)
        with self._lock:
            agent = self._find(base, started)
            if has_own_model:
                agent = copy(agent)
                agent.model = self._find_model(spec.model, started)
        return agent

    def _find(self, spec: AgentSpec, started: RunStarted | None) -> Agent[Any]:
        key = msgspec.json.encode(spec)
        found = self._agents.get(key)
        if found is None:
            try:
                found = self._build(spec, started)
            except ConfigError as error:
                found = error
            _keep(self._agents, key, found, _MAX_AGENTS)
        if isinstance(found, ConfigError):
            raise found
        return found

    def _build(self, spec: AgentSpec, started: RunStarted | None) -> Agent[Any]:
        model = self._find_model(spec.model, started)
        agent = Agent.from_spec(spec, model=model, tools=self._tools, journal=self._journal)
        self.built += 1
        agent.has_policy = False
        agent.hooks = self._hooks
        return agent

    def _find_model(self, part: PartSpec, started: RunStarted | None) -> Model:
        if is_oracle(part.name, part.settings or {}):
            return make_model(part, task=load_task_of(started))
        key = msgspec.json.encode(part)
        found = self._models.get(key)
        if found is None:
            found = _keep(self._models, key, make_model(part, api_key=self._api_key), _MAX_MODELS)
        return found

    async def close(self) -> None:
        """Close the agents and their hooks."""
        for agent in self._agents.values():
            if isinstance(agent, Agent):
                await agent.close()
        self._hooks.close()


def require_key(part: PartSpec) -> None:
    """Check that the API key of a model is set here, if it was set where the run began. Raises: `ConfigError`.

    A model behind a server of the user could also be built without a key.
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
