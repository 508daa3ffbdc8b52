"""The work of a command on a job, which can be continued: from its view to its exit code."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute_until_stopped
from treadle.cli.options import common as o
from treadle.cli.terminal.job_view import Feed, make_job_view
from treadle.cli.terminal.output import (
    OptionValue,
    print_error,
    print_interrupted,
    print_json,
    print_line,
    print_note,
    write_command,
    write_count,
)
from treadle.core.errors import ConfigError
from treadle.core.registry import require
from treadle.core.texts.documents import read_change
from treadle.core.types import Json
from treadle.jobs.job import JobEnd
from treadle.jobs.progress import JobNotice, JobProgress
from treadle.jobs.sections import AttemptSection, find_mistakes, first_tasks, tool_checks
from treadle.runs.task import find_environment, load_task
from treadle.scoring.registry import read_rewards

if TYPE_CHECKING:
    from treadle.server.gateway.programs import ProgramWorkers

R = TypeVar("R")
_LIMITS = {
    "max_cost_usd": "limits.max_cost_usd is reached; raise it and run the same command",
    "unknown_cost": "the cost of an answer is unknown, so that limits.max_cost_usd cannot be kept; give the "
    "model a price and use another folder, or delete this limit",
    "max_tokens": "limits.max_tokens is reached; raise it and run the same command",
    "max_seconds": "limits.max_seconds is reached; raise it and run the same command",
}
"""The texts for limits at which the work ends."""


_MODEL_KEYS = ("base_url", "renderer", "temperature")
"""The options that are settings of the model."""
_FLAGS = {
    "tasks": "task",
    "rewards": "reward",
    "reports": "report",
    "sinks": "sink",
    "path": "out",
    "models": "model",
    "max_tasks": "limit",
}
"""The options whose names differ from their keys."""


def find_program_workers(config: AttemptSection, command: str | None = None) -> "ProgramWorkers | None":
    """Return the workers for attempts that a command plays, or the environments that tasks come with; `None` if
    Treadle's own loop plays all. Raises: `ConfigError`."""
    if command is None and not any(map(find_environment, first_tasks(config.tasks))):
        return None
    if config.workers != "here":
        raise ConfigError(
            f"the workers {config.workers!r} cannot drive tasks that come with an environment; leave out --workers"
        )
    require("uvicorn", "serve")
    from treadle.server.gateway.programs import ProgramWorkers

    return ProgramWorkers(command)


def print_job_plan(
    config: AttemptSection, tasks: Sequence[str], facts: Mapping[str, Json], *, is_json: bool
) -> ExitCode:
    """Check the toolsets that the tasks come with, print the plan of a job, and return the exit code.

    Raises: `ConfigError` after the plan for toolsets that do not exist.
    """
    given = [name for task in tasks for name in load_task(task).tools]
    tools = config.agent.tools or list(dict.fromkeys(given))
    known: dict[str, Json] = {
        "tasks": len(tasks),
        **facts,
        "tools": list(tools),
        "workers": config.workers,
        "window": config.window,
        "out": str(config.path),
    }
    if is_json:
        print_json({"plan": known})
    else:
        for name, value in known.items():
            shown = ", ".join(map(str, value)) or "none" if isinstance(value, list) else value
            print_line(f"{name:9} {shown}")
        print_note(
            "not checked: whether keys are valid and servers answer, because nothing was asked or started"
        )
    if problems := find_mistakes(tool_checks([] if config.agent.tools else tools, "tools of the tasks")):
        raise ConfigError("\n".join(map(str, problems)))
    return ExitCode.DONE


class ConfigChanges(Struct, frozen=True):
    """The options of a command that override keys of its configuration."""

    options: Mapping[str, OptionValue]
    """The values of options by name, as they are written on a command line."""
    values: Mapping[str, Json]
    """The values that the options give to keys of the configuration."""
    flags: Mapping[str, str]
    """The options that set these keys."""
    settings: tuple[str, ...]
    """The values of `--set`, each as `KEY=VALUE`."""

    def by_key(self) -> dict[str, Json]:
        """Return the values of options and of `--set` by key. Raises: `ConfigError`."""
        return {**self.values, **dict(map(read_change, self.settings))}

    def command(self, name: str, path: Path | None) -> str:
        """Return the command with these changes."""
        return write_command(name, *([] if path is None else [str(path)]), **self.options, set=self.settings)


def read_changes(given: Mapping[str, Any], settings: Sequence[str]) -> ConfigChanges:
    """Return the changes that options, by the name of their key, and values of `--set` mean. Settings of a model
    are those of all `models`."""
    values: dict[str, Json] = dict(given)
    if "held_out" in values:
        values["held_out.tasks"] = values.pop("held_out")
    of_model = {key: values.pop(key) for key in _MODEL_KEYS if key in values}
    if of_model and "model" in values:
        values["model"] = {"model": values["model"]}
    if "models" in values and of_model:
        values["models"] = [{"model": name, **of_model} for name in values["models"]]
    else:
        values |= {f"model.{key}": value for key, value in of_model.items()}
    if "rewards" in values:
        # Mappings, to which `--set` can add settings.
        values["rewards"] = {spec.scorer: {"weight": spec.weight} for spec in read_rewards(values["rewards"])}
    names = {
        key: _FLAGS.get(key, key.removeprefix("model.").removesuffix(".tasks")).replace("_", "-")
        for key in values
    }
    options: dict[str, OptionValue] = {
        _FLAGS.get(key, key): tuple(value) if isinstance(value, list) else str(value)
        for key, value in given.items()
    }
    return ConfigChanges(options, values, {key: f"--{name}" for key, name in names.items()}, tuple(settings))


class JobCommand:
    """The command that works on a job."""

    def __init__(
        self, name: str, progress: JobProgress, feed: Feed, again: str, shown: o.ViewOptions
    ) -> None:
        """Prepare the work on the job `name`, and show it. `again` is the command that continues it."""
        self.shown = shown
        self.again = again
        self._progress = progress
        self._view = make_job_view(name, progress, feed, is_json=shown.is_json, is_quiet=shown.is_quiet)

    def listen(self, notice: JobNotice, progress: JobProgress) -> None:
        """Show a notice, and the counts after it."""
        self._progress = progress
        self._view.on_notice(notice, progress)

    def run(
        self, start: Callable[[asyncio.Event], Coroutine[Any, Any, R]], conclude: Callable[[R], int]
    ) -> int:
        """Work until the coroutine that `start` returns is done, which has `listen` as its listener, and return the
        exit code that `conclude` makes of its result. Ctrl-C at any moment of this says how to go on."""
        view = self._view
        try:
            return conclude(execute_until_stopped(start, lambda: view.on_stop(self._progress)))
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends in any case
            view.close()
            words = self._progress.WORDS
            done = f"{write_count(self._progress.kept, words.noun)} {words.kept}"
            print_interrupted(f"; {done}; go on with: {self.again}")
            return ExitCode.INTERRUPTED
        except BaseException:
            view.close()
            raise

    def report(self, end: JobEnd, progress: JobProgress, folder: Path, too_many: str) -> int:
        """Print why the work ended and what can be done now, and return the exit code.

        `too_many` says what to do if too many items were planned without success.
        """
        self._view.finish(progress, {"end": end.reason, "folder": str(folder)})
        words = progress.WORDS
        missing = f"{write_count(progress.wanted - progress.kept, words.noun)} missing"
        if end.reason == "stopped":
            is_whole = 0 < progress.wanted <= progress.kept
            print_interrupted("; nothing is missing" if is_whole else f"; go on with: {self.again}")
            return ExitCode.INTERRUPTED
        if end.reason == "failures":
            print_error(f"too many {words.item}s failed, the last one with: {end.error}")
            print_note(f"{missing}; go on later with: {self.again}")
            return ExitCode.FAILED
        if end.reason == "rejections":
            count = write_count(progress.rejected, f"{words.rejected} {words.item}")
            print_error(f"no {words.noun} yet, and {count}, most of them for this reason: {end.error}")
            print_note(f"{missing}; mend the cause and go on with: {self.again}")
            return ExitCode.FAILED
        if end.reason != "done":
            print_error(f"{missing}: {too_many if end.reason == 'max_items' else _LIMITS[end.reason]}")
            return ExitCode.LIMIT
        if self.says_more and 0 < progress.kept == progress.resumed:
            made = f"all {write_count(progress.kept, words.noun)} were {words.kept} by earlier calls"
            print_note(
                f"nothing to do: {made}, with the options of those. For others give another folder (--out)"
            )
        return ExitCode.DONE

    @property
    def says_more(self) -> bool:
        """Whether notes about the result are wanted."""
        return not self.shown.is_quiet and not self.shown.is_json
