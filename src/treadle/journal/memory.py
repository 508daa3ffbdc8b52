"""A journal in memory: for tests and for runs that need not outlive the process."""

import time
from collections.abc import Mapping, Sequence

from treadle.core import events as e
from treadle.core.errors import JournalError, LeaseHeldError, RunExistsError, RunNotFoundError
from treadle.journal.protocol import RunInfo
from treadle.journal.status import status_of


class MemoryJournal:
    """Keeps events as their encoded bytes, so that what is read is what a store would give back."""

    level = "memory"

    def __init__(self) -> None:
        self._runs: dict[str, list[bytes]] = {}
        self._created: dict[str, float] = {}
        self._blobs: dict[str, bytes] = {}
        self._driven: set[str] = set()

    def create(self, run_id: str) -> "MemoryWriter":
        """See `Journal.create`."""
        return MemoryWriter(self, run_id, is_new=True)

    async def acquire(self, run_id: str) -> "MemoryWriter":
        """See `Journal.acquire`."""
        if run_id not in self._runs:
            raise RunNotFoundError(f"run {run_id!r} not found in this journal (in memory)")
        if run_id in self._driven:
            raise LeaseHeldError(f"run {run_id!r} is being driven by this process already")
        self._driven.add(run_id)
        return MemoryWriter(self, run_id, is_new=False)

    def read(self, run_id: str, after_seq: int = 0) -> list[e.Event]:
        """See `Journal.read`."""
        if run_id not in self._runs:
            raise RunNotFoundError(f"run {run_id!r} not found in this journal (in memory)")
        raws = self._runs[run_id][after_seq:]
        return [e.Event(run_id, after_seq + i, e.decode_body(raw), raw) for i, raw in enumerate(raws, 1)]

    def read_blob(self, digest: str) -> bytes:
        """See `Journal.read_blob`."""
        try:
            return self._blobs[digest]
        except KeyError:
            raise JournalError(f"the content {digest!r} is not in this journal") from None

    def runs(self) -> list[RunInfo]:
        """See `Journal.runs`."""
        infos = []
        for run_id, raws in list(self._runs.items()):  # other threads may add runs meanwhile
            events = self.read(run_id)
            status, stop_reason = status_of([event.body for event in events])
            infos.append(
                RunInfo(
                    run_id=run_id,
                    status=status or "running",
                    stop_reason=stop_reason,
                    events=len(raws),
                    created_at=self._created[run_id],
                    updated_at=events[-1].at,
                    is_driven=run_id in self._driven,
                )
            )
        return infos

    def close(self) -> None:
        """Nothing to do: what it holds goes with it."""

    def __enter__(self) -> "MemoryJournal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryWriter:
    """See `RunWriter`."""

    def __init__(self, journal: MemoryJournal, run_id: str, *, is_new: bool) -> None:
        self.run_id = run_id
        self._journal = journal
        self._is_new = is_new

    def append(self, bodies: Sequence[e.DurableBody], blobs: Mapping[str, bytes] | None = None) -> None:
        """See `RunWriter.append`."""
        self._keep([e.encode_body(body) for body in bodies], blobs)

    def append_events(self, events: Sequence[e.Event], blobs: Mapping[str, bytes] | None = None) -> None:
        """See `RunWriter.append_events`."""
        self._keep([event.raw or e.encode_body(event.body) for event in events], blobs)

    def _keep(self, raws: list[bytes], blobs: Mapping[str, bytes] | None) -> None:
        journal = self._journal
        if blobs:
            journal._blobs.update(blobs)
        if not raws:
            return
        if self._is_new:
            if self.run_id in journal._runs:
                raise RunExistsError(f"run {self.run_id!r} exists already in this journal")
            self._is_new = False
            journal._created[self.run_id] = time.time()
            journal._driven.add(self.run_id)
            journal._runs[self.run_id] = raws
        else:
            journal._runs[self.run_id].extend(raws)

    async def sync(self) -> None:
        """See `RunWriter.sync`."""

    async def release(self) -> None:
        """See `RunWriter.release`."""
        self._journal._driven.discard(self.run_id)
