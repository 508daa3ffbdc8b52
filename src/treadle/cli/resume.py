"""`treadle resume`: continues one run, which is shown while it works, or many runs at a time."""

import time
from contextlib import closing
from functools import partial
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode, join_codes
from treadle.cli.jobs.agents import RunAgents
from treadle.cli.jobs.drive import FollowUp, drive, print_follow_up
from treadle.cli.jobs.execute import execute, run_limited
from treadle.cli.jobs.journals import Apart, find_run, open_existing
from treadle.cli.jobs.listing import find_unfinished
from treadle.cli.options import shared as o
from treadle.cli.options.agent import AgentOptions, PolicyOptions
from treadle.cli.options.complete import complete_run
from treadle.cli.terminal.bar import bar
from treadle.cli.terminal.format import exit_code, summarize
from treadle.cli.terminal.output import (
    print_interrupted,
    print_json,
    print_note,
    write_count,
    write_seconds,
)
from treadle.cli.terminal.view import make_view, print_outcome
from treadle.core.errors import ConfigError, TreadleError
from treadle.core.state import Status
from treadle.core.types import StopReason
from treadle.runs.run import Run

EXAMPLES = (
    "treadle resume last",
    "treadle resume --all --parallel-runs 32",
)


def resume(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run id, the beginning of one, or 'last'.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Resume all unfinished runs.")] = False,
    is_failed: Annotated[
        bool, typer.Option("--failed", help="With --all: also the runs that ended with an error.")
    ] = False,
    *,
    agent: AgentOptions,
    is_trusted: o.IsTrusted = False,
    journal: o.Journal = None,
    parallel_runs: o.ParallelRuns = 16,
    limits: PolicyOptions,
    shown: o.ViewOptions,
) -> int:
    """Resume a run that was interrupted, failed, or is waiting for an answer.

    It has the model, tools and limits that it was started with, unless others are given.
    """
    if (run is None) is not is_all:
        raise ConfigError("give a run or --all" if run is None else "give a run or --all, not both")
    if is_failed and not is_all:
        raise ConfigError("--failed goes with --all")
    follow_up = FollowUp(journal, agent.api_key is not None)
    with closing(open_existing(journal)) as opened:
        agents = RunAgents(opened, agent, limits, is_trusted=is_trusted)
        if run is not None:
            return _resume_one(agents, find_run(opened, run), shown, follow_up)
        run_ids = find_unfinished(opened, has_failed=is_failed)
        if not run_ids:
            print_note("no run is unfinished")
            return ExitCode.DONE
        return _resume_all(agents, run_ids, parallel_runs, follow_up, is_json=shown.is_json)


def _resume_one(agents: RunAgents, run_id: str, shown: o.ViewOptions, follow_up: FollowUp) -> int:
    """Resume one run, show it while it works, and return the exit code."""
    run = Run.load(run_id, agents.journal)
    if run.status is Status.FINISHED and run.stop_reason is not StopReason.ERROR:
        command = follow_up.write("fork", run_id, text="TEXT")
        print_note(f"run {run_id} is finished ({run.stop_reason}); continue it in a new run with: {command}")
        if run.state.started is None or run.state.started.task is None:
            return _show(run, shown)
    elif _is_between_turns(run):
        print_note(
            f"no turn of session {run_id} is open; continue it with: "
            + follow_up.write("chat", session=run_id)
        )
        return _show(run, shown)
    agent = agents.agent_for_run(run_id)
    return drive(
        agent,
        lambda emit: agent.resume(run_id, on_event=emit),
        shown,
        run_id,
        follow_up,
        calls=[item.call for item in run.state.turn.calls.values()],
    )


def _is_between_turns(run: Run) -> bool:
    """Return whether the run is a session that waits for its next message."""
    started = run.state.started
    is_session = started is not None and started.is_session
    return is_session and not run.state.turn.is_open and run.stop_reason is not StopReason.ERROR


def _show(run: Run, shown: o.ViewOptions) -> int:
    """Show how a run that needs no driving has ended, and return the exit code."""
    make_view(is_json=shown.is_json, is_quiet=shown.is_quiet).finish(run, 0.0)
    return exit_code(run)


def _resume_all(
    agents: RunAgents, run_ids: list[str], parallel_runs: int, follow_up: FollowUp, *, is_json: bool
) -> int:
    """Resume runs, and return the gravest of their exit codes."""
    begin = time.monotonic()
    codes: list[int] = []
    apart = Apart(TreadleError)

    async def resume_run(run_id: str) -> None:
        with apart.guard(run_id):
            run = await agents.agent_for_run(run_id).resume(run_id)
            codes.append(exit_code(run))
            _print(run, follow_up, is_json=is_json)
        advance(run_id)

    try:
        with bar("resuming", len(run_ids), is_json=is_json) as advance:
            execute(run_limited([partial(resume_run, run_id) for run_id in run_ids], parallel_runs))
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
