"""The work of `treadle rollout`: applies the options to the configuration, and makes the rollouts."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.job_command import ConfigChanges, JobCommand, find_program_workers, print_job_plan
from treadle.cli.options import common as o
from treadle.cli.terminal.job_view import NewestFeed
from treadle.cli.terminal.output import (
    clean,
    print_error,
    print_interrupted,
    print_note,
    shorten,
    write_command,
    write_count,
)
from treadle.core.errors import ConfigError
from treadle.core.texts.masking import hide_password
from treadle.core.types import Json
from treadle.rollout.rollout_config import READER
from treadle.rollout.rollout_progress import GroupEnded
from treadle.rollout.rollouts import RolloutResult, Rollouts
from treadle.runs.task import find_tasks

if TYPE_CHECKING:
    from rich.text import Text


def run(
    path: Path | None, changes: ConfigChanges, shown: o.ViewOptions, *, retry_failed: bool = False
) -> int:
    """Make the rollouts, or continue them, and return the exit code."""
    if path is None and not changes.options and not changes.settings:
        raise ConfigError(
            "give a configuration, or options: treadle rollout --task files --model MODEL --groups 10"
        )
    config = READER.load(path, changes.by_key(), changes.flags)
    # A mistake of the configuration is an error here, which must not be printed into the view.
    rollouts = Rollouts(
        config,
        workers=find_program_workers(config, config.command),
        listener=lambda notice, progress: job.listen(notice, progress),
        retry_failed=retry_failed,
    )
    job = JobCommand(
        config.name,
        rollouts.progress,
        NewestFeed(GroupEnded, write_group),
        changes.command("rollout", path),
        shown,
    )
    return job.run(rollouts.run, partial(_conclude, job, config.journal))


def _conclude(job: JobCommand, address: str | None, result: RolloutResult) -> int:
    """Print what became of the rollouts, whose journal has the `address`, and return the exit code."""
    folder = result.folder
    too_many = (
        "too many groups were dropped; see the reasons above, try them again with --retry-failed, or raise "
        "max_dropped"
    )
    code = job.report(result.end, result.progress, folder.path, too_many)
    if result.end.reason == "done" and (waiting := result.progress.undelivered):
        print_interrupted(
            f"; {write_count(waiting, 'group')} not taken by a sink yet; go on with: {job.again}"
        )
        code = ExitCode.INTERRUPTED
    if result.refusals:
        first = result.refusals[0]
        count = write_count(len(result.refusals), "group")
        print_error(f"{count} refused, such as {first.key} by {first.sink}: {first.reason}")
        code = ExitCode.FAILED
    if job.says_more and result.progress.delivered:
        journal = hide_password(address or str(folder.journal))
        print_note(f"groups: {folder.groups}   journal: {journal}")
        print_note(f"look at them: {write_command('rollout', 'report', str(folder.path))}")
    return code


def print_dry_run(path: Path | None, changes: ConfigChanges, *, is_json: bool) -> int:
    """Check a configuration, print the plan, and return the exit code. No model is asked. Raises: `ConfigError`."""
    config = READER.load(path, changes.by_key(), changes.flags)
    find_program_workers(config, config.command)
    held_out = [] if config.held_out is None else find_tasks(config.held_out.tasks)
    facts: dict[str, Json] = {
        "model": config.model
        if config.model is None or isinstance(config.model, str)
        else config.model.model,
        "groups": config.groups,
        "rollouts": config.groups * config.group_size,
        "rewards": list(config.rewards),
        "held out": len(held_out),
        "sinks": [hide_password(name) for name in config.sinks],
    }
    if config.command is not None:
        facts["command"] = config.command
    return print_job_plan(config, [*find_tasks(config.tasks), *held_out], facts, is_json=is_json)


def write_group(group: GroupEnded) -> "Text":
    """Return one group as a line: its id, a mark for each reward, and its task."""
    from rich.text import Text

    line = Text("  ").append(f"{group.group_id} ", style="bold")
    for reward in group.rewards:
        mark = "·" if reward is None else "▁▂▃▄▅▆▇█"[max(0, min(7, round(reward * 7)))]
        line.append(mark, style="green" if reward else "red")
    if group.reason is not None:
        return line.append(f" {group.status}: {shorten(group.reason, 200)}", style="yellow")
    flat = "" if group.has_variance else " (no variance)"
    return line.append(clean(f" {group.task}{flat}"), style="cyan" if group.has_variance else "dim")
