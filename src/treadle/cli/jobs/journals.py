"""Functions that open and import journals, find the runs that a command line names, and tell their statuses."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treadle.cli.jobs.execute import execute
from treadle.cli.terminal.output import print_error, spinner, write_error
from treadle.core.errors import ConfigError, JournalError, RunNotFoundError, TreadleError
from treadle.core.events import RunStarted
from treadle.journal.jsonl import Imported, import_lines
from treadle.journal.protocol import Journal, RunFilter
from treadle.journal.registry import make_folder, open_journal
from treadle.runs.begin import make_run_id

_MAX_LISTED = 5
"""How many ids an error lists."""
_PAGE = 50
"""How many runs are listed at a time."""
_BEYOND = 2**32
"""A number that no event reaches, used to ask for a run without reading its events."""


def open_existing(address: str | None, level: str = "process") -> Journal:
    """Open a journal that must exist. Raises: `JournalError`."""
    return open_journal(address, level, must_exist=True)


def open_or_make(address: str | None, level: str) -> Journal:
    """Open a journal; make it, and the folder of its file, if it does not exist. Raises: `JournalError`."""
    if address is not None and not address.endswith(":") and "://" not in address:
        make_folder(Path(address).parent)
    return open_journal(address, level)


def new_run_id(given: str | None) -> str:
    """Return the id of a new run: a given one or a generated one. Raises: `ConfigError`."""
    if given is None:
        return make_run_id()
    if not given or given == "last" or given.startswith("-") or not given.isprintable() or " " in given:
        raise ConfigError(
            f"--run-id {given!r}: an id has no blanks, does not begin with a dash, and is not 'last'"
        )
    return given


def find_run(journal: Journal, text: str) -> str:
    """Return the id of the run that `text` names: an id, the beginning of one, or `last`.

    Raises: `RunNotFoundError` if no run or more than one has such an id.
    """
    found = journal.runs(RunFilter(id_prefix=text), limit=_MAX_LISTED + 1) if text else []
    if len(found) == 1:
        return found[0].run_id
    if found:
        if _has_run(journal, text):
            return text
        ids = ", ".join([repr(info.run_id) for info in found[:_MAX_LISTED]])
        more = ", ..." if len(found) > _MAX_LISTED else ""
        raise RunNotFoundError(
            f"several runs have an id that begins with {text!r} ({ids}{more}); write more of it"
        )
    newest = _find_newest(journal)
    if newest is None:
        raise RunNotFoundError(f"there is no run {text!r}: the journal is empty")
    if text == "last":
        return newest
    raise RunNotFoundError(f"there is no run {text!r} in this journal; the newest is {newest!r}")


def _find_newest(journal: Journal) -> str | None:
    """Return the id of the newest run that is not the run of an agent that another one called."""
    after = None
    while page := journal.runs(after=after, limit=_PAGE, newest_first=True):
        for info in page:
            if info.caller_run_id is None:
                return info.run_id
        after = page[-1].run_id
    return None


def _has_run(journal: Journal, run_id: str) -> bool:
    try:
        journal.read(run_id, after_seq=_BEYOND)
    except RunNotFoundError:
        return False
    except JournalError:  # it is there, but damaged
        return True
    return True


def import_file(journal: Journal, path: str) -> Imported:
    """Store the runs of an exported journal, and return their ids. `-` is standard input.

    Raises: `ConfigError` if the file cannot be read; `JournalError` if it is not an exported journal.
    """
    try:
        if path == "-":
            return execute(import_lines(journal, sys.stdin.buffer))
        with Path(path).open("rb") as file, spinner(f"importing {path}"):
            return execute(import_lines(journal, file))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read {path!r}: {error.strerror}") from error
    except JournalError as error:
        raise type(error)(f"{path}: {error}") from error


class Apart:
    """The runs that a command cannot use, for example because they are damaged. It continues with the others."""

    def __init__(self, kind: type[TreadleError] = JournalError) -> None:
        self.count = 0
        """How many runs have failed."""
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


def read_started(journal: Journal, run_id: str) -> RunStarted:
    """Return the first event of a run. Raises: `RunNotFoundError`, `JournalError`."""
    events = journal.read(run_id, until_seq=1)
    started = events[0].body if events else None
    if not isinstance(started, RunStarted):
        raise JournalError(f"run {run_id!r} does not begin with run_started; its journal is damaged")
    return started
