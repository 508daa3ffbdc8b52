"""What `treadle run` begins with, what `treadle resume` continues, and where `treadle fork` may begin."""

import os
import select
import stat
import sys
import time
from contextlib import aclosing
from pathlib import Path

from treadle.cli.exit import ExitCode, join_codes
from treadle.cli.jobs.driving import FollowUp, is_between_turns, print_follow_up, resume_shown
from treadle.cli.jobs.execute import execute
from treadle.cli.jobs.journals import Apart
from treadle.cli.jobs.resumed_agents import ResumedAgents
from treadle.cli.options.common import ViewOptions
from treadle.cli.terminal.format import exit_code, print_outcome, summarize
from treadle.cli.terminal.output import (
    bar,
    print_interrupted,
    print_json,
    print_note,
    write_count,
    write_seconds,
)
from treadle.cli.terminal.view import make_view
from treadle.core.errors import ConfigError, TreadleError
from treadle.core.events import TurnCompleted
from treadle.core.state import Status, fold
from treadle.core.texts.documents import decode_document, is_yaml_name
from treadle.core.types import Json
from treadle.journal.named_files import read_named
from treadle.journal.protocol import Journal
from treadle.journal.run_info import CALLER
from treadle.runs.ensure import Batch
from treadle.runs.run import Run
from treadle.runs.statuses import iterate_runs
from treadle.runs.task import Task, load_task


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
            _print(run, follow_up, is_json=is_json)
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


def _print(run: Run, follow_up: FollowUp, *, is_json: bool) -> None:
    if is_json:
        print_json(summarize(run))
        return
    print_outcome(run)
    if run.questions or run.approvals:
        print_follow_up(run, follow_up)


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
    last = len(events) if at is None else at
    is_open = fold([event.body for event in events[:last]]).turn.is_open
    if is_open and text is not None:
        raise ConfigError(
            f"--text opens a new turn, and the turn is still open at event {last}; leave it out"
        )
    if not is_open and text is None:
        raise ConfigError(
            f"the turn is over at event {last}; give --text TEXT for the next turn, or an earlier --at SEQ"
        )
