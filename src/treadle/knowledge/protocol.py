"""The knowledge of an agent in addition to its instructions and the conversation, as `agent/` uses it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from treadle.core.spec import ContextSpec
from treadle.core.types import Recalled
from treadle.tools.protocol import Tool

if TYPE_CHECKING:
    from treadle.knowledge.memory import Memory


class CompletedTurn(Struct, frozen=True, kw_only=True):
    """A completed turn, in the form in which it is remembered."""

    run_id: str
    number: int
    text: str
    """The user's message, without what was recalled for it."""
    answer: str
    began_at: float
    """The time at which it began, in seconds since the epoch."""

    @property
    def key(self) -> str:
        """The key of the turn. What is written twice under one key is kept once."""
        return turn_key(self.run_id, self.number)


def turn_key(run_id: str, number: int) -> str:
    """Return the key of a turn, unique in all journals."""
    return f"{run_id}/{number}"


class SectionReport(Struct, frozen=True, kw_only=True):
    """The part of one section that is in the prompt."""

    name: str
    tokens: int
    """How many tokens the section takes, as an estimate."""
    budget: int | None
    """The most tokens that it may take; `None`: it has no budget, and nothing of it is left out."""
    kept: int
    """How many items are in the prompt."""
    left_out: tuple[str, ...] = ()
    """The items that did not fit."""


class PromptReport(Struct, frozen=True):
    """The parts of an agent's knowledge that are in its system message."""

    sections: tuple[SectionReport, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be used at all, such as a broken skill, each with the reason."""

    @property
    def tokens(self) -> int:
        """How many tokens the system message takes, as an estimate."""
        return sum(section.tokens for section in self.sections)

    @property
    def is_whole(self) -> bool:
        """True if nothing was left out."""
        return not self.notes and not any(section.left_out for section in self.sections)

    def lines(self) -> list[str]:
        """Return a line for each section that did not fit, and for each note."""
        found = []
        for section in self.sections:
            if section.left_out:
                shown = ", ".join(map(repr, section.left_out[:3]))
                more = f" and {len(section.left_out) - 3} more" if len(section.left_out) > 3 else ""
                found.append(
                    f"{section.name}: {len(section.left_out)} of {section.kept + len(section.left_out)} did not "
                    f"fit into {section.budget:,} tokens: {shown}{more}"
                )
            elif section.budget is not None and section.tokens > section.budget:
                found.append(
                    f"{section.name}: {section.tokens:,} tokens, over the budget of {section.budget:,}; nothing of "
                    "it is left out"
                )
        return [*found, *self.notes]


class RecallSource(Protocol):
    """A source of items that are recalled for each turn: memories or documents."""

    async def recall(
        self, text: str, *, turn_key: str, now: float, told: Mapping[str, int] | None = None
    ) -> Recalled | None:
        """Return what fits the user's message `text`, fenced off as data; `None` if nothing does.

        `told` has the versions of the items, by id, that the model has been told before and still sees.
        """
        ...


class Surroundings(Protocol):
    """The persona, memory, skills and documents of one agent."""

    @property
    def spec(self) -> ContextSpec:
        """The description for the agent spec."""
        ...

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that belong to this knowledge, such as `use_skill`."""
        ...

    @property
    def report(self) -> PromptReport:
        """The report about the newest system message: what is in it, and what was left out."""
        ...

    @property
    def memory(self) -> "Memory | None":
        """The memory of earlier sessions; `None` if there is none."""
        ...

    @property
    def writes_back(self) -> bool:
        """True if completed turns are remembered."""
        ...

    def make_instructions(self, given: str | None, tools: Iterable[str]) -> str | None:
        """Return the system message of a new run. Blocks. `tools` are the names of all tools of the agent."""
        ...

    async def recall(
        self, text: str, *, turn_key: str, now: float, told: Mapping[str, int] | None = None
    ) -> Recalled | None:
        """Return what is recalled for a turn, without what the model has been `told` and still sees.

        It never fails: a failure is logged, and nothing is recalled.
        """
        ...

    async def write_back(self, turn: CompletedTurn) -> None:
        """Remember a completed turn. Doing it again changes nothing. It never fails: a failure is logged."""
        ...

    @property
    def topics(self) -> tuple[str, ...]:
        """The constraints and views of the persona, as texts."""
        ...

    @property
    def has_documents(self) -> bool:
        """True if the agent knows documents."""
        ...

    @property
    def greeting(self) -> Sequence[str]:
        """Lines for a person who begins a chat: who answers, what it remembers, what it asks for. Blocks."""
        ...
