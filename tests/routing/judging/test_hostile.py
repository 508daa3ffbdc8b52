"""Texts that would make a careless pattern slow are judged in bounded time, and every judgement is given."""

import random

import pytest
from benchmarks.judging import TOOLS

from treadle.routing.judging import MessageFacts, find_refusal, judge_message

SIZE = 1_000_000
_PIECES = (
    "a| |\n|`|```|\"|'|“|«|>|delete all |please |can you |i can't |and |ok |thanks |no |http://|a.b|a/|a-|://"
    "|jeg kan ikke |write a |write a b |what |1.|- |\u0130|ß|\ue000|\x00|𝒜|é|ignore all |the |you have no "
    "|remind me on |is not something |i do not have |set up |all of "
)
PIECES = tuple(_PIECES.split("|"))


@pytest.mark.parametrize("piece", PIECES, ids=ascii)
def test_a_long_text_is_judged(piece: str) -> None:
    text = piece * (SIZE // len(piece))
    judge_message(text, MessageFacts(TOOLS, topics=("law " * 10, piece * 100)))
    judge_message(piece * (7900 // len(piece)), MessageFacts(TOOLS))
    find_refusal(text, tools=TOOLS)


@pytest.mark.sets(0)
def test_random_mixtures_are_judged() -> None:
    rng = random.Random(5)
    for _ in range(150):
        text = "".join(rng.choices(PIECES, k=rng.randrange(1, 400)))
        found = judge_message(text, MessageFacts(TOOLS, topics=("fish",)))
        refusal = find_refusal(text, tools=TOOLS)
        assert 0.0 <= found.difficulty <= 1.0
        for span in (found.ambiguity, found.task, refusal):
            assert span is None or 0 <= span.span[0] <= span.span[1] <= len(text)


def test_the_span_points_into_the_whole_message() -> None:
    text = "x. " * 4000 + "Now delete everything"
    found = judge_message(text).ambiguity
    assert found is not None
    assert text[slice(*found.span)] == "delete everything"
