"""Grounding: answers of real runs pass, and answers with one changed value do not."""

import json
import os
import random
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.datagen.quality.candidates import changed, config, play, solve, verdict, with_answer

from treadle.core.types import Effect, Message, Role, ToolCall, ToolSpec
from treadle.datagen.quality.filters.grounding import DOUBTFUL, Finding, GroundingFilter, GroundingSettings
from treadle.datagen.quality.protocol import Candidate, Resources
from treadle.datagen.quality.statements import statement_features
from treadle.datagen.quality.statements.derivations import evaluate
from treadle.datagen.quality.statements.doubts import DoubtKind
from treadle.datagen.quality.statements.statements import StatementKind, strip_emphasis
from treadle.datagen.scenarios.scenario import Kind
from treadle.models import call
from treadle.tasks.files import TASK_SET

SEEDS = 40 if os.environ.get("TREADLE_FULL") == "1" else 1
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
    made: Counter[str] = Counter()
    found: Counter[str] = Counter()
    wrong: list[tuple[str, int, str]] = []
    for family in TASK_SET.templates:
        for seed in range(SEEDS):
            good = await solve(f"{family.name}-{seed:04d}", rate)
            judged = await verdict(good, "grounding")
            if not judged.is_passed:
                wrong.append((family.name, seed, judged.reason))
                continue
            answer = good.row.messages[-1].content
            for kind, (pattern, change, _) in CHANGES.items():
                draw = random.Random(f"{family.name} {seed} {kind}")
                for place in [*pattern.finditer(answer)][:2] * (6 if kind == "number" else 2):
                    other = change(draw, place[0])
                    if kind == "number" and min(float(place[0]), float(other)) <= 50:
                        continue  # in results with many records, small counts cannot be told
                    text = answer[: place.start()] + other + answer[place.end() :]
                    made[kind] += 1
                    found[kind] += not (await verdict(with_answer(good, text), "grounding")).is_passed
    assert len(wrong) <= max(1, 0.03 * len(TASK_SET.templates) * SEEDS), wrong
    assert min(made.values()) >= 6
    for kind, (*_, least) in CHANGES.items():
        assert found[kind] >= least * made[kind], (kind, found, made)


DATA = Path(__file__).parents[2] / "data/grounding"
SCENES = tomllib.loads((DATA / "development.toml").read_text())["scene"]
FIGURES = tomllib.loads((DATA / "figures.toml").read_text())["scene"]


async def read_scene(scene: dict[str, Any]) -> Candidate:
    """Return a candidate with the calls and results of a scene, and an answer to be replaced."""
    messages = [Message(Role.USER, scene["request"])]
    for number, made in enumerate(scene["calls"]):
        given = json.dumps(made["arguments"])
        call_id, failed = f"c{number}", made.get("error", False)
        messages.append(Message(Role.ASSISTANT, "", (ToolCall(call_id, made["tool"], given),)))
        result = made["result"].strip("\n")
        messages.append(Message(Role.TOOL, result, call_id=call_id, name=made["tool"], is_error=failed))
    base = await play("Hello there.", "Hello.", kind=Kind(scene.get("kind", "chained")))
    tools = [
        ToolSpec(made["tool"], "", {}, effect=Effect(made.get("effect", "pure"))) for made in scene["calls"]
    ]
    row = replace(base.row, tools=tuple(tools) or base.row.tools)
    return changed(replace(base, row=row), lambda _: [*messages, Message(Role.ASSISTANT, "")])


@pytest.mark.parametrize(
    ("scenes", "most_rejected", "least_found"), [(SCENES, 0.04, 0.85), (FIGURES, 0.1, 0.8)]
)
async def test_honest_answers_pass_and_lies_of_every_kind_are_found(
    scenes: list[dict[str, Any]], most_rejected: float, least_found: float
) -> None:
    found: Counter[str] = Counter()
    made: Counter[str] = Counter()
    wrong = []
    chosen = GroundingFilter(GroundingSettings(), Resources(config=config()))
    for scene in scenes:
        base = await read_scene(scene)
        for text in scene["honest"]:
            judged = await chosen.check(with_answer(base, text))
            wrong += [] if judged.is_passed else [(text, judged.reason)]
        for kind, text in scene["lies"]:
            made[kind] += 1
            found[kind] += not (await chosen.check(with_answer(base, text))).is_passed
    honest = sum(len(scene["honest"]) for scene in scenes)
    assert len(wrong) <= most_rejected * honest, wrong
    assert found.total() >= least_found * made.total(), found
    missed = {kind: f"{found[kind]} of {count}" for kind, count in made.items() if found[kind] < 0.5 * count}
    assert not missed


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
    free = await play("What is the capital of France?", "Paris, with 2,102,650 people.", kind=Kind.NO_TOOL)
    assert (await verdict(free, "grounding")).is_passed
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


async def test_long_results_are_not_searched_for_derivations() -> None:
    """Rules out that a filter of a large file takes minutes."""
    text = "\n".join(f"{number},{number * 7.13:.2f}" for number in range(50_000))
    found = await play("Read it, please.", [READ], "It says 123456.78.", files={"a.csv": text})
    assert not (await verdict(found, "grounding")).is_passed


STOCK = (
    "time,product,change,note\n15:59,tape,+6,\n13:20,wedge,-11,void\n12:45,wedge,+2,void\n11:09,gauge,-8,\n"
)
LISTED = '["README.txt","src/pricing/__init__.py","src/pricing/rates_old.py"]'
SPARSE = [
    "n,note\n1,cancelled\n2,\n3,\n",
    '{"rows": [{"id": "a", "note": "cancelled"}, {"id": "b"}, {"id": "c"}]}',
    "id: a\nnote: cancelled\n\nid: b\n\nid: c\n",
]
"""Three records, of which two leave a cell empty, or out."""
READ_TWICE = [
    ("read_file", {"file_path": "a.csv"}, STOCK),
    ("read_file", {"limit": 9, "file_path": "a.csv"}, STOCK),
]
HITS = '[{"file": "a.csv", "change": 60}, {"file": "b.csv", "change": 8}]'
FOUND_TWICE = [("search_files", {"pattern": "void"}, HITS), ("search_files", {"pattern": "VOID"}, HITS)]
EQUAL = [("read_file", {"file_path": name}, "ash\nelm\noak") for name in ("a.txt", "b.txt")]


@pytest.mark.parametrize(
    ("calls", "answer", "is_grounded"),
    [
        (READ_TWICE, "Everything summed, change reaches -11.", True),
        (READ_TWICE, "The sum of change is -22.", False),
        (READ_TWICE[:1] * 2, "The sum of change is -22.", False),
        (READ_TWICE, "Two of the four rows are void, which is a half.", True),
        (FOUND_TWICE, "The changes add up to 68.", True),
        (FOUND_TWICE, "The changes add up to 136.", False),
        (EQUAL, "Together they have 6 lines.", True),
        *[([("list_files", {}, LISTED)], answer, is_so) for answer, is_so in (
            ("The files are README.txt, src/pricing/__init__.py and **src/pricing/rates_old.py**.", True),
            ("One is `src/pricing/__init__.py`, another __*README.txt*__.", True),
            ("One is src/pricing/init.py.", False),
            ("One is **src/pricing/__init__.py**, in **src/pricing/**.", True),
        )],
        *[([("read_file", {"file_path": "a.csv"}, text)], answer, is_so) for text in SPARSE for answer, is_so in (
            ("One of the three rows is cancelled, which is 33 %.", True),
            ("A third of the rows are cancelled.", True),
            ("100 % of the rows are cancelled.", False),
        )],
    ],
)  # fmt: skip
async def test_marks_in_paths_equal_results_and_empty_cells(
    calls: list[tuple[str, dict[str, Any], str]], answer: str, is_grounded: bool
) -> None:
    made = [{"tool": tool, "arguments": given, "result": text} for tool, given, text in calls]
    base = await read_scene({"request": "What is there?", "calls": made})
    judged = await verdict(with_answer(base, answer), "grounding")
    assert judged.is_passed is is_grounded, judged.reason


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("**Total:** 5, *or* __six__, ***or*** _seven eight_", "Total: 5, or six, or seven eight"),
        ("**a *b* c**, _a_b.md_ and **`d*`**", "a b c, a_b.md and `d*`"),
        ("**Total:**5 and **Total**: 6\n**open\nend.**", "Total:5 and Total: 6\nopen\nend."),
        ("src/**/*.py, src/*.csv, test_*.py, 2**3, a*b*c", "src/**/*.py, src/*.csv, test_*.py, 2**3, a*b*c"),
        (
            "__init__.py, pkg/__main__.py, x.__name__, _id, _a_b.md",
            "__init__.py, pkg/__main__.py, x.__name__, _id, _a_b.md",
        ),
        ("`**kwargs`, `__call__`, `~/_x_`", "`**kwargs`, `__call__`, `~/_x_`"),
    ],
)
def test_emphasis_is_stripped_and_marks_of_identifiers_are_kept(text: str, plain: str) -> None:
    assert strip_emphasis(text) == plain


TICKETS = "id,status,priority\n" + "".join(
    [f"{name},{'open,urgent' if name < 'd' else 'closed,low'}\n" for name in "abcdefgh"]
)


@pytest.mark.parametrize(
    ("answer", "is_grounded"),
    [
        ("All of the open tickets are urgent.", True),
        ("None of the open tickets are low.", True),
        ("None of the tickets are open.", False),
        ("Some of the open tickets are low.", False),
        ("All of the open tickets are low.", False),
        ("All of the tickets are urgent.", False),
        ("3 of the 3 open tickets are urgent.", True),
        ("3 of the 8 tickets are open, and 3 of the open ones are urgent.", True),
        ("2 of the 3 open tickets are urgent.", False),
        ("100% of the open tickets are urgent.", True),
        ("Of the open tickets, 100% are urgent.", True),
        ("50% of the open tickets are urgent.", False),
        ("Most of the tickets that are open are urgent.", True),
    ],
)
async def test_shares_are_taken_of_what_stands_after_of(answer: str, is_grounded: bool) -> None:
    read = call("read_file", {"file_path": "t.csv"})
    found = await play("How are the tickets?", [read], answer, files={"t.csv": TICKETS})
    judged = await verdict(found, "grounding")
    assert judged.is_passed is is_grounded, judged.reason


@pytest.mark.parametrize(
    ("text", "answer", "is_grounded"),
    [
        ('{"minutes": 90}', "It takes 1.5 hours.", True),
        ('{"minutes": 90}', "It takes 90 hours.", False),
        ('{"celsius": 20}', "It is 68 °F.", True),
        ('{"celsius": 20}', "It is 20 °F.", False),
    ],
)
async def test_a_column_can_have_the_name_of_its_unit(text: str, answer: str, is_grounded: bool) -> None:
    found = await play("How long does it take?", [READ], answer, files={"a.csv": text})
    judged = await verdict(found, "grounding")
    assert judged.is_passed is is_grounded, judged.reason


async def test_nouns_of_an_answer_in_german_are_no_names() -> None:
    answer = "Der Preis der Lampe ist 20.25. Vielen Dank! Guten Appetit, gern wieder Fragen."
    found = await play("Was kostet die Lampe?", [READ], answer, files={"a.csv": TABLE})
    judged = await verdict(found, "grounding")
    assert judged.is_passed, judged.reason


def test_settings_switch_their_kinds_off() -> None:
    assert not GroundingSettings(numbers=False).has(StatementKind.SHARE)
    assert GroundingSettings(paths=False).has(StatementKind.CLAIM)
    assert not GroundingSettings(sentences=False).has(StatementKind.CLAIM)


HARBOUR = (
    "boat,berth,length_m,fee_gbp,area_ha,speed_kn,opens\n"
    "Aurora,47-496,12.5,120.00,6.6,14.5,18:05\n"
    "Blackbird,31-220,9.0,86.30,2.0,8.0,09:30\n"
    "Curlew,12-118,7.5,86.30,1.5,6.0,09:30\n"
)


@pytest.mark.parametrize(
    ("answer", "is_grounded"),
    [
        ("Spread evenly. Toodle-oo! Aurora has berth 47-496.", True),
        ("## Key Takeaways\n\nAurora is 12.5 m long.", True),
        ("<table><tr><td>Length of Aurora</td><td>12.5 m</td></tr></table>", True),
        ("The length of Aurora is 12.5 m[^2].", True),
        ("The area of Aurora, 6.6 ha, is 16.3 acres.", True),
        ("The area of Aurora, 6.6 ha, is 26.3 acres.", False),
        ("The speed of Aurora, 14.5 kn, is 26.9 km/h.", True),
        ("The fee of Aurora is 120 pounds.", True),
        ("Aurora opens at 1805 hrs.", True),
        ("Aurora opens at 1905 hrs.", False),
        ("Not all of the boats are called Aurora.", True),
        ("Not all of the boats have the berth 47-497.", False),
        ("You asked: Please have a look at the boats of the three Mallory brothers.", True),
        ("The owner of Aurora is Bernard Mallister.", False),
        ("I have sent the list to nobody.", True),
        ("I have sent the list to Aurora.", False),
        ("Write to `desk@harbour.org`.", False),
        ('"Stretch of Aurora" = "12.5 m"', True),
        ("INFO boat=Aurora some_data=[12.5 m]", True),
        ("The fee of Aurora is 120 (±1) pounds.", True),
        ("_a.csv_ says that Aurora is 12.5 m long.", True),
        ("**(2)** Next, Aurora is 12.5 m long.", True),
        ("No. 2: Aurora is 12.5 m long.", True),
        ("$\\text{Length of Aurora} = \\text{`12.5 m`}$", True),
        ("a.csv doesn't say anything about a LinkedIn profile.", True),
        ("a.csv doesn't mention the berth.", False),
        ("Berth of Aurora: not provided", False),
        ("-> Broken down by fee, 86.30 pounds is in 2 of 3 rows.", True),
        ("The hull of Aurora is 12.5 m, from one end to the other.", True),
    ],
)
async def test_honest_wordings_of_many_kinds_pass_and_untrue_ones_do_not(
    answer: str, is_grounded: bool
) -> None:
    found = await play(
        "Please have a look at the boats of the three Mallory brothers.",
        [READ],
        answer,
        files={"a.csv": HARBOUR},
    )
    judged = await verdict(found, "grounding")
    assert judged.is_passed is is_grounded, judged.reason


@pytest.mark.parametrize(
    ("request_text", "answer", "is_grounded"),
    [
        ("How much nectar does lime give in week 31?", "In week 31, lime gives 1.5 kg per day.", True),
        ("How much nectar does lime give in week 31?", "In week 32, lime gives 1.5 kg per day.", False),
        ("Hvor mye nektar gir lind i uke 31?", "I uke 31 gir lind 1.5 kg per dag.", True),
        ("Read a.csv.", "The best one is lime in week 31, with 1.5 kg per day.", True),
        ("Read a.csv.", "plant lime; week 31; kg_per_day 1.5", True),
        ("Read a.csv.", "The best one is lime in week 30, with 1.5 kg per day.", False),
        ("Read a.csv.", "The best one is lime in week 31 of 2026, with 1.5 kg per day.", True),
        ("Read a.csv.", "In week 31, lime gives 1.5 kg per hour.", False),
        ("What is open on 2026-01-05 and on 2026-01-09?", "They are open from 5 to 9 January 2026.", True),
        ("What is open on 2026-01-05 and on 2026-01-09?", "They are open from January 5 until 9.", True),
        ("What is open on 2026-01-05 and on 2026-01-09?", "They are open from 6 to 9 January 2026.", False),
    ],
)
async def test_numbers_of_weeks_and_ranges_of_days_and_units_of_two_words(
    request_text: str, answer: str, is_grounded: bool
) -> None:
    table = "plant,week,kg_per_day\nlime,31,1.5\nheather,36,0.9\n"
    judged = await verdict(await play(request_text, [READ], answer, files={"a.csv": table}), "grounding")
    assert judged.is_passed is is_grounded, judged.reason


@pytest.mark.parametrize(("total", "is_grounded"), [(7, True), (9, False)])
async def test_lines_of_several_files_are_counted_together(total: int, is_grounded: bool) -> None:
    calls = [call("read_file", {"file_path": name}) for name in ("a.txt", "b.txt")]
    answer = f"Together they have {total} lines: a.txt has 4, b.txt has 3."
    files = {"a.txt": "pear\nplum\nfig\nlime\n", "b.txt": "ash\nelm\noak\n"}
    judged = await verdict(await play("How many lines are in both?", calls, answer, files=files), "grounding")
    assert judged.is_passed is is_grounded, judged.reason


@pytest.mark.parametrize(
    ("answer", "is_grounded"),
    [
        ("b.txt has 3 lines, and a.txt has 1 line.", True),
        ("a.txt has 1 line and b.txt has 9 lines, so b.txt is longer.", False),
        ('"elm" occurs in 1 line of b.txt.', True),
    ],
)
async def test_lines_are_counted_after_a_call_with_half_a_path(answer: str, is_grounded: bool) -> None:
    """The failed call names `b.t`, which is not the file of the answer; a file may have one line."""
    calls = [
        call("read_file", '{"file_path":"b.t'),
        *[call("read_file", {"file_path": name}) for name in ("a.txt", "b.txt")],
    ]
    files = {"a.txt": "pear\n", "b.txt": "ash\nelm\noak\n"}
    judged = await verdict(await play("Which one is longer?", calls, answer, files=files), "grounding")
    assert judged.is_passed is is_grounded, judged.reason


async def test_a_remark_is_weighed_by_what_kind_of_sentence_it_is() -> None:
    """A path that nobody has seen may stand in advice, and not in a report of what was done."""
    for answer, is_grounded in (
        ("You could keep such lists in `backup/boats.csv`, if you like.", True),
        ("I have stored the list in `backup/boats.csv`.", False),
    ):
        found = await play("How long is Aurora?", [READ], f"It is 12.5 m. {answer}", files={"a.csv": HARBOUR})
        judged = await verdict(found, "grounding")
        assert judged.is_passed is is_grounded, judged.reason


@pytest.mark.parametrize(
    ("answer", "is_grounded"),
    [
        ("notes/a.md now exists with your text.", True),
        ("`notes/a.md` now holds the sentence, and b.csv is gone.", True),
        ("notes/memo.md now exists with your text.", False),
        ("The file `notes/memo.md` is now in place.", False),
        ("It is there: memo.md now contains the sentence.", False),
        ("c.csv is now gone.", False),
    ],
)
async def test_a_file_that_is_said_to_exist_now_was_written_or_shown(answer: str, is_grounded: bool) -> None:
    made = [
        {"tool": "write_note", "arguments": {"file_path": "notes/a.md"}, "result": "wrote notes/a.md"},
        {"tool": "delete_file", "arguments": {"file_path": "b.csv"}, "result": "deleted b.csv"},
    ]
    calls: list[dict[str, Any]] = [{**item, "effect": "idempotent"} for item in made]
    calls.append({"tool": "read_file", "arguments": {"file_path": "c.csv"}, "result": "a,b"})
    request = "Write the sentence to notes/a.md and notes/memo.md, and delete b.csv."
    base = await read_scene({"request": request, "calls": calls})
    judged = await verdict(with_answer(base, answer), "grounding")
    assert judged.is_passed is is_grounded, judged.reason


def test_what_was_seen_has_no_features_and_each_weight_is_finite() -> None:
    weights = statement_features.load_weights()
    assert len(weights) > 300
    assert all(isfinite(weight) for weight in weights.values())
    kinds = {f"{kind}={doubt}" for kind in StatementKind for doubt in DoubtKind}
    assert {name.partition(":")[0] for name in weights if "=" in name} <= kinds
    assert statement_features.weigh(frozenset()) == 0


@pytest.mark.parametrize(
    ("layout", "value", "wrong"),
    [
        ("2.) Peak level: {}.", "95", "75"),
        ("Bytes in file: {}", "1893", "1793"),
        ("The drill score is {}.", "12", "17"),
        ("1、The peak level is {}.\n2、Total sheets are 22085.", "95", "75"),
        ("§ 4. Peak level: {}", "95", "59"),
        ("Peak level ....... close to {}", "95", "75"),
        ("Peak level · · · · · {}", "95", "59"),
        ('[cols="1,1"]\n|===\n|Paper|about {} kg\n|===', "1,100", "1,400"),
        ("> The peak level is {}.\n> Total sheets: 22085\n> Paper: 1144 kg", "95", "94"),
        ("| Peak level | {} | — |\n| Total sheets | 22085 | — |", "95", "91"),
        ("🍀 Hot off the press: {} kg of paper 📰 The peak level is 95.", "1144", "1344"),
        ("Read from top to bottom, since that reads faster: the peak level is {}.", "95", "59"),
        ("Once more, since it is easily missed: binding minutes are abt. {}.", "2,700", "3,500"),
        ("Binding minutes: {} (plus or minus 10 at most).", "2,680", "7,990"),
        ("It was noted that the peak level is {}.", "95", "59"),
        ('```json\n{{\n  "Peak level": "{}",\n  "Drill score": 12\n}}\n```', "95", "59"),
        ('```sh\nexport "Peak level={}"\nexport "Drill score=12"\n```', "95", "59"),
        ("- key: Peak level\n  val: {}\n- key: Drill score\n  val: 12", "95", "59"),
    ],
)
def test_layouts(layout: str, value: str, wrong: str) -> None:
    filter = GroundingFilter(GroundingSettings(), Resources(config=config()))
    made = ToolCall("c1", "get_record", '{"id": "X17"}')
    result = "total sheets: 22085\npaper_kg: 1144.0\nbytes in file: 1893\nbinding_minutes: 2675\n"
    result += "peak level: 95\ndrill score: 12\n"
    before = [
        Message(Role.USER, "Tell me about the run."),
        Message(Role.ASSISTANT, "", (made,)),
        Message(Role.TOOL, result, call_id="c1", name=made.name),
    ]
    tools = (ToolSpec(made.name, "", {}, effect=Effect.PURE),)
    for said, is_untrue in ((value, False), (wrong, True)):
        found = filter.read([*before, Message(Role.ASSISTANT, layout.format(said))], tools, None)
        doubted = [item.describe() for item in found if item.doubt.degree >= DOUBTFUL]
        assert bool(doubted) is is_untrue, (said, doubted)


def read_answer(code: str, result: str, answer: str) -> list[Finding]:
    """Return the findings about an answer after one call."""
    made = ToolCall("c1", "python", json.dumps({"code": code}))
    messages = [
        Message(Role.USER, "Have a look."),
        Message(Role.ASSISTANT, "", (made,)),
        Message(Role.TOOL, result, call_id="c1", name=made.name),
        Message(Role.ASSISTANT, answer),
    ]
    filter = GroundingFilter(GroundingSettings(), Resources(config=config()))
    return filter.read(messages, (ToolSpec(made.name, "", {}, effect=Effect.PURE),), None)


LOST = "item,days_kept,box\nraincoat,71,C\npadlock,21,A\ntowel,57,B\ntowel,40,A\n"
DEALERS = (
    "dealer,bundle_g,bundle_gbp\nOrchard Software,404,146.96\nWestfield Cycles,837,336.18\n"
    "Maple Furniture,746,28.46\n"
)
SECTIONS = (
    '{"tube":"NT-452","tube_cm":331,"sections":[{"letter":"O","glass_cm":60,"heats":11},'
    '{"letter":"T","glass_cm":43,"heats":3},{"letter":"E","glass_cm":56,"heats":13}]}'
)
QUIZ = '{"quiz":"Q9","teams":[{"team":"Quiz Pro Quo"},{"team":"Norfolk and Chance"},{"team":"Bottom"}]}'


@pytest.mark.parametrize(
    ("result", "answer", "is_open"),
    [
        (LOST, "The rows are raincoat, padlock and towel.", False),
        (LOST, "The rows are raincoat, padlock and umbrella.", True),
        (QUIZ, "I found Quiz Pro Quo, Norfolk and Chance and Bottom.", False),
        (QUIZ, "I found Quiz Pro Quo, Norfolk and Chance and Agatha.", True),
        (LOST, "✓ All tests pass after the change.", True),
        (LOST, "The build succeeded.", True),
        ("12 tests collected\n12 passed", "All tests pass.", False),
        (LOST, "✓ Committed and pushed to main.", True),
        (LOST, "OK, I've turned on notifications for that.", True),
        (LOST, "Historically this figure stays under 2901.", True),
        (DEALERS, "Lowest bundle price: Maple Furniture, 28.46 pounds (dealers.csv).", False),
        (DEALERS, "Lowest bundle price: Maple Furniture, 29.46 pounds (dealers.csv).", True),
        (DEALERS, "- Lines in the file: 4", False),
        (DEALERS, "- Lines in the file: 3", True),
        (DEALERS, "I've added the bundle weight up for you: 1,987 g over all rows of dealers.csv.", False),
        (DEALERS, "I have printed a copy for the noticeboard.", True),
        (LOST, "I don't see any box anywhere for dealers.csv.", True),
        (DEALERS, "I'm not seeing any e-mail address for dealers.csv.", False),
        (DEALERS, "`len(rows)` == four for dealers.csv.", True),
        (DEALERS, "`len(rows)` == three for dealers.csv.", False),
        (SECTIONS, "Largest number of heats (tube NT-452): E, 13", False),
        (LOST, "It is important to note that results can vary depending on various factors.", False),
    ],
)
def test_lists_and_states(result: str, answer: str, is_open: bool) -> None:
    found = read_answer("open('dealers.csv').read()", result, answer)
    assert any(item.doubt.degree >= DOUBTFUL for item in found) is is_open


CODE = "before = [9, 4]\nafter = [5, 2]\nprint('old_best:', min(before))\nprint('new_best:', min(after))"
BOARDS = '{"round": "R5", "boards": [{"player": "Ada"}, {"player": "Bo"}, {"player": "Cy"}], "state": "open"}'
SPAN = (
    '{"event": "E7", "singing_from": "18:08", "singing_until": "21:06", "noon_lx": 22556, "empty_t": 21.9, '
    '"rotor_rpm": 18.1}'
)
ROWS = "name,score\nSeven Bridges,14\nHarbour Lights,31\n"


@pytest.mark.parametrize(
    ("code", "result", "answer", "is_open"),
    [
        ("", BOARDS, "There are 3 boards listed for round R5.", False),
        ("", BOARDS, "There are 4 boards listed for round R5.", True),
        ("", BOARDS, "How many boards: 3", False),
        ("", BOARDS, "How many boards: 4", True),
        ("open('scores.csv')", ROWS, "scores.csv runs to 2 items.", False),
        ("open('scores.csv')", ROWS, "scores.csv runs to 4 items.", True),
        ("open('scores.csv')", ROWS, "I count 2 rows.", False),
        ("open('scores.csv')", ROWS, "I count 5 rows.", True),
        ("open('scores.csv')", ROWS, "It lists Seven Bridges first.", False),
        (CODE, "old_best: 4\nnew_best: 2\n", "The smallest value before was 4.", False),
        (CODE, "old_best: 4\nnew_best: 2\n", "The smallest value before was 6.", True),
        ("", SPAN, "The end of singing for E7 is 21:06.", False),
        ("", SPAN, "The end of singing for E7 is 18:08.", True),
        ("", SPAN, "Singing starts at 18:08.", False),
        ("", SPAN, "Singing starts at 21:06.", True),
        ("", SPAN, "For event no. E7, singing ends at 21:06.", False),
        ("", SPAN, "The light at noon is 22556 lux, or 2095.5 foot-candles.", False),
        ("", SPAN, "The light at noon is 22556 lux, or 2495.5 foot-candles.", True),
        ("", SPAN, "Empty, it weighs about 24.1 short tons.", False),
        ("", SPAN, "Empty, it weighs about 26.1 short tons.", True),
        ("", SPAN, "The rotor turns at 17–19 rpm.", False),
        ("", SPAN, "The rotor turns at 13–15 rpm.", True),
        ("open('2026/scores.csv')", ROWS, "Line 2 of 2026/scores.csv is: Seven Bridges,14", False),
        ("open('scores.csv')", ROWS, "With all rows included, the score adds up to 45.", False),
        ("open('scores.csv')", ROWS, "With all rows included, the score adds up to 52.", True),
        ("", BOARDS, "State (round R5): open", False),
        ("", BOARDS, "State (round R5): postponed", True),
        ("", BOARDS, "Mood (round R5): gloomy", True),
        ("", BOARDS, "The state of round R5 I can not find.", True),
        ("", BOARDS, "The referee of round R5 I can not find.", False),
    ],
)
def test_counts_values_and_absences(code: str, result: str, answer: str, *, is_open: bool) -> None:
    kinds = (StatementKind.QUANTITY, StatementKind.RELATION)
    found = [item for item in read_answer(code, result, answer) if item.statement.kind in kinds]
    assert any(item.doubt.is_open for item in found) is is_open, [item.describe() for item in found]


def test_an_answer_is_read_once_however_often_a_dialogue_goes_on() -> None:
    filter = GroundingFilter(GroundingSettings(), Resources(config=config()))
    messages: list[Message] = []
    found: list[Finding] = []
    for number in range(4):
        said = Message(Role.ASSISTANT, f"I have sent {number} letters to Ada.")
        messages = [*messages, Message(Role.USER, f"Please send letter {number}."), said]
        tools = (ToolSpec("send", "", {}),)
        earlier, found = found, filter.read(messages, tools, None)
        assert len(found) > len(earlier)
        assert all(one is other for one, other in zip(earlier, found, strict=False))
    other = filter.read([*messages[:-1], Message(Role.ASSISTANT, "I have sent it to Bo.")], tools, None)
    assert other[: len(earlier)] == earlier
    assert found != other
