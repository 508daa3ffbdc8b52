"""Uploaded files. An upload that was acknowledged is stored; what is deleted or has expired is gone."""

import hashlib
import mimetypes
import secrets
import time

import msgspec
from msgspec import Struct

from treadle.journal.protocol import Clock
from treadle.journal.resources import Resource, ResourceFilter, ResourceTable
from treadle.knowledge.files.attribute_filters import AttributeValue

FILE = "file"
"""The kind of uploaded files."""
ATTACHED = "vector_store.file"
"""The kind of the files of vector stores."""
_NAME_CHARS = 255


class StoredFile(Struct, frozen=True, kw_only=True):
    """The facts about an uploaded file."""

    name: str
    mime_type: str
    digest: str
    """The SHA-256 of the content."""


def facts_of(item: Resource) -> StoredFile:
    return msgspec.json.decode(item.body, type=StoredFile)


class Chunking(Struct, frozen=True):
    """How a file is cut into pieces."""

    max_tokens: int
    overlap_tokens: int


class AttachedFile(Struct, frozen=True, kw_only=True):
    """The facts about a file of a vector store."""

    name: str
    attributes: dict[str, AttributeValue] = {}
    chunking: Chunking | None = None
    """How it is cut; `None`: at paragraphs, into pieces of about 300 tokens."""
    error_code: str | None = None
    """`unsupported_file`, `invalid_file` or `server_error`; `None` if nothing failed."""
    error: str | None = None
    embedded_by: str | None = None
    """The model of the pieces' embeddings; `None` if they have none."""


def attached_facts(item: Resource) -> AttachedFile:
    """Return the facts about a file of a vector store."""
    return msgspec.json.decode(item.body, type=AttachedFile)


class FileStore:
    """The uploaded files of a journal. All methods block, and raise `JournalError` if the store fails."""

    def __init__(self, table: ResourceTable, clock: Clock = time) -> None:
        self._table = table
        self._clock = clock

    def add(
        self,
        name: str,
        content: bytes,
        purpose: str,
        owner: str = "",
        expires_seconds: float | None = None,
        file_id: str | None = None,
    ) -> Resource:
        """Store a file, and return it. `name` is only shown: it is never the path of anything.

        If there is a file `file_id`, that one is returned.
        """
        plain = name.encode(errors="replace").decode().replace("\\", "/").rpartition("/")[2]
        plain = "".join([char for char in plain if char.isprintable()])[-_NAME_CHARS:] or "file"
        kind = mimetypes.guess_type(plain)[0] or _guess_type(content)
        now = self._clock.time()
        facts = StoredFile(name=plain, mime_type=kind, digest=hashlib.sha256(content).hexdigest())
        made = Resource(
            kind=FILE,
            resource_id=file_id or f"file-{secrets.token_hex(12)}",
            owner=owner,
            label=purpose,
            size_bytes=len(content),
            created_at=now,
            expires_at=None if expires_seconds is None else now + expires_seconds,
            body=msgspec.json.encode(facts).decode(),
        )
        self._table.add([made], now, content)
        return made if file_id is None else self.get(file_id) or made

    def get(self, file_id: str, owner: str | None = None) -> Resource | None:
        """Return a file; `None` if there is none that `owner` sees. Who is `None` sees all."""
        found = self._table.get(FILE, file_id, self._clock.time())
        return None if found is None or owner not in (None, found.owner) else found

    def content(self, item: Resource) -> bytes | None:
        """Return the content of a file; `None` if it was deleted meanwhile."""
        return self._table.content(item)

    def page(self, chosen: ResourceFilter) -> list[Resource]:
        """Return the files of a selection."""
        return self._table.page(chosen, self._clock.time())

    def delete(self, file_id: str) -> None:
        """Delete a file, also from all vector stores."""
        self._table.delete(FILE, file_id, namesakes=(ATTACHED,))


def _guess_type(content: bytes) -> str:
    """Return the type of a file without a known ending."""
    if content.startswith(b"%PDF-"):
        return "application/pdf"
    try:
        content.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "text/plain"
