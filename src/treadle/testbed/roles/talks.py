"""Talks: requests that the agent answers without a tool call, which `talks.toml` describes.

A problem is arithmetic or logic about the things of a topic, a definition is general knowledge, and a refusal is
about something that no tool of the request can do. A new talk is an entry in the data file.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from msgspec import Struct

from treadle.tasks.draws import Draw, Wording, pick
from treadle.tasks.files.materials import CITIES, FIRST_NAMES, PRODUCTS
from treadle.testbed.roles.words import load, wordings

_CAPITALS = {"a": "A", "an": "An"}
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_OPERATORS: Mapping[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda one, other: Fraction(one // other),
    ast.Mod: operator.mod,
}


class TalkReply(Struct, frozen=True):
    """An answer, and the thoughts that led to it."""

    text: str
    reasoning: str = ""


class Talk(Struct, frozen=True):
    """One sort of request that needs no tool call."""

    sort: str
    """`problems`, `definitions` or `refusals`."""
    prompts: tuple[Wording, ...]
    """The wordings. All have the same fields."""
    entry: Mapping[str, Any]
    """The entry in the data file."""

    @property
    def banned(self) -> tuple[str, ...]:
        """Parts of the names of tools that could fulfil the request; it is not made if a tool has such a name."""
        return tuple(self.entry.get("banned", ()))

    @property
    def has_count(self) -> bool:
        """True if the answer begins with one number."""
        return bool(self.entry.get("has_count"))

    def draw(self, things: str, draw: Draw) -> dict[str, str]:
        """Return values for the fields. `things` is what the topic is about, in the plural."""
        if self.sort == "definitions":
            return {"term": draw.pick(tuple(self.entry["terms"])), "things": things}
        if self.sort == "refusals":
            return {
                "things": things,
                "person": draw.pick(FIRST_NAMES),
                "city": draw.pick(CITIES),
                "day": draw.pick(_DAYS),
                "amount": str(draw.between(3, 400)),
                "product": draw.pick(PRODUCTS),
            }
        rules = self.entry["draw"]
        people = iter(draw.sample(FIRST_NAMES, len(rules)))
        values = {"things": things}
        for name, rule in rules.items():
            values[name] = next(people) if rule == "name" else _evaluate(rule, values, draw)
        return values

    def reply(self, values: Mapping[str, str], tools: Sequence[str]) -> TalkReply:
        """Return the answer to a request with these values, by an agent with these tools."""
        if self.sort == "definitions":
            return self._define(values["term"], values["things"])
        if self.sort == "refusals":
            deed = self.entry["cannot"]
            shown = ", ".join(tools) if tools else "my knowledge"
            text = pick(load("talks")["refusals"]["replies"], deed, *values.values()).format(
                deed=deed, tools=shown, things=values["things"]
            )
            return TalkReply(
                text, f"For this I would have to {deed}. None of my tools does that, so I say so."
            )
        found = dict(values)
        for name, rule in self.entry.get("solve", {}).items():
            found[name] = _evaluate(rule, found)
        steps = [step.format_map(found) for step in self.entry["steps"]]
        return TalkReply(self.entry["answer"].format_map(found), " ".join(steps))

    def _define(self, term: str, things: str) -> TalkReply:
        answer = self.entry["terms"].get(term)
        if answer is None:
            return TalkReply(f"I know nothing certain about {term}.")
        article, _, rest = term.partition(" ")
        shown = f"{_CAPITALS[article]} {rest}" if article in _CAPITALS else term[:1].upper() + term[1:]
        tail = pick(self.entry["tails"], term, things)
        tail = tail.format(things=things, Things=things[:1].upper() + things[1:])
        return TalkReply(f"{shown} is {answer}. {tail}", "This is general knowledge, so no tool is needed.")


@cache
def talks(sort: str) -> tuple[Talk, ...]:
    """Return the talks of a sort: `problems`, `definitions` or `refusals`."""
    data = load("talks")[sort]
    entries = [data] if sort == "definitions" else [item for item in data.values() if isinstance(item, dict)]
    return tuple([Talk(sort, wordings(entry["wordings"]), entry) for entry in entries])


@lru_cache(maxsize=4096)
def find_talk(paragraph: str) -> tuple[Talk, Mapping[str, str]] | None:
    """Return the talk that a paragraph asks for, with its values; `None` if it is not a talk."""
    for talk in (*talks("problems"), *talks("definitions"), *talks("refusals")):
        for wording in talk.prompts:
            if (values := wording.match(paragraph)) is not None:
                return talk, values
    return None


def _evaluate(rule: str, values: Mapping[str, str], draw: Draw | None = None) -> str:
    """Return the value of a formula over the numbers in `values`, as text. A formula has the arithmetic of Python,
    `clock(minutes)`, and, if there is a `draw`, `between(low, high)` and `pick(one, …)`."""
    tree = ast.parse(rule, mode="eval").body
    is_clock = isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "clock"
    if is_clock and isinstance(tree, ast.Call):
        minutes = int(_compute(tree.args[0], values, draw))
        return f"{minutes // 60}:{minutes % 60:02d}"
    number = _compute(tree, values, draw)
    text = f"{float(round(number, 2)):.2f}"
    return text if draw is not None and number.denominator > 1 else text.rstrip("0").rstrip(".")


def _compute(node: ast.expr, values: Mapping[str, str], draw: Draw | None) -> Fraction:
    if isinstance(node, ast.BinOp):
        one, other = _compute(node.left, values, draw), _compute(node.right, values, draw)
        return _OPERATORS[type(node.op)](one, other)
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Fraction(node.value)
    if isinstance(node, ast.Name):
        hours, colon, minutes = values[node.id].partition(":")
        return Fraction(hours) * 60 + int(minutes) if colon else Fraction(hours)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and draw is not None:
        parts = [int(_compute(part, values, draw)) for part in node.args]
        return Fraction(draw.between(parts[0], parts[1]) if node.func.id == "between" else draw.pick(parts))
    raise ValueError(f"{ast.unparse(node)!r} is not allowed in a formula")
