"""Statements that name a column and a record are held against the value that stands there."""

import pytest
from tests.datagen.quality.test_grounding import read_answer

from treadle.datagen.quality.statements.result_records import read_records
from treadle.datagen.quality.statements.statements import StatementKind

PERMITS = (
    '{"permit":"PM-12","holder":"Ada Stern","permit_state":"on hold","lot_size_m2":640,"fee_eur":412.5,'
    '"valid_percent":80,"opens_at":"08:30","inspections":3,"is_paid":false,"zone_type":"mixed use"}\n'
    '{"permit":"PM-31","holder":"Cy Brandt","permit_state":"granted","lot_size_m2":910,"fee_eur":95.0,'
    '"valid_percent":20,"opens_at":"09:15","inspections":7,"is_paid":true,"zone_type":"farm land"}\n'
)
SCORES = "mean score: 61.4\nbest score: 92\ncount below 50: 4\nresponse count: 9\n"
HITS = "logs/a.txt:3: the valve leaks\nlogs/a.txt:9: a new valve\nlogs/b.txt:1: valve closed\n"
HERBS = "herb,price\nbasil,3\ndill,4\nthyme,6\nmint,2\n"
BREWING = (
    '{"brewing_no":"B-77","brewed_by":"Ola Lind","salt_ppm":310,"malt_kg":18,"from_time":"06:10","to_time":"11:45",'
    '"parts":[{"part":"kettle","wear":"scratched"},{"part":"tap","wear":"spotless"}]}'
)
ROWS = "size,colour\nbig,red\nbig,blue\nsmall,red\nbig,red\nsmall,red\n"


@pytest.mark.parametrize(
    ("result", "answer", "is_open"),
    [
        (PERMITS, "Permit PM-12 is on hold.", False),
        (PERMITS, "Permit PM-12 is granted.", True),
        (PERMITS, "The lot size of permit PM-12 is roughly 640 m2.", False),
        (PERMITS, "The lot size of permit PM-12 is roughly 900 m2.", True),
        (PERMITS, "Fee (permit PM-12): 412.50 EUR", False),
        (PERMITS, "Fee (permit PM-12): 412.50 USD", True),
        (PERMITS, "Total fee (permit PM-12): 412.50 USD", True),
        (PERMITS, "Inspections: 3 (permit PM-12)", False),
        (PERMITS, "Inspections: 1 (permit PM-12)", True),
        (PERMITS, "Inspections: zero (permit PM-12)", True),
        (PERMITS, "The permit status of PM-12 reads on hold.", False),
        (PERMITS, "The permit status of PM-12 reads withdrawn.", True),
        (PERMITS, "The zone type of PM-12 shows up as mixed use.", False),
        (PERMITS, "The zone type of PM-12 shows up as housing.", True),
        (PERMITS, "The zone type of PM-31 comes back as mixed use.", True),
        (PERMITS, "PM-31 has 4 more inspections than PM-12.", False),
        (PERMITS, "Between them, PM-12 and PM-31 cost 507.50 EUR.", False),
        (PERMITS, "valid percent of PM-12: `80 %`", False),
        (PERMITS, "valid percent of PM-12: about 55 %", True),
        (PERMITS, "It opens at 8:30 am, permit PM-12.", False),
        (PERMITS, "Opens at (permit PM-12): 8 pm", True),
        (PERMITS, "I could not determine the permit state of PM-12.", True),
        (PERMITS, "I could not determine the phone number of PM-12.", False),
        (SCORES, "Count below 50: 4", False),
        (SCORES, "| Count below 50 | seven |", True),
        (SCORES, "That makes ~61 for the mean score.", False),
        (SCORES, "That makes ~50 for the mean score.", True),
        (SCORES, "Your response count comes to 61.4.", True),
        (HITS, "2 lines in logs/a.txt match.", False),
        (HITS, "4 lines in logs/a.txt match.", True),
        (HERBS, "The file lists basil, dill, thyme and mint.", False),
        (HERBS, "The file lists basil, dill, thyme and sorrel.", True),
        (ROWS, "`4 of 5` of the rows have the colour `red`.", False),
        (ROWS, "`2 of 5` of the rows have the colour `red`.", True),
        (ROWS, "5 of 5 rows are red.", True),
        (BREWING, "Salt content: 310 ppm (brewing B-77)", False),
        (BREWING, "Salt content: 320 ppm (brewing B-77)", True),
        ('{"rate_bp":25}', "The rate is 25 basis points.", False),
        ('{"rate_percent":0.25}', "The rate is 25 basis points.", False),
        (BREWING, "Brewing B-77 has the following: kettle, and tap.", False),
        (BREWING, "Brewed by (brewing B-77): Per Lund", True),
        (BREWING, "The street address of brewing B-77 is not there, I did not find it.", False),
        (BREWING, "The malt of brewing B-77 is not there.", True),
        (BREWING, "Malt: from 17 to 19 kg", False),
        (BREWING, "Malt: from 21 to 24 kg", True),
        (BREWING, "Check-in time: 6.10 am (brewing B-77).", False),
        (BREWING, "Check-in time: 11.45 am (brewing B-77).", True),
        (BREWING, "Check-out time: 11.45 am (brewing B-77).", False),
    ],
)
def test_a_value_is_that_of_the_column_and_record_that_are_named(
    result: str, answer: str, *, is_open: bool
) -> None:
    kinds = (StatementKind.QUANTITY, StatementKind.RELATION)
    found = [item for item in read_answer("", result, answer) if item.statement.kind in kinds]
    assert any(item.doubt.is_open for item in found) is is_open, [item.describe() for item in found]


@pytest.mark.parametrize(
    "answer",
    [
        "Usually this fee is around 400.",
        "Month over month, that is 12 % more.",
        "It has been going up for six months in a row.",
        "Others of the same kind are higher.",
        "That is what happens when forms are incomplete.",
        "A missing signature is to blame for that.",
        "For lack of staff it came to this.",
    ],
)
def test_comparisons_with_the_past_and_reasons_are_causes(answer: str) -> None:
    causes = [item for item in read_answer("", PERMITS, answer) if item.statement.kind is StatementKind.CAUSE]
    assert any(item.doubt.is_open for item in causes)


def test_lines_of_json_are_records() -> None:
    first, second = read_records(0, PERMITS, frozenset())
    assert first.columns == second.columns
    assert [cell.text for cell in second.cells][:2] == ["PM-31", "Cy Brandt"]


@pytest.mark.parametrize(
    ("answer", "is_open"),
    [
        ("The work was carried out with the following outcome.", False),
        ("The procedure was performed, and the findings are given below.", False),
        ("Jobben ble gjennomført med følgende utfall.", False),
        ("The neighbours below complained about their broken lift.", True),
    ],
)
def test_a_sentence_that_only_says_that_an_answer_follows_is_no_claim(answer: str, *, is_open: bool) -> None:
    found = [item for item in read_answer("", BREWING, answer) if item.statement.kind is StatementKind.CLAIM]
    assert any(item.doubt.is_open for item in found) is is_open, [item.describe() for item in found]
