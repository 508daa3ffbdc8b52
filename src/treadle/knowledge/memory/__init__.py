"""Memories. `open_memory` opens those of a persona about a user; `Recaller` finds what fits a message."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.knowledge.memory.namespace import (
        BATCH,
        Embedder,
        Found,
        Memory,
        forget_runs,
        make_embedder,
        open_memory,
    )
    from treadle.knowledge.memory.protocol import (
        Author,
        Draft,
        Epistemic,
        Hit,
        MemoryEntry,
        Outcome,
        Store,
        Written,
    )
    from treadle.knowledge.memory.toolset import MemoryToolset, Recaller

__all__ = [
    "BATCH",
    "Author",
    "Draft",
    "Embedder",
    "Epistemic",
    "Found",
    "Hit",
    "Memory",
    "MemoryEntry",
    "MemoryToolset",
    "Outcome",
    "Recaller",
    "Store",
    "Written",
    "forget_runs",
    "make_embedder",
    "open_memory",
]


def __getattr__(name: str) -> object:
    from treadle.core.registry import load_name

    return load_name(__name__, name)
