"""A journal in memory, for tests and for runs that are not needed after the process has ended."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from treadle.core import events as e
from treadle.core.errors import ConfigError, JournalError, LeaseHeldError, RunExistsError, RunNotFoundError
from treadle.core.inbox import InboxMessage, Posted, decode_message, encode_message, kind_of, last_taken
from treadle.core.texts.patches import load
from treadle.core.turns import RESUME
from treadle.http.locks import new_lock
from treadle.journal.deletion import digests_in, find_unused
from treadle.journal.driven import DrivenRuns
from treadle.journal.follow import Changes, Page, PolledNews, follow
from treadle.journal.listing import Facts, facts_of
from treadle.journal.protocol import DONE, Attached, StoreOptions
from treadle.journal.resources import ResourcesInMemory, ResourceTable
from treadle.journal.run_info import QUEUE, RunFilter, RunInfo, RunOrder, queue_of

A = TypeVar("A", bound=Attached)


class MemoryJournal:
    """A journal that keeps events as encoded bytes, so that reading returns the same events as from a file."""

    level = "memory"
    address = None

    def __init__(self) -> None:
        self._runs: dict[str, list[bytes]] = {}
        self._facts: dict[str, Facts] = {}
        """The facts as of the newest listing. Only a listing updates them, so that appending costs nothing."""
        self._facts_lock = new_lock()
        self._appends: list[tuple[str, int, list[bytes]]] = []
        """The appended events, each item with the run's id and the number of the first event, in order."""
        self._blobs: dict[str, bytes] = {}
        self._driven: set[str] = set()
        self._untrusted: set[str] = set()
        self._queues: dict[str, list[str]] = {}
        """The runs of each queue, in order of creation, finished ones included."""
        self._lease_lock = new_lock()
        """Held while a lease is taken, and while a message is stored."""
        self._inboxes: dict[str, dict[int, bytes]] = {}
        """The messages of each run that were not taken in, by number."""
        self._posted: dict[str, int] = {}
        """The number of the newest message of each run that ever got one."""
        self.driven = DrivenRuns(self.inbox)
        self._version = 0
        """A number that grows with every change that `news` tells."""
        self._changes = Changes()
        self._attached: dict[type[Attached], Attached] = {}

    def create(self, run_id: str, *, is_imported: bool = False) -> "MemoryWriter":
        if is_imported and run_id not in self._runs:
            self._untrusted.add(run_id)
        return MemoryWriter(self, run_id, is_new=True)

    def is_trusted(self, run_id: str) -> bool:
        self._check_known(run_id)
        return run_id not in self._untrusted

    def trust(self, run_id: str) -> None:
        self._check_known(run_id)
        self._untrusted.discard(run_id)

    async def acquire(self, run_id: str) -> "MemoryWriter":
        self._check_known(run_id)
        with self._lease_lock:
            if run_id in self._driven:
                raise LeaseHeldError(f"run {run_id!r} is being driven by this process already")
            self._driven.add(run_id)
        return MemoryWriter(self, run_id, is_new=False)

    async def claim(
        self, queue: str, skip: Collection[str] = (), *, max_losses: int | None = None
    ) -> "MemoryWriter | None":
        """See `Journal.claim`. No driver is lost without this process, so none of the runs has lost one."""
        condition = RunFilter(is_turn_open=True, is_waiting=False, is_driven=False)
        with self._lease_lock:
            for run_id in self._queues.get(queue, ()):
                if run_id in self._driven or run_id in skip or run_id not in self._runs:
                    continue
                if condition.matches(self._facts_of(run_id).info(run_id, is_driven=False)):
                    self._driven.add(run_id)
                    return MemoryWriter(self, run_id, is_new=False)
        return None

    def news(self, queue: str | None = None) -> PolledNews:
        return PolledNews(lambda: self._version)

    def post(self, run_id: str, message: InboxMessage, blobs: Mapping[str, bytes] | None = None) -> int:
        self._check_known(run_id)
        raw = encode_message(message)
        with self._lease_lock:
            for digest, stored in (blobs or {}).items():
                self._blobs.setdefault(digest, stored)
            number = self._posted[run_id] = self._posted.get(run_id, 0) + 1
            self._inboxes.setdefault(run_id, {})[number] = raw
        self._version += 1
        self.driven.deliver([(run_id, number, kind_of(message))])
        return number

    def posting(
        self, run_id: str, message: InboxMessage, blobs: Mapping[str, bytes] | None = None
    ) -> "Future[int]":
        future: Future[int] = Future()
        try:
            future.set_result(self.post(run_id, message, blobs))
        except JournalError as error:
            future.set_exception(error)
        return future

    def inbox(self, run_id: str, after: int = 0) -> list[Posted]:
        self._check_known(run_id)
        with self._lease_lock:
            found = [item for item in self._inboxes.get(run_id, {}).items() if item[0] > after]
        return [decode_message(*item) for item in found]

    def read(self, run_id: str, after_seq: int = 0, until_seq: int | None = None) -> list[e.Event]:
        self._check_known(run_id)
        return _decode(run_id, after_seq + 1, self._runs[run_id][after_seq:until_seq])

    def scan(self, run_id: str) -> Iterator[e.Event]:
        return iter(self.read(run_id))

    def find_faults(self) -> Iterator[str]:
        return iter(())

    def read_blob(self, digest: str) -> bytes:
        return load(self.read_stored, digest)[1]

    def read_stored(self, digest: str) -> bytes:
        try:
            return self._blobs[digest]
        except KeyError:
            raise JournalError(f"the content {digest!r} is not in this journal") from None

    def runs(
        self,
        filter: RunFilter | None = None,
        *,
        after: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        order: RunOrder | None = None,
    ) -> list[RunInfo]:
        run_ids = list(self._runs)  # other threads may add runs meanwhile
        if order is not None:
            run_ids.sort(
                key=lambda run_id: order.key_of(self._facts_of(run_id).info(run_id, is_driven=False))
            )
        if newest_first:
            run_ids.reverse()
        if after is not None:
            self._check_known(after)
            run_ids = run_ids[run_ids.index(after) + 1 :]
        found: list[RunInfo] = []
        for run_id in run_ids:
            if limit is not None and len(found) >= limit:
                break
            info = self._facts_of(run_id).info(run_id, is_driven=run_id in self._driven)
            if filter is None or filter.matches(info):
                found.append(info)
        return found

    def find_runs(self, text: str) -> list[str]:
        """See `Journal.find_runs`. It returns all runs."""
        return [info.run_id for info in self.runs()]

    def follow(self, run_id: str | None, after_seq: int | None = 0) -> AsyncIterator[e.Event]:
        return follow(self, self._changes, run_id, after_seq)

    def start_position(self, run_id: str | None, after_seq: int | None) -> int:
        """See `Source.start_position`: a seq for one run, an index into the appends for all."""
        if run_id is None:
            return len(self._appends) if after_seq is None else 0
        self._check_known(run_id)
        return len(self._runs[run_id]) if after_seq is None else after_seq

    def read_page(self, run_id: str | None, after_seq: int | None, position: int) -> Page:
        """See `Source.read_page`."""
        if run_id is None:
            appends = self._appends[position : position + 1000]
            events = [event for item in appends for event in _decode(*item) if event.seq > (after_seq or 0)]
            return Page(events, position + len(appends), is_last=False, has_more=bool(appends))
        facts = self._facts_of(run_id)
        is_over = run_id not in self._driven and (facts.status == "finished" or RESUME in facts.waiting)
        found = self.read(run_id, position)
        return Page(found, position + len(found), is_over, has_more=bool(found))

    def delete(self, run_id: str) -> None:
        self._check_known(run_id)
        if run_id in self._driven:
            raise LeaseHeldError(f"run {run_id!r} is being driven by this process")
        mine = digests_in(b"\n".join(self._runs[run_id]))
        others = (raw for name, raws in self._runs.items() if name != run_id for raw in raws)
        sent = (raw for name, box in self._inboxes.items() if name != run_id for raw in box.values())
        for digest in find_unused(mine, self.read_stored, chain(others, sent), self._blobs.items()):
            self._blobs.pop(digest, None)
        del self._runs[run_id]
        self._facts.pop(run_id, None)
        self._inboxes.pop(run_id, None)
        self._posted.pop(run_id, None)
        self._untrusted.discard(run_id)
        # Followers count the items, so that none may be removed.
        self._appends = [(name, seq, [] if name == run_id else raws) for name, seq, raws in self._appends]
        self._changes.announce([run_id])

    def backup(self, path: str | Path) -> int:
        """See `Journal.backup`. Raises: `JournalError`."""
        raise JournalError("a journal in memory has no file to copy; export its runs instead")

    def attach(self, kind: type[A], make: Callable[[Path | None, str], A]) -> A:
        """Return the journal's object of a kind. The first call makes it, without a path."""
        with self._facts_lock:
            found: Any = self._attached.get(kind) or self._attached.setdefault(kind, make(None, self.level))
        return found  # type: ignore[no-any-return]

    @property
    def resources(self) -> ResourceTable:
        return self.attach(ResourcesInMemory, lambda path, level: ResourcesInMemory())

    def close(self) -> None:
        """End all `follow`. The events stay as long as the journal does."""
        self._changes.close()

    def __enter__(self) -> "MemoryJournal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _facts_of(self, run_id: str) -> Facts:
        with self._facts_lock:
            facts = self._facts.setdefault(run_id, Facts())
            facts.add([event.body for event in self.read(run_id, facts.events)])
            if not facts.is_exact:
                facts = self._facts[run_id] = facts_of([event.body for event in self.read(run_id)])
            return facts

    def _check_known(self, run_id: str) -> None:
        if run_id not in self._runs:
            raise RunNotFoundError(f"run {run_id!r} not found in this journal (in memory)")


def open_store(address: str, options: StoreOptions) -> MemoryJournal:
    """Return a new journal in memory. This is the opener of `memory:`.

    Raises: `ConfigError` for an address, or for a level that memory cannot reach.
    """
    if address:
        raise ConfigError(f"a journal in memory has no address; write 'memory:', not 'memory:{address}'")
    if options.level not in ("memory", "process"):
        raise ConfigError(f"a journal in memory keeps nothing at level {options.level!r}; give a file's path")
    return MemoryJournal()


_QUEUE = QUEUE.encode()


def _decode(run_id: str, first_seq: int, raws: list[bytes]) -> list[e.Event]:
    return [e.Event(run_id, seq, e.decode_body(raw), raw) for seq, raw in enumerate(raws, first_seq)]


class MemoryWriter:
    """The `RunWriter` of a `MemoryJournal`."""

    losses = 0

    def __init__(self, journal: MemoryJournal, run_id: str, *, is_new: bool) -> None:
        self.run_id = run_id
        self._journal = journal
        self._is_new = is_new
        self.driven = journal.driven.open(run_id, 0 if is_new else journal._posted.get(run_id, 0))

    @property
    def last_seq(self) -> int:
        return len(self._journal._runs.get(self.run_id, ()))

    def append(self, bodies: Sequence[e.DurableBody], blobs: Mapping[str, bytes] | None = None) -> None:
        try:
            raws = [e.encode_body(body) for body in bodies]
        except Exception as error:
            raise JournalError(f"an event of run {self.run_id!r} cannot be stored: {error}") from error
        self._keep(raws, blobs)

    def append_events(self, events: Sequence[e.Event], blobs: Mapping[str, bytes] | None = None) -> None:
        self._keep([event.raw or e.encode_body(event.body) for event in events], blobs)
        if taken := last_taken(events):
            self._journal._posted[self.run_id] = max(taken, self._journal._posted.get(self.run_id, 0))

    def take_in(self, number: int) -> None:
        with self._journal._lease_lock:
            box = self._journal._inboxes.get(self.run_id, {})
            for key in [key for key in box if key <= number]:
                del box[key]

    def _keep(self, raws: list[bytes], blobs: Mapping[str, bytes] | None) -> None:
        journal, run_id = self._journal, self.run_id
        for digest, stored in (blobs or {}).items():
            journal._blobs.setdefault(digest, stored)
        if not raws:
            return
        if self._is_new:
            if run_id in journal._runs:
                raise RunExistsError(f"run {run_id!r} exists already in this journal")
            self._is_new = False
            journal._driven.add(run_id)
            journal._runs[run_id] = kept = list(raws)
            if _QUEUE in raws[0] and run_id not in journal._untrusted:
                journal._queues.setdefault(queue_of(journal._facts_of(run_id).labels) or "", []).append(
                    run_id
                )
        else:
            kept = journal._runs[run_id]
            kept.extend(raws)
        journal._appends.append((run_id, len(kept) - len(raws) + 1, raws))
        journal._version += 1
        if journal._changes.feeds:
            journal._changes.announce([run_id])

    def sync(self) -> Awaitable[None]:
        return DONE

    def renewal(self) -> None:
        """See `RunWriter.renewal`."""

    async def release(self) -> None:
        self._journal._driven.discard(self.run_id)
        self._journal._version += 1
        self._journal._changes.announce([self.run_id])
