"""The simulated user: tells the withheld fact, makes the further requests of the goal, and ends the
conversation."""

from collections.abc import Sequence

from treadle.core.types import Json, Message, Role
from treadle.testbed.request_facts import Facts, number_of, text_of
from treadle.testbed.writers.framing import ask_more, tell

FOLLOW_UP = "Afterwards: "
"""How a line of the goal begins that has a further request."""


def write_user_turn(facts: Facts, messages: Sequence[Message]) -> Json:
    """Return the user's next message in the session `messages`, and whether it is the last one."""
    said = [message.content for message in messages if message.role is Role.ASSISTANT]
    heard = [message.content for message in messages if message.role is Role.USER]
    answer = heard[-1] if heard else ""
    key = (text_of(facts, "goal"), len(said), answer)
    withheld = text_of(facts, "withheld")
    if withheld and "?" in answer and not any([_has(text, withheld) for text in said]):
        return {"message": tell(withheld, *key), "is_done": False}
    requests = [
        line.removeprefix(FOLLOW_UP)
        for line in text_of(facts, "goal").splitlines()
        if line.startswith(FOLLOW_UP)
    ]
    left = [request for request in requests if not any([_has(text, request) for text in said])]
    if left and number_of(facts, "turns_left", 0) > len(said):
        return {"message": ask_more(left[0], *key), "is_done": False}
    return {"message": "", "is_done": True}


def _has(said: str, text: str) -> bool:
    """Return whether a message of the user, which is the JSON of an answer or its text, contains `text`."""
    return text in said or text.replace('"', '\\"') in said
