"""What a journal is to the loop: an append-only store of runs, one writer a run."""

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from msgspec import Struct

from treadle.core.events import DurableBody, Event


class RunInfo(Struct, frozen=True):
    """One line of a listing, kept by the store so that it needs no fold."""

    run_id: str
    status: str
    """`running`, `paused` or `finished`. A run whose process died stays `running` until it is resumed."""
    stop_reason: str | None
    events: int
    created_at: float
    """Seconds since the epoch."""
    updated_at: float
    is_driven: bool
    """Some live process holds its lease."""


class RunWriter(Protocol):
    """The right to append to one run, held under a lease until it is released."""

    @property
    def run_id(self) -> str: ...

    def append(self, bodies: Sequence[DurableBody], blobs: Mapping[str, bytes] | None = None) -> None:
        """Queue `bodies` as the run's next events, all or none, with the contents that they name.

        Returns at once; `sync` says when they are kept. Blobs are stored by SHA-256, once.
        Raises: `JournalError` once an earlier append has failed.
        """
        ...

    def append_events(self, events: Sequence[Event], blobs: Mapping[str, bytes] | None = None) -> None:
        """As `append`, for events that were read elsewhere: the bytes they were read from are kept as they are.

        Their run ids and seqs are not looked at; they become the run's next events.
        """
        ...

    async def sync(self) -> None:
        """Return when everything appended is kept at the journal's level.

        Raises: `LeaseLostError` if another process took the run over, `RunExistsError` if the run was new
        and its id is taken, `JournalError` if the store failed (a full disk). Nothing appended since the
        last successful `sync` is kept then.
        """
        ...

    async def release(self) -> None:
        """Give the lease back, after a `sync`. The writer is of no use afterwards."""
        ...


class Journal(Protocol):
    """A store of runs. Safe to use from several threads, event loops and processes."""

    def create(self, run_id: str) -> RunWriter:
        """A writer for a new run; that its id is free is checked with the first append."""
        ...

    async def acquire(self, run_id: str) -> RunWriter:
        """A writer for a run that exists.

        Raises: `RunNotFoundError`, or `LeaseHeldError` if another live process or task drives it.
        """
        ...

    def read(self, run_id: str, after_seq: int = 0) -> list[Event]:
        """The kept events of a run, in order. Raises: `RunNotFoundError`."""
        ...

    def read_blob(self, digest: str) -> bytes:
        """A stored content. Raises: `JournalError` if it is not there."""
        ...

    def runs(self) -> list[RunInfo]:
        """All runs, in order of creation."""
        ...

    def close(self) -> None:
        """Write what is queued, give back all leases and close. Idempotent."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
