"""The request in a user's message: a task, an errand, a talk, or tools by name.

The request is one paragraph of the message, so that everything around it can be in anybody's words.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct

from treadle.tasks.draws import Wording
from treadle.tasks.files import identify
from treadle.testbed.working.calls import Wishes, find_wishes
from treadle.testbed.working.errands.catalogue import find_errand
from treadle.testbed.working.errands.errand import Found
from treadle.testbed.working.talks.catalogue import find_talk
from treadle.testbed.working.talks.talk import Talk

RESTATE = (
    Wording("Could you say that again in one sentence, so that I can paste it into my notes?"),
    Wording("Put that into a single sentence for me, please."),
    Wording("What is the gist of it, in one line?"),
    Wording("I have to pass this on. How would you put it in one sentence?"),
)


class Request(Struct, frozen=True):
    """The request in a message. Exactly one of the fields is set."""

    task: str | None = None
    """The input of a task of the set `files`."""
    errand: Found | None = None
    talk: tuple[Talk, Mapping[str, str]] | None = None
    wishes: Wishes | None = None
    is_restatement: bool = False
    """True if the user asks for the last answer again, in other words."""


@lru_cache(maxsize=4096)
def find_request(text: str) -> Request | None:
    """Return the request in a message; `None` if there is none that the teacher knows."""
    return next((found for part in _paragraphs(text) if (found := _identify(part)) is not None), None)


def _identify(paragraph: str) -> Request | None:
    if identify(paragraph) is not None:
        return Request(task=paragraph)
    if (errand := find_errand(paragraph)) is not None:
        return Request(errand=errand)
    if (talk := find_talk(paragraph)) is not None:
        return Request(talk=talk)
    if (wishes := find_wishes(paragraph)) is not None:
        return Request(wishes=wishes)
    if any([prompt.text == paragraph for prompt in RESTATE]):
        return Request(is_restatement=True)
    return None


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"\n[ \t]*\n", text) if part.strip()]
