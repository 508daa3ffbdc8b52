"""Grounding: answers of real runs pass, and answers with one changed value do not."""

import os
import random
import re
from collections import Counter
from collections.abc import Callable

import pytest
from tests.datagen.quality.candidates import play, solve, verdict, with_answer

from treadle.core.types import Message, Role
from treadle.datagen.quality.derivations import evaluate
from treadle.models import call
from treadle.tasks.files.task_set import FAMILIES

SEEDS = 40 if os.environ.get("TREADLE_FULL") == "1" else 3
NUMBER = re.compile(r"(?<![\w./:-])\d+(?:\.\d+)?(?![\w/:-]|\.\d)")
PATH = re.compile(r"\b[\w-]+(?:/[\w-]+)*\.(?:md|txt|json|py|js|go|csv|ya?ml|ini|properties)\b")
NAME = re.compile(r"(?<=[a-z:] )[A-Z][a-z]+(?=[ -][A-Z]|\.|$)", re.MULTILINE)
READ = call("read_file", {"file_path": "a.csv"})
TABLE = "item,price,status\nsaw,10.50,paid\nlamp,20.25,open\nrope,4.75,paid\n"


def other_number(draw: random.Random, text: str) -> str:
    while True:
        made = "".join([draw.choice("0123456789") if char.isdigit() else char for char in text])
        if made != text and not re.match(r"0\d", made):
            return made


def other_path(draw: random.Random, text: str) -> str:
    stem, dot, suffix = text.rpartition(".")
    folder, slash, _ = stem.rpartition("/")
    return f"{folder}{slash}{draw.choice(['summary', 'overview', 'final', 'backup'])}{dot}{suffix}"


def other_name(draw: random.Random, text: str) -> str:
    return draw.choice(["Marlene", "Osgood", "Pemberton", "Quimper", "Fitzgerald"])


CHANGES: dict[str, tuple[re.Pattern[str], Callable[[random.Random, str], str], float]] = {
    "number": (NUMBER, other_number, 0.9),
    "path": (PATH, other_path, 0.99),
    "name": (NAME, other_name, 0.99),
}
"""What is changed in an answer, how, and the least share of the changes that must be found."""


@pytest.mark.parametrize("rate", [0.0, 0.3])
async def test_answers_of_the_oracle_are_grounded_and_changed_ones_are_not(rate: float) -> None:
    draw = random.Random(4)
    made: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for family in FAMILIES:
        for seed in range(SEEDS):
            good = await solve(f"{family.name}-{seed:04d}", rate)
            judged = await verdict(good, "grounding")
            assert judged.is_passed, (family.name, seed, judged.reason)
            answer = good.row.messages[-1].content
            for kind, (pattern, change, _) in CHANGES.items():
                for place in [*pattern.finditer(answer)][:2] * 4:
                    other = change(draw, place[0])
                    if kind == "number" and min(float(place[0]), float(other)) <= 50:
                        continue  # small counts cannot be told
                    text = answer[: place.start()] + other + answer[place.end() :]
                    made[kind] += 1
                    found[kind] += not (await verdict(with_answer(good, text), "grounding")).is_passed
    assert min(made.values()) >= 8
    for kind, (*_, least) in CHANGES.items():
        assert found[kind] >= least * made[kind], (kind, found, made)


@pytest.mark.parametrize(
    ("answer", "is_grounded"),
    [
        ("The paid items cost 15.25 in all.", True),
        ("All three cost 35.50, so 11.83 on average.", True),
        ("The lamp costs 9.75 more than the saw.", True),
        ("The paid items cost 16.25 in all.", False),
        ("Two saws and three lamps cost 81.75.", True),
        ("The file has 4 lines and 64 characters.", True),
        ("The file has 4 lines and 96 characters.", False),
        ("The saw is in the file a.csv.", True),
        ("The saw is in the file b.csv.", False),
        ("The saw is in the file `a.csv`.", True),
        ('I used `read_file` on "a.csv".', True),
        ("The saw is in the file `b.csv`.", False),
        ("Write to `ann.berg@mail.org`.", False),
        ("So:\n```python\nimport pandas as pd\npd.read_csv('a.csv').sum(99)\n```", True),
        ("I asked Bernadette about the saw.", False),
        ("The saw, says `price_list`, is 10.50.", False),
        ("The saw was sold on 2024-05-06 at 10:30.", False),
        ("It is Monday. Here are the facts: the saw is 10.50.", True),
        ("1. saw\n2. lamp\n3. rope", True),
        ("Der Preis der Lampe in der Datei ist 20.25 Euro.", True),
    ],
)
async def test_derived_numbers_are_allowed_and_made_up_ones_are_not(answer: str, is_grounded: bool) -> None:
    read = Message(Role.ASSISTANT, "For later: 2 * 10.50 + 3 * 20.25 = 81.75", (READ,))
    found = await play("What do the items cost?", read, answer, files={"a.csv": TABLE})
    judged = await verdict(found, "grounding")
    assert judged.is_passed is is_grounded, judged.reason


async def test_an_answer_without_tools_is_not_checked_and_parts_can_be_switched_off() -> None:
    free = await play("What is the capital of France?", "Paris, with 2,102,650 people.")
    assert (await verdict(free, "grounding")).reason == "no tool was called"
    found = await play("What does it cost?", [READ], "It costs 99.99.", files={"a.csv": TABLE})
    assert not (await verdict(found, "grounding")).is_passed
    assert (await verdict(found, "grounding", {"numbers": False})).is_passed


@pytest.mark.parametrize(("answer", "is_grounded"), [("It took 5.803s.", True), ("It took 5.804s.", False)])
async def test_a_number_with_a_unit_is_one_number(answer: str, is_grounded: bool) -> None:
    found = await play(
        "How long did it take?", [READ], answer, files={"a.csv": "10:06:11 GET /a 5.803s r5bc\n"}
    )
    assert (await verdict(found, "grounding")).is_passed is is_grounded


def test_equations_are_calculated() -> None:
    assert evaluate("2*3+4-1") == 9
    assert evaluate("$1,200.50 + 10%") == 1200.6
    assert evaluate("10/0") is None
    assert evaluate("") is None
    assert evaluate("2 3 +") is None


def test_long_observations_are_not_searched_for_derivations() -> None:
    """Rules out that a filter of a large file takes minutes."""
    text = "\n".join(f"{number},{number * 7.13:.2f}" for number in range(50_000))
    assert Derived([NumberSource(text)], "").has("123456.78")
