"""What `treadle resume` does: one run, shown as it goes, or many at a time."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from treadle.agent.run import Run
from treadle.cli.terminal.ask import make_approver
from treadle.cli.terminal.drive import drive, say_how_to_go_on
from treadle.cli.terminal.execute import execute
from treadle.cli.terminal.format import exit_code, join_codes, summarize
from treadle.cli.terminal.listing import Line, find_unfinished
from treadle.cli.terminal.output import (
    print_error,
    print_interrupted,
    print_lines,
    print_note,
    write_command,
    write_count,
    write_seconds,
)
from treadle.cli.terminal.resuming import Resuming
from treadle.cli.terminal.setup import find_run
from treadle.cli.terminal.view import make_view, print_outcome
from treadle.core.errors import ConfigError, TreadleError
from treadle.core.state import fold


def resume_one(resuming: Resuming, text: str, answer: str | None, *, is_json: bool, is_quiet: bool) -> int:
    """Go on with one run, shown as it goes; the exit code."""
    run_id = find_run(resuming.journal, text)
    journal = resuming.journal
    answers = None
    if answer is not None:
        events = journal.read(run_id)
        questions = Run(run_id, fold([event.body for event in events]), journal).questions
        if len(questions) != 1:
            raise ConfigError(
                f"run {run_id!r} waits for {len(questions) or 'no'} answers; --answer is for one"
            )
        answers = dict.fromkeys(questions, answer)
    info = next(info for info in journal.runs() if info.run_id == run_id)
    if info.status == "finished" and info.stop_reason != "error":
        print_note(
            f"run {run_id} is over ({info.stop_reason}); go on from it with: "
            + write_command("fork", run_id, "--text", "TEXT", journal=resuming.path)
        )
    agent = resuming.agent_for(run_id)
    view = make_view(is_json=is_json, is_quiet=is_quiet)
    agent.approver = make_approver(view, is_json=is_json)
    return drive(
        lambda emit: agent.resume(run_id, answers=answers, on_event=emit), view, run_id, resuming.path
    )


def resume_all(resuming: Resuming, parallel_runs: int, *, has_failed: bool, is_json: bool) -> int:
    """Go on with all unfinished runs; the exit code: 1 if one failed, 3 if one reached a limit."""
    lines = find_unfinished(resuming.journal, has_failed=has_failed)
    if not lines:
        print_note("no run is unfinished")
        return 0
    begin = time.monotonic()
    codes: list[int] = []

    async def resume_run(line: Line) -> None:
        try:
            run = await resuming.agent_for(line.run_id).resume(line.run_id)
        except TreadleError as error:
            print_error(f"run {line.run_id}: {error}")
            codes.append(1)
            return
        codes.append(exit_code(run))
        _print_run(run, resuming.path, is_json=is_json)

    try:
        execute(run_limited([partial(resume_run, line) for line in lines], parallel_runs))
    except KeyboardInterrupt:
        left = len(lines) - len(codes)
        print_interrupted(
            f" with {write_count(left, 'run')} unfinished; go on with: "
            + write_command("resume", "--all", journal=resuming.path)
        )
        return 130
    if not is_json:
        completed = codes.count(0)
        seconds = write_seconds(time.monotonic() - begin)
        print_note(f"{write_count(len(codes), 'run')}, {completed} completed, in {seconds}")
    return join_codes(codes)


async def run_limited(jobs: Sequence[Callable[[], Coroutine[Any, Any, None]]], limit: int) -> None:
    """Run all `jobs`, at most `limit` at a time. Cancelling waits until each has put itself in order."""
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            await job()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(limit, len(jobs))):
            group.create_task(work())


def _print_run(run: Run, path: Path | None, *, is_json: bool) -> None:
    if is_json:
        print_lines([msgspec.json.encode(summarize(run))])
        return
    print_outcome(run)
    if run.questions or run.approvals:
        say_how_to_go_on(run, path)
