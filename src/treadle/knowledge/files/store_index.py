"""The indexes of vector stores, made in memory from the stored pieces of their files and kept up to date."""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from treadle.http.locks import new_lock, new_reentrant_lock
from treadle.journal.resources import Resource, ResourceFilter, ResourceTable
from treadle.knowledge.files.attribute_filters import AttributeValue, Condition
from treadle.knowledge.files.file_store import ATTACHED, AttachedFile, attached_facts
from treadle.knowledge.memory.memory_store import MemoryStore
from treadle.knowledge.memory.memory_tables import Database
from treadle.knowledge.memory.protocol import Author, Draft, Store, Vector
from treadle.knowledge.memory.vectors import unpack_vector

_MAX_INDEXES = 64
_LEAST_SCORE = 0.01
encode_pieces = msgspec.msgpack.Encoder().encode


class Piece(Struct, frozen=True, array_like=True):
    """A piece of a file."""

    place: str
    """Where it stands, such as `page 3`; empty if the file has no parts."""
    text: str
    vector: bytes = b""
    """Its embedding; empty if there is none."""


class FoundPiece(Struct, frozen=True, kw_only=True):
    """A piece that was found."""

    file_id: str
    filename: str
    score: float
    """How well it fits, from 0 to 1."""
    attributes: dict[str, AttributeValue]
    place: str
    text: str


class StoreIndexes:
    """The indexes of the stores that were searched last. Any thread may call the methods."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, StoreIndex] = OrderedDict()
        self._lock = new_lock()

    def search(
        self,
        table: ResourceTable,
        store_id: str,
        query: str,
        vector: Vector | None,
        condition: Condition | None,
        limit: int,
        now: float,
    ) -> list[FoundPiece]:
        """Return the pieces of a store that fit best. See `StoreIndex.search`."""
        with self._lock:
            index = self._kept.setdefault(store_id, StoreIndex(store_id))
            self._kept.move_to_end(store_id)
            if len(self._kept) > _MAX_INDEXES:
                self._kept.popitem(last=False)
        with index.lock:
            index.update(table, now)
            return index.search(query, vector, condition, limit, now)

    def drop(self, store_id: str) -> None:
        """Forget the index of a store."""
        with self._lock:
            self._kept.pop(store_id, None)


class StoreIndex:
    """The index of one store: its pieces as those of documents in a memory of their own."""

    def __init__(self, store_id: str) -> None:
        self.lock = new_reentrant_lock()
        self._store_id = store_id
        self._pieces = MemoryStore(Database(None, "memory"), "files", store_id)
        self._mark: object = None
        """The state of the store's files that the index has."""
        self._files: dict[str, tuple[Resource, AttachedFile]] = {}
        """The files that are in the index, as they were stored, with their facts."""

    def update(self, table: ResourceTable, now: float) -> None:
        """Take over what was attached, changed and detached since the last call."""
        mark = table.tally(ATTACHED, self._store_id).mark
        if mark == self._mark:
            return
        chosen = ResourceFilter(kind=ATTACHED, parent=self._store_id, state="completed")
        current = {item.resource_id: item for item in table.page(chosen, now)}
        for file_id in self._files.keys() - current.keys():
            self._pieces.replace_document(file_id, "", [], now)
            del self._files[file_id]
        for file_id, item in current.items():
            known, _ = self._files.get(file_id, (None, None))
            # A file that was detached and attached again has another time.
            if known is None or known.created_at != item.created_at:
                self._put(table, item, now)
            elif known.version != item.version:
                self._files[file_id] = item, attached_facts(item)
        self._mark = mark

    def _put(self, table: ResourceTable, item: Resource, now: float) -> None:
        content, file = table.content(item), attached_facts(item)
        pieces = [] if content is None else msgspec.msgpack.decode(content, type=list[Piece])
        drafts = [
            Draft(
                store=Store.DOCUMENTS,
                text=piece.text,
                author=Author.FILE,
                metadata={"title": file.name} | ({"place": piece.place} if piece.place else {}),
            )
            for piece in pieces
        ]
        self._pieces.replace_document(item.resource_id, str(item.created_at), drafts, now)
        self._files[item.resource_id] = item, file
        if file.embedded_by is not None and pieces:
            entries = self._pieces.entries([Store.DOCUMENTS], len(pieces), newest_first=True)[::-1]
            vectors = {
                entry.entry_id: unpack_vector(piece.vector)
                for entry, piece in zip(entries, pieces, strict=True)
            }
            self._pieces.put_vectors(file.embedded_by, vectors)

    def search(
        self, query: str, vector: Vector | None, condition: Condition | None, limit: int, now: float
    ) -> list[FoundPiece]:
        """Return the pieces that fit a query best, the best first, of the files that meet a condition."""
        sources: Sequence[str] | None = None
        if condition is not None:
            sources = [file_id for file_id, (_, file) in self._files.items() if condition(file.attributes)]
        hits = self._pieces.search(
            query, now, stores=[Store.DOCUMENTS], limit=limit, vector=vector, sources=sources
        )
        best = max([hit.fit for hit in hits], default=0.0)
        found = []
        for hit in hits:
            item, file = self._files[hit.entry.metadata["source"]]
            if item.expires_at is not None and item.expires_at <= now:
                continue
            found.append(
                FoundPiece(
                    file_id=item.resource_id,
                    filename=file.name,
                    score=round(max(best, _LEAST_SCORE) * hit.score / hits[0].score, 6),
                    attributes=file.attributes,
                    place=hit.entry.metadata.get("place", ""),
                    text=hit.entry.text,
                )
            )
        return found
