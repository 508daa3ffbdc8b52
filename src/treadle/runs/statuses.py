"""The statuses of runs: they are computed from the rows that journals keep, shown in listings, and used to find
runs."""

from collections.abc import Iterator
from itertools import islice

from msgspec.structs import replace

from treadle.core.types import StopReason
from treadle.journal.protocol import Journal
from treadle.journal.run_info import CALLER, DAMAGED, RunFilter, RunInfo

PAGE = 500
"""How many runs are read from the journal at a time."""

FAILED = "failed"
"""The status of the runs that ended with the stop reason `error`."""
_IDLE = RunFilter(is_finished=False, is_driven=False)
FILTERS = {
    "finished": RunFilter(is_finished=True),
    "running": RunFilter(is_finished=False, is_driven=True),
    "unfinished": replace(_IDLE, is_waiting=False),
    "waiting": replace(_IDLE, is_waiting=True),
    DAMAGED: RunFilter(),
    "open": replace(_IDLE, is_waiting=False, is_session=True, is_turn_open=False),
}
"""The journal's filter for each status. For a status that only `status_of` can decide, the filter also matches
other runs."""


def status_of(info: RunInfo) -> str:
    """Return the status of a run for a listing.

    `finished`; `running` if a live process drives it; `waiting` for an answer or an approval; `open` for a session
    between two turns; `unfinished` if it can be resumed; `damaged` if its facts cannot be read.
    """
    if info.status == DAMAGED:
        return DAMAGED
    if info.status == "finished":
        return "finished"
    if info.is_driven:
        return "running"
    if info.is_waiting:
        return "waiting"
    return "open" if info.is_session and not info.is_turn_open else "unfinished"


def list_runs(
    journal: Journal,
    condition: RunFilter | None = None,
    *,
    status: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> list[RunInfo]:
    """Return the newest `limit` runs that have `status`, meet `condition` and are older than `after`."""
    return list(iterate_runs(journal, condition, status=status, after=after, limit=limit))


def iterate_runs(
    journal: Journal,
    condition: RunFilter | None = None,
    *,
    status: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> Iterator[RunInfo]:
    """Yield the runs that `list_runs` returns, with few of them in memory at a time."""
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


def find_unfinished(journal: Journal, *, has_failed: bool = False) -> list[str]:
    """Return the ids of the runs that no process drives and that can be resumed, the oldest first.

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
    return [info.run_id for info in sorted(found, key=lambda info: info.created_at)]


def _read_pages(
    journal: Journal, condition: RunFilter, after: str | None, *, newest_first: bool
) -> Iterator[RunInfo]:
    while page := journal.runs(condition, after=after, limit=PAGE, newest_first=newest_first):
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].run_id
