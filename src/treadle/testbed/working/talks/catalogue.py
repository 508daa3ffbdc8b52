"""All talks, and the search for one in a message."""

from collections.abc import Mapping
from functools import lru_cache

from treadle.testbed.working.talks.knowledge import KNOWLEDGE
from treadle.testbed.working.talks.problems import PROBLEMS
from treadle.testbed.working.talks.refusals import REFUSALS
from treadle.testbed.working.talks.talk import Talk

TALKS: tuple[Talk, ...] = (*PROBLEMS, *KNOWLEDGE, *REFUSALS)


@lru_cache(maxsize=4096)
def find_talk(paragraph: str) -> tuple[Talk, Mapping[str, str]] | None:
    """Return the talk that a paragraph asks for, with its values; `None` if it asks for none."""
    for talk in TALKS:
        for prompt in talk.prompts:
            values = prompt.match(paragraph)
            if values is not None:
                return talk, values
    return None
