"""The parts of an agent that its runs use, as an agent spec and back, and the toolboxes of the runs.

A run that comes from elsewhere names such parts: what using it would do here, and whether the user allows it.
"""

import asyncio
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import msgspec

from treadle.core.errors import ConfigError, TransportError, UntrustedError
from treadle.core.policy import Policy
from treadle.core.registry import name_known
from treadle.core.spec import AgentSpec, PartSpec
from treadle.core.state import State
from treadle.core.types import Json, OutputMode, OutputSpec, Window
from treadle.journal.protocol import Clock, Journal
from treadle.loop.listener import Hooks
from treadle.models.protocol import Model, can_call_tools, check_vocabulary, innermost, output_mode_of
from treadle.runs.options import Files, Instructions
from treadle.runs.run import TEXT, AnswerType, Run
from treadle.runs.task import Task
from treadle.tools.protocol import Approver, Asker, Tool, ToolLike
from treadle.tools.read_again import ReadMessage, ReadResult
from treadle.tools.toolbox import Toolbox
from treadle.tools.user_code import FirstFailures

if TYPE_CHECKING:
    from treadle.knowledge.surroundings import Surroundings
    from treadle.routing.judging import MessageJudge


class AgentParts(Protocol):
    """The attributes of an agent that its runs use."""

    model: Model
    instructions: Instructions | None
    policy: Policy
    has_policy: bool
    kit: "Toolboxes"
    files: Files | None
    approver: Approver | None
    asker: Asker | None
    deps: object
    answer: AnswerType[Any]
    clock: Clock
    known: "Surroundings | None"
    judge: "MessageJudge | None"
    hooks: Hooks
    failures: FirstFailures | None

    @property
    def spec(self) -> AgentSpec:
        """The agent as a value."""

    @property
    def journal(self) -> Journal:
        """The journal that the runs are kept in."""


AGENT = "agent:"
"""The beginning of the names of the parts that describe agents as tools."""
_CHECK_SECONDS = 3.0
_MAX_BOXES = 64
"""How many toolboxes an agent keeps besides its own. The oldest is dropped, and made again if it is needed."""


def path_of(files: Files | None) -> str | None:
    """Return the path on disk of initial files; `None` if they are not from the disk."""
    place = getattr(files, "path", files)  # the path of a `Mount`
    return str(place) if isinstance(place, str | Path) else None


def read_mount(path: str | Path) -> Mapping[str, bytes]:
    """Return the files at `path` for a sandbox, and log what is left out. Raises: `ConfigError`."""
    from treadle.sandbox.mount import Mount

    mount = Mount(path)
    if mount.left_out or mount.refused:
        names = ", ".join([*mount.left_out, *mount.refused])
        logging.getLogger("treadle").info("left out of the files of %r: %s", str(path), names)
    return mount


def is_agent(item: object) -> TypeGuard[PartSpec]:
    """Return whether `item` describes an agent that is a tool."""
    return isinstance(item, PartSpec) and item.name.startswith(AGENT)


def read_agent(part: PartSpec) -> AgentSpec:
    """Return the spec of the agent that `part` describes. Raises: `ConfigError` if `part` has no spec."""
    try:
        return msgspec.convert((part.settings or {}).get("spec"), AgentSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the part {part.name!r} does not describe an agent: {error}") from error


def refuse_missing(spec: AgentSpec, *, has_model: bool, has_tools: bool) -> None:
    """Check that every part of a spec that the caller does not give can be built from its name.

    Raises: `ConfigError` that names each part which cannot, and why.
    """
    missing = []
    if not has_model and spec.model.missing is not None:
        missing.append(f"the model {spec.model.name!r} ({spec.model.missing})")
    if not has_tools:
        missing += [
            f"the tool {part.name!r} ({part.missing})" for part in spec.tools if part.missing is not None
        ]
    if missing:
        raise ConfigError(
            f"the agent of this run cannot be built from its journal alone: give {', '.join(missing)}"
        )


class Toolboxes:
    """The toolboxes for the runs of one agent, each made once and kept."""

    def __init__(self, tools: Iterable[ToolLike], model: Model, extra: Iterable[Tool] = ()) -> None:
        """Make the toolbox of `tools`. `extra` are tools that the agent has in any case, such as `use_skill`.

        Raises: `ConfigError` if one cannot be loaded, or two have the same name.
        """
        self.given = tuple(tools)
        self._model = model
        self._can_call_tools = can_call_tools(model)
        self.has_tiers = getattr(model, "tiers", None) is not None
        """True if a router chooses one of several models."""
        self._extra = tuple(extra)
        self.own = make_toolbox((*self.given, *self._extra))
        found = dict.fromkeys(tool.toolset for tool in self.own.tools.values() if hasattr(tool, "toolset"))
        self._changing: list[Any] = [
            item for item in found if {tool.spec.name for tool in item.tools()} <= self.own.tools.keys()
        ]
        """The toolsets whose tools may change, and of which the agent has all tools."""
        given = [id(part) for item in self.given for part in (item, getattr(item, "toolset", None))]
        for toolset in found:
            if id(toolset) not in given:  # it was given by name, so that nothing else can close it
                self.own_toolset(toolset)
        self._has_given = len(self.own.tools) > len(self._extra)
        self._boxes: dict[tuple[object, ...], Toolbox] = {}
        self._known_window: tuple[int, str] | None = None
        self._has_looked = False
        """True if the model's window was looked up."""
        self.has_checked_ids = not hasattr(innermost(model), "check_vocabulary")
        """False as long as the model's server may read token ids in another way than its renderer means them."""
        self._newest_window: tuple[Policy, Window | None] | None = None
        """The newest policy of a run, and the window of its context."""

    def own_toolset(self, toolset: Any) -> None:
        """End the connections of a toolset once neither the agent nor a run of it uses them."""
        if callable(leave := getattr(toolset, "leave", None)):
            weakref.finalize(self, leave).atexit = False

    async def renew(self) -> None:
        """Take over the tools of toolsets that have changed. If they cannot be used beside the other tools, the old
        ones stay."""
        changed = [toolset for toolset in self._changing if toolset.is_outdated]
        if not changed:
            return
        for toolset in changed:
            await toolset.renew()
        items: dict[int, Any] = {}
        for tool in self.own.tools.values():
            toolset = getattr(tool, "toolset", None)
            item = toolset if toolset in self._changing else tool
            items[id(item)] = item
        items |= {id(item): item for item in self._changing}
        try:
            self.own = make_toolbox(items.values())
        except ConfigError as error:
            logging.getLogger("treadle").warning("the changed tools of a server are not used: %s", error)
        self._boxes.clear()

    def check_policy(self, policy: Policy, task: Task | None = None) -> None:
        """Check that each rule of a policy fits a tool. Raises: `ConfigError` with the nearest name.

        An agent without tools uses those of its `task`; `None` means that they are not known yet. A pattern may
        also be meant for the tools that such a task or a server adds later.
        """
        tools = self.toolbox(task).tools if policy.approve or policy.tool_limits else {}
        can_grow = (task is None and not self._has_given) or any(
            [getattr(toolset, "can_change", True) for toolset in self._changing]
        )
        for name in policy.find_unused(tools) if tools else ():
            hint = name_known(name.strip("*?"), tools, "its tools are")
            if not set("*?[") & set(name):
                raise ConfigError(f"the policy names the tool {name!r}, which the agent does not have{hint}")
            text = f"the policy has a rule for {name!r}, which fits no tool of the agent{hint}"
            if not can_grow:
                raise ConfigError(text)
            logging.getLogger("treadle").warning("%s", text)

    async def window(self, policy: Policy) -> Window | None:
        """Return the context window of the agent's model; `None` if it is not known. It is looked up once."""
        newest = self._newest_window
        if newest is not None and newest[0] is policy:
            return newest[1]
        from treadle.context.compaction_size import look_up_window, make_window

        if policy.context_tokens is None and not self._has_looked:
            self._known_window = await look_up_window(self._model)
            self._has_looked = True
        window = make_window(self._known_window, self._model, policy)
        self._newest_window = policy, window
        return window

    async def check_ids(self) -> None:
        """Check that the model's server reads token ids as its renderer means them. The next run asks again if the
        server does not answer. Raises: `ConfigError` for the renderer of another model."""
        with suppress(TransportError, TimeoutError):
            async with asyncio.timeout(_CHECK_SECONDS):
                await check_vocabulary(self._model)
            self.has_checked_ids = True

    def names_for(self, task: Task | None) -> tuple[str, ...]:
        """Return the names of the toolsets that a task adds: none if the agent has tools of its own."""
        return () if task is None or self._has_given else tuple(task.tools)

    def toolbox(
        self,
        task: Task | None,
        output: OutputSpec | None = None,
        answer: AnswerType[Any] = TEXT,
    ) -> Toolbox:
        """Return the tools for a run of `task`, with the answer tool if `output` uses one."""
        names = self.names_for(task)
        if output is None or output.tool is None:
            return self._keep(names, lambda: make_toolbox((*names, *self._extra))) if names else self.own
        key = (*names, msgspec.json.encode(output, order="sorted"), answer)
        return self._keep(key, lambda: self._with_answer(task, output, answer))

    def reading(self, inner: Toolbox, output: OutputSpec | None) -> Toolbox | None:
        """Return `inner`, the toolbox of a run without a task, with the tools that read results and messages again;
        `None` if the model cannot be given them.

        An agent without tools has no results to read, and its model may be one that cannot call tools.
        """
        if self.own.tools:
            return self._keep((inner,), lambda: _with_readers(inner, ReadResult(), ReadMessage()))
        if output is not None or not self._can_call_tools:
            return None
        return self._keep((inner,), lambda: _with_readers(inner, ReadMessage()))

    def output(self, schema: dict[str, Json] | None, task: Task | None) -> OutputSpec | None:
        """Return how the agent's model is made to give answers that fit `schema`; `None` if there is no schema."""
        if schema is None:
            return None
        from treadle.tools.schema.answer_schema import choose_output

        tools = self.toolbox(task).tools
        mode: OutputMode = output_mode_of(self._model, schema, has_tools=bool(tools))
        return choose_output(schema, mode, tools)

    def _with_answer(self, task: Task | None, output: OutputSpec, answer: AnswerType[Any]) -> Toolbox:
        from treadle.tools.schema.answer_schema import AnswerTool

        assert output.tool is not None
        tool = AnswerTool(output, answer.find_checked(output.schema), answer.find_type_fault)
        return Toolbox({**self.toolbox(task).tools, output.tool: tool})

    def _keep(self, key: tuple[object, ...], make: Callable[[], Toolbox]) -> Toolbox:
        found = self._boxes.get(key)
        if found is None:
            if len(self._boxes) >= _MAX_BOXES:
                del self._boxes[next(iter(self._boxes))]
            found = self._boxes[key] = make()
        return found


def make_toolbox(tools: Iterable[ToolLike]) -> Toolbox:
    """Return a toolbox of `tools`. Raises: `ConfigError` if one cannot be loaded, or two have the same name."""
    items = list(tools)
    if not items:
        return Toolbox({})
    from treadle.tools.resolve import resolve_tools

    return Toolbox({tool.spec.name: tool for tool in resolve_tools(items)})


def _with_readers(toolbox: Toolbox, *readers: Tool) -> Toolbox:
    return Toolbox({tool.spec.name: tool for tool in readers} | dict(toolbox.tools))


_MAX_CHARS = 200
"""How many characters of a recorded call's arguments are quoted."""


def demands_of(spec: AgentSpec, state: State | None = None) -> tuple[str, ...]:
    """Return what happens here if the agent of `spec` is built and continues its run in `state`.

    Each item is a phrase such as "start the program 'npx some-server'". Finding it out starts and sends nothing.
    """
    from treadle.models.config.known_models import demands_of_model
    from treadle.tools.resolve import demands_of_tools

    try:
        found = demands_of_model(spec.model)
    except ConfigError as error:
        found = [f"ask the model {spec.model.name!r} ({error})"]
    for part in spec.tools:
        found += (
            demands_of(read_agent(part)) if is_agent(part) and not part.missing else demands_of_tools(part)
        )
    if spec.context is not None:
        from treadle.knowledge.surroundings import demands_of_context

        found += demands_of_context(spec.context)
    if spec.files is not None:
        found.append(f"open the folder {spec.files!r} for new runs")
    if state is None:
        return tuple(found)
    if state.started is not None and state.started.task is not None:
        found.append(f"load the task set {state.started.task.task_set!r} and use its check")
    for item in state.turn.calls.values():
        if item.result is None:
            call = f"{item.call.name}({item.call.arguments[:_MAX_CHARS]})"
            found.append(f"make the recorded call {call!r}")
    return tuple(found)


def settle_trust(journal: Journal, run_id: str, *, trust: bool) -> bool:
    """Return whether the user trusts a run. If `trust` is true, record that first. Blocks.

    Raises: `RunNotFoundError`.
    """
    if trust and not journal.is_trusted(run_id):
        journal.trust(run_id)
    return trust or journal.is_trusted(run_id)


def require_trust(journal: Journal, run_id: str, spec: AgentSpec, *, trust: bool) -> None:
    """Check that the user trusts a run before the agent of `spec` continues it. If `trust` is true, record it.

    Blocks. Raises: `UntrustedError`, `RunNotFoundError`.
    """
    if not settle_trust(journal, run_id, trust=trust):
        raise UntrustedError(f"run {run_id!r}", demands_of(spec, Run.load(run_id, journal).state))
