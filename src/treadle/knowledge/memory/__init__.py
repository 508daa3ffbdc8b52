"""Memories. `open_memory` opens those of a persona about a user; `Recaller` finds what fits a message."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.knowledge.memory.namespace import BATCH as BATCH
    from treadle.knowledge.memory.namespace import Embedder as Embedder
    from treadle.knowledge.memory.namespace import Found as Found
    from treadle.knowledge.memory.namespace import Memory as Memory
    from treadle.knowledge.memory.namespace import forget_runs as forget_runs
    from treadle.knowledge.memory.namespace import make_embedder as make_embedder
    from treadle.knowledge.memory.namespace import open_memory as open_memory
    from treadle.knowledge.memory.protocol import REMEMBERED as REMEMBERED
    from treadle.knowledge.memory.protocol import Author as Author
    from treadle.knowledge.memory.protocol import Draft as Draft
    from treadle.knowledge.memory.protocol import Epistemic as Epistemic
    from treadle.knowledge.memory.protocol import Hit as Hit
    from treadle.knowledge.memory.protocol import MemoryEntry as MemoryEntry
    from treadle.knowledge.memory.protocol import Outcome as Outcome
    from treadle.knowledge.memory.protocol import Store as Store
    from treadle.knowledge.memory.protocol import Written as Written
    from treadle.knowledge.memory.toolset import MemoryToolset as MemoryToolset
    from treadle.knowledge.memory.toolset import Recaller as Recaller


def __getattr__(name: str) -> object:
    from treadle.core.registry import load_name

    return load_name(__name__, name)
