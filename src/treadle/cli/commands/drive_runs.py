"""`treadle run`, `resume` and `fork`: drive a run. Their work is imported when they run; their help needs none."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.cli.exit import ExitCode
from treadle.cli.options import common as o
from treadle.cli.options.agent_options import AgentFlags, KnowledgeOptions, PolicyOptions
from treadle.core.errors import ConfigError
from treadle.core.types import Json

if TYPE_CHECKING:
    from treadle.runs.run import FileChanges, Run


def run(
    text: str | None = None,
    task: str | None = None,
    *,
    agent: AgentFlags,
    knowledge: KnowledgeOptions,
    is_trusted: bool = False,
    attach: list[Path] | None = None,
    mount: o.MountOptions,
    out: Path | None = None,
    instructions: str | None = None,
    schema: str | None = None,
    journal: str | None = None,
    level: o.Level = "process",
    run_id: str | None = None,
    limits: PolicyOptions,
    shown: o.ViewOptions,
) -> int:
    """Run a model with tools on a text or a task.

    Every step is stored in a journal, from which the run can be resumed, replayed, forked and exported. --agent
    takes an agent of a program in place of a model and tools.

    Examples:
        git diff | treadle run "Write a commit message." --model openai:gpt-5-mini
        treadle run --task files:csv_sum-0001 --model oracle
    """
    from treadle.cli.jobs.driving import FollowUp, drive, read_schema, read_work
    from treadle.cli.jobs.journals import new_run_id
    from treadle.cli.jobs.resumed_agents import make_agent, print_knowledge
    from treadle.cli.jobs.run_files import print_changes, read_mount, refuse_folder
    from treadle.journal.registry import open_journal
    from treadle.runs.run import find_changes, write_files

    new_id = new_run_id(run_id)
    work = read_work(text, task, mount.path, attach)
    if out is not None:
        refuse_folder(out, mount.path)
    with open_journal(journal, level) as opened:
        runner = make_agent(
            agent,
            opened,
            limits=limits,
            task=None if isinstance(work, str) else work,
            instructions=instructions,
            files=read_mount(mount, is_quiet=shown.is_json or shown.is_quiet),
            schema=None if schema is None else read_schema(schema),
            knowledge=knowledge,
            is_trusted=is_trusted,
        )
        follow_up = FollowUp(journal, agent)
        driven: list[tuple[Run, FileChanges]] = []

        def describe(run: "Run") -> Mapping[str, Json]:
            driven.append((run, find_changes(run)))
            return {"files": driven[-1][1]}

        code = drive(
            runner,
            lambda emit: runner.run(work, run_id=new_id, attach=attach or (), on_event=emit),
            shown,
            new_id,
            follow_up,
            describe,
        )
        if not shown.is_json and not shown.is_quiet:
            print_knowledge(runner)
        for finished, changes in driven:
            if out is not None:
                write_files(finished, changes.written, out)
            if not shown.is_json and not shown.is_quiet:
                print_changes(changes, finished, follow_up, out)
        return code


def resume(
    run: str | None = None,
    is_all: bool = False,
    is_failed: bool = False,
    *,
    agent: AgentFlags,
    is_trusted: bool = False,
    journal: str | None = None,
    parallel_runs: int = 16,
    limits: PolicyOptions,
    shown: o.ViewOptions,
) -> int:
    """Resume a run that was interrupted, failed, or is waiting for an answer.

    It has the model, tools and limits that it was started with, unless others are given. --all leaves out the runs
    of a job, such as an evaluation: the command that began it continues them within its limits.

    Examples:
        treadle resume last
        treadle resume --all --parallel-runs 32
    """
    from treadle.cli.jobs.driving import FollowUp, print_waiting, resume_all, resume_one
    from treadle.cli.jobs.journals import open_existing, without_jobs
    from treadle.cli.jobs.resumed_agents import ResumedAgents
    from treadle.runs.statuses import find_run, find_unfinished

    if (run is None) is not is_all:
        raise ConfigError("give a run or --all" if run is None else "give a run or --all, not both")
    if is_failed and not is_all:
        raise ConfigError("--failed goes with --all")
    follow_up = FollowUp(journal, agent)
    with open_existing(journal) as opened:
        agents = ResumedAgents(opened, agent, limits, is_trusted=is_trusted)
        if run is not None:
            return resume_one(agents, find_run(opened, run), shown, follow_up)
        found = find_unfinished(opened, has_failed=is_failed)
        run_ids = [info.run_id for info in without_jobs(found, opened.address)]
        if not run_ids:
            if not found:
                print_waiting(opened, follow_up)
            return ExitCode.DONE
        return resume_all(agents, run_ids, parallel_runs, follow_up, is_json=shown.is_json)


def fork(
    run: str,
    at: int | None = None,
    turn: int | None = None,
    text: str | None = None,
    *,
    agent: AgentFlags,
    is_trusted: bool = False,
    journal: str | None = None,
    run_id: str | None = None,
    limits: PolicyOptions,
    shown: o.ViewOptions,
) -> int:
    """Start a new run from the first events of another run.

    The new run has the files of that moment, and the model, tools and limits of the other run unless others are
    given.

    Examples:
        treadle fork 1a1fb3a3 --at 12 --model openai:gpt-5-mini
        treadle fork last --text "Now write it to a file."
    """
    from treadle.cli.jobs.driving import FollowUp, check_fork, drive, find_turn
    from treadle.cli.jobs.journals import new_run_id, open_existing
    from treadle.cli.jobs.resumed_agents import ResumedAgents
    from treadle.runs.statuses import find_run

    new_id = new_run_id(run_id)
    with open_existing(journal) as opened:
        old_id = find_run(opened, run)
        at = at if turn is None else find_turn(opened, old_id, turn, at)
        check_fork(opened, old_id, at, text)
        runner = ResumedAgents(opened, agent, limits, is_trusted=is_trusted).agent_for_run(old_id, at)
        return drive(
            runner,
            lambda emit: runner.fork(old_id, at, text=text, new_run_id=new_id, on_event=emit),
            shown,
            new_id,
            FollowUp(journal, agent),
        )
