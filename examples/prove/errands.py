"""Errands with cards: short tasks with two tools, for models that are trained in minutes on a CPU.

A card has a name and a text: one word, or lines of `key: word`. All names, keys and words are drawn anew for each
task from one list of 400 invented words, so that nothing can be learned by heart and everything has to be copied.
What is right is what the solver of a template does on the same cards.
"""

import random
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any

from msgspec import Struct

from treadle import ToolContext, tool
from treadle.core.errors import ConfigError, ToolError
from treadle.runs.task import Grade
from treadle.tasks.solver import Solver, Step, WantedCall

SYLLABLES = "ba de fi go hu ka le mi no pu ra se ti vo zu la ne si to ru".split()  # noqa: SIM905
WORDS = [first + second for first, second in product(SYLLABLES, SYLLABLES)]
TRAINED, TASKS = 9_000, 10_000
"""The tasks of a template are numbered from 0; those from `TRAINED` on are held out."""
INSTRUCTIONS = "Do the errand with the cards."


@tool(effect="pure")
async def get(context: ToolContext, name: str) -> str:
    """Return the text of a card."""
    sandbox = context.sandbox
    if sandbox is None or name not in sandbox.paths():
        raise ToolError(f"there is no card {name}")
    return sandbox.read(name).decode()


@tool(effect="idempotent")
async def put(context: ToolContext, name: str, text: str) -> str:
    """Replace the text of a card, or make a new one."""
    if context.sandbox is None or not re.fullmatch(r"[a-z]+", name):
        raise ToolError("a name is one word")
    context.sandbox.write(name, text.encode())
    return "ok"


@tool(effect="pure", name="get")
async def get_recorded(name: str) -> str:
    """Return the text of a card."""
    draws = random.Random(name)
    words = draws.sample(WORDS, 6)
    return words[0] if draws.random() < 0.5 else _write_lines(dict(zip(words[:3], words[3:], strict=True)))


@tool(effect="idempotent", name="put")
async def put_recorded(name: str, text: str) -> str:
    """Replace the text of a card, or make a new one."""
    return "ok"


TOOLS = [get, put]
RECORDED = [get_recorded, put_recorded]
"""A mock of the tools: a recorded response for each name, which does not depend on the task, and no state."""
Walk = Generator[Step, list[str], str]


def _get(*names: str) -> Step:
    return Step([WantedCall("get", {"name": name}) for name in names])


def _put(**texts: str) -> Step:
    return Step([WantedCall("put", {"name": name, "text": text}) for name, text in texts.items()])


def _read_lines(text: str) -> dict[str, str]:
    lines = [line.partition(": ") for line in text.split("\n")]
    return {key: word for key, _, word in lines}


def _write_lines(lines: Mapping[str, str]) -> str:
    return "\n".join([f"{key}: {word}" for key, word in lines.items()])


def tell(card: str) -> Walk:
    return (yield _get(card))[0]


def find(key: str, card: str) -> Walk:
    (text,) = yield _get(card)
    return _read_lines(text).get(key, "nothing")


def follow(card: str) -> Walk:
    (name,) = yield _get(card)
    return (yield _get(name))[0]


def write(word: str, card: str) -> Walk:
    yield _put(**{card: word})
    return "done"


def copy(card: str, other: str) -> Walk:
    (text,) = yield _get(card)
    yield _put(**{other: text})
    return "done"


def swap(card: str, other: str) -> Walk:
    one, two = yield _get(card, other)
    yield _put(**{card: two, other: one})
    return "done"


def change(key: str, card: str, word: str) -> Walk:
    (text,) = yield _get(card)
    yield _put(**{card: _write_lines(_read_lines(text) | {key: word})})
    return (yield _get(card))[0]  # What is told is what the card says afterwards.


def move(key: str, card: str, other: str) -> Walk:
    (text,) = yield _get(card)
    yield _put(**{other: _read_lines(text).get(key, "nothing")})
    return "done"


def find_followed(key: str, card: str) -> Walk:
    (name,) = yield _get(card)
    (text,) = yield _get(name)
    return _read_lines(text).get(key, "nothing")


def copy_followed(card: str, other: str) -> Walk:
    (name,) = yield _get(card)
    (text,) = yield _get(name)
    yield _put(**{other: text})
    return "done"


class Template(Struct, dict=True):
    """One shape of errands."""

    wording: str
    """The prompt; `card` holds a word, `lines` (after `{card:lines}`) lines with the `key` among them, and
    `{card:link}` the name of a second card."""
    solve: Callable[..., Walk]
    kind: str = "word"
    """What the first card holds: `word`, `lines`, `link` to a card with a word, or `link_lines`."""
    is_held_out: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[a-z]+)", self.wording))


TEMPLATES = {
    "tell": Template("say what {card} says", tell),
    "find": Template("say {key} of {card}", find, "lines"),
    "follow": Template("say what the card in {card} says", follow, "link"),
    "write": Template("write {word} on {card}", write),
    "copy": Template("copy {card} to {other}", copy),
    "swap": Template("swap {card} and {other}", swap),
    "change": Template("set {key} of {card} to {word}", change, "lines"),
    "move": Template("write {key} of {card} on {other}", move, "lines"),
    "find_followed": Template(
        "say {key} of the card in {card}", find_followed, "link_lines", is_held_out=True
    ),
    "copy_followed": Template("copy the card in {card} to {other}", copy_followed, "link", is_held_out=True),
}


class Errand(Struct, dict=True):
    """One errand. Its cards and its right outcome are drawn when they are first needed."""

    task_id: str
    task_set: str = "errands"
    instructions: str | None = INSTRUCTIONS
    tools: Sequence[str] = ("errands:TOOLS",)

    @property
    def seed(self) -> int:
        return int(self.task_id.rpartition("-")[2])

    @cached_property
    def drawn(self) -> tuple[str, dict[str, str]]:
        """The prompt and the cards."""
        name = self.task_id.rpartition("-")[0]
        template, draws = TEMPLATES[name], random.Random(self.task_id)
        card, other, linked, word, *rest = draws.sample(WORDS, 10)
        lines = dict(zip(rest[:3], rest[3:], strict=True))
        texts = {"word": rest[0], "lines": _write_lines(lines), "link": linked, "link_lines": linked}
        cards = {card: texts[template.kind], other: rest[1]}
        if template.kind.startswith("link"):
            cards[linked] = rest[0] if template.kind == "link" else _write_lines(lines)
        fields = {"card": card, "other": other, "word": word, "key": draws.choice(rest[:3])}
        return template.wording.format(**fields), cards

    @property
    def input(self) -> str:
        return self.drawn[0]

    @property
    def files(self) -> Mapping[str, bytes]:
        return {name: text.encode() for name, text in self.drawn[1].items()}

    @cached_property
    def outcome(self) -> tuple[str, dict[str, bytes]]:
        """The final answer and the final cards of the solver."""
        cards, solver, results = dict(self.drawn[1]), self.find_solver(self.input), None
        try:
            while True:
                step: Any = solver.send(results)  # type: ignore[union-attr, arg-type]
                for call in step.calls:
                    if call.name == "put":
                        cards[str(call.arguments["name"])] = str(call.arguments["text"])
                results = [cards[str(call.arguments["name"])] for call in step.calls]
        except StopIteration as end:
            return end.value, {name: text.encode() for name, text in cards.items()}

    def check(self, output: str, files: Mapping[str, bytes]) -> Grade:
        answer, cards = self.outcome
        wrong = [name for name, text in cards.items() if files.get(name) != text]
        if dict(files).keys() - cards.keys():
            return Grade(0.0, "there is a card too many")
        if wrong:
            return Grade(0.0, f"the card {wrong[0]!r} is wrong")
        return Grade(float(output.strip() == answer), f"the answer is {answer!r}")

    def find_solver(self, prompt: str) -> Solver | None:
        return find_solver(prompt)


class ErrandSet:
    """All errands. `train` has those to train on, `instances` others of the same templates, and `templates` those
    of two templates that put trained ones together."""

    name = "errands"

    def __init__(self) -> None:
        self.splits: dict[str, list[str]] = {"train": [], "instances": [], "templates": []}
        for number in range(TASKS):
            for name, template in TEMPLATES.items():
                split = "train" if number < TRAINED else "instances"
                self.splits["templates" if template.is_held_out else split].append(f"{name}-{number:04d}")
        for split in ("instances", "templates"):
            # So that any share of them has all templates.
            random.Random(split).shuffle(self.splits[split])

    def __len__(self) -> int:
        return len(TEMPLATES) * TASKS

    def __iter__(self) -> Iterator[Errand]:
        return (Errand(f"{name}-{number:04d}") for number in range(TASKS) for name in TEMPLATES)

    def get(self, task_id: str) -> Errand:
        name, _, number = task_id.rpartition("-")
        if name not in TEMPLATES or not re.fullmatch(r"\d{4}", number):
            raise ConfigError(
                f"there is no errand {task_id!r}; give one such as 'tell-0000', of {', '.join(TEMPLATES)}"
            )
        return Errand(task_id)

    def find_solver(self, prompt: str) -> Solver | None:
        return find_solver(prompt)


def find_solver(prompt: str) -> Solver | None:
    """Return the solver of the template whose wording a prompt has; `None` if none has it."""
    for template in TEMPLATES.values():
        if found := template.pattern.fullmatch(prompt):
            return template.solve(**found.groupdict())
    return None
