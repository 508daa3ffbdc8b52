"""Facts that are computed from a run's events: those of older files, and those that had to be estimated."""

from collections.abc import Callable, Iterator

from treadle.core import events as e
from treadle.core.errors import JournalError
from treadle.journal.listing import Facts, facts_of
from treadle.journal.tables.checks import Head, Query, row_checksum, seed_of
from treadle.journal.tables.fact_columns import HEAD_COLUMNS, RUN_COLUMNS, head_values, run_values

ReadFrames = Callable[[Query, Head], Iterator[tuple[int, list[bytes]]]]
"""A function that yields the frames of a run."""

_FILL_RUN = f"UPDATE runs SET {', '.join(f'{name}=?' for name in RUN_COLUMNS)} WHERE id=?"
_FILL_HEAD = f"UPDATE heads SET {', '.join(f'{name}=?' for name in HEAD_COLUMNS)} WHERE run=?"
UNKNOWN = (
    "SELECT heads.run, heads.frame, run_id, status, stop_reason, created_at FROM heads "
    "JOIN runs ON runs.id = heads.run WHERE {unknown} ORDER BY heads.run LIMIT ?"
)
"""The query for the runs whose facts are unknown."""


def fill_facts(query: Query, read: ReadFrames, unknown: str, *, limit: int = 200) -> int:
    """Compute the facts of the first `limit` runs that have none yet, within a transaction.

    `unknown` is the query for these runs. Return their number.
    """
    rows = query(unknown, (limit,))
    for key, frame, run_id, status, stop_reason, created_at in rows:
        name = run_id if isinstance(run_id, str) else run_id.decode(errors="backslashreplace")
        try:
            store_facts(query, read, Head(name, key, frame, None))
        except JournalError:  # the listing shows the run; reading it raises the error
            facts = Facts(status=status, stop_reason=stop_reason, created_at=created_at)
            query(_FILL_RUN, (*run_values(facts), None, key))
            query(_FILL_HEAD, (*head_values(facts), None, key))
    return len(rows)


def store_facts(query: Query, read: ReadFrames, head: Head) -> None:
    """Compute the facts of a run from its events, and store them, within a transaction.

    Raises: `JournalError` if the run is damaged.
    """
    facts = facts_of([e.decode_body(raw) for _, raws in read(query, head) for raw in raws])
    run, ended, seed = run_values(facts), head_values(facts), seed_of(head.run_id)
    query(_FILL_RUN, (*run, row_checksum(run, seed), head.key))
    query(_FILL_HEAD, (*ended, row_checksum(ended, seed), head.key))
