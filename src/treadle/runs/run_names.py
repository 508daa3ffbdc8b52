"""The runs that a person names: by their ids, by the beginnings of ids, or as `last`."""

from treadle.core.errors import JournalError, RunNotFoundError
from treadle.core.events import RunStarted
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter

_MAX_LISTED = 5
"""How many ids an error lists."""
_PAGE = 50
"""How many runs are listed at a time."""
_BEYOND = 2**32
"""A number that no event reaches, used to ask for a run without reading its events."""


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


def read_started(journal: Journal, run_id: str) -> RunStarted:
    """Return the first event of a run. Raises: `RunNotFoundError`, `JournalError`."""
    events = journal.read(run_id, until_seq=1)
    started = events[0].body if events else None
    if not isinstance(started, RunStarted):
        raise JournalError(f"run {run_id!r} does not begin with run_started; its journal is damaged")
    return started
