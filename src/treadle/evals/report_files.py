"""The files of reports: what `evaluate` writes at the end, and the formats of `treadle eval report` that are files.

A page is made by the viewer, so that it is given as a function (`treadle.viewer.make_page`).
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, TreadleError
from treadle.core.types import Json
from treadle.evals.evaluation_config import REPORTS, EvaluationConfig
from treadle.evals.evaluation_folder import EvaluationFolder, read_stored
from treadle.evals.evaluation_reports import (
    EvaluationView,
    make_deepfabric_result,
    read_curves,
    write_csv,
    write_view,
)
from treadle.evals.evaluation_results import Results
from treadle.evals.inspect_log import make_inspect_log, name_inspect_log
from treadle.export.whole import write_whole
from treadle.journal.registry import open_journal
from treadle.telemetry.curves import open_curves

PAGE = "html"
"""The report that is a page."""
OF_MODELS = ("inspect", "deepfabric")
"""The reports that are a file for each model."""


class MakePage(Protocol):
    """The function that makes a page; see `treadle.viewer.make_page`."""

    def __call__(self, path: Path, *, journal: str | None = None) -> bytes:
        """Return the page of the evaluation in a folder."""
        ...


class WrittenReport(Struct, frozen=True):
    """One of the reports that were asked for."""

    given: str
    """The report as `NAME=PLACE`."""
    places: tuple[str, ...]
    """What was written: the files, or the name of the curves."""
    error: str | None = None
    """Why it could not be written; `None` if it was."""


def check_page(reports: Sequence[str], make_page: MakePage | None) -> None:
    """Check that there is a function for the pages among reports. Raises: `ConfigError`."""
    if make_page is None and any(given.partition("=")[0] == PAGE for given in reports):
        raise ConfigError(
            f"the report {PAGE!r} is a page of the viewer; give make_page=treadle.viewer.make_page too"
        )


def write_reports(
    config: EvaluationConfig, results: Results, make_page: MakePage | None = None
) -> tuple[WrittenReport, ...]:
    """Write the named reports, each whatever becomes of the others; none if there are no samples."""
    return tuple([_write(given, config, results, make_page) for given in config.reports if results.samples])


def _write(
    given: str, config: EvaluationConfig, results: Results, make_page: MakePage | None
) -> WrittenReport:
    name, _, place = given.partition("=")
    try:
        if name not in REPORTS:
            settings: dict[str, Json] = {"models": list(config.model_names()), "epochs": config.epochs}
            with open_curves([given], config.name, settings) as opened:
                opened.write(0, {f"eval/{name}": value for name, value in read_curves(results).items()})
            return WrittenReport(given, (given,))
        out = Path(place)
        out.parent.mkdir(parents=True, exist_ok=True)
        if name in OF_MODELS:
            files = write_by_model(config.path, results, out, config.journal, name)
            return WrittenReport(given, tuple(map(str, files)))
        if name == PAGE and make_page is not None:
            content = make_page(config.path, journal=config.journal)
        else:
            content = encode_report(EvaluationView([results], []), name)
        write_whole([content.removesuffix(b"\n")], out)
        return WrittenReport(given, (place,))
    except (TreadleError, OSError) as error:
        return WrittenReport(given, (), str(error))


def encode_report(view: EvaluationView, format: str) -> bytes:
    """Return a report as `json`, `csv` or `markdown`."""
    if format == "json":
        return msgspec.json.encode(view) + b"\n"
    return (write_csv(view.evaluations[0]) if format == "csv" else write_view(view)).encode()


def write_by_model(folder: Path, results: Results, out: Path, journal: str | None, format: str) -> list[Path]:
    """Write a file for each model, all but the only one with the model in its name, and return their paths."""
    written: list[Path] = []
    address = EvaluationFolder(folder).find_journal(read_stored(folder), journal)
    make = make_inspect_log if format == "inspect" else make_deepfabric_result
    with open_journal(address, must_exist=True) as opened:
        for model in results.models:
            safe = re.sub(r"[^\w.-]+", "_", model.model)
            path = out if len(results.models) == 1 else out.with_stem(f"{out.stem}_{safe}")
            made = make(results, model, opened)
            if format == "inspect" and out.is_dir():
                path = out / name_inspect_log(made)
            if path in written:  # names may differ only in signs
                path = path.with_stem(f"{path.stem}_{len(written) + 1}")
            write_whole([msgspec.json.encode(made)], path)
            written.append(path)
    return written
