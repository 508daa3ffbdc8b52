"""The memory of one persona about one user: the store, and the embeddings that help to find entries in it."""

import asyncio
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from msgspec import Struct

from treadle.core.errors import ConfigError, ProviderError
from treadle.core.types import StopReason
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Clock, Journal
from treadle.journal.sqlite.sqlite_journal import SqliteJournal
from treadle.knowledge.memory.embeddings import BATCH, Embedder, make_embedder
from treadle.knowledge.memory.memory_store import MemoryStore
from treadle.knowledge.memory.memory_tables import Database
from treadle.knowledge.memory.protocol import (
    Author,
    Draft,
    Hit,
    MemoryEntry,
    Store,
    Vector,
    Written,
)

RUN = "run"
"""The key under which the metadata of an episode has the id of the session that it tells about."""
_PAUSE_SECONDS = 30.0
"""How long to wait after a failed request before the embeddings server is asked for a query's vector again."""
_USER_CHARS = 600
_OUTPUT_CHARS = 900
_TOOLS_CHARS = 300


class Found(Struct, frozen=True):
    """The result of a search."""

    hits: tuple[Hit, ...] = ()
    note: str | None = None
    """Why the search did not use the stored embeddings; `None` if it used them, or if none are stored."""


class Memory:
    """The memories of a persona about a user.

    `store` has the calls that only concern the database; they block. The methods here do not.
    """

    def __init__(self, store: MemoryStore, embedder: Embedder | None = None, clock: Clock = time) -> None:
        self.store = store
        self.embedder = embedder
        """The model of embeddings; `None`: entries are found by their words alone."""
        self.clock = clock
        self._silent_until = 0.0
        self._failure = ""

    async def write(self, draft: Draft, *, replaces: str | None = None) -> Written:
        """Write a memory. See `MemoryStore.write`."""
        return await asyncio.to_thread(self.store.write, draft, self.clock.time(), replaces)

    async def search(
        self, text: str, *, stores: Collection[Store] = (), limit: int = 10, now: float | None = None
    ) -> Found:
        """Return the entries that fit `text` best. If the server of embeddings fails, entries are found only by
        their words."""
        vector, note = await self._embed_query(text)
        at = self.clock.time() if now is None else now

        def find(vector: Vector | None) -> tuple[Hit, ...]:
            return tuple(self.store.search(text, at, stores=stores, limit=limit, vector=vector))

        try:
            return Found(await asyncio.to_thread(find, vector), note)
        except ConfigError as error:
            if vector is None:
                raise
            return Found(await asyncio.to_thread(find, None), str(error))

    async def embed_missing(self, limit: int = BATCH) -> int:
        """Make and store the embeddings of up to `limit` entries that have no embedding, and return their
        number. If a later request fails, those of the earlier ones are stored.

        Raises: `ProviderError` if the server fails; `ConfigError` if its vectors do not fit those stored.
        """
        if self.embedder is None:
            return 0
        name = self.embedder.name
        missing = await asyncio.to_thread(self.store.missing_vectors, name, limit)
        for start in range(0, len(missing), BATCH):
            asked = missing[start : start + BATCH]
            made = await self.embedder.embed([text for _, text in asked])
            vectors = dict(zip([entry_id for entry_id, _ in asked], made, strict=True))
            await asyncio.to_thread(self.store.put_vectors, name, vectors)
        return len(missing)

    async def write_back(
        self,
        run_id: str,
        turn: int,
        user_text: str,
        output: str | None,
        stop_reason: StopReason | str,
        *,
        tools: Sequence[str] = (),
        is_any_outcome: bool = False,
    ) -> MemoryEntry | None:
        """Store a turn as an episode, once, and return it. Later calls for the same turn change nothing.

        `tools` are what it used, as `CompletedTurn.tools`. Return `None` for a turn that did not complete, unless
        `is_any_outcome`, and for one without an answer.
        """
        if stop_reason != StopReason.COMPLETED and not is_any_outcome:
            return None
        said, answered = _cut(user_text, _USER_CHARS), _cut(output or "", _OUTPUT_CHARS)
        if not said or not (answered or is_any_outcome):
            return None
        outcome = "" if stop_reason == StopReason.COMPLETED else f" (the turn ended with {stop_reason})"
        used = f"\nTools used: {_cut(', '.join(tools), _TOOLS_CHARS)}" if tools else ""
        draft = Draft(
            store=Store.EPISODIC,
            text=f"The user: {said}{used}\nThe answer: {answered or 'none'}{outcome}",
            author=Author.SYSTEM,
            key=f"{run_id}/turn-{turn}",
            metadata={RUN: run_id},
            run_id=run_id,
            turn=turn,
        )
        entry = (await self.write(draft)).entry
        await self._try_embedding()
        return entry

    async def _try_embedding(self) -> None:
        """Embed what is missing, if the server works. What is not embedded now is embedded later."""
        try:
            await self.embed_missing()
        except (ProviderError, ConfigError) as error:
            self._fail(error)

    async def _embed_query(self, text: str) -> tuple[Vector | None, str | None]:
        """Return the vector of a query, or why there is none."""
        if self.embedder is None or not text.strip():
            return None, None
        if self.clock.monotonic() < self._silent_until:
            return None, self._failure
        try:
            return Vector(self.embedder.name, await self.embedder.embed_query(text)), None
        except ProviderError as error:
            self._fail(error)
            return None, self._failure

    def _fail(self, error: Exception) -> None:
        self._silent_until = self.clock.monotonic() + _PAUSE_SECONDS
        self._failure = f"memories were searched by their words alone: {error}"


def open_memory(
    journal: Journal,
    persona: str = "default",
    user: str = "default",
    *,
    embeddings: Embedder | str | None = None,
    clock: Clock = time,
) -> Memory:
    """Open the memory of a persona about a user, in the database of a journal. It is closed with the journal.

    `embeddings` is a model of embeddings or its name. Raises: `ConfigError` for an empty name, a model that makes
    no embeddings, and a journal that has no room for memories; `JournalError` if the database fails.
    """
    for what, name in (("persona", persona), ("user", user)):
        if not name.strip() or not name.isprintable():
            raise ConfigError(f"the {what} of a memory is {name!r}; give a name")
    if not isinstance(journal, SqliteJournal | MemoryJournal):
        raise ConfigError(
            f"{type(journal).__name__} has no room for memories; use a journal in an SQLite file or in memory"
        )
    embedder = make_embedder(embeddings) if isinstance(embeddings, str) else embeddings
    database = journal.attach(Database, _open)
    return Memory(MemoryStore(database, persona, user), embedder, clock)


def forget_runs(journal: Journal, run_ids: Collection[str], at: float) -> int:
    """Forget the episodes that tell about runs, of all personas and users, and return their number. Blocks.

    An episode stays if other runs have told the same, as do facts that were remembered on purpose.
    """
    if not isinstance(journal, SqliteJournal | MemoryJournal):
        return 0
    database = journal.attach(Database, _open)
    owners = MemoryStore(database, "", "").owners()
    return sum([MemoryStore(database, *names).forget_runs(run_ids, at) for names in owners])


def _open(path: Path | None, level: str) -> Database:
    return Database(path, level)


def _cut(text: str, chars: int) -> str:
    text = " ".join(text[: 4 * chars].split())
    return text if len(text) <= chars else f"{text[: chars - 1]}…"
