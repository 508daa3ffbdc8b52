"""What the words around a figure match, paths that only the request has, and denials in many words."""

import pytest
from tests.datagen.quality.test_grounding import read_answer

from treadle.core.types import Message, Role, ToolCall
from treadle.datagen.quality.statements.doubts import DoubtKind
from treadle.datagen.quality.statements.evidence import Evidence
from treadle.datagen.quality.statements.matches import Matches
from treadle.datagen.quality.statements.statements import StatementKind, find_statements
from treadle.datagen.quality.statements.support import Support

WARDS = "ward,beds,nurses\nNorth,24,7\nSouth,31,9\n"
RAFFLE = "prize,tickets\nlamp,6\nwax kit,103\ntrowel,184\n"
LOT = '{"lot":"1496","texture":"deep wave","grams":210}'
LIFT = '{"lift":"CH11","first_chair_at":"08:10","last_chair_at":"16:53"}'


def show(result: str, *, given: str = '{"code":"1"}', is_error: bool = False) -> list[Message]:
    """Return a request that names a path, a call and its result."""
    return [
        Message(Role.USER, "Write it into notes/report.txt, please."),
        Message(Role.ASSISTANT, "", (ToolCall("c1", "run", given),)),
        Message(Role.TOOL, result, call_id="c1", name="run", is_error=is_error),
    ]


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ("The ward North has 24 beds.", "own"),
        ("The ward North has 31 beds.", "other"),
        ("I counted 24.", "nothing"),
        ("In North there are 55 beds.", "no place"),
    ],
)
def test_words_match_the_value_or_another_one(answer: str, match: str) -> None:
    (figure,) = [item for item in find_statements(answer) if item.kind is StatementKind.QUANTITY]
    assert Matches(Evidence(show(WARDS))).of(figure) == match


@pytest.mark.parametrize(
    ("given", "is_error", "answer", "kind"),
    [
        ('{"path":"notes/report.txt"}', False, "It is now stored in notes/report.txt.", DoubtKind.SEEN),
        ('{"path":"notes/report.txt"}', True, "It is now stored in notes/report.txt.", DoubtKind.TOLD),
        ('{"path":"notes/report.txt"}', True, "I could not write notes/report.txt.", DoubtKind.SEEN),
    ],
)
def test_a_path_that_only_the_request_has_is_told(
    given: str, is_error: bool, answer: str, kind: DoubtKind
) -> None:
    support = Support(Evidence(show("done", given=given, is_error=is_error)), (), answer)
    (path,) = [item for item in find_statements(answer) if item.kind is StatementKind.PATH]
    assert support.doubt(path).kind is kind


@pytest.mark.parametrize(
    ("result", "answer", "kind", "is_open"),
    [
        (RAFFLE, "Here is what is listed: lamp, wax kit and trowel.", StatementKind.RELATION, False),
        (RAFFLE, "Here is what is listed: quilt, wax kit and trowel.", StatementKind.RELATION, True),
        (LOT, "It has deep wave as the texture of lot 1496.", StatementKind.RELATION, False),
        (LOT, "It has loose curl as the texture of lot 1496.", StatementKind.RELATION, True),
        (LOT, "You won't find any texture in lot 1496.", StatementKind.RELATION, True),
        (LOT, "The papers do not disclose any texture.", StatementKind.RELATION, True),
        (LOT, "The papers do not disclose any price.", StatementKind.RELATION, False),
        (LIFT, "First chair to last chair (lift CH11) took 523 min.", StatementKind.QUANTITY, False),
        (LIFT, "Last chair to first chair (lift CH11) took 523 min.", StatementKind.QUANTITY, True),
    ],
)
def test_lists_values_denials_and_spans(result: str, answer: str, kind: StatementKind, is_open: bool) -> None:
    found = [item for item in read_answer("1496", result, answer) if item.statement.kind is kind]
    assert any(item.doubt.is_open for item in found) is is_open, [item.describe() for item in found]


@pytest.mark.parametrize(("is_error", "kind"), [(True, DoubtKind.UNNAMED), (False, DoubtKind.SEEN)])
def test_a_one_after_calls_that_failed_is_no_figure_of_a_result(is_error: bool, kind: DoubtKind) -> None:
    answer = "The longest is 1."
    (figure,) = [item for item in find_statements(answer) if item.kind is StatementKind.QUANTITY]
    assert Support(Evidence(show("no", is_error=is_error)), (), answer).doubt(figure).kind is kind
