"""The simulated user: tells what was withheld, asks the follow-up requests of the goal, and ends."""

import re
from collections.abc import Sequence

from treadle.core.types import Json, Message, Role
from treadle.tasks.draw import pick
from treadle.teacher.facts import Facts, number_of, text_of

FOLLOW_UP = "Afterwards: "
"""How a line of the goal begins that has a further request."""

_THANKS = ("Thanks, that is all I needed.", "Perfect, thank you.", "Great, that settles it. Thanks.")
_QUESTION = re.compile(r"\?(\s|$)")


def write_user_turn(facts: Facts, messages: Sequence[Message]) -> Json:
    """Return the user's next message in the session `messages`, and whether it is the last one."""
    said = [message.content for message in messages if message.role is Role.ASSISTANT]
    heard = [message.content for message in messages if message.role is Role.USER]
    answer = heard[-1] if heard else ""
    withheld = text_of(facts, "withheld")
    told = any([withheld in text for text in said]) if withheld else True
    if not told and _QUESTION.search(answer):
        return {"message": withheld, "is_done": False}
    requests = [
        line.removeprefix(FOLLOW_UP)
        for line in text_of(facts, "goal").splitlines()
        if line.startswith(FOLLOW_UP)
    ]
    open_ = [request for request in requests if not any([request in text for text in said])]
    if open_ and len(said) < number_of(facts, "turns_left", 0):
        return {"message": open_[0], "is_done": False}
    return {"message": pick(_THANKS, answer, len(said)), "is_done": True}
