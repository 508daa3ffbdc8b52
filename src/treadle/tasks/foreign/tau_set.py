"""The task sets `tau:DOMAIN@MODEL`: the domains of tau2-bench, with its tools, policy, users and evaluators.

The agent works on the domain's own environment, a second model plays the user by tau2's guidelines, and the reward
is the product of tau2's evaluators that the task counts. The environment is made from the task and the calls so
far, which are in the run's state, so that another process can go on. The conversation begins with a greeting of the
user, where tau2 begins with one of the agent. Tasks are left out if their users have tools, or if a model judges
them.

Source: tau2-bench 1.0.1, `registry.py`, `environment/`, `evaluator/`, `user/user_simulator.py`.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, cached_property
from importlib import import_module
from typing import Any

import msgspec

from treadle.core.errors import ConfigError, ToolError
from treadle.core.log import Log
from treadle.core.registry import name_known
from treadle.core.types import Effect, Json, Message, Request, Role, ToolCall, ToolSpec
from treadle.models.config.recipe import make_model
from treadle.models.protocol import Model, Watch
from treadle.runs.task import Grade, Task, TaskSet, get_task
from treadle.sandbox.protocol import Sandbox
from treadle.tasks.foreign.left_out import warn_left_out
from treadle.tasks.solver import Solver, Step, WantedCall
from treadle.tools.context import ToolContext
from treadle.tools.schema.validation import ArgumentChecker

GREETING = "Hello."
"""The first message of the user, to which the agent answers with a greeting."""
_STATE = "tau"
"""The name under which a run keeps the calls so far."""
_ENDS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
_HELP = (
    "install it from github.com/sierra-research/tau2-bench (the package tau2 on PyPI is another one), and set "
    "TAU2_DATA_DIR to the folder `data` of the repository"
)


def _load(name: str) -> Any:
    try:
        import_module("loguru").logger.disable("tau2")
        return import_module(f"tau2.{name}")
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"tau:DOMAIN needs tau2-bench, which cannot be imported: {error}; {_HELP}"
        ) from error


@cache
def open_tau(text: str) -> TaskSet:
    """Return the tasks of a domain, written as `DOMAIN`, or as `DOMAIN@MODEL` with the model of the user.

    A colon in the model's name is written as a slash: `retail@openai/gpt-5-mini`. Raises: `ConfigError`.
    """
    domain, _, user = text.partition("@")
    registry = _load("registry").registry
    known = registry.get_domains()
    if domain not in known:
        raise ConfigError(f"tau2 has no domain {domain!r}{name_known(domain, known, 'it has')}")
    try:
        make = registry.get_env_constructor(domain)
        first = make()
        tasks = registry.get_tasks_loader(domain)(None)
    except Exception as error:
        raise ConfigError(f"the domain tau:{domain} cannot be used here: {error}; {_HELP}") from error
    return TauSet(f"tau:{text}", make, first, tasks, user)


class TauSet:
    """The tasks of a domain."""

    def __init__(self, name: str, make: Any, first: Any, tasks: Sequence[Any], user: str) -> None:
        """Make a set. `make` returns a new environment; `first` is one whose state is never changed."""
        self.name = name
        self.make = make
        self.first = first
        self.user = user
        self._tasks = {str(task.id): task for task in tasks}

    @cached_property
    def model(self) -> Model:
        """The model that plays the user. Raises: `ConfigError`."""
        if not self.user:
            name = self.name.removesuffix("@")
            raise ConfigError(f"{name} needs a model that plays the user; write {name}@MODEL")
        return make_model(self.user.replace("/", ":", 1))

    def __len__(self) -> int:
        return len(self._tasks) - len(self._left_out)

    def __iter__(self) -> Iterator[Task]:
        warn_left_out(self.name, len(self._tasks), self._left_out)
        return map(self.get, [task_id for task_id in self._tasks if task_id not in self._left_out])

    @cached_property
    def _left_out(self) -> dict[str, str]:
        found = {task_id: find_obstacle(task) for task_id, task in self._tasks.items()}
        return {task_id: obstacle for task_id, obstacle in found.items() if obstacle is not None}

    def get(self, task_id: str) -> "TauTask":
        found = get_task(self.name, self._tasks, task_id)
        if (obstacle := self._left_out.get(task_id)) is not None:
            raise ConfigError(f"the task {self.name}:{task_id} cannot be run here: {obstacle}")
        return TauTask(self, found)


def find_obstacle(task: Any) -> str | None:
    """Return why a task of tau2 cannot be run here; `None` if it can."""
    criteria, begin = task.evaluation_criteria, task.initial_state
    if criteria is None:
        return "it has no criteria"
    kinds = {str(kind.value) for kind in criteria.reward_basis}
    if "NL_ASSERTION" in kinds and criteria.nl_assertions:
        return "a model judges whether what it asserts in words is true"
    asserted = any(found.env_type == "user" for found in criteria.env_assertions or ())
    if asserted or any(action.requestor == "user" for action in criteria.actions or ()):
        return "its user has tools"
    if begin is not None and begin.message_history:
        return "it begins in the middle of a conversation"
    return None


class TauTask:
    """A task of tau2."""

    seed: int | None = None
    input = GREETING

    def __init__(self, owner: TauSet, inner: Any) -> None:
        self.task_set = owner.name
        self.task_id = str(inner.id)
        self.files: Mapping[str, bytes] = {}
        domain = owner.name.removeprefix("tau:").partition("@")[0]
        self.tools: Sequence[str] = (f"tau-tools:{domain}:{self.task_id}",)
        self._owner = owner
        self._inner = inner

    @cached_property
    def instructions(self) -> str | None:
        """The system message that tau2 gives its agents."""
        agent = _load("agent.llm_agent")
        found: str = agent.SYSTEM_PROMPT.format(
            agent_instruction=agent.AGENT_INSTRUCTION, domain_policy=self._owner.first.get_policy()
        )
        return found

    async def reply(self, messages: Sequence[Message]) -> str | None:
        """Return what the user says, which the second model writes; `None` if the user ends the conversation."""
        simulator = _load("user.user_simulator").UserSimulator(
            llm="none", instructions=str(self._inner.user_scenario)
        )
        said = [Message(Role.SYSTEM, simulator.system_prompt)]
        spoken = [item for item in messages if item.content and not item.tool_calls]
        heard = [item for item in spoken if item.role in (Role.USER, Role.ASSISTANT)]
        for message in heard[1:]:  # the first one is the greeting
            other = Role.USER if message.role is Role.ASSISTANT else Role.ASSISTANT
            said.append(Message(other, message.content))
        completion = await self._owner.model.infer(Request(Log(said)), Watch())
        text = completion.message.content
        return None if any(mark in text for mark in _ENDS) else text

    def find_solver(self, prompt: str) -> Solver | None:
        """Return a solver that makes the calls of the reference and tells what the user must hear."""
        return _solve(self._inner.evaluation_criteria) if prompt.strip() == GREETING else None

    def check(self, output: str, files: Mapping[str, bytes]) -> Grade:
        """Refuse: `check_transcript` grades the conversation. Raises: `ConfigError`."""
        raise ConfigError("a task of tau2 is graded by its conversation, which is the transcript of a run")

    def check_transcript(self, messages: Sequence[Message]) -> Grade:
        """Grade a conversation with tau2's evaluators. One that was cut off has the reward 0."""
        if not messages or messages[-1].role is not Role.ASSISTANT or messages[-1].tool_calls:
            return Grade(0.0, "the conversation was cut off")
        written, criteria = write_messages(messages), self._inner.evaluation_criteria
        parts: dict[str, float] = {}
        for room, name in (("env", "Environment"), ("action", "Action"), ("communicate", "Communicate")):
            evaluator = getattr(_load(f"evaluator.evaluator_{room}"), f"{name}Evaluator")
            given: dict[str, Any] = {"task": self._inner, "full_trajectory": written}
            if room == "env":
                given |= {"environment_constructor": self._owner.make, "strict_replay": False}
            try:
                found = evaluator.calculate_reward(**given)
            except ValueError as error:  # an assertion about something that the agent should have made
                return Grade(0.0, f"{name.lower()}: {error}")
            parts |= {kind.value: reward for kind, reward in (found.reward_breakdown or {}).items()}
        counted = {kind.value: parts.get(kind.value, 1.0) for kind in criteria.reward_basis}
        reward = 1.0
        for value in counted.values():
            reward *= value
        return Grade(reward, ", ".join(f"{kind} {value:g}" for kind, value in sorted(counted.items())))


def _solve(criteria: Any) -> Solver:
    for action in criteria.actions or ():
        yield Step([WantedCall(action.name, dict(action.arguments))], may_fail=True)
    return " ".join(["Done.", *map(str, criteria.communicate_info or ())])


def write_messages(messages: Sequence[Message]) -> list[Any]:
    """Return a transcript in tau2's messages, without the system message."""
    types = _load("data_model.message")
    written = []
    for message in messages:
        if message.role is Role.USER:
            written.append(types.UserMessage(role="user", content=message.content))
        elif message.role is Role.ASSISTANT:
            calls = [
                types.ToolCall(id=call.call_id, name=call.name, arguments=_arguments(call))
                for call in message.tool_calls
            ]
            written.append(
                types.AssistantMessage(
                    role="assistant", content=message.content or None, tool_calls=calls or None
                )
            )
        elif message.role is Role.TOOL:
            written.append(
                types.ToolMessage(
                    id=message.call_id or "", role="tool", content=message.content, error=message.is_error
                )
            )
    return written


def _arguments(call: ToolCall) -> dict[str, Json]:
    found = call.parsed_or({})
    return found if isinstance(found, dict) else {}


class _Call(msgspec.Struct):
    name: str
    arguments: dict[str, Any]


class TauWorld:
    """The environment of one run."""

    def __init__(self, make: Any, task: Any, sandbox: Sandbox | None) -> None:
        self._sandbox = sandbox
        self._environment = make()
        begin = task.initial_state
        self._environment.set_state(
            getattr(begin, "initialization_data", None), getattr(begin, "initialization_actions", None), []
        )
        kept = None if sandbox is None else sandbox.read_state(_STATE)
        self._calls = [] if kept is None else msgspec.json.decode(kept, type=list[_Call])
        for call in self._calls:
            self._make(call)

    def _make(self, call: _Call) -> Any:
        types = _load("data_model.message")
        return self._environment.get_response(
            types.ToolCall(id="", name=call.name, arguments=call.arguments, requestor="assistant")
        )

    def call(self, name: str, arguments: dict[str, Json]) -> str:
        """Return the result of a call. Raises: `ToolError` if it failed."""
        call = _Call(name, arguments)
        found = self._make(call)
        self._calls.append(call)
        if self._sandbox is not None:
            self._sandbox.write_state(_STATE, msgspec.json.encode(self._calls))
        if found.error:
            raise ToolError(found.content)
        return str(found.content)

    @classmethod
    @asynccontextmanager
    async def open(cls, make: Any, task: Any, sandbox: Sandbox | None) -> AsyncIterator["TauWorld"]:
        """Make the environment of a run, as it was after its calls so far."""
        yield cls(make, task, sandbox)


class TauTool:
    """A tool of a domain."""

    def __init__(self, owner: "TauTools", given: Mapping[str, Any]) -> None:
        self._owner = owner
        self.spec = ToolSpec(
            given["name"],
            given["description"],
            given["parameters"],
            effect=Effect.IDEMPOTENT,
            is_concurrent=False,
        )
        self.find_fault = ArgumentChecker(dict(given["parameters"])).find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext[Any]) -> str:
        owner = self._owner
        world = await context.scope.get(
            _STATE, lambda: TauWorld.open(owner.make, owner.task, context.sandbox)
        )
        return world.call(self.spec.name, arguments)


class TauTools:
    """The tools of a domain for one task, the toolset `tau-tools:DOMAIN:ID`. See `Toolset`."""

    def __init__(self, text: str) -> None:
        """Make the tools. Raises: `ConfigError`."""
        domain, _, task_id = text.partition(":")
        found = open_tau(domain)
        assert isinstance(found, TauSet)
        self.make = found.make
        self.task = found.get(task_id)._inner
        self._tools = [TauTool(self, tool.openai_schema["function"]) for tool in found.first.get_tools()]

    def tools(self) -> Sequence[TauTool]:
        return self._tools
