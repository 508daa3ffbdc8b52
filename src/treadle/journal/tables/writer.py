"""The first half of the hot path: the events that runs append, until the committer gets them.

`append` adds bodies to the run's open `Write` and does nothing else. Facts are computed and bodies are encoded
once per turn of the event loop, when the journal hands over the open writes of all runs, and not for each append.
`sync` returns one future, which the committer settles; it needs no coroutine.

`Pending` has the writers with an open write. While a tool blocks an event loop, the committer's thread takes the
open writes of that loop, so that an answer of the model is not lost if the process is killed in the meantime.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Struct

from treadle.core import events as e
from treadle.core.errors import JournalError, LeaseLostError, RunExistsError
from treadle.core.inbox import last_taken
from treadle.http.locks import new_reentrant_lock
from treadle.journal.driven import DrivenRun
from treadle.journal.listing import Facts
from treadle.journal.protocol import DONE, Settled
from treadle.journal.run_info import queue_of
from treadle.journal.tables.leases import Lease
from treadle.journal.tables.table_rows import explain_closed, head_values, run_values, seed_of

if TYPE_CHECKING:
    from treadle.journal.tables.committer import Committer


JoinedWork: TypeAlias = Callable[[Any], object]
"""A function of the store's connection that is called in the transaction of a commit."""
Joined: TypeAlias = tuple[JoinedWork, asyncio.Future[bool]]
"""Such a function, and the future of who waits for it; see `Pending.join`."""


class Pending:
    """The writers with an open write, by event loop, until the committer gets their writes."""

    def __init__(self, committer: "Committer[Any]") -> None:
        self.committer = committer
        self.is_closed = False
        self.lock = new_reentrant_lock(is_awaited=True)
        """Held while something is appended or handed over."""
        self._writers: dict[asyncio.AbstractEventLoop, list[TableWriter]] = {}
        self._joined: dict[asyncio.AbstractEventLoop, list[Joined]] = {}
        """What is to be done in the transaction of each loop's next commit, and who waits for it."""
        self._seen: dict[asyncio.AbstractEventLoop, list[TableWriter]] = {}
        """What `take_stuck` found the last time."""

    def __bool__(self) -> bool:
        return bool(self._writers or self._seen)

    def add(self, writer: "TableWriter") -> asyncio.AbstractEventLoop:
        """Hand over the open write of `writer`, with those of other runs, after the next turn of the event loop,
        which is returned. The caller holds the lock. Raises: `JournalError` if the journal is closed."""
        if self.is_closed:
            raise explain_closed(self.committer.name)
        loop = writer.driven.loop or asyncio.get_running_loop()
        writers = self._writers.get(loop)
        if writers is not None:
            writers.append(writer)
            return loop
        if loop not in self._joined:
            self._flush_soon(loop)
        self._writers[loop] = [writer]
        if not self.committer.is_watching:
            self.committer.watch()
        return loop

    def join(self, function: JoinedWork) -> asyncio.Future[bool]:
        """Call `function`, which changes few rows, with the store's connection, in the transaction of the running
        event loop's next commit.

        The future's result is true once that is stored, and false if nothing was done, because it or the commit
        failed. Raises: `JournalError` if the journal is closed.
        """
        loop = asyncio.get_running_loop()
        with self.lock:
            if self.is_closed:
                raise explain_closed(self.committer.name)
            if loop not in self._writers and loop not in self._joined:
                self._flush_soon(loop)
            done: asyncio.Future[bool] = loop.create_future()
            self._joined.setdefault(loop, []).append((function, done))
        return done

    def _flush_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        # One turn later more runs have appended something, so that there are fewer commits, each of more runs.
        loop.call_soon(loop.call_soon, self.flush, loop)

    def has_open(self, loop: asyncio.AbstractEventLoop, run_id: str) -> bool:
        """Return whether `loop` has not handed over a write of a run."""
        return run_id in [writer.run_id for writer in self._writers.get(loop, ())]

    def flush(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand over the open writes of `loop` now."""
        writes, joined = self.take(loop), self._joined.pop(loop, [])
        left = [function for function, _ in joined]
        if not (writes or left):
            return
        if self.committer.commit_now(writes, left):
            settle_joined(joined, not left)
        else:
            self.committer.put(writes, joined)

    def loops(self) -> list[asyncio.AbstractEventLoop]:
        """Return the event loops that have something to hand over."""
        return list(self._writers)

    def take(self, loop: asyncio.AbstractEventLoop) -> "list[Write]":
        """Return the open writes of `loop`, and count them as handed over."""
        with self.lock:
            return [writer.hand_over() for writer in self._writers.pop(loop, ())]

    def take_stuck(self) -> "list[Write]":
        """Return the open writes of the loops that have handed over nothing since the last call."""
        with self.lock:
            stuck = [loop for loop, writers in self._writers.items() if self._seen.get(loop) is writers]
            taken = [write for loop in stuck for write in self.take(loop)]
            self._seen = self._writers.copy()
            return taken

    def clear(self) -> None:
        """Forget everything, in a forked child, which cannot use the journal."""
        self.is_closed = True
        self._writers, self._seen, self._joined = {}, {}, {}


class Write(Struct, eq=False):
    """The events that one run appended since its previous write was handed over."""

    writer: "TableWriter"
    first_seq: int
    loop: asyncio.AbstractEventLoop
    """The event loop in which the events were appended."""
    bodies: list[e.DurableBody] = []
    raws: dict[int, msgspec.Raw] = {}
    """Maps an index into `bodies` to the body's exact bytes, if the body was read elsewhere."""
    blobs: dict[str, bytes] | None = None
    head: tuple[object, ...] = ()
    """The facts in `heads` after `bodies`, with their checksum; set when the write is handed over."""
    row: tuple[object, ...] | None = None
    """The facts in `runs` after `bodies`, if they changed; set like `head`."""
    is_release: bool = False
    taken: int = 0
    """The number of the newest message that the bodies took in; 0 if they took in none."""
    copied: int = 0
    """The number of the message after which the next is numbered, if the bodies were copied; else 0."""
    frame: bytes | None = None
    """The bodies as JSON lines; `None` until `encode`."""
    waiters: list[asyncio.Future[None]] = []
    """The futures of those who wait for the write. Only the event loop uses this and `is_done`."""
    is_done: bool = False
    error: JournalError | None = None

    def encode(self) -> int:
        """Encode the bodies, and return how many bytes the write adds to the store."""
        if self.frame is None:
            try:
                bodies = self.bodies
                if raws := self.raws:
                    bodies = [raws.get(index, body) for index, body in enumerate(bodies)]  # type: ignore[misc]
                self.frame = e.encode_lines(bodies)
            except Exception as error:
                self.frame = b""
                self.error = cannot_keep(self.writer.run_id, error)
        size = len(self.frame)
        return size + sum(map(len, self.blobs.values())) if self.blobs else size


class TableWriter:
    """The `RunWriter` of a journal in tables."""

    def __init__(
        self,
        run_id: str,
        journal: object,
        pending: Pending,
        on_orphaned: Callable[[Lease], None],
        driven: DrivenRun,
        lease: Lease = Lease(0, 0),
        head: int = 0,
        checksum: int | None = None,
        facts: Facts | None = None,
    ) -> None:
        self.run_id = run_id
        self.driven = driven
        """See `RunWriter.driven`."""
        self.key, self.token = lease
        """The number of the run's row, 0 until the row is made, and the fencing token. A negative one is that of
        the writer before, until the first write takes the lease; see `RunWriter.renewal`."""
        self.head = head
        """The number of the run's newest frame; 0 if it has none."""
        self.seed = seed_of(run_id)
        """The number with which the run's checksums begin."""
        self.checksum = self.seed if checksum is None else checksum
        """The checksum of the newest frame."""
        self.epoch = -1
        """The count of takeovers in the file when the lease was last checked."""
        self.error: JournalError | None = None
        self.losses = 0
        """See `RunWriter.losses`."""
        self.seal: str | None = None
        """The new run's entry in the table `trust`; `None` if it needs none."""
        self._facts = Facts() if facts is None else facts
        self._next_seq = self._facts.events + 1
        self._pending = pending
        self._journal = journal
        """The journal, which is kept alive while the writer exists."""
        self._on_orphaned = on_orphaned
        """The function to call with a lease that no write can release, because the writer has failed."""
        self._is_released = False
        self._write: Write | None = None
        self._sent: Write | None = None

    def append(self, bodies: Sequence[e.DurableBody], blobs: Mapping[str, bytes] | None = None) -> None:
        write = self._write
        if write is not None and not blobs:
            # To take the lock would take longer than all the rest. Only this thread appends; another may hand the
            # write over meanwhile, with a copy of the list.
            open_bodies = write.bodies
            open_bodies.extend(bodies)
            if self._write is write:
                return
            with self._pending.lock:
                if len(write.bodies) == len(open_bodies):
                    return
        with self._pending.lock:
            write = self._write or self._open_write()
            write.bodies.extend(bodies)
            if blobs:
                write.blobs = {**blobs, **(write.blobs or {})}

    def append_events(self, events: Sequence[e.Event], blobs: Mapping[str, bytes] | None = None) -> None:
        with self._pending.lock:
            write = self._write or self._open_write()
            for position, event in enumerate(events, len(write.bodies)):
                if event.raw is not None:
                    write.raws[position] = msgspec.Raw(event.raw)
            self.append([event.body for event in events], blobs)
            write.copied = last_taken(events)

    def take_in(self, number: int) -> None:
        with self._pending.lock:
            (self._write or self._open_write()).taken = number

    def sync(self) -> Awaitable[None]:
        if self.error is not None:
            return Settled(self.error)
        write = self._write or self._sent
        if write is None or write.is_done:
            return DONE
        waiter = write.loop.create_future()
        write.waiters.append(waiter)
        return waiter

    async def release(self) -> None:
        if self._is_released:
            return
        if self.error is not None:
            self._is_released = True
            if self.key:
                self._on_orphaned(Lease(self.key, self.token))
        elif self.key or self._write is not None or self._sent is not None:
            with self._pending.lock:
                (self._write or self._open_write()).is_release = True
            self._is_released = True

    def renewal(self) -> "Callable[[], TableWriter] | None":
        committer, is_stored = self._pending.committer, self._write is None and self._sent is None
        if not (committer.can_renew and self._is_released and is_stored and self.error is None):
            return None
        # The function must not keep this writer alive, because its run would count as driven.
        run_id, newest, lease = self.run_id, self.driven.newest, Lease(self.key, -self.token)
        hooks = (self._journal, self._pending, self._on_orphaned)
        end = (self.head, self.checksum, self._facts)
        return lambda: TableWriter(run_id, *hooks, committer.driven.open(run_id, newest), lease, *end)

    @property
    def last_seq(self) -> int:
        return self._next_seq - 1

    @property
    def queue(self) -> str | None:
        """The queue in which the run waits for workers; `None` for a run that was imported."""
        return None if self.seal == "" else queue_of(self._facts.labels)

    @property
    def is_queued(self) -> bool:
        """True if the run can be claimed once it is released."""
        return self.queue is not None and self._facts.is_turn_open and not self._facts.waiting

    def hand_over(self) -> Write:
        """Return the open write for the committer. The next append opens another. The caller locks `Pending`."""
        write = self._write
        assert write is not None
        self._sent, self._write = write, None
        write.bodies = bodies = write.bodies.copy()
        self._next_seq += len(bodies)
        try:
            if self._facts.add(bodies) or not self.key:
                write.row = run_values(self._facts, self.seed)
            write.head = head_values(self._facts, self.seed)
        except Exception as error:  # the writes of other runs are handed over too
            write.error = cannot_keep(self.run_id, error)
        return write

    def _open_write(self) -> Write:
        if self.error is not None:
            raise self.error
        if self._is_released:  # somebody else may drive the run by now
            raise JournalError(f"run {self.run_id!r} was released by this writer; acquire it again")
        write = self._write = Write(self, self._next_seq, self._pending.add(self))
        return write


def settle_in_loops(writes: Iterable[Write]) -> None:
    """Report the outcome of `writes`, in the threads of their event loops, to those who wait for it."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Write]] = {}
    for write in writes:
        by_loop.setdefault(write.loop, []).append(write)
    for loop, own in by_loop.items():
        try:
            loop.call_soon_threadsafe(settle, own)
        except RuntimeError:  # the loop was closed, so nothing waits for this
            for write in own:
                write.waiters.clear()
            settle(own)


def settle(writes: list[Write]) -> None:
    """Report the outcome of `writes` to those who wait for it."""
    for write in writes:
        write.is_done = True
        # Writer and write must not keep each other alive.
        if (writer := write.writer)._sent is write:
            writer._sent = None
        for waiter in write.waiters:
            if waiter.done():
                continue
            if write.error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(write.error)


def settle_joined(joined: Sequence[Joined], is_done: bool) -> None:
    """Report to those who wait for what has `joined` a commit whether it is stored."""
    for _, future in joined:
        if not future.done():
            future.set_result(is_done)


def cannot_keep(run_id: str, error: Exception) -> JournalError:
    """Return the error for an event that the store cannot hold."""
    return JournalError(f"an event of run {run_id!r} cannot be stored: {error}")


def run_exists(run_id: str) -> RunExistsError:
    """Return the error for a new run whose id is taken."""
    return RunExistsError(f"run {run_id!r} exists already in this journal; resume it, or take another id")


def lease_lost(run_id: str) -> LeaseLostError:
    """Return the error for a writer whose run another process drives now."""
    return LeaseLostError(f"run {run_id!r} was taken over by another process; this one stops driving it")
