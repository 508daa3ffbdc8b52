"""The runs that a command drives: what they begin with, what is shown, and which command comes next."""

import os
import select
import stat
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.cli.exit import ExitCode, join_codes
from treadle.cli.jobs.execute import execute
from treadle.cli.jobs.journals import Apart
from treadle.cli.jobs.resumed_agents import ResumedAgents
from treadle.cli.options.agent_options import AgentFlags
from treadle.cli.options.common import ViewOptions
from treadle.cli.terminal.format import exit_code, format_call, print_outcome, summarize
from treadle.cli.terminal.output import (
    OptionValue,
    bar,
    print_interrupted,
    print_json,
    print_note,
    stderr,
    write_command,
    write_count,
    write_seconds,
)
from treadle.cli.terminal.terminal_asker import find_person, print_question
from treadle.cli.terminal.view import make_view
from treadle.core.errors import ConfigError, TreadleError
from treadle.core.events import TurnCompleted
from treadle.core.spec import PartSpec
from treadle.core.state import Status, fold
from treadle.core.texts.documents import decode_document, is_yaml_name
from treadle.core.types import Json, ToolCall
from treadle.journal.named_files import read_named
from treadle.journal.protocol import Journal
from treadle.journal.run_info import CALLER, RunFilter
from treadle.loop.listener import Emit
from treadle.runs.ensure import Batch
from treadle.runs.run import Run
from treadle.runs.statuses import iterate_runs
from treadle.runs.task import Task, load_task

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


def read_schema(given: str) -> Json:
    """Return a JSON Schema, which is written out or in a file. Raises: `ConfigError` if it cannot be read."""
    if given.lstrip().startswith("{"):
        return decode_document(given.encode(), "--schema")
    schema = decode_document(read_named("the schema ", given), repr(given), is_yaml=is_yaml_name(given))
    if not isinstance(schema, dict):
        raise ConfigError(f"--schema {given!r} is not a JSON Schema: it must be an object")
    return schema


def read_work(
    text: str | None, task: str | None, mount: Path | None, attach: list[Path] | None
) -> str | Task:
    """Return the text or the task. Raises: `ConfigError` if both or neither are given."""
    if text == "-":
        text = read_stdin(is_needed=True)
    elif text is not None and text.strip() and (piped := read_stdin()):
        text = f"{text.strip()}\n\n<stdin>\n{piped}\n</stdin>"
    if task is not None:
        if attach:
            raise ConfigError("a task brings its own message; leave out --attach")
        if text is not None:
            raise ConfigError("give a text or --task, not both")
        if mount is not None:
            raise ConfigError("a task brings its own files; leave out --mount")
        return load_task(task)
    if text is None or not text.strip():
        raise ConfigError(
            "there is nothing to do: write `treadle run TEXT`, or, to try it without a model, "
            "`treadle run --task files:csv_sum-0001 --model oracle`"
        )
    return text


_PATIENCE_SECONDS = 2.0
"""The time after which a note says that the command waits for its standard input."""


def read_stdin(*, is_needed: bool = False) -> str:
    """Return the text of standard input, without white space at its ends.

    Unless `is_needed`, only a pipe, a file or a socket is read, and the text is empty otherwise.
    Raises: `ConfigError` if it is not UTF-8.
    """
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
    except (AttributeError, OSError, ValueError):  # closed
        return ""
    if not is_needed and not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return ""
    if os.name == "posix" and not select.select([descriptor], [], [], _PATIENCE_SECONDS)[0]:
        print_note("reading standard input; if there is nothing to read, add </dev/null to the command")
    try:
        return sys.stdin.buffer.read().decode().strip()
    except OSError as error:
        raise ConfigError(f"cannot read standard input: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"standard input is not text in UTF-8 ({error}); send other files with --attach FILE"
        ) from error


def print_waiting(journal: Journal, follow_up: FollowUp) -> None:
    """Print that no run is unfinished, how many wait, and the commands that answer the newest of them."""
    waiting = [info.run_id for info in iterate_runs(journal, status="waiting") if CALLER not in info.labels]
    told = "1 run waits" if len(waiting) == 1 else f"{len(waiting):,} runs wait"
    print_note(f"no run is unfinished{f'; {told} for an answer or an approval' if waiting else ''}")
    for run_id in waiting[:1]:
        print_follow_up(Run.load(run_id, journal), follow_up)
    if len(waiting) > 1:
        print_note("list them with: " + follow_up.write("runs", status="waiting"))


def resume_one(agents: ResumedAgents, run_id: str, shown: ViewOptions, follow_up: FollowUp) -> int:
    """Resume one run, show it while it works, and return the exit code."""
    run = Run.load(run_id, agents.journal)
    if run.status is Status.FINISHED and not run.state.has_failed_turn:
        command = follow_up.write("fork", run_id, text="TEXT")
        print_note(f"run {run_id} is finished ({run.stop_reason}); continue it in a new run with: {command}")
        if run.state.started is None or run.state.started.task is None:
            return _show(run, shown)
    elif is_between_turns(run):
        print_note(
            f"no turn of session {run_id} is open; continue it with: "
            + follow_up.write("chat", session=run_id)
        )
        return _show(run, shown)
    return resume_shown(agents, run, shown, follow_up)


def _show(run: Run, shown: ViewOptions) -> int:
    """Show how a run that needs no driving has ended, and return the exit code."""
    make_view(is_json=shown.is_json, is_quiet=shown.is_quiet).finish(run, 0.0)
    return exit_code(run)


def resume_all(
    agents: ResumedAgents, run_ids: list[str], parallel_runs: int, follow_up: FollowUp, *, is_json: bool
) -> int:
    """Resume runs, and return the gravest of their exit codes."""
    begin = time.monotonic()
    codes: list[int] = []
    apart = Apart(TreadleError)

    async def resume_run(_: int, run_id: str) -> None:
        with apart.guard(run_id):
            run = await agents.agent_for_run(run_id).resume(run_id)
            codes.append(exit_code(run))
            if is_json:
                print_json(summarize(run))
            else:
                print_outcome(run)
                if run.questions or run.approvals:
                    print_follow_up(run, follow_up)
        advance(run_id)

    async def resume_all() -> None:
        async with aclosing(Batch(resume_run, run_ids, parallel_runs)) as batch:
            async for _ in batch:
                pass

    try:
        with bar("resuming", len(run_ids), is_json=is_json) as advance:
            execute(resume_all())
    except KeyboardInterrupt:
        left = write_count(len(run_ids) - len(codes) - apart.count, "run")
        print_interrupted(f" with {left} unfinished; continue with: " + follow_up.write("resume", all=True))
        return ExitCode.INTERRUPTED
    if not is_json:
        seconds = write_seconds(time.monotonic() - begin)
        print_note(
            f"{write_count(len(run_ids), 'run')}, {codes.count(ExitCode.DONE)} completed, in {seconds}"
        )
    return join_codes([*codes, ExitCode.FAILED] if apart.count else codes)


def find_turn(journal: Journal, run_id: str, turn: int, at: int | None) -> int:
    """Return the number of the event that ends a turn. Raises: `ConfigError` if there is none, or `at` is given."""
    if at is not None:
        raise ConfigError("give --at or --turn, not both")
    for event in journal.scan(run_id):
        if isinstance(event.body, TurnCompleted) and event.body.turn == turn:
            return event.seq
    raise ConfigError(f"--turn {turn}: run {run_id!r} has no turn {turn} that has ended")


def check_fork(journal: Journal, run_id: str, at: int | None, text: str | None) -> None:
    """Raise an error if a run cannot be forked at an event, with or without a text. Raises: `ConfigError`."""
    events = journal.read(run_id, until_seq=at)
    if at is not None and at > len(events):
        raise ConfigError(f"--at {at}: run {run_id!r} has the events 1 to {len(events)}")
    is_open = fold([event.body for event in events]).turn.is_open
    last = len(events)
    if is_open and text is not None:
        raise ConfigError(
            f"--text opens a new turn, and the turn is still open at event {last}; leave it out"
        )
    if not is_open and text is None:
        raise ConfigError(
            f"the turn is over at event {last}; give --text TEXT for the next turn, or an earlier --at SEQ"
        )
