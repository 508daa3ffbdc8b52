"""The people of a generation: the persona in whose words a request is put, the simulated user, and the judge."""

import re
from collections.abc import Sequence

from treadle.core.types import Json, Message, Role
from treadle.tasks.draws import Draw
from treadle.testbed.request_facts import Facts, number_of, objects_of, text_of
from treadle.testbed.roles.words import load, words

FOLLOW_UP = "Afterwards: "
"""How a line of the goal begins that has a further request."""
_TROUBLE = re.compile(r"I could not (finish|make sense)|I had to stop", re.IGNORECASE)


def frame(request: str, topic: str, persona: Facts, draw: Draw) -> str:
    """Return a message with a request as one of its paragraphs, in the style of a persona."""
    style = style_of(text_of(persona, "style"))
    about = lower_first(topic)
    context = _context(about, text_of(persona, "role"), style, draw)
    before: list[str] = []
    after: list[str] = []
    if draw.chance(0.35 if style == "brief" else 0.7):
        before.append(draw.pick(words("greetings", style)))
    # The context may also follow the request.
    (after if draw.chance(0.25) else before).append(context)
    if draw.chance(0.35 if style == "brief" else 0.75):
        after.append(draw.pick(words("framing", "closings")))
    parts = [" ".join(before), request, " ".join(after)]
    return "\n\n".join([part for part in parts if part])


def _context(about: str, role: str, style: str, draw: Draw) -> str:
    """Return one or two sentences about why somebody asks."""
    fields = ("who", "occasion", "action", "purpose", "state")
    named = {name: draw.pick(words("framing", name)) for name in fields}
    named |= {"about": about, "it_is": "it is" if named["purpose"].startswith("for ") else "I am asking"}
    sentences = load("words")["framing"]
    cause = draw.pick(sentences["causes"]).format_map(named)
    intent = draw.pick(sentences["intents"]).format_map(named)
    if style == "brief":
        return upper_first(cause if draw.chance(0.5) else sentences["brief"].format_map(named)) + "."
    first = upper_first(cause)
    if role and draw.chance(0.4):
        article = "an" if role[:1].lower() in "aeiou" else "a"
        first = f"I work as {article} {role}. {first}"
    return f"{first}. {upper_first(intent)}."


def style_of(text: str) -> str:
    """Return the style that a description of a persona's writing comes closest to."""
    found = [
        (text.lower().find(word), style)
        for style in load("words")["styles"]
        for word in words("styles", style)
    ]
    return min([item for item in found if item[0] >= 0], default=(0, "plain"))[1]


def lower_first(text: str) -> str:
    """Return a text with a small first letter, unless its first word is an abbreviation."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def tell(fact: str, *key: Json) -> str:
    """Return the user's answer to a question, with the fact that was asked for."""
    told: str = Draw(str(key)).pick(load("words")["framing"]["tells"])
    return told.format(fact=fact)


def ask_more(request: str, *key: Json) -> str:
    """Return a user's further request."""
    return f"{Draw(str(key)).pick(load('words')['framing']['asks'])}\n\n{request}"


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
    """Return whether a message of the user, as text or as JSON, contains `text`."""
    return text in said or text.replace('"', '\\"') in said


def judge(facts: Facts) -> Json:
    """Return the score of a conversation, from 0 to 1, and the reason for it."""
    conversation = objects_of(facts, "conversation")
    last = conversation[-1] if conversation else {}
    answer = last.get("content")
    faults = []
    if last.get("role") != "assistant" or not isinstance(answer, str) or not answer.strip():
        faults.append("the conversation does not end with an answer")
    elif _TROUBLE.search(answer):
        faults.append("the answer says that the work was not finished")
    calls = sum([len(item.get("calls") or item.get("tool_calls") or ()) for item in conversation])
    results = sum([item.get("role") == "tool" for item in conversation])
    if calls != results:
        faults.append(f"{calls} tool calls have {results} results")
    score = max(0.0, 1.0 - 0.5 * len(faults))
    return {"score": score, "reason": "; ".join(faults) or "every call has a result, and the answer is given"}
