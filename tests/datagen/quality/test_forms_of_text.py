"""Outlines, frames, owners, own work and other forms of text that claim nothing; and claims in unusual forms."""

import pytest
from tests.datagen.quality.test_grounding import read_answer

from treadle.datagen.quality.figures.figure_reader import find_quantities
from treadle.datagen.quality.filters.grounding import DOUBTFUL
from treadle.datagen.quality.statements.result_records import stem
from treadle.datagen.quality.statements.statements import StatementKind, find_statements

KILN = (
    '{"kiln": "KN-31", "potter": "Ada Berg", "last_fired_on": "2026-04-02", "planned_on": "2026-09-19", '
    '"opens_at": "07:30", "shuts_at": "16:45", "gas_wh": 1240, "shelves": [{"shelf": "Upper", "pots": 14, '
    '"cracked": 2}, {"shelf": "Middle", "pots": 23, "cracked": 5}, {"shelf": "Lower", "pots": 9, "cracked": 1}]}'
)
LOANS = (
    "tool,lender,fee_eur,damaged\nDrill,Nordby,14.5,no\nSaw,Vik,7.25,no\nPlane,Nordby,21,yes\nVice,Moe,3,no\n"
)
STACKED = "guard,rounds,minutes\nWanda,7,407\nChidi,6,431\n"


@pytest.mark.parametrize(
    ("answer", "is_open"),
    [
        (
            "1.1 Kiln KN-31 opens at 07:30.\n1.2 It shuts at 16:45.\n2.1 A total of 46 pots stand in it.",
            False,
        ),
        ("2.4 Concerning kiln KN-31: it shuts at 16:45.", False),
        ("3.1.2 The shelf Middle has 23 pots.", False),
        ("4.7 pots stand on each shelf of kiln KN-31.", True),
        ("Kiln KN-31 used 1,240 watt-hours of gas.", False),
        ("Kiln KN-31 used 1,420 watt-hours of gas.", True),
        ("The largest number of pots goes to the shelf Middle and is attributed to Middle (23).", False),
        ("The 23 pots are attributed to a strike of the drivers.", True),
        ("I started with the call and worked from there. Kiln KN-31 opens at 07:30.", False),
        ("I started the kiln for you. Kiln KN-31 opens at 07:30.", True),
        ("I counted from the top down and stopped there. The shelf Lower has 9 pots.", False),
        ("For the readers in a hurry:\n\nThe shelf Lower has 9 pots.", False),
        ("High five! The shelf Lower has 9 pots.", False),
        ('Under "number of pieces on it" the shelf Lower has 9 pots.', False),
        ("Opening hours of kiln KN-31 last 9 h, 15 min.", False),
        ("Opening hours of kiln KN-31 last 9 h, 45 min.", True),
        ("The plan followed 170 days after the last firing of kiln KN-31.", False),
        ("From the last firing to the planned date of kiln KN-31: 170 days", False),
        ("From the planned date to the last firing of kiln KN-31: 170 days", True),
        ("Kiln KN-31 came without any shelf.", True),
        ("Regrettably a shelf of kiln KN-31 was not to be found.", True),
        ("Regrettably a chimney of kiln KN-31 was not to be found.", False),
        ("The kiln is fine. It was my privilege to repair the door.", True),
        ("I took the liberty of renaming the kiln.", True),
        ("A letter about it is now on its way to the potter.", True),
        ("I left a note for the potter.", True),
        ("A burst pipe led to this.", True),
        ("Kiln KN-31 opens at half past seven.", False),
        ("INFO Nobody fires kiln KN-31 today.", False),
        ("Signed: the desk", False),
        ("I trust this was useful. I remain at your disposal.", False),
        ("I have let the potter know.", True),
        ("Gas in kilowatt-hours: 1.24", False),
        ("Esteemed Sir or Madam, the shelf Lower has 9 pots.", False),
        ("At first I was stopped by a wrong number. The shelf Lower has 9 pots.", False),
        ("At first I stopped the kiln. The shelf Lower has 9 pots.", True),
        ("Kiln KN-31 has a gas use of from 1,200 to 1,300 Wh.", False),
        ("Kiln KN-31 has a gas use of from 1,300 to 1,400 Wh.", True),
        ("For kiln KN-31 I obtained from 1,200 to 1,300 Wh of gas.", False),
        ("The gas of kiln KN-31 rose from 1,200 to 1,300 Wh.", True),
        ("Gas in kilowatt-hours: 12.4", True),
        ("Q1. When does kiln KN-31 shut? A1. At 16:45.", False),
    ],
)
def test_one_record(answer: str, is_open: bool) -> None:
    found = [item for item in read_answer("KN-31", KILN, answer) if item.doubt.degree >= DOUBTFUL]
    assert bool(found) is is_open, [item.describe() for item in found]


@pytest.mark.parametrize(
    ("code", "result", "answer", "is_open"),
    [
        ("open('loans.csv')", LOANS, "Damaged = no (loans.csv): most of the rows", False),
        ("open('loans.csv')", LOANS, "The highest fee, namely twenty-one, belongs to the Plane.", False),
        ("open('loans.csv')", LOANS, "| Tool | Saw | — |", False),
        ("open('loans.csv')", LOANS, "All fees of loans.csv in one pot: 45.75 euros", False),
        ("open('loans.csv')", LOANS, "Nordby as the lender accounts for **2/4** of the rows.", False),
        ("open('loans.csv')", LOANS, "Moe as the lender accounts for **3/4** of the rows.", True),
        ("open('rounds.csv')", STACKED, "The last row is: Chidi,6,431", False),
        ("open('rounds.csv')", STACKED, "The last row is: Chidi,6,413", True),
        (
            "",
            "sum of the first: 278\nsum of the second: 327",
            "Sum of the first;278\nSum of the second;327",
            False,
        ),
        (
            "",
            "sum of the first: 278\nsum of the second: 327",
            "Sum of the first;327\nSum of the second;327",
            True,
        ),
        ("", "bytes: 112\nline count: 5\nlongest line: 25", "| Number of lines | 25 |", True),
        ("", "bytes: 112\nline count: 5\nlongest line: 25", "| Number of lines | 5 |", False),
    ],
)
def test_tables_and_lines(code: str, result: str, answer: str, is_open: bool) -> None:
    found = [item for item in read_answer(code, result, answer) if item.doubt.degree >= DOUBTFUL]
    assert bool(found) is is_open, [item.describe() for item in found]


def test_two_units_of_one_value_are_no_sum() -> None:
    assert [item.value for item in find_quantities("517 kg and 1139.8 lb")] == [517, 1139.8]


def test_an_answer_behind_its_question_stands_in_one_sentence() -> None:
    (figure,) = [
        item
        for item in find_statements("Mean number of pots?\n→ 15.3")
        if item.kind is StatementKind.QUANTITY
    ]
    assert "Mean" in figure.sentence


def test_short_words_in_mixed_case_are_no_identifiers() -> None:
    kinds = {item.text: item.kind for item in find_statements("The pH is 7 and runId is set.")}
    assert "pH" not in kinds
    assert kinds["runId"] is StatementKind.IDENTIFIER


@pytest.mark.parametrize(("word", "plain"), [("scanned", "scan"), ("planning", "plan"), ("adding", "add")])
def test_doubled_consonants_are_stemmed(word: str, plain: str) -> None:
    assert stem(word) == plain
