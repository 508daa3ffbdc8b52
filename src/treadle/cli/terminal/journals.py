"""Opens journals, and finds the runs that a command line names."""

from pathlib import Path

from treadle.core.errors import ConfigError, JournalError, RunNotFoundError
from treadle.core.events import RunStarted
from treadle.journal.protocol import Journal, RunFilter
from treadle.journal.registry import open_journal


def open_existing(path: Path | None) -> Journal:
    """Open a journal that must exist. Raises: `JournalError`."""
    return open_journal(path, must_exist=True)


def open_or_make(path: Path | None, level: str) -> Journal:
    """Open a journal; make it, and its folder, if it does not exist. Raises: `JournalError`."""
    if path is not None and str(path) != "memory:":
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JournalError(
                f"cannot make the folder {str(path.parent)!r} of the journal: {error}"
            ) from error
    return open_journal("memory:" if str(path) == "memory:" else path, level)


def find_run(journal: Journal, text: str) -> str:
    """Return the id of the run that `text` names: an id, the beginning of one, or `last`.

    Raises: `RunNotFoundError` if no run or more than one has such an id.
    """
    starting = [info.run_id for info in journal.runs(RunFilter(id_prefix=text))] if text else []
    if text in starting:
        return text
    newest = [info.run_id for info in journal.runs(limit=1, newest_first=True)]
    if text == "last" and newest:
        return newest[0]
    if len(starting) == 1:
        return starting[0]
    if starting:
        raise RunNotFoundError(
            f"the ids of {len(starting)} runs begin with {text!r}, for example {starting[-1]!r}; write more of "
            "the id"
        )
    if not newest:
        raise RunNotFoundError(f"there is no run {text!r}: the journal is empty")
    raise RunNotFoundError(
        f"there is no run {text!r} in this journal; the newest is {newest[0]!r}. `treadle runs` lists them"
    )


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
    events = journal.read(run_id)
    started = events[0].body if events else None
    if not isinstance(started, RunStarted):
        raise JournalError(f"run {run_id!r} does not begin with run_started; its journal is damaged")
    return started
