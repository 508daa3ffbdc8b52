"""The work of `treadle generate`: applies the options to the configuration, and runs the generation."""

import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.job_command import ConfigChanges, JobCommand
from treadle.cli.options import common as o
from treadle.cli.terminal.generation_plan import print_plan
from treadle.cli.terminal.output import print_note, shorten, write_command
from treadle.core.errors import ConfigError
from treadle.core.texts.documents import read_change
from treadle.datagen.config.estimate import estimate, measure_folder
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.loading import check_plan, load_config
from treadle.datagen.config.roles import try_models
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.generation import Continuation, GenerationResult
from treadle.datagen.generation import generate as generate_dataset
from treadle.datagen.generation_progress import GenerationProgress, SampleBegun, SampleEnded, SampleStep
from treadle.datagen.topics.topic_files import load_topics
from treadle.jobs.progress import JobNotice
from treadle.jobs.sections import LoadedConfig
from treadle.viewer import write_page
from treadle.viewer.bundle import HOW_TO_BUILD, is_built

if TYPE_CHECKING:
    from rich.text import Text

_STEPS = 5
"""How many lines of the sample that is being written are shown."""
_READ_SECONDS = 1.0
"""How long a finished sample is shown at least."""
_STATUS_STYLES = {"kept": "green", "rejected": "yellow", "failed": "red"}
_KEYS = {
    "out": "output.path",
    "num_samples": "generation.num_samples",
    "model": "models",
    "base_url": "models.default.base_url",
    "api_key": "models.default.api_key_env",
    "seed": "seed",
    "workers": "generation.workers",
}
"""The keys of the configuration that options override."""
_KEY_VARIABLE = "TREADLE_API_KEY"
"""The environment variable that holds the key of `--api-key`, for this process and its workers. A key stands in no
file."""


def read_changes(options: Mapping[str, str], settings: Sequence[str]) -> ConfigChanges:
    """Return the changes that options, by name, and values of `--set` mean."""
    given, values = dict(options), {}
    if "api_key" in given:
        os.environ[_KEY_VARIABLE], given["api_key"] = given["api_key"], _KEY_VARIABLE
    for name, text in given.items():
        is_plain = name in ("num_samples", "seed")
        values[_KEYS[name]] = read_change(f"{name}={text}")[1] if is_plain else text
    if "models" in values:
        values["models"] = {"default": values["models"]}
    flags = {_KEYS[name]: f"--{name.replace('_', '-')}" for name in given}
    hidden = {"api_key": "KEY"} if "api_key" in given else {}
    return ConfigChanges({**options, **hidden}, values, flags, tuple(settings))


def _load(path: Path | None, changes: ConfigChanges) -> LoadedConfig[GenerationConfig]:
    """Return the configuration in a file with the changes. Raises: `ConfigError`."""
    if path is None:
        raise ConfigError(
            "give a configuration: `treadle generate --init > dataset.yaml` writes one to start from"
        )
    return load_config(path, changes.by_key(), changes.flags)


def print_dry_run(path: Path | None, changes: ConfigChanges, *, is_json: bool) -> int:
    """Print the plan, then check everything, without asking a model. The plan needs no keys.

    Raises: `ConfigError` after the plan if the generation could not begin.
    """
    loaded = _load(path, changes)
    config = loaded.config
    folder = DatasetFolder(config.output.path)
    models, _ = try_models(config, needs_keys=False)
    measured, kept = measure_folder(folder)
    leaves = sum(1 for _ in load_topics(folder.topics).leaves()) if folder.topics.exists() else None
    try:
        expected = estimate(config, leaves, models=models, measured=measured, kept=kept)
    except ConfigError:
        check_plan(loaded, imports=False)  # its error has the line
        raise
    print_plan(config, expected, kept=kept, notes=loaded.notes, is_json=is_json)
    check_plan(loaded, leaves, imports=False)
    return ExitCode.DONE


def run(
    path: Path | None,
    changes: ConfigChanges,
    shown: o.ViewOptions,
    *,
    retry_failed: bool,
    accept_changes: bool,
) -> int:
    """Generate the dataset, or continue it, and return the exit code."""
    loaded = _load(path, changes)
    if not shown.is_quiet:
        for note in loaded.notes:
            print_note(note)
    assert path is not None
    options = Continuation(retry_failed=retry_failed, accept_changes=accept_changes)
    check_plan(loaded)
    # The check comes first, because its error must not be printed into the view.
    config, folder = loaded.config, DatasetFolder(loaded.config.output.path)
    job = JobCommand(
        config.name, GenerationProgress(), SampleFeed(), changes.command("generate", path), shown
    )
    return job.run(
        lambda stop: generate_dataset(config, folder, listener=job.listen, stop=stop, options=options),
        partial(_conclude, job, folder),
    )


def _conclude(job: JobCommand, folder: DatasetFolder, result: GenerationResult) -> int:
    """Write the report, print what became of the generation, and return the exit code."""
    where, stats = str(folder.path), write_command("dataset", "stats", str(folder.path))
    too_many = (
        f"too many samples were rejected; see the reasons with `{stats}`, try them again with --retry-failed, "
        "or raise generation.max_attempts"
    )
    code = job.report(result.end, result.progress, folder.path, too_many)
    if is_built():
        write_page(result.view, folder.report)
    if not job.shown.is_quiet:
        for note in result.view.notes:
            print_note(note.rstrip("."))
    if job.says_more and result.progress.kept:
        report = str(folder.report) if is_built() else f"none, because {HOW_TO_BUILD}"
        print_note(f"rows: {folder.rows}   card: {folder.card}   report: {report}")
        print_note(f"look at them: {write_command('dataset', 'show', where)}")
        print_note(f"check them: {write_command('dataset', 'verify', where)}")
    return code


class _Shown(Struct):
    """A sample in flight, or the one that is shown."""

    begun: SampleBegun
    lines: deque[str]
    """The newest lines."""
    ended: SampleEnded | None = None
    ended_at: float = 0.0


class SampleFeed:
    """The lines about the sample that is being written; see `Feed`."""

    def __init__(self) -> None:
        self._samples: dict[str, _Shown] = {}
        """The samples in flight, by id."""
        self._shown: _Shown | None = None

    def note(self, notice: JobNotice) -> None:
        if isinstance(notice, SampleStep):
            sample = self._samples.get(notice.sample_id)
            if sample is not None:
                sample.lines.append(notice.text)
                shown = self._shown
                if shown is None or (shown.ended and time.monotonic() - shown.ended_at >= _READ_SECONDS):
                    self._shown = sample
        elif isinstance(notice, SampleBegun):
            self._samples[notice.sample_id] = _Shown(notice, deque(maxlen=_STEPS))
        elif isinstance(notice, SampleEnded):
            sample = self._samples.pop(notice.sample_id, None)
            if sample is not None:
                sample.ended, sample.ended_at = notice, time.monotonic()

    def lines(self, height: int) -> list["Text"]:
        from rich.text import Text

        shown = self._shown
        if shown is None or height < 2:
            return []
        begun, ended = shown.begun, shown.ended
        kind = f" ({begun.kind})" if begun.kind else ""
        head = Text(f"  {begun.sample_id} ", style="bold").append(
            shorten(f"{' › '.join(begun.topic)}{kind}", 200), style="not bold cyan"
        )
        steps = [Text(f"    {shorten(text, 400)}", style="dim") for text in tuple(shown.lines)]
        if ended is not None:
            reasons = ": " + "; ".join(ended.reasons) if ended.reasons else ""
            told = shorten(f"{ended.status}{reasons}", 400)
            steps.append(Text(f"    {told}", style=_STATUS_STYLES.get(ended.status, "")))
        return [head, *steps[-(height - 1) :]]
