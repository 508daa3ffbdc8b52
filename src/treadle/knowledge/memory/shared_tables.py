"""The tables of memories in a journal without an SQLite file, such as PostgreSQL, which several machines share.

The tables of each namespace are a database in memory. Its image is kept in parts, as resources of the journal: a
write stores the parts that it has changed, and whoever reads fetches those that others have changed. So a search
is the same in every journal, and what is forgotten is in no part.
"""

import contextlib
import hashlib
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Iterator

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import JournalError
from treadle.http.locks import new_lock
from treadle.journal.resources import Resource, ResourceFilter, ResourceTable
from treadle.knowledge.memory.memory_tables import Database

_KIND, _PART = "memory", "memory_part"
_PART_BYTES = 16 * 1024
_KEPT = 64
"""How many namespaces are kept in memory."""
_PATIENCE_SECONDS, _STALE_SECONDS = 15.0, 10.0
"""How long a write waits for another one, and after which time the other one counts as dead."""
_PAUSE_SECONDS = 0.01


class _Image(Struct):
    """What is stored of a namespace besides its parts."""

    parts: list[str] = []
    """The hashes of the parts, in order."""
    held_at: float = 0.0
    """The time at which the newest write began, by the clock of its process."""


_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(_Image).decode


class SharedDatabase(Database):
    """The tables of one namespace. Any thread may use them."""

    def __init__(self, resources: ResourceTable, persona: str, user: str) -> None:
        super().__init__(None, "memory")
        self._resources = resources
        self._id = _encode((persona, user)).decode()
        self._parts: list[str] = []
        """The hashes of the parts of the image that the database has."""

    @classmethod
    def of(cls, resources: ResourceTable, persona: str, user: str) -> "SharedDatabase":
        """Return the tables of a namespace, which this process may have already."""
        return resources.once(_Namespaces, _Namespaces).find(resources, persona, user)

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """See `Database.writing`. Others who write, in any process, wait."""
        with self._write_lock:
            held = self._hold()
            try:
                self._load(held)
                with super().writing() as db:
                    yield db
                    self._store(held, db)
            except BaseException:
                with contextlib.suppress(JournalError):
                    self._resources.replace(held, replace(held, state="completed"))
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """See `Database.reading`."""
        with self._read_lock:
            if not self._reading.in_transaction:
                self._load(self._find())
            with super().reading() as db:
                yield db

    def purge(self) -> None:
        with self.writing() as db:
            db.execute("INSERT INTO memory_text(memory_text) VALUES('optimize')")

    def owners(self) -> list[tuple[str, str]]:
        table = self._resources
        found = table.page(ResourceFilter(kind=_KIND), 0.0)
        named = [msgspec.json.decode(item.resource_id, type=tuple[str, str]) for item in found]
        return [names for names in named if self.of(table, *names)._has_entries()]

    def _has_entries(self) -> bool:
        with self.reading() as db:
            return db.execute("SELECT 1 FROM memory_entries LIMIT 1").fetchone() is not None

    def _find(self) -> Resource | None:
        return self._resources.get(_KIND, self._id, 0.0)

    def _hold(self) -> Resource:
        """Return what is stored of the namespace, once no other write is under way. Raises: `JournalError`."""
        give_up_at = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < give_up_at:
            now, found = time.time(), self._find()
            if found is None:
                made = Resource(
                    kind=_KIND, resource_id=self._id, created_at=now, body=_encode(_Image()).decode()
                )
                self._resources.add([made], now)
                continue
            image = _decode(found.body)
            if found.state == "completed" or abs(now - image.held_at) > _STALE_SECONDS:
                body = _encode(_Image(image.parts, now)).decode()
                held = replace(found, state="in_progress", body=body)
                if self._resources.replace(found, held):
                    return replace(held, version=found.version + 1)
            time.sleep(_PAUSE_SECONDS)
        raise JournalError("others write to these memories all the time; try again")

    def _load(self, found: Resource | None) -> None:
        """Take over what others have written."""
        while found is not None and (parts := _decode(found.body).parts) != self._parts:
            known = dict(_split(self._writing.serialize()))
            for name in set(parts) - known.keys():
                item = Resource(kind=_PART, parent=self._id, resource_id=name, created_at=0.0)
                if (content := self._resources.content(item)) is None:
                    break  # it was changed meanwhile
                known[name] = content
            else:
                image = sqlite3.connect(":memory:")
                image.deserialize(b"".join([known[name] for name in parts]))
                # A database that was made by `deserialize` itself has no image of an open transaction.
                image.backup(self._writing)
                image.close()
                self._parts = parts
                return
            found = self._find()

    def _store(self, held: Resource, db: sqlite3.Connection) -> None:
        """Store what the transaction has changed. Raises: `JournalError` if nothing is stored."""
        # This makes the full-text index write what it has in memory.
        db.execute("SAVEPOINT whole")
        db.execute("RELEASE whole")
        split = _split(db.serialize())
        parts, contents = [name for name, _ in split], dict(split)
        for name in contents.keys() - set(self._parts):
            now = time.time()
            part = Resource(kind=_PART, parent=self._id, resource_id=name, created_at=now)
            self._resources.add([part], now, contents[name])
        changed = replace(held, body=_encode(_Image(parts, time.time())).decode())
        if not self._resources.replace(held, changed):
            raise JournalError("another process has written to these memories meanwhile; try again")
        # Nothing may prevent the commit from here on. Only who holds the namespace knows which parts nobody needs.
        with contextlib.suppress(JournalError):
            changed = replace(changed, version=held.version + 1)
            if parts != self._parts:
                for item in self._resources.page(ResourceFilter(kind=_PART, parent=self._id), 0.0):
                    if item.resource_id not in contents:
                        self._resources.delete(_PART, item.resource_id, self._id)
            self._resources.replace(changed, replace(changed, state="completed"))
        self._parts = parts


class _Namespaces:
    """The namespaces that a process has in memory."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], SharedDatabase] = OrderedDict()
        self._lock = new_lock()

    def find(self, resources: ResourceTable, persona: str, user: str) -> SharedDatabase:
        """Return the tables of a namespace."""
        with self._lock:
            found = self._kept.get((persona, user)) or SharedDatabase(resources, persona, user)
            self._kept[persona, user] = found
            self._kept.move_to_end((persona, user))
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found


def _split(image: bytes) -> list[tuple[str, bytes]]:
    """Return the parts of an image, each with its hash."""
    pieces = [image[at : at + _PART_BYTES] for at in range(0, len(image), _PART_BYTES)]
    return [(hashlib.blake2b(piece, digest_size=16).hexdigest(), piece) for piece in pieces]
