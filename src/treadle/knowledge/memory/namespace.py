"""The memory of one persona about one user: the store, and the embeddings from a server."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence

import msgspec
from msgspec import Struct

from treadle.context.compaction_summary import cut_middle
from treadle.core.errors import ConfigError, ProviderError, ServerError
from treadle.core.types import StopReason
from treadle.http.transport import HttpTransport, Transport
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Clock, Journal
from treadle.journal.sqlite.sqlite_journal import SqliteJournal
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
from treadle.knowledge.memory.shared_tables import SharedDatabase
from treadle.knowledge.memory.vectors import normalize
from treadle.models.config.recipe import Config, load_config
from treadle.models.wire.endpoint import is_success, join_url
from treadle.models.wire.http_model import HttpModel
from treadle.models.wire.server import Server, explain_error

BATCH = 64
"""How many texts are sent in one request."""
_MAX_CHARS = 8_000
"""How much of a text is sent. Most models read less."""
_SILENCE_SECONDS = 10.0
_TOTAL_SECONDS = 60.0
_KEPT_QUERIES = 256
_PATHS = {"openai_chat": "/embeddings", "openai_responses": "/embeddings", "completions": "/embeddings"}


class _Item(Struct):
    index: int
    embedding: list[float]


class _Answer(Struct):
    data: list[_Item]


_decode = msgspec.json.Decoder(_Answer).decode


class Embedder:
    """A model of embeddings behind a server."""

    def __init__(self, server: Server, url: str, name: str, transport: Transport | None = None) -> None:
        self.name = name
        """The name under which its vectors are stored."""
        self._server = server
        self._url = url
        self._transport = transport or HttpTransport(
            timeout_seconds=_SILENCE_SECONDS, total_timeout_seconds=_TOTAL_SECONDS
        )
        self._kept: OrderedDict[str, list[float]] = OrderedDict()

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vectors of some texts, in order, each of length 1. Raises: `ProviderError`."""
        found: list[list[float]] = []
        for start in range(0, len(texts), BATCH):
            found += await self._ask([text[:_MAX_CHARS] for text in texts[start : start + BATCH]])
        return found

    async def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query; those of the newest queries are kept. Raises: `ProviderError`."""
        if text not in self._kept:
            self._kept[text] = (await self.embed([text]))[0]
            if len(self._kept) > _KEPT_QUERIES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(text)
        return self._kept[text]

    async def _ask(self, texts: list[str]) -> list[list[float]]:
        body = msgspec.json.encode({"model": self._server.model, "input": texts, "encoding_format": "float"})
        answer = await self._transport.post(self._url, dict(self._server.headers), body)
        if not is_success(answer.status):
            raise explain_error(self._server, answer.status, answer.body, answer.header)
        try:
            items = sorted(_decode(answer.body).data, key=lambda item: item.index)
            if [item.index for item in items] != list(range(len(texts))):
                raise ValueError(f"{len(items)} embeddings for {len(texts)} texts")
            vectors = [normalize(item.embedding) for item in items]
            if len({len(values) for values in vectors}) != 1:
                raise ValueError("embeddings of different lengths")
        except (msgspec.DecodeError, ValueError, OverflowError) as error:
            raise ServerError(
                f"{self._server.origin} sent embeddings of {self._server.model!r} that cannot be used: {error}",
                status=answer.status,
            ) from error
        return vectors


def make_embedder(
    name: str,
    *,
    transport: Transport | None = None,
    base_url: str | None = None,
    config: Config | None = None,
) -> Embedder:
    """Return the model of embeddings called `name`: one of treadle.toml or of `config`, or `provider:name`.

    Raises: `ConfigError` for an unknown name, a missing key, or a provider whose server has no `/v1/embeddings`.
    """
    config = config or load_config()
    made = config.bare(name, **({} if base_url is None else {"base_url": base_url}))
    path = _PATHS.get(made.DIALECT, "/v1/embeddings") if isinstance(made, HttpModel) else None
    if not isinstance(made, HttpModel) or made.DIALECT not in (*_PATHS, "ollama"):
        raise ConfigError(
            f"{name!r} cannot make embeddings: its server does not speak /v1/embeddings; give a model such as "
            "'openai:text-embedding-3-small', or one of your own server in treadle.toml"
        )
    assert path is not None
    return Embedder(made.server, join_url(made.server.base_url, path), config.full_name(name), transport)


RUN = "run"
"""The key under which the metadata of an episode has the id of the session that it tells about."""
_PAUSE_SECONDS = 30.0
"""How long to wait after a failed request before the embeddings server is asked for a query's vector again."""
_USER_CHARS = 600
_OUTPUT_CHARS = 900
_TOOLS_CHARS = 300
_READ_CHARS = 4
"""How many characters of each end of a long text are read for one that is kept, as blanks are joined."""


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
        """Return the entries that fit `text` best: by their words alone if the server of embeddings fails."""
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
    ) -> MemoryEntry | None:
        """Store a turn as an episode, once, and return it. Later calls for the same turn change nothing.

        `tools` are what it used, as `CompletedTurn.tools`. Return `None` for a turn that did not complete, and for
        one without an answer.
        """
        said, answered = _cut(user_text, _USER_CHARS), _cut(output or "", _OUTPUT_CHARS)
        if stop_reason != StopReason.COMPLETED or not said or not answered:
            return None
        used = f"\nTools used: {_cut(', '.join(tools), _TOOLS_CHARS)}" if tools else ""
        draft = Draft(
            store=Store.EPISODIC,
            text=f"The user: {said}{used}\nThe answer: {answered}",
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
            query = await asyncio.to_thread(self.store.to_first_person, text)
            return Vector(self.embedder.name, await self.embedder.embed_query(query)), None
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

    `embeddings` is a model of embeddings or its name. Raises: `ConfigError` for an empty name and a model that
    makes no embeddings; `JournalError` if the database fails.
    """
    for what, name in (("persona", persona), ("user", user)):
        if not name.strip() or not name.isprintable():
            raise ConfigError(f"the {what} of a memory is {name!r}; give a name")
    embedder = make_embedder(embeddings) if isinstance(embeddings, str) else embeddings
    return Memory(_open_store(journal, persona, user), embedder, clock)


def _open_store(journal: Journal, persona: str, user: str) -> MemoryStore:
    if isinstance(journal, SqliteJournal | MemoryJournal):
        database = journal.attach(Database, Database)
    else:
        database = SharedDatabase.of(journal.resources, persona, user)
    return MemoryStore(database, persona, user)


def forget_runs(journal: Journal, run_ids: Collection[str], at: float) -> int:
    """Forget the episodes that tell about runs, of all personas and users, and return their number. Blocks.

    An episode stays if other runs have told the same, as do facts that were remembered on purpose.
    """
    owners = _open_store(journal, "", "").owners()
    return sum([_open_store(journal, *names).forget_runs(run_ids, at) for names in owners])


def _cut(text: str, chars: int) -> str:
    """Return the beginning and the end of a text in one line."""
    most = _READ_CHARS * chars
    ends = text if len(text) <= 2 * most else f"{text[:most]} {text[-most:]}"
    return cut_middle(" ".join(ends.split()), chars)
