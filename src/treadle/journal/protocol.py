"""The contract between the loop and a journal: an append-only store of runs with one writer per run.

Methods that read (`read`, `read_blob`, `read_stored`, `runs`) block and may be called from any thread; a program
with an event loop calls them in a thread (`asyncio.to_thread`). What a running agent calls for every step
(`append`, `append_events`, `sync`) never waits for the store on the event loop.
"""

import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, cast

from msgspec import Struct

from treadle.core.events import DurableBody, Event
from treadle.core.inbox import InboxMessage, Posted
from treadle.journal.driven import DrivenRun, DrivenRuns
from treadle.journal.run_info import RunFilter, RunInfo, RunOrder

if TYPE_CHECKING:
    from treadle.journal.resources import ResourceTable

APPLICATION_ID = 0x5452444C
"""The number in SQLite's header that marks a file as a journal of Treadle."""


class Clock(Protocol):
    """A source of the time; the module `time` is one."""

    def time(self) -> float:
        """Return the seconds since the epoch."""

    def monotonic(self) -> float:
        """Return a time in seconds that never goes backwards, for measuring durations."""


class StoreOptions(Struct, frozen=True, kw_only=True):
    """The options that `open_journal` passes to a store. A store refuses an option that it cannot fulfil."""

    level: str = "process"
    """The level, which says what a stored event survives: `memory`, `process` or `power`."""
    must_exist: bool = False
    """True to refuse to create a store."""
    lease_seconds: float = 10.0
    """If this process sends no heartbeat for this time, other processes may take its runs over."""
    clock: Clock = time
    packs: bool = False
    """True to keep events compressed with a dictionary that is made from the first ones, if the store can."""


class Settled:
    """An awaitable that is already finished. `RunWriter.sync` returns it when there is nothing to wait for."""

    __slots__ = ("_error",)

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def __await__(self) -> Generator[None, None, None]:
        if self._error is not None:
            raise self._error
        return _NOTHING


_NOTHING = cast("Generator[None, None, None]", iter(()))
DONE = Settled()
"""An awaitable that is finished already, for a writer whose events are all stored."""


class RunWriter(Protocol):
    """The right to append to one run, held under a lease until it is released."""

    @property
    def run_id(self) -> str: ...

    @property
    def driven(self) -> DrivenRun:
        """The entry of this run in the list of driven runs; it knows whether messages have arrived."""

    @property
    def losses(self) -> int:
        """How often in a row the run's driver before ended without giving the lease back, as of taking it."""

    @property
    def last_seq(self) -> int:
        """The number of the run's newest event that was stored or is being stored; 0 if it has none."""

    def append(self, bodies: Sequence[DurableBody], blobs: Mapping[str, bytes] | None = None) -> None:
        """Queue `bodies` as the run's next events, all or none, and the contents that they refer to.

        This returns at once; `sync` tells when the events are stored. `blobs` maps the SHA-256 of a content to the
        content, or to a patch that makes it from one that is stored already (`core.patches`). The store keeps what
        it got first under a hash.
        Raises: `JournalError` if an earlier append has failed.
        """

    def append_events(self, events: Sequence[Event], blobs: Mapping[str, bytes] | None = None) -> None:
        """Queue events that were read elsewhere, and keep the exact bytes that they were read from.

        Their run ids and seqs are ignored; they become the run's next events. The run's messages are numbered from
        the largest number that the events took in.
        """

    def take_in(self, number: int) -> None:
        """Remove the messages up to `number` from the inbox, together with storing the events that were
        appended last and that result from these messages."""

    def sync(self) -> Awaitable[None]:
        """Return an awaitable that finishes when everything appended so far is stored at the journal's level.

        This is a plain function, and the awaitable is a future or is finished already, so that waiting costs no
        coroutine. Awaiting it raises `LeaseLostError` if another process took the run over, `RunExistsError` if
        the run was new and its id is taken, and `JournalError` if the store failed (a full disk). Nothing that
        was appended since the last successful `sync` is stored then.
        """

    async def release(self) -> None:
        """Write the queued events and release the lease. The writer cannot be used afterwards.

        A caller that is cancelled meanwhile has released the lease all the same. If the store fails, the lease is
        released when the store works again.
        """

    def renewal(self) -> "Callable[[], RunWriter] | None":
        """Return a function that makes the next writer of the run, once this one is released and all is stored;
        `None` if the store has no such writers, so that the lease has to be acquired.

        It may be called once. The writer takes the lease together with storing its first events, which spares a
        transaction. If the run has changed or got a message by then, `sync` raises `LeaseHeldError`, and nothing is
        stored.
        """


class Attached(Protocol):
    """An object that keeps tables of its own in a journal's database, and is closed together with the journal."""

    def close(self) -> None:
        """Close the connections to the database."""

    def disown(self) -> None:
        """Give up the connections in a forked child, without closing them."""


class News(Protocol):
    """A view of a journal that waits until something is stored in it, by this process or by others."""

    async def wait(self, seconds: float) -> bool:
        """Wait until something was stored since the last call returned, or since this object was made. Return True
        then, and False if `seconds` have passed first.

        It may also return True although nothing was stored. Waiting costs almost no CPU time. Raises:
        `JournalError` if the journal is closed.
        """


class Journal(Protocol):
    """A store of runs. Safe to use from several threads, event loops and processes."""

    @property
    def driven(self) -> DrivenRuns:
        """The runs that this process drives."""

    @property
    def address(self) -> str | None:
        """The address by which another process opens the store; `None` if only this process can use it."""

    @property
    def resources(self) -> "ResourceTable":
        """What the database holds besides runs, such as uploaded files."""

    def create(self, run_id: str, *, is_imported: bool = False) -> RunWriter:
        """Return a writer for a new run. The first append finds out whether the id is free.

        The run is not trusted if it `is_imported`.
        """

    def is_trusted(self, run_id: str) -> bool:
        """Return whether the run is trusted: the user began it here, or trusts it. Blocks.

        Raises: `RunNotFoundError`.
        """

    def trust(self, run_id: str) -> None:
        """Record that the user trusts the run. Blocks. Raises: `RunNotFoundError`, `JournalError`."""

    async def acquire(self, run_id: str) -> RunWriter:
        """Take the lease of a run that exists, and return its writer.

        If the owner of the lease seems to be dead, but this is not certain, wait as long as its leases last.
        Raises: `RunNotFoundError`, or `LeaseHeldError` if another live process or task drives the run.
        """

    async def claim(
        self, queue: str, skip: Collection[str] = (), *, max_losses: int | None = None
    ) -> RunWriter | None:
        """Take the lease of a run that waits in `queue` for a worker, and return its writer; `None` if none waits.

        It is a run with the label `QUEUE` = `queue` whose turn is open, that waits for no answer or approval, that
        nobody drives, and that is trusted. A run whose driver died waits again: at once if it is certain that the
        process has ended, else when its lease has ended. Runs that lost fewer drivers come first
        (`RunWriter.losses`), then older ones; runs that lost more than `max_losses` are left out. So are runs in
        `skip`, damaged ones, and those that were imported, even if they are trusted later. No run is given to two
        callers.

        This never waits for a run; `news` tells when to ask again. Nothing is stored when a process dies, so ask at
        least every `lease_seconds` / 8.
        """

    def news(self, queue: str | None = None) -> News:
        """Return an object that waits until something new is stored in the journal.

        With a `queue`, it waits for what may let a run of this queue be claimed, as far as the store can tell.
        """

    def post(self, run_id: str, message: InboxMessage, blobs: Mapping[str, bytes] | None = None) -> int:
        """Store a message for a run, whoever drives it, and return its number. Blocks.

        The numbers of a run's messages grow in the order in which they are stored. `blobs` has the contents that
        the message refers to, as in `RunWriter.append`. The driver of the run is told at once.
        Raises: `RunNotFoundError`; `JournalError` if the message cannot be stored.
        """

    def posting(
        self, run_id: str, message: InboxMessage, blobs: Mapping[str, bytes] | None = None
    ) -> "Future[int]":
        """Begin to `post` a message, and return the future of its number. This returns at once.

        Messages of one thread are stored in the order of the calls. In an event loop, await
        `asyncio.wrap_future(...)`.
        """

    def inbox(self, run_id: str, after: int = 0) -> list[Posted]:
        """Return the messages of a run that were not taken in, in order, from number `after` + 1 on. Blocks.

        Raises: `RunNotFoundError`.
        """

    def read(self, run_id: str, after_seq: int = 0, until_seq: int | None = None) -> list[Event]:
        """Return the stored events of a run in order, from `after_seq` + 1 up to and including `until_seq`. Blocks.

        Raises: `RunNotFoundError`; `JournalError` if the run is damaged. Damage after `until_seq` is ignored.
        """

    def scan(self, run_id: str) -> Iterator[Event]:
        """Yield the events that `read` returns, with few of them in memory at a time. Blocks."""

    def find_faults(self) -> Iterator[str]:
        """Yield what is wrong with the store itself, apart from the events and contents that can be read. Blocks.

        Only `journal.check` calls this, because it may read everything in the store.
        """

    def read_blob(self, digest: str) -> bytes:
        """Return a stored content. Blocks. Raises: `JournalError` if it is missing or damaged."""

    def read_stored(self, digest: str) -> bytes:
        """Return what is stored for a content, unchecked: the content or a patch. `core.patches.load` makes the
        content from it. Blocks. Raises: `JournalError` if the store does not have it."""

    def runs(
        self,
        filter: RunFilter | None = None,
        *,
        after: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        order: RunOrder | None = None,
    ) -> list[RunInfo]:
        """Return the runs that meet `filter` in order of creation, at most `limit` of them. Blocks.

        With `order`, runs are sorted by this figure first, and `newest_first` begins with the largest one.
        `after` is the id of the last run of the page before; the listing continues after it.
        Raises: `RunNotFoundError` if there is no run `after`.
        """

    def find_runs(self, text: str) -> list[str]:
        """Return the runs whose messages may have `text`, in any case, in order of creation. Blocks.

        This is for searching: all runs that have it are among them, and others may be.
        """

    def follow(self, run_id: str | None, after_seq: int | None = 0) -> AsyncIterator[Event]:
        """Yield the stored events of a run, or of all runs if `run_id` is `None`, and then new ones once stored.

        `after_seq` counts within each run: events up to it are left out. `None` leaves out everything that is
        stored already. Events of one run come in order; events of different runs come in the order of commits. The
        iteration ends when the run is finished, or was cancelled or set aside, and no process drives it, or when
        the journal is closed. Raises: `RunNotFoundError`.
        """

    def delete(self, run_id: str) -> None:
        """Delete a run, with its events, its lease, and the contents that no other run needs. Blocks.

        Runs that were forked from it stay whole, because they have copies of its events.
        Raises: `RunNotFoundError`; `LeaseHeldError` if the run is being driven; `JournalError`.
        """

    def backup(self, path: str | Path) -> int:
        """Write a copy of the store to the new file `path`, and return the number of its runs. Blocks.

        The copy is consistent even while runs are being driven, and nobody drives them in the copy.
        Raises: `JournalError` if `path` exists or cannot be written, or if the store cannot be copied.
        """

    def close(self) -> None:
        """Write the queued events, release all leases and close the store. Calling it again does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
