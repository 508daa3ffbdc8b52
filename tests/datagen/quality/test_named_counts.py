"""What a sentence names elsewhere than beside its figure, such as lists, files and columns; and mere frames."""

import json

import pytest
from tests.datagen.quality.candidates import config
from tests.datagen.quality.test_grounding import read_answer

from treadle.core.types import Effect, Message, Role, ToolCall, ToolSpec
from treadle.datagen.quality.filters.grounding import DOUBTFUL, WORDING, GroundingFilter, GroundingSettings
from treadle.datagen.quality.protocol import Resources
from treadle.datagen.quality.statements.doubts import DoubtKind
from treadle.datagen.quality.statements.statements import StatementKind

BOARDS = '{"round": "R5", "boards": [{"player": "Ada"}, {"player": "Bo"}, {"player": "Cy"}], "state": "open"}'
ROWS = "name,score\nSeven Bridges,14\nHarbour Lights,31\n"
HITS = "notes/a.txt:3: The kettle leaks.\nnotes/b.txt:1: A new kettle.\n"
MEMBERS = "member,fee_eur,visits\nJonas Duarte,23.72,9\nRosa Garcia,48.95,4\nKeira Ruiz,44.12,2\n"
FERRY = (
    '{"crossing": "FX-104", "ticket_nok": 444.16, "vehicles": [{"vehicle": "camper", "weight_kg": 4961, '
    '"fare_nok": 1716.51}, {"vehicle": "pickup", "weight_kg": 1731, "fare_nok": 414.89}, {"vehicle": "estate", '
    '"weight_kg": 1500, "fare_nok": 2214.81}]}'
)


@pytest.mark.parametrize(
    ("code", "result", "answer", "is_open"),
    [
        ("", BOARDS, "Counting the boards in round R5 gives 3.", False),
        ("", BOARDS, "Counting the boards in round R5 gives 2.", True),
        ("", BOARDS, "Round R5 has three players.", False),
        ("", BOARDS, "Round R5 has two players.", True),
        ("", BOARDS, "How many boards does round R5 have? 3.", False),
        ("", BOARDS, "How many boards does round R5 have? 2.", True),
        ("", BOARDS, "3 is the number of boards.", False),
        ("", BOARDS, "2 is the number of boards.", True),
        ("", BOARDS, "Round R5 has been marked as open.", False),
        ("", BOARDS, "Round R5 has been marked as urgent.", True),
        ("", BOARDS, "I also printed it for you.", True),
        ("open('scores.csv')", ROWS, "How many rows are in scores.csv? Two.", False),
        ("open('scores.csv')", ROWS, "How many rows are in scores.csv? Three.", True),
        ("open('scores.csv')", ROWS, "Extent in lines → 3", False),
        ("open('scores.csv')", ROWS, "Extent in lines → 2", True),
        ("open('scores.csv')", ROWS, "How many data lines: 2", False),
        ("open('scores.csv')", ROWS, "How many data lines: 4", True),
        ("open('scores.csv')", ROWS, "Lines whose score is high, in scores.csv\n: 1", False),
        ("", ROWS, "A typing mistake in the head office is responsible.", True),
        ("", ROWS, "If this is printed, round it to the nearest ten.", False),
        ("", HITS, "Matching lines, notes/a.txt – 1", False),
        ("", HITS, "Matching lines, notes/a.txt – 2", True),
        ("open('members.csv')", MEMBERS, "The sum of the visits over all rows in members.csv is 15.", False),
        ("open('members.csv')", MEMBERS, "members.csv adds up to close to 115 euros in fees.", False),
        ("open('members.csv')", MEMBERS, "No member for the file members.csv.", True),
        ("open('members.csv')", MEMBERS, "No phone number for the file members.csv.", False),
        ("open('members.csv')", MEMBERS, "| Member | — |", True),
        ("open('members.csv')", MEMBERS, "The highest fee is that of Rosa Garcia.", False),
        ("open('members.csv')", MEMBERS, "Jonas Duarte has the highest fee.", True),
        ("", FERRY, "Crossing FX-104 → highest fare: estate, NOK 2,214.81.", False),
        ("", FERRY, "Crossing FX-104 → highest fare: pickup, NOK 414.89.", True),
        ("", FERRY, "In response to your enquiry, the following can be reported.", False),
        ("", FERRY, "Heavy traffic was the reason.", True),
        ("", FERRY, "That is well above the national average.", True),
        ("", FERRY, "> Pro tip: pin this message so that you find it later.", False),
        ("", FERRY, "> To recap the main thing: the camper of FX-104 weighs 4,961 kg.", False),
        ("", FERRY, "Highest vehicle weight goes to the camper, 4,961 kg.", False),
        ("", FERRY, "Highest vehicle weight goes to the estate, 1,500 kg.", True),
        ("", FERRY, "Crossing FX-104, tot vehicle_weight: 8,192 kg", False),
        ("open('members.csv')", MEMBERS, "I counted rows of members.csv, count is 3.", False),
        ("open('members.csv')", MEMBERS, "I counted rows of members.csv, count is 5.", True),
        ("sh -c 'wc -l < members.csv'", "lines: 4\nlongest line: 21\n", "Lines: 4", False),
        ("", FERRY, "Root cause -> a worn seal", True),
        ("", FERRY, "The underlying cause is a leaking pump.", True),
        ("", FERRY, "cause: heavy rain", True),
        ("", FERRY, "The fares have gone up for 3 months now.", True),
        ("", FERRY, "It is the best result in over two years.", True),
        ("", FERRY, "The double bookings are removed now.", True),
        ("", FERRY, "Submitted for your kind approval, please.", False),
        ("", FERRY, "Submitted to the harbour office.", True),
        ("", ROWS, "I ran it through the computer, and the highest score is 31.", False),
    ],
)
def test_what_a_sentence_names_is_counted_and_compared(
    code: str, result: str, answer: str, *, is_open: bool
) -> None:
    kinds = set(StatementKind) - {StatementKind.CLAIM}
    found = [item for item in read_answer(code, result, answer) if item.statement.kind in kinds]
    assert any(item.doubt.is_open for item in found) is is_open, [item.describe() for item in found]


def test_the_list_of_the_record_that_is_named_is_counted() -> None:
    other = BOARDS.replace("R5", "R6").replace('{"player": "Cy"}', '{"player": "Cy"}, {"player": "Di"}')
    messages = [Message(Role.USER, "Have a look.")]
    for number, result in enumerate((BOARDS, other)):
        made = ToolCall(f"c{number}", "round", json.dumps({"round": f"R{5 + number}"}))
        messages.append(Message(Role.ASSISTANT, "", (made,)))
        messages.append(Message(Role.TOOL, result, call_id=made.call_id, name=made.name))
    filter = GroundingFilter(GroundingSettings(), Resources(config=config()))
    tools = (ToolSpec("round", "", {}, effect=Effect.PURE),)
    for answer, kind in (
        ("Round R6 has 4 boards.", DoubtKind.SEEN),
        ("Round R6 has 3 boards.", DoubtKind.UNLIKE),
    ):
        found = filter.read([*messages, Message(Role.ASSISTANT, answer)], tools, None)
        assert [item.doubt.kind for item in found if item.statement.kind is StatementKind.QUANTITY] == [kind]


def test_a_list_with_slashes_names_only_what_was_seen() -> None:
    for answer, kind in (
        ("There are notes/a.txt/notes/b.txt.", DoubtKind.SEEN),
        ("There are notes/a.txt/notes/c.txt.", DoubtKind.ABSENT),
        ("There is b.txt/notes/a.txt.", DoubtKind.SEEN),
        ("There is notes/kettle/a.txt.", DoubtKind.ABSENT),
    ):
        found = read_answer("", HITS, answer)
        assert [item.doubt.kind for item in found if item.statement.kind is StatementKind.PATH] == [kind], (
            answer
        )


def test_a_role_of_one_record_is_not_held_against_another() -> None:
    messages = [Message(Role.USER, "Have a look.")]
    results = ('{"lift": "CH-85", "attendant": "Nadia Berg"}', '{"crane": "CP-62", "operator": "Lars Ade"}')
    for number, result in enumerate(results):
        made = ToolCall(f"c{number}", "look", json.dumps({"code": ("CH-85", "CP-62")[number]}))
        messages.append(Message(Role.ASSISTANT, "", (made,)))
        messages.append(Message(Role.TOOL, result, call_id=made.call_id, name=made.name))
    filter = GroundingFilter(GroundingSettings(), Resources(config=config()))
    tools = (ToolSpec("look", "", {}, effect=Effect.PURE),)
    for answer, is_open in (
        ("Lift CH-85 has Nadia Berg (operator).", False),
        ("Crane CP-62 has Nadia Berg (operator).", True),
    ):
        found = filter.read([*messages, Message(Role.ASSISTANT, answer)], tools, None)
        assert any(item.doubt.is_open for item in found) is is_open, answer


def test_a_sentence_as_a_whole_needs_more_doubt_than_its_data() -> None:
    said = "Whoever maintains the harbour deserves a medal and a long holiday."
    found = read_answer("", ROWS, said)
    claims = [item for item in found if item.statement.kind is StatementKind.CLAIM]
    assert claims
    assert all(item.doubt.degree <= 1 - WORDING for item in claims)
    assert DOUBTFUL < 1 - WORDING, "else no sentence as a whole could be rejected"
