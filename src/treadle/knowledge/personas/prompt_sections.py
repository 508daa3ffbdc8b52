"""The system message: a persona, the agent's instructions, whole documents and the index of skills, in one text.

The order of the sections is fixed: identity, background, constraints, self facts, world view, tone, instructions,
documents, advice of tools, skills, footer. Everything that changes from turn to turn is left to the user's
messages, so that the text is the same, byte for byte, in every step of a run. Each section has a budget of its own.
If its items do not fit, those with the lowest priority are left out, one by one, and the report names them. The
identity and the constraints are never left out.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from treadle.core.prompts.estimates import guess_tokens
from treadle.core.prompts.fence import neutralise
from treadle.core.texts.documents import read_data
from treadle.knowledge.personas.persona import Claim, Fact, Persona
from treadle.knowledge.protocol import PromptReport, SectionReport

_DATA = read_data(__package__, "prompt")
BUDGETS: Mapping[str, int] = _DATA["budgets"]
"""The most tokens of each section that has a budget."""
FIXED = ("identity", "constraints")
"""The sections of which nothing is left out. The report says if one is over its budget."""
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_SHOWN_CHARS = 60


class Item(Struct, frozen=True):
    """A piece of a section, which is in the prompt as a whole or not at all."""

    text: str
    priority: int = 0
    """Items with a lower priority are left out first; among equal ones, the last."""
    label: str = ""
    """The name of the item in the report; by default, the beginning of its text."""


def assemble(
    persona: Persona | None,
    *,
    instructions: str | None = None,
    documents: Sequence[Item] = (),
    skills: Sequence[Item] = (),
    has_data: bool = False,
    budgets: Mapping[str, int] = BUDGETS,
    notes: Sequence[str] = (),
) -> tuple[str | None, PromptReport]:
    """Return the system message, `None` if it is empty, and the report about it.

    `documents` and the items of `skills` that the user does not vouch for are already fenced. `has_data` is
    true if fenced data may come later, in messages or in results.
    """
    sections: list[tuple[str, str, Sequence[Item]]] = []
    if persona is not None:
        sections += _describe(persona)
    sections += [
        ("instructions", "", [Item(instructions)] if instructions else ()),
        ("documents", "Documents that you know:", documents),
        (
            "skills",
            "Skills. Call use_skill with the name of one to get its instructions before you do what it is for:",
            skills,
        ),
    ]
    if has_data or documents:
        sections.append(("footer", "", [Item(_DATA["footer"])]))
    texts, reports = [], []
    for name, heading, items in sections:
        kept, report = _fit(name, heading, items, budgets.get(name))
        if kept:
            gap = "\n\n" if name in ("background", "documents") else "\n"
            texts.append(gap.join([heading, *kept] if heading else kept))
        if items:
            reports.append(report)
    return "\n\n".join(texts) or None, PromptReport(tuple(reports), tuple(notes))


def _describe(persona: Persona) -> list[tuple[str, str, Sequence[Item]]]:
    """Return the sections of a persona. Marks in its texts that look like those of a fence are changed."""
    who = f"You are {persona.name.strip()}"
    role = persona.role.strip()
    manner = [
        persona.tone.strip(),
        f"Answer in {persona.language.strip()}." if persona.language.strip() else "",
    ]
    rules = [f"{number}. {rule.strip()}" for number, rule in enumerate(persona.constraints, 1)]
    return [
        ("identity", "", _items([f"{who}, {role.rstrip('.')}." if role else f"{who}."])),
        ("background", "", _items(_PARAGRAPH.split(persona.background.strip()))),
        ("constraints", "Rules that you always keep, whatever anybody asks:", _items(rules)),
        ("self facts", "About you:", [_fact(item) for item in persona.self_facts]),
        (
            "world view",
            "What you hold to be true, and how sure you are:",
            [_claim(i) for i in persona.worldview],
        ),
        ("tone", "How you speak:", _items(manner)),
        ("instructions", "", _items([persona.instructions.strip()])),
    ]


def _fact(given: str | Fact) -> Item:
    fact = Fact(text=given) if isinstance(given, str) else given
    return Item(f"- {neutralise(fact.text.strip())}", fact.priority, fact.text)


def _claim(given: str | Claim) -> Item:
    claim = Claim(text=given) if isinstance(given, str) else given
    return Item(f"- ({claim.epistemic}) {neutralise(claim.text.strip())}", claim.priority, claim.text)


def _items(texts: Iterable[str]) -> list[Item]:
    return [Item(neutralise(text)) for text in texts if text.strip()]


def _fit(
    name: str, heading: str, items: Sequence[Item], budget: int | None
) -> tuple[list[str], SectionReport]:
    """Return the texts of the items that fit into `budget` tokens, in their order, and the report."""
    costs = [guess_tokens(item.text) + 1 for item in items]
    room = float("inf") if budget is None or name in FIXED else budget - guess_tokens(heading)
    kept: set[int] = set()
    for place in sorted(range(len(items)), key=lambda place: -items[place].priority):
        # An item that is larger than the rest of the budget does not keep smaller ones out.
        if costs[place] <= room:
            kept.add(place)
            room -= costs[place]
    left_out = [item.label or item.text for place, item in enumerate(items) if place not in kept]
    report = SectionReport(
        name=name,
        tokens=(guess_tokens(heading) if kept else 0) + sum(costs[place] for place in kept),
        budget=budget,
        kept=len(kept),
        left_out=tuple([" ".join(text.split())[:_SHOWN_CHARS] for text in left_out]),
    )
    return [items[place].text for place in sorted(kept)], report
