"""Vector stores: sets of files that are searched together.

An attached file is stored as `in_progress` before the caller is told, and is then read in pieces. Whoever finds it
so after a crash reads it again. A store's index is made from the pieces; see `store_index`.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, JournalError, ProviderError
from treadle.core.types import Json
from treadle.journal.protocol import Clock
from treadle.journal.resources import Resource, ResourceCounts, ResourceFilter, ResourceTable
from treadle.knowledge.documents.library import PIECE_CHARS, ReadDocument, pieces_of
from treadle.knowledge.files.attribute_filters import Condition, check_attributes
from treadle.knowledge.files.file_store import (
    ATTACHED,
    FILE,
    AttachedFile,
    Chunking,
    attached_facts,
    facts_of,
)
from treadle.knowledge.files.guarded_reading import read_guarded
from treadle.knowledge.files.store_index import FoundPiece, Piece, StoreIndexes, encode_pieces
from treadle.knowledge.memory.namespace import Embedder
from treadle.knowledge.memory.protocol import Vector
from treadle.knowledge.memory.vectors import pack_vector

STORE = "vector_store"
BATCH = "vector_store.batch"
CHARS_PER_TOKEN = 4
_DAY_SECONDS = 86_400.0
_MAX_PIECES = 50_000
_ACTIVE_SECONDS = 60.0
"""How exactly the time of the last search is kept."""
_STALE_SECONDS = 60.0
"""After this time, a file that another process should have read is read by the one that is asked for it."""
_TRIES = 10
_log = logging.getLogger("treadle")


class StoreFacts(Struct, frozen=True, kw_only=True):
    """The facts about a vector store."""

    name: str | None = None
    metadata: dict[str, str] = {}
    expires_days: int | None = None
    """After how many days without a search or a change it expires; `None`: never."""
    active_at: float
    """When it was last searched or changed."""

    def expires_at(self) -> float | None:
        """Return when the store expires; `None`: never."""
        return None if self.expires_days is None else self.active_at + self.expires_days * _DAY_SECONDS


def store_facts(item: Resource) -> StoreFacts:
    return msgspec.json.decode(item.body, type=StoreFacts)


AUTO_CHUNKING = Chunking(PIECE_CHARS // CHARS_PER_TOKEN, 0)
"""How a file is cut if its client does not say it."""


def read_chunking(given: Json) -> Chunking | None:
    """Return what a chunking strategy of the API asks for. Raises: `ConfigError`."""
    if given is None or given == {"type": "auto"}:
        return None
    sizes = given.get("static") if isinstance(given, dict) and given.get("type") == "static" else None
    if not isinstance(sizes, dict):
        raise ConfigError(
            "chunking_strategy must have the type 'auto', or 'static' with its sizes in 'static'"
        )
    most, overlap = sizes.get("max_chunk_size_tokens", 800), sizes.get("chunk_overlap_tokens", 400)
    if (
        type(most) is not int
        or type(overlap) is not int
        or not (100 <= most <= 4096 and 0 <= overlap <= most // 2)
    ):
        raise ConfigError(
            "max_chunk_size_tokens must be from 100 to 4096, and chunk_overlap_tokens at most half of it"
        )
    return Chunking(most, overlap)


class VectorStores:
    """The vector stores of a journal. Methods that are not coroutines block."""

    def __init__(self, table: ResourceTable, embedder: Embedder | None = None, clock: Clock = time) -> None:
        """`embedder` makes the embeddings of pieces and queries; `None`: files are found by their words alone."""
        self.table = table
        self._embedder = embedder
        self._clock = clock
        self._indexes = StoreIndexes()
        self._reading: set[tuple[str, str]] = set()
        """The files that this process reads now."""

    def create(
        self,
        name: str | None,
        metadata: dict[str, str],
        expires_days: int | None,
        owner: str = "",
        store_id: str | None = None,
    ) -> Resource:
        """Store a new vector store, and return it. If there is a store `store_id`, that one is returned."""
        now = self._clock.time()
        facts = StoreFacts(name=name, metadata=metadata, expires_days=expires_days, active_at=now)
        made = Resource(
            kind=STORE,
            resource_id=store_id or f"vs_{secrets.token_hex(12)}",
            owner=owner,
            created_at=now,
            body=_encode(facts),
        )
        self.table.add([made], now)
        return made if store_id is None else self.get(store_id) or made

    def get(self, store_id: str, owner: str | None = None) -> Resource | None:
        """Return a vector store; `None` if there is none that `owner` sees. Who is `None` sees all."""
        found = self.table.get(STORE, store_id, self._clock.time())
        return None if found is None or owner not in (None, found.owner) else found

    def is_expired(self, item: Resource) -> bool:
        """Return whether nobody has used a store for as long as it allows."""
        ends_at = store_facts(item).expires_at()
        return ends_at is not None and ends_at <= self._clock.time()

    def change(self, item: Resource, **facts: object) -> Resource:
        """Change facts of a store, and return it. A change also counts as use."""
        for _ in range(_TRIES):
            new = replace(store_facts(item), active_at=self._clock.time(), **facts)
            if self.table.replace(item, replace(item, body=_encode(new))):
                break
            item = self.get(item.resource_id) or item
        return self.get(item.resource_id) or item

    def delete(self, store_id: str) -> None:
        """Delete a vector store. Its files stay as uploaded files."""
        self.table.delete(STORE, store_id, children=(ATTACHED, BATCH))
        self._indexes.drop(store_id)

    def counts(self, store_id: str, batch_id: str | None = None) -> ResourceCounts:
        """Return how many files a store or one of its batches has."""
        return self.table.tally(ATTACHED, store_id, batch_id)

    def page(self, chosen: ResourceFilter) -> list[Resource]:
        """Return the stores, or the files of a store, of a selection."""
        return self.table.page(chosen, self._clock.time())

    def attach(
        self,
        store: Resource,
        files: Sequence[tuple[Resource, Json]],
        chunking: Chunking | None,
        *,
        is_batch: bool = False,
        batch_id: str | None = None,
    ) -> tuple[Resource | None, list[Resource]]:
        """Attach files, each with its attributes, to a store. Return the batch, if it is one, and the new files.

        A file that is attached already gets what is given, and belongs to the newest batch that names it. It is
        read anew if it could not be read, or is cut in another way. `batch_id` is the id of the batch, new or not.

        Raises: `ConfigError` for wrong attributes.
        """
        now, batch = self._clock.time(), None
        if is_batch:
            batch = Resource(
                kind=BATCH,
                parent=store.resource_id,
                resource_id=batch_id or f"vsfb_{secrets.token_hex(12)}",
                owner=store.owner,
                created_at=now,
            )
        made = [
            Resource(
                kind=ATTACHED,
                parent=store.resource_id,
                resource_id=file.resource_id,
                owner=store.owner,
                label="" if batch is None else batch.resource_id,
                state="in_progress",
                created_at=now + number / 1_000_000,
                expires_at=file.expires_at,
                body=_encode(
                    AttachedFile(
                        name=facts_of(file).name, attributes=check_attributes(attributes), chunking=chunking
                    )
                ),
            )
            for number, (file, attributes) in enumerate(files)
        ]
        self.table.add(made if batch is None else [batch, *made], now)
        for item, (_, attributes) in zip(made, files, strict=True):
            known = self.attached(item.parent, item.resource_id)
            if known is None or known.created_at == item.created_at:
                continue
            is_cut_otherwise = chunking is not None and chunking != attached_facts(known).chunking
            if is_cut_otherwise or known.state in ("failed", "cancelled"):
                self.table.replace(known, replace(item, expires_at=known.expires_at))
            else:
                kept = (
                    attached_facts(known).attributes if attributes is None else check_attributes(attributes)
                )
                self.change_attached(known, label=item.label or known.label, attributes=kept)
        self.change(store)
        return batch, made

    def attached(self, store_id: str, file_id: str) -> Resource | None:
        """Return a file of a store; `None` if the store does not have it."""
        return self.table.get(ATTACHED, file_id, self._clock.time(), store_id)

    def change_attached(
        self, item: Resource, *, is_cancelled: bool = False, label: str | None = None, **facts: object
    ) -> Resource:
        """Change facts of a file of a store or its batch, which is its label, or cancel its reading; return it."""
        for _ in range(_TRIES):
            state = "cancelled" if is_cancelled and item.state == "in_progress" else item.state
            new = replace(attached_facts(item), **facts)
            batch = item.label if label is None else label
            if self.table.replace(item, replace(item, state=state, label=batch, body=_encode(new))):
                break
            item = self.attached(item.parent, item.resource_id) or item
        return self.attached(item.parent, item.resource_id) or item

    def detach(self, item: Resource) -> None:
        """Remove a file from a store."""
        self.table.delete(ATTACHED, item.resource_id, item.parent)

    def pieces(self, item: Resource) -> list[Piece]:
        """Return the pieces of a file of a store; none before it was read."""
        content = self.table.content(item)
        return [] if content is None else msgspec.msgpack.decode(content, type=list[Piece])

    # Reading.

    def delete_expired(self) -> None:
        """Delete the files that have expired."""
        self.table.add((), self._clock.time())

    def unread(self) -> list[Resource]:
        """Return the files that some process was to read and has not read."""
        return list(self.table.unfinished(ATTACHED))

    def is_left(self, item: Resource) -> bool:
        """Return whether a file waits to be read for so long that its process may have died."""
        is_old = self._clock.time() - item.created_at > _STALE_SECONDS
        return is_old and item.state == "in_progress" and (item.parent, item.resource_id) not in self._reading

    async def read_in(self, items: Sequence[Resource]) -> None:
        """Read attached files, and store their pieces or why they cannot be read. A file that is read already stays
        as it is. Raises: `JournalError` if the store fails."""
        for item in items:
            key = (item.parent, item.resource_id)
            if key in self._reading:
                continue
            self._reading.add(key)
            try:
                await self._read_one(item)
            finally:
                self._reading.discard(key)

    async def _read_one(self, item: Resource) -> None:
        known = await asyncio.to_thread(self.attached, item.parent, item.resource_id)
        if known is None or known.state != "in_progress":
            return
        pieces: list[Piece] = []
        told: dict[str, str | None] = {}
        try:
            pieces, embedded_by = await self._read_pieces(item)
            told = {"embedded_by": embedded_by}
        except ConfigError as error:
            is_unknown = "is not text" in str(error) or "pip install" in str(error)
            told = {"error_code": "unsupported_file" if is_unknown else "invalid_file", "error": str(error)}
        except JournalError:
            raise
        except Exception as error:
            _log.warning("the file %s could not be read", item.resource_id, exc_info=True)
            told = {"error_code": "server_error", "error": f"{type(error).__name__}: {error}"}
        content = encode_pieces(pieces)
        await asyncio.to_thread(self._put_pieces, item, pieces, content, told)

    def _put_pieces(
        self, item: Resource, pieces: list[Piece], content: bytes, told: dict[str, str | None]
    ) -> None:
        state = "completed" if told.get("error") is None else "failed"
        size = sum([len(piece.text.encode()) for piece in pieces])
        for _ in range(_TRIES):
            now = self.attached(item.parent, item.resource_id)
            if now is None or now.state != "in_progress":
                return  # it was detached, cancelled, or read by another process
            new = replace(
                now, state=state, size_bytes=size, body=_encode(replace(attached_facts(now), **told))
            )
            if self.table.replace(now, new, content):
                return

    async def _read_pieces(self, item: Resource) -> tuple[list[Piece], str | None]:
        """Return the pieces of a file, and the model that made their embeddings. Raises: `ConfigError`."""
        file = await asyncio.to_thread(self.table.get, FILE, item.resource_id, self._clock.time())
        content = None if file is None else await asyncio.to_thread(self.table.content, file)
        if content is None:
            raise ConfigError("the file was deleted")
        facts = attached_facts(item)
        document = await read_guarded(content, facts.name)
        pieces = await asyncio.to_thread(_cut, document, facts.chunking)
        if self._embedder is None:
            return pieces, None
        try:
            vectors = await self._embedder.embed([piece.text for piece in pieces])
        except ProviderError as error:
            _log.warning("the file %s has no embeddings: %s", item.resource_id, error)
            return pieces, None
        made = [
            replace(piece, vector=pack_vector(values)) for piece, values in zip(pieces, vectors, strict=True)
        ]
        return made, self._embedder.name

    # Searching.

    async def search(
        self, store: Resource, queries: Sequence[str], limit: int, condition: Condition | None = None
    ) -> list[FoundPiece]:
        """Return the pieces that fit the queries best, the best first.

        If the server of embeddings fails, they are found by their words alone. Raises: `ConfigError` if the store
        has expired.
        """
        if self.is_expired(store):
            raise ConfigError(f"the vector store {store.resource_id!r} has expired")
        found: dict[tuple[str, str, str], FoundPiece] = {}
        for query in queries:
            vector = await self._embed(query)
            hits = await asyncio.to_thread(
                self._indexes.search,
                self.table,
                store.resource_id,
                query,
                vector,
                condition,
                limit,
                self._clock.time(),
            )
            for hit in hits:
                key = (hit.file_id, hit.place, hit.text)
                if key not in found or found[key].score < hit.score:
                    found[key] = hit
        if self._clock.time() - store_facts(store).active_at > _ACTIVE_SECONDS:
            await asyncio.to_thread(self.change, store)
        return sorted(found.values(), key=lambda hit: -hit.score)[:limit]

    async def _embed(self, query: str) -> Vector | None:
        if self._embedder is None or not query.strip():
            return None
        try:
            return Vector(self._embedder.name, await self._embedder.embed_query(query))
        except ProviderError as error:
            _log.warning("files are searched by their words alone: %s", error)
            return None


def _cut(document: ReadDocument, chunking: Chunking | None) -> list[Piece]:
    """Return the pieces of a document. Raises: `ConfigError` if there are too many."""
    sizes = chunking or AUTO_CHUNKING
    chars, overlap = sizes.max_tokens * CHARS_PER_TOKEN, sizes.overlap_tokens * CHARS_PER_TOKEN
    pieces: list[Piece] = []
    for draft in pieces_of(document, chars, overlap):
        text = draft.text.encode(errors="replace").decode().replace("\0", "")
        pieces.append(Piece(draft.metadata.get("place", ""), text))
        if len(pieces) > _MAX_PIECES:
            raise ConfigError(
                f"the document {document.source!r} has more than {_MAX_PIECES:,} pieces; split it"
            )
    return pieces


def _encode(facts: Struct) -> str:
    return msgspec.json.encode(facts).decode()
