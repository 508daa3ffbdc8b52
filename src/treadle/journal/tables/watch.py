"""Finding out which of the followed runs other processes have changed."""

from collections.abc import Collection
from typing import Any

from treadle.journal.tables.leases import Leases
from treadle.journal.tables.reader import TableReader, has_stopped


class RunWatch:
    """What one journal last saw of the followed runs, read with one query for all of them."""

    def __init__(self, reader: TableReader, leases: Leases) -> None:
        self._reader = reader
        self._leases = leases
        self._version: int | None = None
        """The number of the store's newest commit before the last look."""
        self._seen: dict[str | None, Any] = {}
        self._has_dying = True
        """True if a run is over as soon as its driver has died, which no commit tells."""

    def look(self, run_ids: Collection[str | None]) -> list[str | None]:
        """See `Look`. A run that was not followed before counts as changed."""
        version = self._reader.version()
        is_same = version is not None and version == self._version and not self._has_dying
        if is_same and self._seen.keys() >= set(run_ids):
            return []
        found = self._states([run_id for run_id in run_ids if run_id is not None])
        if None in run_ids:
            found[None] = self._reader.end_position()
        seen = self._seen
        self._seen = {run_id: found.get(run_id) for run_id in run_ids}
        self._version = version
        return [run_id for run_id, state in self._seen.items() if run_id not in seen or state != seen[run_id]]

    def _states(self, run_ids: list[str]) -> dict[str | None, Any]:
        condition, values = self._reader.is_one_of("runs.run_id", run_ids)
        rows = self._reader.query(
            "SELECT run_id, owner, token, status, waiting, heads.frame "
            f"FROM runs LEFT JOIN heads ON heads.run = runs.id WHERE {condition}",
            values,
        )
        mine, self._has_dying = self._leases.owner_id, False
        live: set[int] | None = None
        found: dict[str | None, Any] = {}
        for run_id, owner, token, status, waiting, frame in rows:
            if owner is not None and owner == mine:
                found[run_id] = token  # this process announces what it changes
                continue
            is_live = False
            if owner is not None and has_stopped(status, waiting):
                live = self._leases.live(self._reader.query) if live is None else live
                is_live = owner in live
                self._has_dying |= is_live
            found[run_id] = (owner, token, status, waiting, frame, is_live)
        return found
