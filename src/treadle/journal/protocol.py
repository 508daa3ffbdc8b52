"""The contract between the loop and a journal: an append-only store of runs with one writer per run.

Methods that read (`read`, `read_blob`, `read_stored`, `runs`) block and may be called from any thread; a program
with an event loop calls them in a thread (`asyncio.to_thread`). What a running agent calls for every step
(`append`, `append_events`, `sync`) never waits for the store on the event loop.
"""

import re
import time
from collections.abc import AsyncIterator, Awaitable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol, Self, cast

from msgspec import Struct

from treadle.core.events import DurableBody, Event
from treadle.core.inbox import InboxMessage, Posted
from treadle.journal.driven import DrivenRun, DrivenRuns

APPLICATION_ID = 0x5452444C
"""The number in SQLite's header that marks a file as a journal of Treadle."""


class Clock(Protocol):
    """A source of the time; the module `time` is one."""

    def time(self) -> float:
        """Return the seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Return a time in seconds that never goes backwards, for measuring durations."""
        ...


CALLER = "treadle.caller"
"""The label of a sub-agent's run. Its value is the id of the run whose call drives it."""

QUEUE = "treadle.queue"
"""The label of a run that workers may drive. Its value is the name of the queue in which the run waits; see
`Journal.claim`."""


DEFAULT_QUEUE = "default"
"""The queue of runs and workers for which no other is named."""


def queue_of(labels: Mapping[str, str]) -> str | None:
    """Return the queue in which a run with these labels waits; `None` if it waits in none.

    A sub-agent's run waits in none, because its caller drives it.
    """
    return None if CALLER in labels else labels.get(QUEUE)


class RunInfo(Struct, frozen=True, kw_only=True):
    """The facts about one run that a listing shows. The store keeps them, so no event has to be read."""

    run_id: str
    status: str
    """`running`, `paused` or `finished`. A run whose process died stays `running` until it is resumed. `damaged`
    if the store cannot read these facts; then `error` says why, and the other fields are empty."""
    stop_reason: str | None = None
    """Why the run is finished (a `StopReason`), or why it is paused (`RunPaused.reason`)."""
    fault: str | None = None
    """The party responsible for the failure of the last turn; `None` if it did not fail."""
    error: str | None = None
    """The error that ended the last turn, cut to 200 characters; `None` if it did not fail."""
    model: str | None = None
    """The name of the model that the run was started with, or resumed with last."""
    task_set: str | None = None
    task_id: str | None = None
    parent_run_id: str | None = None
    """The run that this one was forked from."""
    labels: dict[str, str] = {}
    """The entries of `RunStarted.metadata` whose values are strings, and `CALLER` for a sub-agent."""
    input: str | None = None
    """The first message of the user, cut to 200 characters."""
    is_session: bool = False
    is_turn_open: bool = False
    """True while a turn has begun and not ended."""
    is_waiting: bool = False
    """True if a question has no answer, a tool call waits for approval, or somebody cancelled the run, so that it
    waits until somebody resumes it."""
    is_driven: bool = False
    """True if a live process holds the run's lease."""
    reward: float | None = None
    """The newest reward with the name `check`; `None` if the last turn has no such reward."""
    turns: int = 0
    steps: int = 0
    """Inferences that were completed."""
    events: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    """The part of `input_tokens` that the server had in its cache."""
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    """The cost in US dollars; `None` if the cost of an inference is unknown."""
    created_at: float = 0.0
    """The time of the first event, in seconds since the epoch."""
    updated_at: float = 0.0
    """The time of the newest event, in seconds since the epoch."""

    @property
    def title(self) -> str:
        """The label `title`, or the beginning of the first message; empty if there is neither."""
        return self.labels.get("title") or make_title(self.input or "")

    @property
    def caller_run_id(self) -> str | None:
        """The run whose call drives this run; `None` if no call does."""
        return self.labels.get(CALLER)


_TITLE_CHARS = 60


def make_title(text: str) -> str:
    """Return a title for a conversation that begins with `text`: its first sentence or line, cut after a word."""
    lines = [line.strip(" \t#*->`") for line in text.splitlines()]
    line = next((line for line in lines if any(map(str.isalnum, line))), "")
    sentence = re.match(r".{8,}?[.?!](?=\s)", line)
    line = " ".join((sentence.group() if sentence else line).split())
    if len(line) <= _TITLE_CHARS:
        return line
    head = line[:_TITLE_CHARS]
    cut = head.rfind(" ")
    return f"{head[:cut] if cut > _TITLE_CHARS // 2 else head}…"


DAMAGED = "damaged"
"""The status of a run whose facts cannot be read."""


class RunFilter(Struct, frozen=True, kw_only=True):
    """Conditions on runs, all of which must hold. A condition that is `None` or empty is not checked."""

    id_prefix: str | None = None
    """The run's id begins with this text."""
    run_ids: Collection[str] | None = None
    """The run's id is one of these; `None` is not checked."""
    status: str | None = None
    stop_reason: str | None = None
    model: str | None = None
    task_set: str | None = None
    task_id: str | None = None
    parent_run_id: str | None = None
    labels: Mapping[str, str] = {}
    """The run has all of these labels with these values."""
    is_finished: bool | None = None
    is_driven: bool | None = None
    is_waiting: bool | None = None
    is_session: bool | None = None
    is_turn_open: bool | None = None
    created_since: float | None = None
    """The run was created at this time or later (seconds since the epoch)."""
    created_before: float | None = None

    def matches(self, info: RunInfo) -> bool:
        """Return True if `info` meets all conditions."""
        return (
            info.run_id.startswith(self.id_prefix or "")
            and (self.run_ids is None or info.run_id in self.run_ids)
            and all(getattr(self, name) in (None, getattr(info, name)) for name in EQUAL_FIELDS)
            and self.is_finished in (None, info.status == "finished")
            and self.labels.items() <= info.labels.items()
            and (self.created_since is None or info.created_at >= self.created_since)
            and (self.created_before is None or info.created_at < self.created_before)
        )


EQUAL_FIELDS = (
    "status",
    "stop_reason",
    "model",
    "task_set",
    "task_id",
    "parent_run_id",
    "is_driven",
    "is_waiting",
    "is_session",
    "is_turn_open",
)
"""The conditions of `RunFilter` that compare a field of `RunInfo` of the same name."""


class StoreOptions(Struct, frozen=True, kw_only=True):
    """The options that `open_journal` passes to a store. A store refuses an option that it cannot fulfil."""

    level: str = "process"
    """The level, which says what a stored event survives: `memory`, `process` or `power`."""
    must_exist: bool = False
    """True to refuse to create a store."""
    lease_seconds: float = 10.0
    """If this process sends no heartbeat for this time, other processes may take its runs over."""
    clock: Clock = time


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
        ...

    def append(self, bodies: Sequence[DurableBody], blobs: Mapping[str, bytes] | None = None) -> None:
        """Queue `bodies` as the run's next events, all or none, and the contents that they refer to.

        This returns at once; `sync` tells when the events are kept. `blobs` maps the SHA-256 of a content to the
        content, or to a patch that makes it from one that is stored already (`core.patches`). The store keeps what
        it got first under a hash.
        Raises: `JournalError` if an earlier append has failed.
        """
        ...

    def append_events(self, events: Sequence[Event], blobs: Mapping[str, bytes] | None = None) -> None:
        """Queue events that were read elsewhere, and keep the exact bytes that they were read from.

        Their run ids and seqs are ignored; they become the run's next events. The run's messages are numbered from
        the largest number that the events took in.
        """
        ...

    def take_in(self, number: int) -> None:
        """Remove the messages up to `number` from the inbox, together with storing the events that were
        appended last and that result from these messages."""
        ...

    def sync(self) -> Awaitable[None]:
        """Return an awaitable that finishes when everything appended so far is kept at the journal's level.

        This is a plain function, and the awaitable is a future or is finished already, so that waiting costs no
        coroutine. Awaiting it raises `LeaseLostError` if another process took the run over, `RunExistsError` if
        the run was new and its id is taken, and `JournalError` if the store failed (a full disk). Nothing that
        was appended since the last successful `sync` is kept then.
        """
        ...

    async def release(self) -> None:
        """Write the queued events and release the lease. The writer cannot be used afterwards.

        If the store fails, the lease is released when the store works again.
        """
        ...


class Attached(Protocol):
    """An object that keeps tables of its own in a journal's database, and is closed together with the journal."""

    def close(self) -> None:
        """Close the connections to the database."""
        ...

    def disown(self) -> None:
        """Give up the connections in a forked child, without closing them."""
        ...


class News(Protocol):
    """A view of a journal that waits until something is stored in it, by this process or by others."""

    async def wait(self, seconds: float) -> bool:
        """Wait until something was kept since the last call returned, or since this object was made. Return True
        then, and False if `seconds` have passed first.

        It may also return True although nothing was kept. Waiting costs almost no CPU time. Raises: `JournalError`
        if the journal is closed.
        """
        ...


class Journal(Protocol):
    """A store of runs. Safe to use from several threads, event loops and processes."""

    @property
    def driven(self) -> DrivenRuns:
        """The runs that this process drives."""
        ...

    @property
    def address(self) -> str | None:
        """The address by which `open_journal` opens the store in another process; `None` if only this process can
        use it."""
        ...

    def create(self, run_id: str, *, is_imported: bool = False) -> RunWriter:
        """Return a writer for a new run. The first append finds out whether the id is free.

        The run is not trusted if it `is_imported`.
        """
        ...

    def is_trusted(self, run_id: str) -> bool:
        """Return whether the run is trusted: the user began it here, or trusts it. Blocks.

        Raises: `RunNotFoundError`.
        """
        ...

    def trust(self, run_id: str) -> None:
        """Record that the user trusts the run. Blocks. Raises: `RunNotFoundError`, `JournalError`."""
        ...

    async def acquire(self, run_id: str) -> RunWriter:
        """Take the lease of a run that exists, and return its writer.

        If the owner of the lease seems to be dead, but this is not certain, wait as long as its leases last.
        Raises: `RunNotFoundError`, or `LeaseHeldError` if another live process or task drives the run.
        """
        ...

    async def claim(self, queue: str, skip: Collection[str] = ()) -> RunWriter | None:
        """Take the lease of a run that waits in `queue` for a worker, and return its writer; `None` if none waits.

        It is the oldest run with the label `QUEUE` = `queue` whose turn is open, that waits for no answer or
        approval, that nobody drives, and that is trusted. A run whose driver died waits again: at once if it is
        certain that the process has ended, else when its lease has ended. Runs in `skip`, and damaged ones, are
        left out, as are runs that were imported, even if they are trusted later. No run is given to two callers.

        This never waits for a run; `news` tells when to ask again. Nothing is kept when a process dies, so ask at
        least every `lease_seconds` / 8.
        """
        ...

    def news(self) -> News:
        """Return an object that waits until something new is stored in the journal."""
        ...

    def post(self, run_id: str, message: InboxMessage, blobs: Mapping[str, bytes] | None = None) -> int:
        """Store a message for a run, whoever drives it, and return its number. Blocks.

        The numbers of a run's messages grow in the order in which they are stored. `blobs` has the contents that
        the message refers to, as in `RunWriter.append`. The driver of the run is told at once.
        Raises: `RunNotFoundError`; `JournalError` if the message cannot be stored.
        """
        ...

    def posting(
        self, run_id: str, message: InboxMessage, blobs: Mapping[str, bytes] | None = None
    ) -> "Future[int]":
        """Begin to `post` a message, and return the future of its number. This returns at once.

        Messages of one thread are stored in the order of the calls. In an event loop, await
        `asyncio.wrap_future(...)`.
        """
        ...

    def inbox(self, run_id: str, after: int = 0) -> list[Posted]:
        """Return the messages of a run that were not taken in, in order, from number `after` + 1 on. Blocks.

        Raises: `RunNotFoundError`.
        """
        ...

    def read(self, run_id: str, after_seq: int = 0, until_seq: int | None = None) -> list[Event]:
        """Return the kept events of a run in order, from `after_seq` + 1 up to and including `until_seq`. Blocks.

        Raises: `RunNotFoundError`; `JournalError` if the run is damaged. Damage after `until_seq` is ignored.
        """
        ...

    def scan(self, run_id: str) -> Iterator[Event]:
        """Yield the events that `read` returns, with few of them in memory at a time. Blocks."""
        ...

    def find_faults(self) -> Iterator[str]:
        """Yield what is wrong with the store itself, apart from the events and contents that can be read. Blocks.

        Only `journal.check` calls this, because it may read everything in the store.
        """
        ...

    def read_blob(self, digest: str) -> bytes:
        """Return a stored content. Blocks. Raises: `JournalError` if it is missing or damaged."""
        ...

    def read_stored(self, digest: str) -> bytes:
        """Return what is stored for a content, unchecked: the content or a patch. `core.patches.load` makes the
        content from it. Blocks. Raises: `JournalError` if the store does not have it."""
        ...

    def runs(
        self,
        filter: RunFilter | None = None,
        *,
        after: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[RunInfo]:
        """Return the runs that meet `filter` in order of creation, at most `limit` of them. Blocks.

        `after` is the id of the last run of the page before; the listing continues after it.
        Raises: `RunNotFoundError` if there is no run `after`.
        """
        ...

    def follow(self, run_id: str | None, after_seq: int | None = 0) -> AsyncIterator[Event]:
        """Yield the kept events of a run, or of all runs if `run_id` is `None`, and then new ones once kept.

        `after_seq` counts within each run: events up to it are left out. `None` leaves out everything that is
        kept already. Events of one run come in order; events of different runs come in the order of commits. The
        iteration ends when the run is finished and no process drives it, or when the journal is closed. Raises:
        `RunNotFoundError`.
        """
        ...

    def delete(self, run_id: str) -> None:
        """Delete a run, with its events, its lease, and the contents that no other run needs. Blocks.

        Runs that were forked from it stay whole, because they have copies of its events.
        Raises: `RunNotFoundError`; `LeaseHeldError` if the run is being driven; `JournalError`.
        """
        ...

    def backup(self, path: str | Path) -> int:
        """Write a copy of the store to the new file `path`, and return the number of its runs. Blocks.

        The copy is consistent even while runs are being driven, and nobody drives them in the copy.
        Raises: `JournalError` if `path` exists or cannot be written, or if the store cannot be copied.
        """
        ...

    def close(self) -> None:
        """Write the queued events, release all leases and close the store. Calling it again does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
