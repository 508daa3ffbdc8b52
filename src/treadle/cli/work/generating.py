"""The work of `treadle generate`: applies the options to the configuration, and runs the generation."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.terminal.generation import make_generation_view
from treadle.cli.terminal.output import (
    print_bytes,
    print_error,
    print_interrupted,
    print_lines,
    print_note,
    write_command,
    write_count,
)
from treadle.cli.terminal.plan import print_plan
from treadle.cli.work.execute import execute_until_stopped
from treadle.core.errors import ConfigError
from treadle.core.overrides import read_change
from treadle.core.types import Json
from treadle.datagen.config.estimate import estimate, measure_folder
from treadle.datagen.config.load import Loaded, check_plan, load_config
from treadle.datagen.config.models import try_models
from treadle.datagen.config.schema import schema
from treadle.datagen.config.starter import starter
from treadle.datagen.dataset.folder import Folder
from treadle.datagen.generate import Options, Result
from treadle.datagen.generate import generate as generate_dataset
from treadle.datagen.progress import Notice, Progress
from treadle.datagen.topics.store import load_topics

_KEYS = {
    "out": "output.path",
    "num_samples": "generation.num_samples",
    "model": "models",
    "seed": "seed",
    "engine": "generation.engine",
}
"""The keys of the configuration that options override."""


class Changes(Struct, frozen=True):
    """The options that override keys of the configuration."""

    options: Mapping[str, str]
    """The values of options by name."""
    settings: tuple[str, ...]
    """The values of `--set`, each as `KEY=VALUE`."""

    def load(self, path: Path | None) -> Loaded:
        """Return the configuration in the file `path` with these changes. Raises: `ConfigError`."""
        if path is None:
            raise ConfigError(
                "give a configuration: `treadle generate --init > dataset.yaml` writes one to start from"
            )
        changes: dict[str, Json] = {}
        for name, text in self.options.items():
            is_plain = name in ("num_samples", "seed")
            changes[_KEYS[name]] = read_change(f"{name}={text}")[1] if is_plain else text
        if "models" in changes:
            changes["models"] = {"default": changes["models"]}
        flags = {_KEYS[name]: f"--{name.replace('_', '-')}" for name in self.options}
        return load_config(path, changes | dict(map(read_change, self.settings)), flags)

    def command(self, path: Path) -> str:
        """Return the command that generates with these changes."""
        return write_command("generate", str(path), **self.options, set=self.settings)


def print_schema() -> int:
    """Print the JSON Schema of configurations."""
    print_lines([msgspec.json.format(msgspec.json.encode(schema()), indent=2)])
    return ExitCode.DONE


def print_starter() -> int:
    """Print a configuration to start from."""
    print_bytes(starter().encode())
    return ExitCode.DONE


def print_dry_run(path: Path | None, changes: Changes, *, is_json: bool) -> int:
    """Print the plan, then check everything, without asking a model. The plan needs no keys.

    Raises: `ConfigError` after the plan if the generation could not begin.
    """
    loaded = changes.load(path)
    config = loaded.config
    folder = Folder(config.output.path)
    models, _ = try_models(config, needs_keys=False)
    measured, kept = measure_folder(folder)
    leaves = sum(1 for _ in load_topics(folder.topics).leaves()) if folder.topics.exists() else None
    try:
        expected = estimate(config, leaves, models=models, measured=measured, kept=kept)
    except ConfigError:
        check_plan(loaded)  # its error has the line
        raise
    print_plan(config, expected, kept=kept, notes=loaded.notes, is_json=is_json)
    check_plan(loaded, leaves)
    return ExitCode.DONE


def run(
    path: Path | None,
    changes: Changes,
    shown: o.ViewOptions,
    *,
    retry_failed: bool,
    accept_changes: bool,
) -> int:
    """Generate the dataset, or continue it, and return the exit code."""
    loaded = changes.load(path)
    if not shown.is_quiet:
        for note in loaded.notes:
            print_note(note)
    assert path is not None
    options = Options(retry_failed=retry_failed, accept_changes=accept_changes)
    return _Drive(path, loaded, changes, shown).run(options)


class _Drive:
    """One generation, from its view to its exit code."""

    def __init__(self, path: Path, loaded: Loaded, changes: Changes, shown: o.ViewOptions) -> None:
        self._loaded = loaded
        self._shown = shown
        check_plan(loaded)
        # The check comes first, because its error must not be printed into the view.
        self._view = make_generation_view(loaded.config.name, is_json=shown.is_json, is_quiet=shown.is_quiet)
        self._progress = Progress()
        self._again = changes.command(path)

    def run(self, options: Options) -> int:
        """Generate the dataset, and return the exit code."""
        folder = Folder(self._loaded.config.output.path)
        view = self._view
        try:
            result = execute_until_stopped(
                lambda stop: generate_dataset(
                    self._loaded.config, folder, listener=self._listen, stop=stop, options=options
                ),
                lambda: view.on_stop(self._progress),
            )
        except KeyboardInterrupt:
            view.close()
            kept = write_count(self._progress.kept, "row")
            print_interrupted(f"; {kept} kept; go on with: {self._again}")
            return ExitCode.INTERRUPTED
        except BaseException:
            view.close()
            raise
        view.finish(result.progress, {"end": result.end.reason, "folder": str(folder.path)})
        return self._report(result)

    def _listen(self, notice: Notice, progress: Progress) -> None:
        self._progress = progress
        self._view.on_notice(notice, progress)

    def _report(self, result: Result) -> int:
        """Print why the generation ended and what can be done now, and return the exit code."""
        reason, folder = result.end.reason, result.folder
        missing = result.progress.wanted - result.progress.kept
        code = ExitCode.DONE
        if reason == "stopped":
            print_interrupted(f"; go on with: {self._again}")
            code = ExitCode.INTERRUPTED
        elif reason == "failures":
            print_error(f"too many samples failed, the last one with: {result.end.error}")
            print_note(f"{write_count(missing, 'row')} missing; go on later with: {self._again}")
            code = ExitCode.FAILED
        elif reason != "done":
            stats = write_command("dataset", "stats", str(folder.path))
            print_error(f"{write_count(missing, 'row')} missing: {_LIMITS[reason].format(stats=stats)}")
            code = ExitCode.LIMIT
        if not self._shown.is_quiet and not self._shown.is_json and result.progress.kept:
            print_note(f"rows: {folder.rows}   card: {folder.card}   report: {folder.report}")
            print_note(f"look at them: {write_command('dataset', 'show', str(folder.path))}")
            print_note(f"check them: {write_command('dataset', 'verify', str(folder.path))}")
        return code


_LIMITS = {
    "max_cost_usd": "limits.max_cost_usd is reached; raise it and run the same command",
    "unknown_cost": "the cost of an answer is unknown, so that limits.max_cost_usd cannot be kept; give the "
    "model a price and use another folder, or delete this limit",
    "max_tokens": "limits.max_tokens is reached; raise it and run the same command",
    "max_seconds": "limits.max_seconds is reached; raise it and run the same command",
    "max_items": "too many samples were rejected; see the reasons with `{stats}`, try them again "
    "with --retry-failed, or raise generation.max_attempts",
}
"""The texts for the reasons of an early end."""
