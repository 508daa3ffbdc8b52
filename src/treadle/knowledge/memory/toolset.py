"""The tools `remember` and `recall`, with which a model uses its memory."""

from collections.abc import Sequence

from msgspec.structs import replace

from treadle.core.errors import ConfigError, MemoryRefusedError, ToolError
from treadle.core.fence import fence
from treadle.core.spec import PartSpec
from treadle.core.types import Json
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal
from treadle.knowledge.memory.namespace import Memory, open_memory
from treadle.knowledge.memory.protocol import Author, Draft, Epistemic, Outcome, Store
from treadle.knowledge.memory.recaller import line_of
from treadle.tools.context import ToolContext
from treadle.tools.function.decorator import tool
from treadle.tools.protocol import Tool
from treadle.tools.toolset_parts import settings_of

_MAX_FOUND = 20
_WRITABLE = ("self_facts", "worldview", "episodic")


class MemoryToolset:
    """The tools of one memory. The model writes as `persona_self`, under the memory's policy."""

    def __init__(
        self,
        memory: Memory | None = None,
        *,
        persona: str = "default",
        user: str = "default",
        embeddings: str | None = None,
        journal: str | None = None,
    ) -> None:
        """Make the tools of `memory`, or open the memory in the journal at the path `journal`.

        `None` stands for the default journal. Raises: `ConfigError`, `JournalError`.
        """
        self._journal: Journal | None = None
        if memory is None:
            given: dict[str, Json] = {
                "persona": persona,
                "user": user,
                "embeddings": embeddings,
                "journal": journal,
            }
            self.part = PartSpec(name="memory", settings=settings_of(MemoryToolset, given))
            self._journal = open_journal(journal)
            memory = open_memory(self._journal, persona, user, embeddings=embeddings)
        self._memory = memory

    def close(self) -> None:
        """Close the journal that was opened for the toolset, if there is one."""
        if self._journal is not None:
            self._journal.close()

    def tools(self) -> Sequence[Tool]:
        """See `Toolset.tools`."""
        recall = tool(self.recall, effect="pure")
        recall.spec = replace(recall.spec, has_fences=True)
        return tool(self.remember, effect="idempotent"), recall

    async def remember(
        self,
        context: ToolContext,
        text: str,
        reason: str,
        confidence: float,
        store: str = "self_facts",
        epistemic: str | None = None,
        replaces: str | None = None,
    ) -> str:
        """Remember something for later conversations. Write one fact in a sentence that is clear without context.

        Args:
            text: What to remember.
            reason: Why it is worth remembering.
            confidence: How sure you are, from 0 to 1. Facts about the user need at least 0.8.
            store: self_facts (facts about the user, you and your work together), worldview (what is true of the
                world) or episodic (what happened).
            epistemic: For worldview: fact, belief, hypothesis or contested.
            replaces: The id of the memory that this one corrects, such as self_facts-3.
        """
        if store not in _WRITABLE:
            raise ToolError(f"store is {store!r}; use one of {', '.join(_WRITABLE)}")
        if epistemic is not None and epistemic not in set(Epistemic):
            raise ToolError(f"epistemic is {epistemic!r}; use one of {', '.join(Epistemic)}")
        draft = Draft(
            store=Store(store),
            text=text,
            author=Author.PERSONA_SELF,
            reason=reason,
            confidence=confidence,
            is_forced=True,
            epistemic=None if epistemic is None else Epistemic(epistemic),
            key=context.idempotency_key,
            run_id=context.run_id,
        )
        try:
            written = await self._memory.write(draft, replaces=replaces)
        except (MemoryRefusedError, ConfigError) as error:
            raise ToolError(str(error)) from error
        if written.entry is None:
            return "This was remembered before, and the user has deleted it since. Do not remember it again."
        if written.outcome is Outcome.MERGED:
            return f"{written.entry.entry_id} says this already."
        return f"Remembered as {written.entry.entry_id}, version {written.entry.version}."

    async def recall(self, query: str, limit: int = 8) -> str:
        """Search the memory of earlier conversations and documents.

        Args:
            query: What to look for, in a few words.
            limit: How many memories to return at most, up to 20.
        """
        found = await self._memory.search(query, limit=max(1, min(limit, _MAX_FOUND)))
        lines = [line_of(hit.entry) for hit in found.hits]
        notes = [found.note] if found.note else []
        if not lines:
            return "\n".join(["Nothing was found.", *notes])
        return "\n".join([fence("memory", "\n".join(lines)), *notes])
