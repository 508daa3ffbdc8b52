"""The task sets `verifiers:NAME`: tasksets of the package verifiers (v1), with their own rewards.

Tasks whose model answers once, without tools and without a machine of their own, run unchanged. Others are refused.
Source: verifiers 0.4.0, `v1/taskset.py`, `v1/task.py` and `v1/trace.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import islice
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.runs.task import Grade, TaskSet

MAX_TASKS = 10_000
"""How many tasks of a taskset are read. A taskset may be infinite."""


@cache
def open_verifiers(name: str) -> TaskSet:
    """Return the taskset `name` of verifiers. Raises: `ConfigError` if it cannot be loaded, or not be run here."""
    if not name:
        raise ConfigError("give the name of a taskset, as in verifiers:gsm8k")
    try:
        loaders = import_module("verifiers.v1.utils.loaders")
    except ImportError as error:
        raise ConfigError(
            f"verifiers:{name} needs the package verifiers, version 0.4 or later ({error}); pip install verifiers"
        ) from error
    try:
        config = loaders.taskset_config_type(name)(id=name)
        found = loaders.load_taskset(config)
        env = loaders.environment_class(name)
    except Exception as error:
        raise ConfigError(f"the taskset verifiers:{name} cannot be loaded: {error}") from error
    if (obstacle := _find_obstacle(found, config, env)) is not None:
        raise ConfigError(f"the taskset verifiers:{name} cannot be run here: {obstacle}")
    return VerifiersSet(f"verifiers:{name}", found)


def _find_obstacle(found: Any, config: Any, env: Any) -> str | None:
    """Return why a taskset needs more than a model that answers; `None` if it does not."""
    base, single = import_module("verifiers.v1").Task, import_module("verifiers.v1.envs.single_agent")
    kind = found.task_type()
    if env.run is not single.SingleAgentEnv.run:
        return f"its environment {env.__name__} holds the conversation itself"
    if found.toolsets(config) or kind.toolsets(getattr(config, "task", None) or kind.config_type()()):
        return "it has tool servers of its own"
    if kind.NEEDS_CONTAINER:
        return "its tasks need a container"
    changed = [name for name in ("setup", "finalize") if getattr(kind, name) is not getattr(base, name)]
    if changed:
        return f"its tasks prepare a machine of their own ({', '.join(changed)})"
    return None


class VerifiersTask:
    """A task of verifiers."""

    seed: int | None = None
    tools: Sequence[str] = ()

    def __init__(self, task_set: str, task_id: str, inner: Any) -> None:
        self.task_set = task_set
        self.task_id = task_id
        self.files: Mapping[str, bytes] = {}
        self._inner = inner
        data = inner.data
        if data.image:
            raise ConfigError(
                f"the task {task_set}:{task_id} cannot be run here: it needs the image {data.image!r}"
            )
        self.input: str = data.prompt_text
        self.instructions: str | None = data.system_prompt

    async def check(self, output: str, files: Mapping[str, bytes]) -> Grade:
        """See `Task.check`. The reward is the weighted sum of the task's own rewards, kept between 0 and 1.

        Raises: what the rewards raise; `ConfigError` if a reward needs the machine of a task.
        """
        vf = import_module("verifiers.v1")
        types, traces = import_module("verifiers.v1.types"), import_module("verifiers.v1.trace")
        graph, agents = import_module("verifiers.v1.graph"), import_module("verifiers.v1.configs.agent")
        data = self._inner.data
        kind = traces.TraceTask(type=type(self._inner).__name__, data=data, key=self._inner.key)
        trace = vf.Trace(task=kind, agent=traces.AgentInfo(config=agents.AgentConfig.model_construct()))
        said = [] if data.system_prompt is None else [types.SystemMessage(content=data.system_prompt)]
        said.append(types.UserMessage(content=self.input))
        for index, message in enumerate([*said, types.AssistantMessage(content=output)]):
            parent = index - 1 if index else None
            node = graph.MessageNode(parent=parent, message=message, sampled=index == len(said))
            trace.nodes.append(node)
        trace.is_completed = trace.ok = True
        await self._inner.score(trace)
        values = {name: reward for name, reward in trace.rewards.items() if reward is not None}
        if not values:
            raise ConfigError(
                f"the rewards of the task {self.task_set}:{self.task_id} need the machine of the task, which it "
                "does not have here"
            )
        told = ", ".join([f"{name} {reward.score:g}" for name, reward in values.items()])
        return Grade(min(1.0, max(0.0, float(trace.reward))), told)


class VerifiersSet:
    """A taskset of verifiers. The id of a task is its position."""

    def __init__(self, name: str, inner: Any) -> None:
        self.name = name
        self._inner = inner
        self._tasks: list[VerifiersTask] | None = None

    def _read(self) -> list[VerifiersTask]:
        if self._tasks is None:
            try:
                tasks = list(islice(self._inner, MAX_TASKS))
            except Exception as error:
                raise ConfigError(f"the tasks of {self.name} cannot be loaded: {error}") from error
            self._tasks = [VerifiersTask(self.name, str(index), task) for index, task in enumerate(tasks)]
        return self._tasks

    def __len__(self) -> int:
        return len(self._read())

    def __iter__(self) -> Iterator[VerifiersTask]:
        return iter(self._read())

    def get(self, task_id: str) -> VerifiersTask:
        """See `TaskSet.get`."""
        tasks = self._read()
        if task_id.isascii() and task_id.isdecimal() and int(task_id) < len(tasks):
            return tasks[int(task_id)]
        hint = did_you_mean(task_id, [str(index) for index in range(min(len(tasks), 100))])
        raise ConfigError(f"{self.name} has no task {task_id!r}{hint}; ids are 0 to {len(tasks) - 1}")
