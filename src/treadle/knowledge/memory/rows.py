"""Rows of the tables of memories, and the values that they stand for."""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from treadle.core.errors import ConfigError
from treadle.knowledge.memory.layout import CONTENT, SPACE_BITS
from treadle.knowledge.memory.protocol import MAX_CHARS, AuditRecord, Author, Draft, Entry, Epistemic, Store

ENTRY = f"id, store, version, created_at, strength, used_at, merged, {CONTENT}"
"""The columns of an entry with its newest version."""
AUDIT = "id, at, action, store, author, entry, version, key, run_id, turn, reason"
PLACES = ",".join("?" * len(CONTENT.split(",")))


def write_content(draft: Draft, at: float) -> tuple[object, ...]:
    """Return the values of the columns `CONTENT`."""
    metadata = msgspec.json.encode(draft.metadata).decode() if draft.metadata else None
    return (draft.text, draft.author, at, draft.epistemic, metadata, draft.reason, draft.confidence)


def read_entry(row: tuple[Any, ...]) -> Entry:
    """Return the entry of a row with the columns `ENTRY`."""
    key, store, version, created_at, strength, used_at, merged, *content = row
    return Entry(
        entry_id=write_id(store, key),
        store=Store(store),
        version=version,
        created_at=created_at,
        strength=strength,
        used_at=used_at,
        merged=merged,
        **_read_content(content),
    )


def read_version(newest: Entry, version: int, content: Sequence[Any]) -> Entry:
    """Return an older version of an entry."""
    return msgspec.structs.replace(newest, version=version, **_read_content(content))


def _read_content(content: Sequence[Any]) -> dict[str, Any]:
    text, author, written_at, epistemic, metadata, reason, confidence = content
    return {
        "text": text,
        "author": Author(author),
        "written_at": written_at,
        "epistemic": None if epistemic is None else Epistemic(epistemic),
        "metadata": {} if metadata is None else msgspec.json.decode(metadata, type=dict[str, str]),
        "reason": reason,
        "confidence": confidence,
    }


def read_audit(row: tuple[Any, ...]) -> AuditRecord:
    """Return the audit record of a row with the columns `AUDIT`."""
    record_id, at, action, store, author, entry, version, key, run_id, turn, reason = row
    return AuditRecord(
        record_id=record_id,
        at=at,
        action=action,
        store=Store(store),
        author=Author(author),
        entry_id=None if entry is None else write_id(store, entry),
        version=version,
        key=key,
        run_id=run_id,
        turn=turn,
        reason=reason,
    )


def digest_of(text: str) -> bytes:
    """Return the hash under which the embedding of a text is kept."""
    return hashlib.sha256(text.encode()).digest()


def check_text(text: str) -> str:
    """Return the text of a memory as it is stored. Raises: `ConfigError`."""
    plain = text.encode(errors="replace").decode().replace("\0", "").strip()
    if not plain:
        raise ConfigError("the text of a memory is empty; give what is to be remembered")
    if len(plain) > MAX_CHARS:
        raise ConfigError(
            f"the text of a memory has {len(plain):,} characters, and at most {MAX_CHARS:,} fit; shorten it, "
            "or give the text as a document"
        )
    return plain


def write_id(store: str, row: int) -> str:
    """Return the id of the entry in a row."""
    return f"{store}-{row & ((1 << SPACE_BITS) - 1)}"


def read_id(entry_id: str, low: int) -> int:
    """Return the row of an entry, in the namespace whose rows begin with `low`. Raises: `ConfigError`."""
    store, _, number = entry_id.rpartition("-")
    if store not in set(Store) or not (number.isascii() and number.isdigit()) or len(number) > 9:
        raise ConfigError(
            f"{entry_id!r} is not the id of a memory; ids look like 'episodic-17' (`treadle memory list`)"
        )
    return low + int(number)
