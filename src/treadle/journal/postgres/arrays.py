"""Columns of values as binary arrays, which PostgreSQL turns into rows with `unnest`.

One statement with an array for each column costs the server and this process much less than a statement for each
row.
"""

from collections.abc import Iterable
from itertools import chain, repeat
from struct import Struct, pack
from typing import Any

from psycopg import Connection
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format

_HEAD = Struct("!iiIii").pack
_EMPTY = Struct("!iiI").pack
_SIZE = Struct("!i").pack
_NULL = _SIZE(-1)
pack_float = Struct("!d").pack

ESCAPE = "\ufffe"
"""The character that begins an escape. PostgreSQL's texts cannot contain NUL, so it is written as an escape; this
character, which has no meaning in Unicode, is written as one too."""


def escape(text: str) -> str:
    """Return a text that PostgreSQL can store."""
    if "\0" in text or ESCAPE in text:
        return text.replace(ESCAPE, f"{ESCAPE}1").replace("\0", f"{ESCAPE}0")
    return text


def unescape(text: str) -> str:
    """Return the text that `escape` was given."""
    return text.replace(f"{ESCAPE}0", "\0").replace(f"{ESCAPE}1", ESCAPE) if ESCAPE in text else text


class Column(list[Any]):
    """The values of one column; `None` is NULL. Each subclass is for one type."""

    type_name = ""
    oid = 0
    item_oid = 0

    def pack(self) -> bytes:
        """Return the values as a binary array."""
        if not self:
            return _EMPTY(0, 0, self.item_oid)
        return _HEAD(1, int(None in self), self.item_oid, len(self), 1) + self._pack_items()

    def _pack_items(self) -> bytes:
        return _join(self)


class _Numbers(Column):
    """Values of eight bytes."""

    code = ""

    def _pack_items(self) -> bytes:
        if None in self:
            return _join([None if item is None else pack(f"!{self.code}", item) for item in self])
        sized = chain.from_iterable(zip(repeat(8), self, strict=False))
        return pack("!" + f"i{self.code}" * len(self), *sized)


class Ints(_Numbers):
    """Values of the type `int8`."""

    type_name, oid, item_oid, code = "int8[]", 1016, 20, "q"


class Floats(_Numbers):
    """Values of the type `float8`."""

    type_name, oid, item_oid, code = "float8[]", 1022, 701, "d"


class Texts(Column):
    """Values of the type `text`."""

    type_name, oid, item_oid = "text[]", 1009, 25

    def _pack_items(self) -> bytes:
        return _join([None if item is None else escape(item).encode() for item in self])


class Blobs(Column):
    """Values of the type `bytea`."""

    type_name, oid, item_oid = "bytea[]", 1001, 17


def _join(values: Iterable[bytes | None]) -> bytes:
    return b"".join(
        chain.from_iterable([(_NULL, b"") if item is None else (_SIZE(len(item)), item) for item in values])
    )


class _ColumnDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Column) -> bytes:
        return obj.pack()


class _IntsDumper(_ColumnDumper):
    oid = Ints.oid


class _TextsDumper(_ColumnDumper):
    oid = Texts.oid


class _TextDumper(Dumper):
    format = Format.BINARY
    oid = 25

    def dump(self, obj: str) -> bytes:
        return escape(obj).encode()


class _TextLoader(Loader):
    format = Format.BINARY

    def load(self, data: Any) -> str:
        return unescape(bytes(data).decode())


def adapt(db: Connection[Any]) -> None:
    """Make a connection convert columns, and texts with NUL."""
    db.adapters.register_dumper(Ints, _IntsDumper)
    db.adapters.register_dumper(Texts, _TextsDumper)
    db.adapters.register_dumper(str, _TextDumper)
    db.adapters.register_loader("text", _TextLoader)
