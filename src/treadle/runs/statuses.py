"""The finding of runs: by their statuses, which are computed from the rows that journals keep, and by what a person
writes: an id, the beginning of one, or `last`."""

from collections.abc import Iterator
from itertools import islice

from msgspec.structs import replace

from treadle.core.errors import JournalError, RunNotFoundError
from treadle.core.events import RunStarted
from treadle.core.types import StopReason
from treadle.journal.protocol import Journal
from treadle.journal.run_info import CALLER, DAMAGED, RunFilter, RunInfo

PAGE = 500
"""How many runs are read from the journal at a time."""
_FIRST_PAGE = 50
"""How many runs are read to find the newest one."""
_MAX_LISTED = 5
"""How many ids an error lists."""
FAILED = "failed"
"""The status of the runs that ended with the stop reason `error`."""
_IDLE = RunFilter(is_finished=False, is_driven=False)
FILTERS = {
    "finished": RunFilter(is_finished=True),
    "running": RunFilter(is_finished=False, is_driven=True),
    "unfinished": replace(_IDLE, is_waiting=False),
    "waiting": RunFilter(is_finished=False, is_waiting=True),
    DAMAGED: RunFilter(),
    "open": replace(_IDLE, is_waiting=False, is_session=True, is_turn_open=False),
}
"""The journal's filter for each status. For a status that only `status_of` can decide, the filter also matches
other runs."""


def status_of(info: RunInfo) -> str:
    """Return the status of a run for a listing.

    `finished`; `waiting` for an answer or an approval, also while a process asks for it; `running` if a live
    process drives it; `open` for a session between two turns; `unfinished` if it can be resumed; `damaged` if its
    facts cannot be read.
    """
    if info.status == DAMAGED:
        return DAMAGED
    if info.status == "finished":
        return "finished"
    if info.is_waiting:
        return "waiting"
    if info.is_driven:
        return "running"
    return "open" if info.is_session and not info.is_turn_open else "unfinished"


def iterate_runs(
    journal: Journal,
    condition: RunFilter | None = None,
    *,
    status: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> Iterator[RunInfo]:
    """Yield the newest `limit` runs that have `status`, meet `condition` and are older than `after`, with few of
    them in memory at a time."""
    wanted = condition or RunFilter()
    if status is not None:
        base = FILTERS[status]
        given = {name: value for name in wanted.__struct_fields__ if (value := getattr(wanted, name))}
        wanted = replace(base, **given)
    found = (
        info
        for info in _read_pages(journal, wanted, after, newest_first=True)
        if status in (None, status_of(info))
    )
    return islice(found, limit)


def find_unfinished(journal: Journal, *, has_failed: bool = False) -> list[RunInfo]:
    """Return the runs that no process drives and that can be resumed, the oldest first.

    The runs of agents that other runs called are left out, because they are resumed together with those. With
    `has_failed`, the runs that ended with an error are included. Damaged runs are always included.
    """
    conditions = [FILTERS["unfinished"]]
    if has_failed:
        conditions.append(RunFilter(is_finished=True, stop_reason=StopReason.ERROR))
    found = [
        info
        for condition in conditions
        for info in _read_pages(journal, condition, None, newest_first=False)
        if status_of(info) in ("unfinished", "finished", DAMAGED) and CALLER not in info.labels
    ]
    return sorted(found, key=lambda info: info.created_at)


def _read_pages(
    journal: Journal, condition: RunFilter, after: str | None, *, newest_first: bool, size: int = PAGE
) -> Iterator[RunInfo]:
    while page := journal.runs(condition, after=after, limit=size, newest_first=newest_first):
        yield from page
        if len(page) < size:
            return
        after = page[-1].run_id


def find_run(journal: Journal, text: str) -> str:
    """Return the id of the run that `text` names: an id, the beginning of one, or `last`.

    Raises: `RunNotFoundError` if no run or more than one has such an id.
    """
    found = journal.runs(RunFilter(id_prefix=text), limit=_MAX_LISTED + 1) if text else []
    if len(found) == 1:
        return found[0].run_id
    if found:
        if journal.runs(RunFilter(run_ids=[text])):
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
    found = _read_pages(journal, RunFilter(), None, newest_first=True, size=_FIRST_PAGE)
    return next((info.run_id for info in found if info.caller_run_id is None), None)


def read_started(journal: Journal, run_id: str) -> RunStarted:
    """Return the first event of a run. Raises: `RunNotFoundError`, `JournalError`."""
    events = journal.read(run_id, until_seq=1)
    started = events[0].body if events else None
    if not isinstance(started, RunStarted):
        raise JournalError(f"run {run_id!r} does not begin with run_started; its journal is damaged")
    return started
