"""Memories, and how they are written and found.

A namespace is a pair of a persona and a user. Every call of a store concerns one namespace, and nothing of one can
be read or changed through another.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

LIBRARY = "treadle-documents"
"""The name of the persona under which the documents of agents without a memory are stored."""
MAX_CHARS = 20_000
"""The length of the longest memory. Longer texts are documents, which are stored in pieces."""


class Store(StrEnum):
    """The kinds of memories."""

    IDENTITY = "identity"
    """Who the persona is. These memories come only from the persona's file."""
    SELF_FACTS = "self_facts"
    """Facts about the persona, the user and how they work together."""
    WORLDVIEW = "worldview"
    """What the persona holds to be true, each with an epistemic tag."""
    EPISODIC = "episodic"
    """What happened. Episodes fade unless they are recalled."""
    DOCUMENTS = "documents"
    """Pieces of documents."""


REMEMBERED = tuple([store for store in Store if store is not Store.DOCUMENTS])
"""The stores of what comes from conversations and people, and not from documents."""


class Author(StrEnum):
    """The party that writes a memory."""

    FILE = "file"
    """The persona's file, or a document."""
    SYSTEM = "system"
    """The program, without anybody's request."""
    USER = "user"
    PERSONA_SELF = "persona_self"
    """The model, by calling a tool."""


class Epistemic(StrEnum):
    """How sure an entry of the world view is."""

    FACT = "fact"
    BELIEF = "belief"
    HYPOTHESIS = "hypothesis"
    CONTESTED = "contested"


class Outcome(StrEnum):
    """The effect of a write."""

    ADDED = "added"
    CHANGED = "changed"
    """The write made a new version of an entry."""
    MERGED = "merged"
    """The store had an entry that says the same. That entry became stronger."""
    REPEATED = "repeated"
    """A write with this key was made before, so nothing changed."""


class Draft(Struct, frozen=True, kw_only=True):
    """A memory that somebody wants to write."""

    store: Store
    text: str
    author: Author = Author.USER
    reason: str | None = None
    """Why the memory is worth keeping."""
    confidence: float | None = None
    """How sure the author is, from 0 to 1."""
    is_forced: bool = False
    """True if the author asks for this write explicitly, where the policy demands that."""
    epistemic: Epistemic | None = None
    """How sure an entry of the world view is, which needs it. Other stores must not have it."""
    metadata: dict[str, str] = {}
    """Data about the memory, such as the title and the place of a piece of a document."""
    key: str | None = None
    """The idempotency key: of several writes with one key, only the first is made; with `None`, all are."""
    run_id: str | None = None
    """The run in which the memory was written."""
    turn: int | None = None
    """The turn of that run."""


class MemoryEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of a memory."""

    entry_id: str
    """The store and a number, such as `episodic-17`, shared by all versions and by no other entry ever."""
    store: Store
    version: int
    """The number of the version, from 1."""
    text: str
    author: Author
    written_at: float
    """When this version was written, in seconds since the epoch."""
    created_at: float
    """When the first version was written."""
    epistemic: Epistemic | None = None
    metadata: dict[str, str] = {}
    reason: str | None = None
    confidence: float | None = None
    strength: float = 1.0
    """How slowly the memory fades: see `forgetting.decay`."""
    used_at: float = 0.0
    """When the memory was last written, written again or recalled."""
    merged: int = 0
    """The number of later writes that said the same."""

    @property
    def said_at(self) -> float:
        """When the memory was last written or written again. Of an episode it is the time of what happened."""
        return self.written_at if self.store is Store.EPISODIC else self.used_at


class Written(Struct, frozen=True):
    """The result of a write."""

    outcome: Outcome
    entry: MemoryEntry | None
    """The entry in its present state; `None` if it was forgotten after a write with the same key."""


class AuditRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accepted or refused change. Records of a forgotten entry keep neither its text nor any reason."""

    record_id: int
    at: float
    action: str
    """`added`, `changed`, `merged`, `rolled_back`, `forgotten` or `refused`."""
    store: Store
    author: Author
    entry_id: str | None = None
    version: int | None = None
    key: str | None = None
    run_id: str | None = None
    turn: int | None = None
    reason: str | None = None
    """The author's reason; for `refused`, why the policy refused."""


class Hit(Struct, frozen=True):
    """An entry that was found, and how well it fits."""

    entry: MemoryEntry
    score: float
    """The score, which can only be compared with those of other hits of the same search."""
    fit: float = 0.0
    """How well the entry fits on its own, from 0 to 1, comparable between searches. By words: the share of the
    words of the query that tell what it is about, those that no entry has included, and 0.2 for each of them
    after the first that the entry has, or an episode beside it in the same run. By embeddings: the cosine. The
    higher one counts."""


class Vector(Struct, frozen=True):
    """The embedding of a query."""

    model: str
    values: Sequence[float]
    """The numbers, with a Euclidean length of 1."""
