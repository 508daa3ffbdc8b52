"""Resources: what a journal's database holds besides runs, such as uploaded files and vector stores.

A resource has an owner, a state, a JSON body and, if it needs one, a content. Every change is one transaction, so
that what a caller was told is stored survives the death of the process. All methods block.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import astuple

from treadle.core.errors import JournalError
from treadle.http.locks import new_lock, new_reentrant_lock
from treadle.journal.tables.table_rows import Query

A = TypeVar("A")
_TABLES = (
    """CREATE TABLE IF NOT EXISTS resources(
        kind TEXT NOT NULL, parent TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL, label TEXT NOT NULL,
        state TEXT NOT NULL, size_bytes BIGINT NOT NULL, version BIGINT NOT NULL,
        created_at DOUBLE PRECISION NOT NULL, expires_at DOUBLE PRECISION, body TEXT NOT NULL, content BYTEA,
        PRIMARY KEY(kind, parent, id))""",
    "CREATE INDEX IF NOT EXISTS resources_in_order ON resources(kind, parent, created_at, id)",
    "CREATE INDEX IF NOT EXISTS resources_by_id ON resources(kind, id)",
    "CREATE INDEX IF NOT EXISTS resources_open ON resources(kind) WHERE state = 'in_progress'",
    "CREATE INDEX IF NOT EXISTS resources_ending ON resources(expires_at) WHERE expires_at IS NOT NULL",
)
_COLUMNS = "kind, parent, id, owner, label, state, size_bytes, version, created_at, expires_at, body"
_KEY = "kind=? AND parent=? AND id=?"
_INSERT = f"INSERT INTO resources({_COLUMNS}, content) VALUES({','.join('?' * 12)}) ON CONFLICT DO NOTHING"


class Resource(Struct, frozen=True, kw_only=True):
    """One resource, without its content."""

    kind: str
    parent: str = ""
    """The resource that this one belongs to; empty if it stands alone."""
    resource_id: str
    owner: str = ""
    """The name of the key that made it; empty if the server has no keys."""
    label: str = ""
    """A word by which resources of a kind are listed, such as the purpose of a file."""
    state: str = "completed"
    size_bytes: int = 0
    version: int = 1
    """A number that grows with each change."""
    created_at: float
    expires_at: float | None = None
    """When it is deleted; `None`: never."""
    body: str = "{}"
    """JSON."""


class ResourceFilter(Struct, frozen=True, kw_only=True):
    """Which resources are listed, and in which order."""

    kind: str
    parent: str | None = ""
    """The resource that they belong to; empty: none. `None`: any, where no two of the kind have the same id."""
    owner: str | None = None
    """The owner; `None`: any."""
    label: str | None = None
    state: str | None = None
    after: str | None = None
    """The id of the last resource of the page before."""
    before: str | None = None
    """The id of the first resource of the page after this one."""
    limit: int = 1_000_000
    newest_first: bool = False


class ResourceCounts(Struct, frozen=True):
    """How many resources belong to another one."""

    counts: dict[str, int]
    """Their number, by state."""
    size_bytes: int
    mark: tuple[object, ...]
    """A value that differs after each change of one of them."""


class ResourceTable:
    """The resources in the database of a journal."""

    def __init__(
        self,
        query: Query,
        transact: Callable[[Callable[[Query], Any]], Any],
        join: Callable[[Callable[[Query], Any]], Awaitable[bool]] | None = None,
    ) -> None:
        """`query` reads, and `transact` returns what a function does in a transaction, which may be repeated.

        `join` is as for `Pending.join`; `None`: there are no commits to join.
        """
        self._query = query
        self._transact = transact
        self._join = join
        self._are_made = False
        self._users: dict[type[Any], Any] = {}
        self._lock_of_users = new_lock()

    def add(self, added: Sequence[Resource], now: float, content: bytes | None = None) -> None:
        """Store new resources, all or none, and delete those that have expired. One that exists stays as it is.

        `content` is that of each. Raises: `JournalError`.
        """
        self._make_tables()

        def put(query: Query) -> None:
            query("DELETE FROM resources WHERE expires_at <= ?", (now,))
            _insert(query, added, content)

        self._transact(put)

    def join(self, added: Sequence[Resource]) -> "Awaitable[bool] | None":
        """Store new resources, all or none, in the next commit of runs of this event loop.

        The result is false if nothing was stored, so that they have to be added in another way. `None`: there is no
        such commit.
        """
        if not self._are_made or self._join is None:
            return None
        return self._join(lambda query: _insert(query, added, None))

    async def add_soon(
        self, added: Sequence[Resource], now: float, joined: "Awaitable[bool] | None" = None
    ) -> None:
        """Store new resources as `add` does, unless `join` has, without blocking the event loop."""
        if joined is None or not await joined:
            await asyncio.to_thread(self.add, added, now)

    def get(self, kind: str, resource_id: str, now: float, parent: str = "") -> Resource | None:
        """Return a resource; `None` if there is no such resource, or it has expired."""
        sql = f"SELECT {_COLUMNS} FROM resources WHERE {_KEY}"
        found = [_read(row) for row in self._rows(sql, (kind, parent, resource_id))]
        ends_at = found[0].expires_at if found else None
        return found[0] if found and (ends_at is None or ends_at > now) else None

    def content(self, item: Resource) -> bytes | None:
        """Return the content of a resource; `None` if it has none."""
        rows = self._rows(
            f"SELECT content FROM resources WHERE {_KEY}", (item.kind, item.parent, item.resource_id)
        )
        return rows[0][0] if rows else None

    def page(self, chosen: ResourceFilter, now: float) -> list[Resource]:
        """Return the resources of a selection, in order of creation."""
        terms, values = ["kind=?", "(expires_at IS NULL OR expires_at > ?)"], [chosen.kind, now]
        key = (
            ("kind=? AND id=?", chosen.kind) if chosen.parent is None else (_KEY, chosen.kind, chosen.parent)
        )
        for name in ("parent", "owner", "label", "state"):
            if (value := getattr(chosen, name)) is not None:
                terms.append(f"{name}=?")
                values.append(value)
        for edge, is_later in ((chosen.after, not chosen.newest_first), (chosen.before, chosen.newest_first)):
            if edge is not None:
                place = f"(SELECT created_at, id FROM resources WHERE {key[0]})"
                terms.append(f"(created_at, id) {'>' if is_later else '<'} {place}")
                values += [*key[1:], edge]
        # A page before another one is read backwards from it.
        is_down = chosen.newest_first != (chosen.before is not None)
        order = "created_at DESC, id DESC" if is_down else "created_at, id"
        sql = f"SELECT {_COLUMNS} FROM resources WHERE {' AND '.join(terms)} ORDER BY {order} LIMIT ?"
        found = [_read(row) for row in self._rows(sql, (*values, chosen.limit))]
        return found[::-1] if chosen.before is not None else found

    def unfinished(self, kind: str) -> Iterator[Resource]:
        """Yield the resources of a kind whose state is `in_progress`, with few of them in memory at a time."""
        sql = (
            f"SELECT {_COLUMNS} FROM resources WHERE kind=? AND state = 'in_progress' AND (parent, id) > (?, ?) "
            "ORDER BY parent, id LIMIT 1000"
        )
        last = ("", "")
        while found := [_read(row) for row in self._rows(sql, (kind, *last))]:
            yield from found
            last = found[-1].parent, found[-1].resource_id

    def tally(self, kind: str, parent: str, label: str | None = None) -> ResourceCounts:
        """Return how many resources belong to `parent`."""
        terms, values = "kind=? AND parent=?", [kind, parent]
        if label is not None:
            terms, values = f"{terms} AND label=?", [*values, label]
        sql = (
            "SELECT state, count(*), CAST(sum(size_bytes) AS BIGINT), CAST(sum(version) AS BIGINT), "
            f"max(created_at) FROM resources WHERE {terms} GROUP BY state"
        )
        rows = self._rows(sql, values)
        mark = tuple(sorted([(row[0], row[1], row[3], row[4]) for row in rows]))
        return ResourceCounts({row[0]: row[1] for row in rows}, sum([row[2] for row in rows]), mark)

    def replace(self, old: Resource, new: Resource, content: bytes | None = None) -> bool:
        """Store `new` in place of `old`, with another content if one is given. Return False if `old` was changed or
        deleted meanwhile. Raises: `JournalError`."""
        names = ("label", "state", "size_bytes", "expires_at", "body")
        values: list[object] = [getattr(new, name) for name in names]
        sets = ", ".join(f"{name}=?" for name in names)
        if content is not None:
            sets, values = f"{sets}, content=?", [*values, content]
        sql = f"UPDATE resources SET version=version+1, {sets} WHERE {_KEY} AND version=? RETURNING version"
        key = (old.kind, old.parent, old.resource_id, old.version)
        return bool(self._transact(lambda query: query(sql, (*values, *key))))

    def delete(
        self,
        kind: str,
        resource_id: str,
        parent: str = "",
        *,
        children: Sequence[str] = (),
        namesakes: Sequence[str] = (),
    ) -> bool:
        """Delete a resource. Return False if there is no such resource.

        With it go those of the kinds `children` that belong to it, and those of the kinds `namesakes` that
        have its id, whatever they belong to. Raises: `JournalError`.
        """

        def remove(query: Query) -> bool:
            for column, kinds in (("parent", children), ("id", namesakes)):
                for name in kinds:
                    query(f"DELETE FROM resources WHERE kind=? AND {column}=?", (name, resource_id))
            sql = f"DELETE FROM resources WHERE {_KEY} RETURNING id"
            return bool(query(sql, (kind, parent, resource_id)))

        self._make_tables()
        return bool(self._transact(remove))

    def once(self, kind: type[A], make: Callable[[], A]) -> A:
        """Return the object of a kind that works on this table in this process. The first call makes it."""
        with self._lock_of_users:
            found: A = self._users.get(kind) or self._users.setdefault(kind, make())
        return found

    def _rows(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        self._make_tables()
        try:
            return self._query(sql, values)
        except UnicodeEncodeError:  # half of a surrogate pair, which no stored text has
            return []

    def _make_tables(self) -> None:
        if self._are_made:
            return
        for is_last in (False, True):
            try:
                self._transact(lambda query: [query(sql, ()) for sql in _TABLES])
            except JournalError:  # another process may have made them at the same moment
                if is_last:
                    raise
            else:
                break
        self._are_made = True


class ResourcesInMemory(ResourceTable):
    """The resources of a journal in memory. See `Attached`."""

    def __init__(self) -> None:
        import sqlite3  # a help text that loads this module needs no store

        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._lock = new_reentrant_lock(is_awaited=True)
        super().__init__(self._run, self._do)

    def _run(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def _do(self, work: Callable[[Query], Any]) -> Any:
        with self._lock:
            self._db.execute("BEGIN")
            try:
                found = work(self._run)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        return found

    def close(self) -> None:
        """See `Attached.close`. The resources stay as long as the journal does."""

    def disown(self) -> None:
        """See `Attached.disown`. A forked child has resources of its own."""


def _insert(query: Query, added: Sequence[Resource], content: bytes | None) -> None:
    for item in added:
        query(_INSERT, (*astuple(item), content))


def _read(row: tuple[Any, ...]) -> Resource:
    return Resource(**dict(zip(Resource.__struct_fields__, row, strict=True)))
