"""A long session on a window of 8,000 tokens, against a server that counts tokens and refuses longer prompts."""

import os

import pytest
from benchmarks.common import serving
from benchmarks.context import WINDOW, live

from treadle import Policy

TURNS = 1_000 if os.environ.get("TREADLE_FULL") else 60


@pytest.mark.sets(0)
async def test_facts_of_the_first_turns_are_known_at_the_end():
    """persona.md 1.7 and 3: summaries of summaries lost facts, and the summary was the first thing dropped."""
    with serving("benchmarks.context_server", str(WINDOW)) as base_url:
        found = await live(TURNS, Policy(), base_url)
    assert (found.answered, found.remembered, found.stats["refused"]) == (TURNS, 2, 0)
    assert found.is_replayed
    assert 0 < found.compactions <= TURNS / 10
    paid = found.stats["summary_tokens"]
    assert 0 < paid <= 0.15 * (paid + found.stats["input_tokens"])
