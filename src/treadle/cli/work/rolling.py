"""The work of `treadle rollout`: applies the options to the configuration, and makes the rollouts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import (
    OptionValue,
    print_error,
    print_interrupted,
    print_lines,
    print_note,
    write_command,
    write_count,
)
from treadle.cli.terminal.rollout import make_rollout_view
from treadle.cli.work.execute import execute_until_stopped
from treadle.core.errors import ConfigError
from treadle.core.masking import hide_password
from treadle.core.overrides import read_change
from treadle.core.types import Json
from treadle.rollout.config import Config
from treadle.rollout.load import load_config, schema
from treadle.rollout.progress import Notice, Progress
from treadle.rollout.rollouts import Result, Rollouts

_MODEL_KEYS = ("base_url", "renderer", "temperature")
"""The options that are settings of the model."""
_FLAGS = {"tasks": "task", "rewards": "reward", "sinks": "sink", "path": "out"}
"""The options whose names differ from their keys."""


class Changes(Struct, frozen=True):
    """The options that override keys of the configuration."""

    options: Mapping[str, Any]
    """The values of options by the name of their key."""
    settings: tuple[str, ...]
    """The values of `--set`, each as `KEY=VALUE`."""

    def load(self, path: Path | None) -> Config:
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


def _read_weight(text: str) -> tuple[str, float]:
    from treadle.scoring.registry import parse_reward

    spec = parse_reward(text)
    return spec.scorer, spec.weight


def print_schema() -> int:
    """Print the JSON Schema of configurations."""
    print_lines([msgspec.json.format(msgspec.json.encode(schema()), indent=2)])
    return ExitCode.DONE


def run(path: Path | None, changes: Changes, shown: o.ViewOptions) -> int:
    """Make the rollouts, or continue them, and return the exit code."""
    return drive(changes.load(path), changes.command(path), shown)


def drive(config: Config, again: str, shown: o.ViewOptions) -> int:
    """Make the rollouts of a configuration, or continue them, and return the exit code. `again` is the command that
    continues them."""
    return _Drive(config, again, shown).run()


class _Drive:
    """The rollouts of one configuration, from their view to the exit code."""

    def __init__(self, config: Config, again: str, shown: o.ViewOptions) -> None:
        self._config = config
        self._again = again
        self._shown = shown
        self._noun = config.deliver
        self._progress = Progress()
        self._rollouts = Rollouts(config, listener=self._listen)
        self._view = make_rollout_view(
            config.name, self._noun, is_json=shown.is_json, is_quiet=shown.is_quiet
        )

    def run(self) -> int:
        """Make the rollouts, and return the exit code."""
        view = self._view
        try:
            result = execute_until_stopped(self._rollouts.run, lambda: view.on_stop(self._progress))
        except KeyboardInterrupt:
            view.close()
            done = write_count(self._progress.delivered, self._noun)
            print_interrupted(f"; {done} delivered; go on with: {self._again}")
            return ExitCode.INTERRUPTED
        except BaseException:
            view.close()
            raise
        view.finish(result.progress, {"end": result.end.reason, "folder": str(result.folder.path)})
        return self._report(result)

    def _listen(self, notice: Notice, progress: Progress) -> None:
        self._progress = progress
        self._view.on_notice(notice, progress)

    def _report(self, result: Result) -> int:
        """Print why the work ended and what can be done now, and return the exit code."""
        reason, progress = result.end.reason, result.progress
        missing = write_count(progress.wanted - progress.delivered, self._noun)
        code = ExitCode.DONE
        if reason == "stopped":
            print_interrupted(f"; go on with: {self._again}")
            code = ExitCode.INTERRUPTED
        elif reason == "failures":
            print_error(f"too many groups failed, the last one with: {result.end.error}")
            print_note(f"{missing} missing; go on later with: {self._again}")
            code = ExitCode.FAILED
        elif reason != "done":
            print_error(f"{missing} missing: {_LIMITS[reason]}")
            code = ExitCode.LIMIT
        if result.refusals:
            first = result.refusals[0]
            count = write_count(len(result.refusals), "group")
            print_error(f"{count} refused, such as {first.key} by {first.sink}: {first.reason}")
            code = ExitCode.FAILED
        if not self._shown.is_quiet and not self._shown.is_json and progress.delivered:
            folder = result.folder
            journal = hide_password(self._config.journal or str(folder.journal))
            print_note(f"groups: {folder.groups}   journal: {journal}")
            print_note(f"look at them: {write_command('rollout', 'report', str(folder.path))}")
        return code


_LIMITS = {
    "max_cost_usd": "limits.max_cost_usd is reached; raise it and run the same command",
    "unknown_cost": "the cost of an answer is unknown, so that limits.max_cost_usd cannot be kept; give the "
    "model a price and use another folder, or delete this limit",
    "max_tokens": "limits.max_tokens is reached; raise it and run the same command",
    "max_seconds": "limits.max_seconds is reached; raise it and run the same command",
    "max_items": "too many groups were dropped; see the reasons above, or raise max_dropped",
}
"""The texts for the reasons of an early end."""
