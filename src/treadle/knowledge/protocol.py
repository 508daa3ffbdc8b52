"""What agents and their knowledge tell each other: completed turns, and what a system message holds."""

from msgspec import Struct


class CompletedTurn(Struct, frozen=True, kw_only=True):
    """A completed turn, in the form in which it is remembered."""

    run_id: str
    number: int
    text: str
    """The user's message, without what was recalled for it."""
    answer: str
    began_at: float
    """The time at which it began, in seconds since the epoch."""
    tools: tuple[str, ...] = ()
    """The names of the tools that it called, each once; ` (failed)` follows the name of one that never worked."""

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
