"""`treadle generate`: a dataset from a configuration."""

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.terminal.generation import make_generation_view
from treadle.cli.terminal.output import (
    print_bytes,
    print_error,
    print_interrupted,
    print_json,
    print_note,
    write_command,
    write_count,
)
from treadle.cli.terminal.plan import print_plan
from treadle.cli.work.execute import execute_until_stopped
from treadle.core.errors import ConfigError
from treadle.datagen.config.check import find_conflicts
from treadle.datagen.config.estimate import estimate
from treadle.datagen.config.load import Loaded, check_plan, load_config
from treadle.datagen.config.model import Config
from treadle.datagen.config.parts import try_models
from treadle.datagen.dataset.folder import Folder
from treadle.datagen.generate import Options, Result
from treadle.datagen.generate import generate as generate_dataset
from treadle.datagen.progress import Notice, Progress

EXAMPLES = (
    "treadle generate --init > dataset.yaml && treadle generate dataset.yaml --dry-run",
    "treadle generate dataset.yaml --num-samples 500 --model openai:gpt-5-mini",
)


def generate(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG",
            help="The configuration, in YAML or JSON. A file of DeepFabric 4 is accepted too.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="The folder of the dataset, in place of output.path."
        ),
    ] = None,
    num_samples: Annotated[
        str | None,
        typer.Option(
            "--num-samples",
            "-n",
            metavar="N|auto|P%",
            help="How many rows to make: a number, one for each leaf topic (auto), or a percentage of that.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="MODEL", help="The model for all roles; mock:teacher needs no key."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="The seed of the plan.")] = None,
    window: Annotated[
        int | None,
        typer.Option("--window", metavar="N", min=1, help="How many samples are made at the same time."),
    ] = None,
    is_dry: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check everything and print the plan: calls, tokens, cost and time. Ask no model.",
        ),
    ] = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="Try the rejected samples again, with the reasons as feedback, before new ones.",
        ),
    ] = False,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Go on although the configuration was changed: rows that are there stay, others follow it.",
        ),
    ] = False,
    is_schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of configurations, for editors.")
    ] = False,
    is_init: Annotated[
        bool, typer.Option("--init", help="Print a commented configuration to start from.")
    ] = False,
    *,
    shown: o.ViewOptions,
) -> int:
    """Generate training data: conversations in which an agent uses real tools, checked one by one.

    The same command goes on where it was interrupted. The first Ctrl-C finishes the samples in flight, the second
    stops at once; rows that were counted are never lost.
    """
    if is_schema:
        from treadle.datagen.config.schema import schema

        print_json(schema())
        return ExitCode.DONE
    if is_init:
        from treadle.datagen.config.starter import starter

        print_bytes(starter().encode())
        return ExitCode.DONE
    if config is None:
        raise ConfigError(
            "give a configuration: `treadle generate --init > dataset.yaml` writes one to start from"
        )
    loaded = _override(load_config(config), out, num_samples, model, seed, window)
    if is_dry:
        check_plan(loaded)
        models, _ = try_models(loaded.config)
        expected = estimate(loaded.config, models=models)
        print_plan(loaded.config, expected, notes=loaded.notes, is_json=shown.is_json)
        return ExitCode.DONE
    if not shown.is_quiet:
        for note in loaded.notes:
            print_note(note)
    options = Options(retry_failed=retry_failed, accept_changes=accept_changes)
    return _Drive(config, loaded, out, shown).run(options)


def _override(
    loaded: Loaded,
    out: Path | None,
    num_samples: str | None,
    model: str | None,
    seed: int | None,
    window: int | None,
) -> Loaded:
    """Return the configuration with the options in place of its keys. Raises: `ConfigError`."""
    values = loaded.config.model_dump()
    if out is not None:
        values["output"]["path"] = out
    if num_samples is not None:
        values["generation"]["num_samples"] = int(num_samples) if num_samples.isdecimal() else num_samples
    if model is not None:
        values["models"] = {"default": model}
    if seed is not None:
        values["seed"] = seed
    if window is not None:
        values["generation"]["window"] = window
    changed = replace(loaded, config=Config.model_validate(values))
    if problems := find_conflicts(changed.config):
        raise changed.error(problems)
    return changed


class _Drive:
    """One call of the command on a dataset."""

    def __init__(self, path: Path, loaded: Loaded, out: Path | None, shown: o.ViewOptions) -> None:
        self._loaded = loaded
        self._shown = shown
        self._view = make_generation_view(loaded.config.name, is_json=shown.is_json, is_quiet=shown.is_quiet)
        self._progress = Progress()
        self._again = write_command("generate", str(path), out=out)

    def run(self, options: Options) -> int:
        """Generate the dataset, and return the exit code."""
        check_plan(self._loaded)
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
            print_error(f"too many samples failed in a row, the last one with: {result.end.error}")
            print_note(f"{write_count(missing, 'row')} missing; go on later with: {self._again}")
            code = ExitCode.FAILED
        elif reason != "done":
            print_error(f"{write_count(missing, 'row')} missing: {_LIMITS[reason]}")
            code = ExitCode.LIMIT
        if not self._shown.is_quiet and not self._shown.is_json and result.progress.kept:
            print_note(f"rows: {folder.rows}   card: {folder.card}   report: {folder.report}")
            print_note(f"look at them: {write_command('dataset', 'show', str(folder.path))}")
            print_note(f"check them: {write_command('dataset', 'verify', str(folder.path))}")
        return code


_LIMITS = {
    "max_cost_usd": "limits.max_cost_usd is reached; raise it and run the same command",
    "max_tokens": "limits.max_tokens is reached; raise it and run the same command",
    "max_seconds": "limits.max_seconds is reached; raise it and run the same command",
    "max_items": "too many samples were rejected; see the reasons with `treadle dataset stats`, try them again "
    "with --retry-failed, or raise generation.max_attempts",
}
"""What the reasons for an early end mean."""
