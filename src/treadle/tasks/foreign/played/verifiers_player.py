"""Environments of verifiers, with their own agents, users, tools and rewards.

Source: verifiers 0.4.0, `v1/env.py`, `v1/configs/agent.py` and `v1/trace.py`.
"""

import asyncio
import os
from contextlib import AsyncExitStack
from itertools import islice
from typing import Any

MAX_TASKS = 10_000
"""How many tasks of a taskset are listed."""
MAX_MADE_TASKS = 256
"""How many tasks are listed of a taskset that makes new ones for ever."""
Told = dict[str, Any]


class VerifiersPlayer:
    """An environment of verifiers with its tasks."""

    def __init__(self, name: str, given: Told) -> None:
        """Load an environment with its configuration, whose keys have dots between their parts."""
        from verifiers.v1.utils import loaders

        settings: Told = {"taskset": {"id": name}}
        for key, value in given.items():
            *path, last = key.split(".")
            place = settings
            for step in path:
                place = place.setdefault(step, {})
            place[last] = value
        kind = loaders.env_config_type(name, settings.get("id", ""))
        harness = loaders.default_harness_id(name)
        needs_container = (
            loaders.task_type(name).NEEDS_CONTAINER or loaders.harness_class(harness).NEEDS_CONTAINER
        )
        for role, default in find_roles(kind).items():
            own = settings.setdefault(role, {})
            if default.runtime == type(default)().runtime:
                # The default of verifiers is a machine of a service, which needs a key.
                own.setdefault("runtime", {"type": "docker" if needs_container else "subprocess"})
            if default.harness is None and harness == "bash" and not needs_container:
                # The default of verifiers lets the model run commands on this machine.
                own.setdefault("harness", {"id": "null"})
        self.name = name
        self._inner = loaders.load_environment(loaders.resolve_env_config(settings))
        self._stack = AsyncExitStack()
        self._started: asyncio.Task[None] | None = None
        self._left = iter(self._inner.taskset)
        self._tasks: list[Any] = []

    def _task(self, index: int) -> Any:
        """Return a task. Those before it are made too, since tasksets make them in order."""
        self._tasks += islice(self._left, max(0, index + 1 - len(self._tasks)))
        return self._tasks[index]

    def describe_tasks(self) -> list[Told]:
        taskset = self._inner.taskset
        self._tasks += islice(self._left, MAX_TASKS if taskset.bounded else MAX_MADE_TASKS)
        return [
            {
                "id": str(index),
                "input": data.prompt_text or data.description or data.name or f"task {index} of {self.name}",
                "instructions": data.system_prompt,
            }
            for index, data in enumerate([task.data for task in self._tasks])
        ]

    async def _start(self) -> None:
        await self._stack.enter_async_context(self._inner.serving())

    async def play(self, asked: Told) -> Told:
        from verifiers.v1.clients import ModelContext
        from verifiers.v1.configs.client import EvalClientConfig
        from verifiers.v1.types import SamplingConfig

        if self._started is None:
            self._started = asyncio.ensure_future(self._start())
        await asyncio.shield(self._started)
        variable = f"TREADLE_API_KEY_{asked['id']}"
        os.environ[variable] = asked["api_key"]
        client = EvalClientConfig(base_url=asked["base_url"], api_key_var=variable)
        try:
            context = ModelContext(model=asked["model"], client=client, sampling=SamplingConfig())
            episode = await self._inner.run_episode(self._task(int(asked["task"])), context)
        finally:
            del os.environ[variable]
        return describe(episode)

    async def close(self) -> None:
        await self._stack.aclose()


def find_roles(kind: Any) -> Told:
    """Return the agents of an environment's configuration by name, with what their author wants of them."""
    from verifiers.v1.configs.agent import AgentConfig

    found = {name: field.default for name, field in kind.model_fields.items()}
    return {name: default for name, default in found.items() if isinstance(default, AgentConfig)}


def describe(episode: Any) -> Told:
    """Return the outcome of an episode. The reward is the mean of those of the agents that are trained."""
    traces = [trace for trace in episode.traces if trace.agent.trainable] or list(episode.traces)
    errors = [*episode.errors, *[error for trace in episode.traces for error in trace.errors]]
    if not episode.ok:
        told = [f"{error.type}: {error.message}" for error in errors] or ["the episode failed"]
        return {"error": " ".join(dict.fromkeys(told))}
    numbers, told = {}, []
    for number, trace in enumerate(traces, 1):
        mark = f"{trace.agent.name}-{number}." if len(traces) > 1 else ""
        for name, reward in trace.rewards.items():
            if reward is not None:
                numbers[mark + name] = float(reward.score)
                told.append(f"{mark}{name} {reward.score:g}")
        numbers |= {mark + name: float(value) for name, value in trace.metrics.items() if value is not None}
        told.append(f"{mark}ended with {trace.stop_condition}")
    if not any(trace.rewards for trace in traces):
        told.append("no reward")
    return {
        "reward": sum([float(trace.reward) for trace in traces]) / len(traces),
        "detail": ", ".join(told),
        "metrics": numbers,
        "output": traces[-1].last_reply or "",
    }
