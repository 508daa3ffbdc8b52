"""One run driven for a command: what is shown, and which command comes next."""

import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import closing
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.jobs.resumed_agents import ResumedAgents
from treadle.cli.options.agent_options import AgentFlags
from treadle.cli.options.common import ViewOptions
from treadle.cli.terminal.format import exit_code, format_call
from treadle.cli.terminal.output import OptionValue, print_interrupted, print_note, stderr, write_command
from treadle.cli.terminal.terminal_asker import find_person, print_question
from treadle.cli.terminal.view import make_view
from treadle.core.spec import PartSpec
from treadle.core.state import Status
from treadle.core.types import Json, ToolCall
from treadle.journal.run_info import RunFilter
from treadle.loop.listener import Emit
from treadle.runs.run import Run

_DRIVING = ("resume", "approve", "answer", "fork", "chat")
"""The commands that build a run's agent again."""


class FollowUp(Struct, frozen=True):
    """A writer of commands that continue a run, with the options that must be given again."""

    journal: str | None
    given: AgentFlags = AgentFlags()
    """The options of the agent that were given: its place, and an API key, are not in the journal."""
    tools: tuple[PartSpec, ...] = ()
    """The tools of the agent, which must be given again if the journal does not have all of them."""

    def write(self, command: str, *words: str, **options: OptionValue) -> str:
        """Return a command line, with placeholders for what is not in the journal: keys, and tools with secrets."""
        options["journal"] = self.journal
        own = self.given.own_agent
        if command in _DRIVING and own is not None:
            return write_command(command, *words, **options, agent=own)
        if command in _DRIVING and self.given.api_key is not None:
            options["api_key"] = "KEY"
        if command in _DRIVING and any(part.missing for part in self.tools):
            options["tools"] = tuple(
                [f"{part.name}..." if part.missing else part.name for part in self.tools]
            )
        return write_command(command, *words, **options)


def drive(
    agent: Agent,
    start: Callable[[Emit], Coroutine[Any, Any, Run]],
    shown: ViewOptions,
    run_id: str,
    follow_up: FollowUp,
    describe: Callable[[Run], Mapping[str, Json]] | None = None,
    calls: Iterable[ToolCall] = (),
) -> int:
    """Run `start` to its end and return the exit code.

    `describe` adds fields to the summary of `--json`. `calls` are the calls that the model made before.
    """
    follow_up = replace(follow_up, tools=agent.spec.tools)
    view = make_view(is_json=shown.is_json, is_quiet=shown.is_quiet, calls=calls)
    person = None if shown.is_json else find_person(view)
    agent.approver, agent.asker = (None, None) if person is None else (person.approve, person.answer)
    begin = time.monotonic()
    try:
        with closing(view):
            run = execute(start(view.on_event))
    except KeyboardInterrupt:
        is_begun = bool(agent.journal.runs(RunFilter(run_ids=[run_id])))
        print_interrupted("; continue with: " + follow_up.write("resume", run_id) if is_begun else "")
        return ExitCode.INTERRUPTED
    view.finish(run, time.monotonic() - begin, describe(run) if describe else None)
    print_follow_up(run, follow_up)
    return exit_code(run)


def resume_shown(
    agents: ResumedAgents, run: Run, shown: ViewOptions, follow_up: FollowUp, **given: Any
) -> int:
    """Resume a run, show it while it works, and return the exit code. `given` are options of `Agent.resume`."""
    agent = agents.agent_for_run(run.run_id)
    return drive(
        agent,
        lambda emit: agent.resume(run.run_id, on_event=emit, **given),
        shown,
        run.run_id,
        follow_up,
        calls=[item.call for item in run.state.turn.calls.values()],
    )


def print_follow_up(run: Run, follow_up: FollowUp) -> None:
    """Print what a run waits for, and the command that continues it."""
    for question in run.open_questions.values():
        print_question(question)
    for call in run.approvals.values():
        stderr().print(f"waits for approval: {format_call(call, 500)}", style="yellow", soft_wrap=True)
    if run.approvals or run.questions:
        print_replies(run, follow_up)
    elif run.state.has_failed_turn:
        print_note("try again with: " + follow_up.write("resume", run.run_id))
    elif run.status is Status.PAUSED and is_between_turns(run):
        print_note("continue the session with: " + follow_up.write("chat", session=run.run_id))
    elif run.status is Status.PAUSED:
        print_note("stopped by another process; continue with: " + follow_up.write("resume", run.run_id))


def is_between_turns(run: Run) -> bool:
    """Return whether the run is a session that waits for its next message."""
    state = run.state
    return state.is_session and not state.turn.is_open and not state.has_failed_turn


def print_replies(run: Run, follow_up: FollowUp) -> None:
    """Print the commands that decide about the calls that wait for approval or, if none does, the command that
    answers the first open question."""
    for call_id in run.approvals:
        command = follow_up.write("approve", run.run_id, call_id, "yes")
        print_note(f"decide with: {command}   (or no, or edit JSON)")
    if run.questions and not run.approvals:
        print_note("answer with: " + write_answer(run, follow_up))


def write_answer(run: Run, follow_up: FollowUp) -> str:
    """Return the command that answers the first open question of a run and continues it."""
    question_id, question = next(iter(run.open_questions.items()))
    which = (question_id,) if len(run.questions) > 1 else ()
    if question.options and not question.allows_text:
        return follow_up.write("answer", run.run_id, *which, option="N", resume=True)
    text = "TEXT" if question.schema is None else "JSON"
    return follow_up.write("answer", run.run_id, *which, text, resume=True)
