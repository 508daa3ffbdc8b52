"""Functions that open and import journals, and what commands for several runs share."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.cli.terminal.output import print_error, print_note, spinner, write_error
from treadle.core.errors import ConfigError, JournalError, TreadleError
from treadle.journal.named_files import explain_unread
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal
from treadle.journal.run_info import RunInfo
from treadle.runs.statuses import find_run

if TYPE_CHECKING:
    from treadle.journal.jsonl import Imported


_JOBS = {
    "evaluation": "an evaluation (treadle eval)",
    "rollout": "rollouts (treadle rollout)",
    "dataset": "a dataset (treadle generate)",
}
"""The labels of runs that belong to a job, with what it is."""
_JOURNALS = ("runs.db", "journal.db")
"""The journals in the folders of jobs."""


def open_existing(address: str | None, level: str = "process") -> Journal:
    """Open a journal that must exist. Raises: `JournalError`."""
    return open_journal(address, level, must_exist=True)


def new_run_id(given: str | None) -> str:
    """Return the id of a new run: a given one or a generated one. Raises: `ConfigError`."""
    from treadle.runs.begin import make_run_id
    from treadle.runs.options import check_new_run_id

    if given is not None:
        check_new_run_id(given, "--run-id")
    return given or make_run_id()


def import_file(journal: Journal, path: str) -> "Imported":
    """Store the runs of an exported journal, and return their ids. `-` is standard input.

    Raises: `ConfigError` if the file cannot be read or is empty; `JournalError` if it is not an exported journal.
    """
    from treadle.cli.jobs.execute import execute
    from treadle.journal.jsonl import import_lines

    try:
        if path == "-":
            found = execute(import_lines(journal, sys.stdin.buffer))
        else:
            with Path(path).open("rb") as file, spinner(f"importing {path}"):
                found = execute(import_lines(journal, file))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise explain_unread("", path, error) from error
    except JournalError as error:
        advice = (
            "; give a file that `treadle export --format journal` wrote" if "not a line" in str(error) else ""
        )
        raise type(error)(f"{path}: {error}{advice}") from error
    if not found.added and not found.known:
        raise ConfigError(f"{path!r} is empty; give a file that `treadle export --format journal` wrote")
    return found


class Apart:
    """The runs that a command cannot use, for example because they are damaged. It continues with the others."""

    def __init__(self, kind: type[TreadleError] = JournalError) -> None:
        self.count = 0
        self._kind = kind
        """The errors that concern one run only."""

    @contextmanager
    def guard(self, run_id: str) -> Iterator[None]:
        """Do the work for one run. If it fails, print the error and count it instead of raising it."""
        try:
            yield
        except self._kind as error:
            self.count += 1
            text = write_error(error)
            print_error(text if run_id in text else f"run {run_id}: {text}")


def find_runs(journal: Journal, texts: list[str] | None, *, is_all: bool) -> list[str]:
    """Return the ids that `texts` name, each once, or all ids.

    Raises: `ConfigError` if both or neither are asked for; `RunNotFoundError`.
    """
    if bool(texts) is is_all:
        raise ConfigError("give the runs or --all, not both" if is_all else "give the runs, or --all")
    if is_all:
        return [info.run_id for info in journal.runs()]
    return list(dict.fromkeys(find_run(journal, text) for text in texts or ()))


def without_jobs(found: Iterable[RunInfo], address: str | None) -> list[RunInfo]:
    """Return the unfinished runs that belong to no job, and print how the others are continued: by the command that
    began the job, which keeps its limits."""
    own: list[RunInfo] = []
    jobs = Counter[str]()
    for info in found:
        job = next((text for label, text in _JOBS.items() if label in info.labels), None)
        if job is None:
            own.append(info)
        else:
            jobs[job] += 1
    file = Path(address or "")
    place = f", with --out {file.parent}" if file.name in _JOURNALS else ""
    for job, count in jobs.items():
        print_note(f"◐ {count} unfinished of {job}; continue with the command that began it{place}")
    return own
