"""The work of `treadle rollout`: applies the options to the configuration, and makes the rollouts."""

import asyncio
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.job_command import JobCommand
from treadle.cli.options import common as o
from treadle.cli.terminal.output import (
    OptionValue,
    clean,
    print_error,
    print_interrupted,
    print_note,
    shorten,
    write_command,
    write_count,
)
from treadle.core.errors import ConfigError
from treadle.core.masking import hide_password
from treadle.core.overrides import read_change
from treadle.core.types import Json
from treadle.jobs.progress import JobNotice
from treadle.rollout.rollout_config import RolloutConfig, load_config
from treadle.rollout.rollout_progress import GroupEnded
from treadle.rollout.rollouts import RolloutResult, Rollouts

if TYPE_CHECKING:
    from rich.text import Text

_SHOWN_GROUPS = 6
"""How many of the newest groups are shown."""
_MODEL_KEYS = ("base_url", "renderer", "temperature")
"""The options that are settings of the model."""
_FLAGS = {"tasks": "task", "rewards": "reward", "sinks": "sink", "path": "out"}
"""The options whose names differ from their keys."""


class RolloutChanges(Struct, frozen=True):
    """The options that override keys of the configuration."""

    options: Mapping[str, Any]
    """The values of options by the name of their key."""
    settings: tuple[str, ...]
    """The values of `--set`, each as `KEY=VALUE`."""

    def load(self, path: Path | None) -> RolloutConfig:
        """Return the configuration in the file `path` with these changes. Raises: `ConfigError`."""
        if path is None and not self.options and not self.settings:
            raise ConfigError(
                "give a configuration, or options: treadle rollout --task files --model MODEL --groups 10"
            )
        options = dict(self.options)
        changes: dict[str, Json] = {}
        flags: dict[str, str] = {}
        settings = {key: options.pop(key) for key in _MODEL_KEYS if key in options}
        if settings and "model" in options:
            options["model"] = {"model": options["model"]}
        options |= {f"model.{key}": value for key, value in settings.items()}
        if "rewards" in options:
            options["rewards"] = dict([_read_weight(text) for text in options["rewards"]])
        for key, value in options.items():
            changes[key] = value
            flags[key] = f"--{_FLAGS.get(key, key.removeprefix('model.')).replace('_', '-')}"
        return load_config(path, changes | dict(map(read_change, self.settings)), flags)

    def command(self, path: Path | None) -> str:
        """Return the command that makes rollouts with these changes."""
        options: dict[str, OptionValue] = {
            _FLAGS.get(key, key): tuple(value) if isinstance(value, list) else str(value)
            for key, value in self.options.items()
        }
        return write_command("rollout", *([] if path is None else [str(path)]), **options, set=self.settings)


def _read_weight(text: str) -> tuple[str, Json]:
    """Return a reward and its weight, as a mapping to which `--set` can add settings."""
    from treadle.scoring.registry import parse_reward

    spec = parse_reward(text)
    return spec.scorer, {"weight": spec.weight}


def run(path: Path | None, changes: RolloutChanges, shown: o.ViewOptions) -> int:
    """Make the rollouts, or continue them, and return the exit code."""
    return drive(changes.load(path), changes.command(path), shown)


def drive(config: RolloutConfig, again: str, shown: o.ViewOptions) -> int:
    """Make the rollouts of a configuration, or continue them, and return the exit code. `again` is the command that
    continues them."""
    return _Rollouts(config, again, shown).run()


class _Rollouts(JobCommand[RolloutResult]):
    """The work on the rollouts of one configuration."""

    def __init__(self, config: RolloutConfig, again: str, shown: o.ViewOptions) -> None:
        # A mistake of the configuration is an error here, which must not be printed into the view.
        self._rollouts = Rollouts(config, listener=self.listen)
        super().__init__(config.name, self._rollouts.progress, GroupFeed(), again, shown)
        self._config = config

    def start(self, stop: asyncio.Event) -> Coroutine[Any, Any, RolloutResult]:
        """See `JobCommand.start`."""
        return self._rollouts.run(stop)

    def explain_max_items(self, result: RolloutResult) -> str:
        """See `JobCommand.explain_max_items`."""
        return "too many groups were dropped; see the reasons above, or raise max_dropped"

    def report(self, result: RolloutResult) -> int:
        """See `JobCommand.report`."""
        code, folder = super().report(result), result.folder
        if result.end.reason == "done" and (waiting := result.progress.undelivered):
            print_interrupted(
                f"; {write_count(waiting, 'group')} not taken by a sink yet; go on with: {self.again}"
            )
            code = ExitCode.INTERRUPTED
        if result.refusals:
            first = result.refusals[0]
            count = write_count(len(result.refusals), "group")
            print_error(f"{count} refused, such as {first.key} by {first.sink}: {first.reason}")
            code = ExitCode.FAILED
        if self.says_more and result.progress.delivered:
            journal = hide_password(self._config.journal or str(folder.journal))
            print_note(f"groups: {folder.groups}   journal: {journal}")
            print_note(f"look at them: {write_command('rollout', 'report', str(folder.path))}")
        return code


class GroupFeed:
    """The newest groups with their rewards; see `Feed`."""

    def __init__(self) -> None:
        self._groups: tuple[GroupEnded, ...] = ()
        """The newest groups, the newest one last."""

    def note(self, notice: JobNotice) -> None:
        """See `Feed.note`."""
        if isinstance(notice, GroupEnded):
            self._groups = (*self._groups[1 - _SHOWN_GROUPS :], notice)

    def lines(self, height: int) -> list["Text"]:
        """See `Feed.lines`."""
        return [_write_group(group) for group in self._groups[-height:]] if height else []


def _write_group(group: GroupEnded) -> "Text":
    """Return one group as a line: its id, a mark for each reward, and its task."""
    from rich.text import Text

    line = Text("  ").append(f"{group.group_id} ", style="bold")
    for reward in group.rewards:
        line.append("·" if reward is None else _mark(reward), style="green" if reward else "red")
    if group.reason is not None:
        return line.append(f" {group.status}: {shorten(group.reason, 200)}", style="yellow")
    flat = "" if group.has_variance else " (no variance)"
    return line.append(clean(f" {group.task}{flat}"), style="cyan" if group.has_variance else "dim")


def _mark(reward: float) -> str:
    return "▁▂▃▄▅▆▇█"[max(0, min(7, round(reward * 7)))]
