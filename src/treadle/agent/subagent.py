"""Agents as tools: a call is a run of its own, in the journal of the run that makes the call.

The id of the run follows from the run and the call that made it. A call that is repeated after a crash therefore
continues the run or, if it is over, takes its outcome: nothing is paid or done twice.
"""

import asyncio
from collections.abc import Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from treadle.core.asking import Answer, Answerable, Question, open_questions
from treadle.core.errors import ConfigError, NoResultError, NotAskedError, ToolError
from treadle.core.events import Event, ToolStarted
from treadle.core.events.narrowing import Item
from treadle.core.limits import Allowance
from treadle.core.lineage import Caller, Child
from treadle.core.policy import Policy
from treadle.core.spec import PartSpec
from treadle.core.state import Status
from treadle.core.texts.hiding import hide_servers
from treadle.core.texts.json_text import decode_json
from treadle.core.types import Fault, Json, Option, StopReason
from treadle.journal.protocol import Journal
from treadle.loop.driver import Driver
from treadle.runs.agent_parts import AGENT, read_agent
from treadle.runs.begin import Beginning, begin
from treadle.runs.drive import drive
from treadle.runs.ensure import IfExists, ensure_begun, waits_for_user
from treadle.runs.options import Given, ResumeOptions
from treadle.runs.recording import child_run_id
from treadle.runs.resume import resume_run
from treadle.runs.run import Run
from treadle.runs.statuses import read_started
from treadle.tools.context import ToolContext
from treadle.tools.function.decorator import check_tool_name
from treadle.tools.protocol import Decision, ToolOutput
from treadle.tools.schema.validation import ArgumentChecker, check_spec, own_spec

if TYPE_CHECKING:
    from treadle.agent.agent import Agent

MAX_DEPTH = 3
_IF_EXISTS = IfExists(is_likely=True, accepts_waiting=True, needs_trust=False, continued_faults=())
"""A call that is repeated after a crash takes the outcome of its run, an error included."""
_SHOWN_CHARS = 300
"""How many characters of an agent's instructions its default description shows."""


class AgentTool:
    """A tool that gives a task to an agent and returns its answer. `Agent.as_tool` makes one."""

    drives_runs = True

    def __init__(
        self,
        agent: "Agent[Any]",
        name: str,
        description: str | None = None,
        *,
        shares_files: bool = False,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        """See `Agent.as_tool`."""
        check_tool_name(name, "an agent")
        if isinstance(max_depth, bool) or not isinstance(max_depth, int) or max_depth < 1:
            raise ConfigError(f"max_depth is {max_depth!r}; give a number of at least 1")
        self._agent = agent
        self._given_description = description
        self._shares_files = shares_files
        self._max_depth = max_depth
        self._is_described = False
        """True while `part` is read, which an agent that has itself as a tool reads again."""
        self.spec = replace(
            own_spec("agent"),
            name=name,
            description=description or _describe(agent),
            # Calls that change the same files must not overwrite each other's work.
            is_concurrent=not shares_files,
            output_schema=agent.answer.schema,
        )
        check_spec(self.spec, "an agent")
        self.find_fault = ArgumentChecker(self.spec.parameters).find_fault

    @property
    def part(self) -> PartSpec:
        """The name and settings from which `build_agent_tool` makes the tool again."""
        name = f"{AGENT}{self.spec.name}"
        if self._is_described:
            return PartSpec(name=name, missing="it is a tool of the agent that it calls")
        self._is_described = True
        try:
            agent, spec = self._agent, self._agent.spec
        finally:
            self._is_described = False
        parts = (spec.model, *spec.tools)
        missing = [
            f"its part {part.name!r} cannot be built: {part.missing}" for part in parts if part.missing
        ]
        if agent.instructions is not None and spec.instructions is None:
            missing.append("its instructions come from a function")
        if agent.files is not None and spec.files is None:
            missing.append("its files were given by the program")
        settings: dict[str, Json] = {
            "spec": msgspec.to_builtins(spec),
            "description": self._given_description,
            "shares_files": self._shares_files,
            "max_depth": self._max_depth,
        }
        return PartSpec(name=name, settings=settings, missing="; ".join(missing) or None)

    async def aclose(self) -> None:
        """Close the agent's toolsets."""
        await self._agent.close()

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> ToolOutput:
        """Run the task, or continue the run that an earlier attempt at this call began. See `Tool.call`."""
        journal = context.journal
        if journal is None:
            raise ToolError(f"{self.spec.name!r} is an agent, which only a run can call")
        run_id = child_run_id(context.run_id, context.call_id)
        driven: list[Driver] = []
        given = Given(
            self._agent.answer,
            context.deps_or(self._agent.deps),
            _report(context) if context.is_heard else None,
            on_driver=driven.append,
        )
        try:
            agent = self._copy_agent(context, journal)

            async def begin() -> Run[Any]:
                return await self._begin(run_id, str(arguments["task"]), given, context, journal)

            run = await ensure_begun(agent, run_id, begin, given, _IF_EXISTS)
            while waits_for_user(run):
                run = await self._resume(run, given, context, journal)
            context.note_child(Child(run_id, run.usage, run.cost_usd))
        except asyncio.CancelledError:
            if driven:
                state = driven[-1].state
                context.note_child(Child(run_id, state.usage, state.cost_usd))
            raise
        if self._shares_files:
            await asyncio.to_thread(_write_back, run, context)
        return self._to_output(run)

    async def _resume(self, run: Run[Any], given: Given, context: ToolContext, journal: Journal) -> Run[Any]:
        """Put what a run waits for to the user of the calling run, and drive the run with the answers. If the user
        does not answer now, the calling run waits too, and this call is made again later."""
        answers: dict[str, Answerable] = {}
        for body in open_questions(run.state):
            question = Question(f"{self.spec.name}: {body.text}", body.options, body.allows_text, body.schema)
            answers[body.question_id] = await _ask(context, question)
        approvals: dict[str, Decision | bool] = {}
        for call_id, call in run.approvals.items():
            text = f"{self.spec.name} wants to call {call.name}({call.arguments}). May it?"
            said = await _ask(context, Question(text, (Option("yes"), Option("no"))))
            reason = "nobody has decided" if said.is_declined else said.text if said.text != "no" else None
            approvals[call_id] = said.text == "yes" or Decision(False, reason)
        options: ResumeOptions = {"answers": answers, "approvals": approvals}
        return await resume_run(self._copy_agent(context, journal), run.run_id, given, options)

    async def _begin(
        self, run_id: str, task: str, given: Given, context: ToolContext, journal: Journal
    ) -> Run[Any]:
        depth = await asyncio.to_thread(count_callers, journal, context.run_id)
        if depth >= self._max_depth:
            raise ToolError(
                f"agents are nested {depth} deep already, which is the limit of {self.spec.name!r}; do the task "
                "without it"
            )
        files = self._agent.files
        if self._shares_files and (sandbox := context.sandbox) is not None:
            files = {path: sandbox.read(path) for path in sandbox.paths()}
        agent = self._copy_agent(context, journal)
        agent.has_policy = True
        agent.policy = limit_policy(agent.policy, context.allowance())
        beginning = Beginning(run_id, files, caller=Caller(context.run_id, context.call_id, context.place))
        driver = await begin(agent, task, given, beginning)
        return await drive(agent, driver, None, given)

    def _copy_agent(self, context: ToolContext, journal: Journal) -> "Agent[Any]":
        """Return the agent with the journal of the calling run, and its approver and hooks if it has none."""
        agent = copy(self._agent)
        agent.keep_in(journal)
        agent.approver = agent.approver or context.approver
        agent.hooks = agent.hooks or context.hooks or agent.hooks
        agent.has_policy = False  # a run that goes on keeps what it was allowed when it began
        return agent

    def _to_output(self, run: Run[Any]) -> ToolOutput:
        if run.status is not Status.FINISHED:
            raise NoResultError(f"the agent was stopped; its run is {run.run_id!r}")
        if run.error is not None:
            # What the calling model reads may reach anybody. The run of the agent has the whole error.
            text = f"The agent failed: {hide_servers(run.error)}\n{run.output}".rstrip()
            if run.fault is Fault.INFRASTRUCTURE:
                raise NoResultError(text)
            return ToolOutput(text, is_error=True)
        text = run.output or "The agent ended without an answer."
        if run.stop_reason is not StopReason.COMPLETED:
            text += f"\n[The agent was stopped by its limit {run.stop_reason}.]"
            return ToolOutput(text)
        if self._agent.answer.schema is None:
            return ToolOutput(text)
        return ToolOutput(text, structured=decode_json(run.output))


async def _ask(context: ToolContext, question: Question) -> Answer:
    """Return the answer of the user of the calling run, who declines if nobody can be asked."""
    try:
        return await context.ask(question)
    except NotAskedError:
        return Answer(is_declined=True)


def build_agent_tool(part: PartSpec, build: "Callable[..., Agent[Any]]") -> AgentTool:
    """Return the tool that `part` describes; `build` is `Agent.from_spec`.

    Raises: `ConfigError` if a part of its agent cannot be built.
    """
    name = part.name.removeprefix(AGENT)
    if part.missing is not None:
        raise ConfigError(f"the agent {name!r} cannot be built from its name: {part.missing}")
    settings = dict(part.settings or {})
    agent = build(read_agent(part), trust=True)  # the spec that has this part was trusted
    settings.pop("spec")
    return AgentTool(agent, name, **settings)


def count_callers(journal: Journal, run_id: str) -> int:
    """Return how deep a run is nested: 1 for a run that no call started, 2 for a run that such a run called,
    and so on. Blocks."""
    started, count = read_started(journal, run_id), 1
    while started.caller is not None:
        started, count = read_started(journal, started.caller.run_id), count + 1
    return count


def limit_policy(policy: Policy, allowance: Allowance) -> Policy:
    """Return `policy` with the limits that the calling run allows, where these are lower."""
    limits: Mapping[str, Any] = {
        name: left if (own := getattr(policy, name)) is None else min(own, left)
        for name in allowance.__struct_fields__
        if (left := getattr(allowance, name)) is not None
    }
    return replace(policy, **limits)


def _describe(agent: "Agent[Any]") -> str:
    text = "Give a task to another agent, and get its answer."
    if not isinstance(agent.instructions, str):
        return text
    said = agent.instructions.strip()
    shown = said if len(said) <= _SHOWN_CHARS else f"{said[:_SHOWN_CHARS]}…"
    return f"{text} Its instructions are: {shown}"


def _report(context: ToolContext) -> Any:
    """Return a listener that reports the agent's tool calls as the progress of the call."""

    def on_event(item: Item) -> None:
        if isinstance(item, Event) and isinstance(item.body, ToolStarted):
            context.progress(f"step {item.body.step}: {item.body.name}")

    return on_event


def _write_back(run: Run[Any], context: ToolContext) -> None:
    """Give the sandbox of the calling run the files that the agent left. Doing it again changes nothing."""
    sandbox = context.sandbox
    if sandbox is None:
        return
    files = run.files
    for path in sandbox.paths():
        if path not in files:
            sandbox.delete(path)
    for path, content in files.items():
        if path not in sandbox.paths() or sandbox.read(path) != content:
            sandbox.write(path, content)
