"""The people of a generation: the persona in whose words a request is put, the simulated user, and the judge."""

import re
from collections.abc import Sequence
from functools import cache

from msgspec import Struct

from treadle.core.types import Json, Message, Role
from treadle.tasks.draws import Draw, Wording
from treadle.testbed.request_facts import Facts, number_of, object_of, objects_of, text_of
from treadle.testbed.roles.words import load, wordings, words

FOLLOW_UP = "Afterwards: "
"""How a line of the goal begins that has a further request."""
_COUNT = re.compile(r"\b\d+ (?:lines?|rows?|files?|columns?|times|euros|hours)\b")
_FILE_NAME = re.compile(r"(?<![\w/])[\w/-]+\.[a-z]{2,4}\b(?!/)")
_AN = re.compile(r"[aeio]|u(?!n[ei]|s[aeiu]|ti)", re.IGNORECASE)
"""How a word begins that has the article `an`."""
_ARTICLE = re.compile(r"an? ", re.IGNORECASE)
"""What a configured role may begin with."""
ANSWER = "Answer: "
"""How the last line of the answer to a task begins."""
_MAX_QUOTED_WORDS = 7
_SAYS = re.compile(r"([\w.-]+) (?:says|failed): ")
"""How an answer begins that reports the result of a tool."""
_TROUBLE = re.compile(r"I could not (finish|make sense)|I had to stop", re.IGNORECASE)


class WritingManner(Struct, frozen=True):
    """How a persona writes."""

    tone: str
    habit: str
    """A name of `[habits]` in the data; empty if the style has none of them."""
    role: str

    def words(self, section: str, name: str) -> tuple[str, ...]:
        """Return the texts of a list, with the role filled in."""
        return tuple(map(self.fill, words(section, name)))

    def fill(self, text: str) -> str:
        """Return a text with the role, and with the role behind its article."""
        begin = _ARTICLE.match(self.role)
        role = self.role[begin.end() if begin else 0 :] or "team"
        return text.format(role=role, a_role=f"{'an' if _AN.match(role) else 'a'} {role}")


def manner_of(persona: Facts) -> WritingManner:
    """Return how a persona writes."""
    style = text_of(persona, "style")
    return WritingManner(
        _first_of("styles", style) or "plain", _first_of("habits", style), text_of(persona, "role")
    )


def keeps_style(style: str) -> bool:
    """Return whether the teacher knows each part of a style, so that what it writes has it."""
    return all(_first_of("styles", part) or _first_of("habits", part) for part in style.split(","))


def _first_of(section: str, style: str) -> str:
    """Return the name whose words come first in the description of a style; empty if none do."""
    text = style.lower()
    found = [
        (place.start(), name)
        for name in load("words")[section]
        for word in words(section, name)
        # "Informal" is not formal.
        if (place := re.search(rf"\b{re.escape(word)}", text)) is not None
    ]
    return min(found, default=(0, ""))[1]


def frame(request: str, topic: str, manner: WritingManner, draw: Draw, *, bridge: bool = False) -> str:
    """Return a message with a request as one of its paragraphs, as a persona writes it.

    With `bridge`, it also says that the files are about the topic.
    """
    context = _context(lower_first(topic), manner, draw)
    if bridge and draw.chance(0.8):
        context.append(upper_first(draw.pick(words("framing", "bridges"))))
    is_after = manner.habit == "first" or (manner.habit not in ("last", "") and draw.chance(0.25))
    greetings = (
        []
        if draw.chance(0.65 if manner.tone == "brief" else 0.3)
        else [draw.pick(manner.words("greetings", manner.tone))]
    )
    is_shown = _shows_in_closing(manner, request)
    may_lack = draw.chance(0.65 if manner.tone == "brief" else 0.25)
    closings = [] if may_lack and not is_shown else [_close(manner, draw, is_shown=is_shown)]
    if manner.habit == "last":
        context, closings = [*context, *[text.rstrip(".") for text in closings]], []
    said = [f"{text}." for text in _shape(context, manner)]
    before = [*greetings, *([] if is_after else said)]
    after = [*(said if is_after else []), *closings]
    parts = [" ".join(filter(None, before)), request, " ".join(after)]
    return _dress([part for part in parts if part], request, manner, draw)


def _shows_in_closing(manner: WritingManner, request: str) -> bool:
    """Return whether the last sentence has to show a habit: always, or because the request is in the other form."""
    is_question = "?" in request
    return manner.habit in ("deadline", "colleague", "trade", "instruction" if is_question else "question")


def _close(manner: WritingManner, draw: Draw, *, is_shown: bool) -> str:
    if is_shown:
        return draw.pick(manner.words("closings", manner.habit))
    return draw.pick(words("framing", "closings"))


def _context(about: str, manner: WritingManner, draw: Draw) -> list[str]:
    """Return one or two sentences, without their full stops, about why somebody asks."""
    fields = ("who", "occasion", "action", "purpose", "state")
    named = {name: draw.pick(words("framing", name)) for name in fields}
    named |= {"about": about, "it_is": "it is" if named["purpose"].startswith("for ") else "I am asking"}
    sentences = load("words")["framing"]
    cause = draw.pick(sentences["causes"]).format_map(named)
    intent = draw.pick(sentences["intents"]).format_map(named)
    if manner.tone == "brief" or manner.habit == "simple":
        return [upper_first(cause if draw.chance(0.5) else sentences["brief"].format_map(named))]
    first = [upper_first(cause), upper_first(intent)]
    if manner.role and draw.chance(0.4):
        first.insert(0, f"I work as {manner.fill('{a_role}')}")
    return first


def _shape(context: list[str], manner: WritingManner) -> list[str]:
    """Return the sentences in the length that a persona likes."""
    if manner.habit == "short":
        return [part for text in context for part in map(upper_first, text.split(", "))]
    if manner.habit == "long":
        return [", and ".join([context[0], *map(_lower_word, context[1:])])]
    return context


def _lower_word(text: str) -> str:
    return text if text.startswith("I ") else lower_first(text)


def _dress(parts: list[str], request: str, manner: WritingManner, draw: Draw) -> str:
    """Return the paragraphs of a message with the habits that change their letters."""
    if manner.habit == "lower":
        # The words of the request stay as they are: names in it may be case-sensitive.
        parts = [lower_first(part) if part == request else part.lower() for part in parts]
    elif manner.habit == "points":
        parts = [f"- {part}" for part in parts]
    elif manner.habit == "typing":
        parts = [part if part == request else _mistype(part, draw) for part in parts]
    return "\n\n".join(parts)


def _mistype(text: str, draw: Draw) -> str:
    """Return a text with two letters of one word exchanged."""
    parts = text.split(" ")
    long = [index for index, part in enumerate(parts) if part.isalpha() and len(part) > 5]
    if not long:
        return text
    index = draw.pick(long)
    word, at = parts[index], draw.between(1, len(parts[index]) - 3)
    parts[index] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return " ".join(parts)


def lower_first(text: str) -> str:
    """Return a text with a small first letter, unless its first word is an abbreviation."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def tell(fact: str, manner: WritingManner, *key: Json) -> str:
    """Return the user's answer to a question, with the fact that was asked for."""
    draw = Draw(str(key))
    # The words of the fact stay as they are: names in it may be case-sensitive.
    told = _dress([draw.pick(load("words")["framing"]["tells"])], "", manner, draw)
    return told.format(fact=lower_first(fact) if manner.habit == "lower" else fact)


def ask_more(request: str, answer: str, manner: WritingManner, *key: Json) -> str:
    """Return a user's further request, which takes up the last answer, as a persona writes it."""
    draw = Draw(str(key))
    sort, said = _subject_of(unwrap(answer))
    echo = draw.pick(words("framing.echoes", sort)).format(said=said) if said else ""
    echo = echo if echo.startswith(said) else upper_first(echo)
    tone = manner.tone if manner.tone in load("words")["framing"]["asks"] else "plain"
    ask = draw.pick(words("framing.asks", tone))
    if manner.habit == "first":
        return _dress([request, echo], request, manner, draw)
    if manner.habit == "long" and echo:
        ask = f"{echo.rstrip('.')}, and {_lower_word(ask)}"
    elif manner.tone != "brief":
        ask = f"{echo} {ask}".strip()
    else:
        ask = echo or ask
    is_shown = _shows_in_closing(manner, request)
    closing = [_close(manner, draw, is_shown=True)] if is_shown else []
    return _dress([ask, request, *closing], request, manner, draw)


@cache
def _wrappings() -> tuple[Wording, ...]:
    texts = [text for text in load("words")["agent"]["answers"] if text != "{answer}"]
    return wordings([*texts, *load("words")["calls"]["restate"].values()])


def unwrap(answer: str) -> str:
    """Return an answer of the teacher without the words that it put around it."""
    for wording in _wrappings():
        if wording.text not in ("{line}", "- {line}") and (values := wording.match(answer)) is not None:
            return next(iter(values.values()))
    return answer


def _subject_of(answer: str) -> tuple[str, str]:
    """Return what an answer is about, for a user who takes it up: a path or a tool, a count, or its first words."""
    if found := _SAYS.match(answer):
        return "path", found[1]
    if found := _COUNT.search(answer):
        return "count", found[0]
    if found := _FILE_NAME.search(answer):
        return "path", found[0]
    line = answer.strip().partition("\n")[0].removeprefix(ANSWER)
    said = re.split(r"[.:;]\s", line)[0].split()
    text = " ".join(said[:_MAX_QUOTED_WORDS]).strip("\"'.,:;")
    return "words", f"{text} …" if len(said) > _MAX_QUOTED_WORDS else text


def write_user_turn(facts: Facts, messages: Sequence[Message]) -> Json:
    """Return the user's next message in the session `messages`, and whether it is the last one."""
    said = [message.content for message in messages if message.role is Role.ASSISTANT]
    heard = [message.content for message in messages if message.role is Role.USER]
    answer = heard[-1] if heard else ""
    key = (text_of(facts, "goal"), len(said), answer)
    manner, withheld = manner_of(object_of(facts, "persona")), text_of(facts, "withheld")
    if withheld and "?" in answer and not any([_has(text, withheld) for text in said]):
        return {"message": tell(withheld, manner, *key), "is_done": False}
    requests = [
        line.removeprefix(FOLLOW_UP)
        for line in text_of(facts, "goal").splitlines()
        if line.startswith(FOLLOW_UP)
    ]
    left = [request for request in requests if not any([_has(text, request) for text in said])]
    if left and number_of(facts, "turns_left", 0) > len(said):
        return {"message": ask_more(left[0], answer, manner, *key), "is_done": False}
    return {"message": "", "is_done": True}


def _has(said: str, text: str) -> bool:
    """Return whether a message of the user, as text or as JSON and in any case, contains `text`."""
    said, text = said.casefold(), text.casefold()
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
