"""The writer of topics: an activity, the things that it is about, and words of the path."""

import re
from collections.abc import Sequence
from functools import cache

from treadle.core.types import Json
from treadle.tasks.draws import Draw
from treadle.testbed.request_facts import Facts, number_of, objects_of, text_of, texts_of
from treadle.testbed.roles.words import words

MAX_CONNECTIONS = 2
_WORD = re.compile(r"\w[\w'-]*")


@cache
def _made() -> re.Pattern[str]:
    """Return the pattern of a topic of this writer; `what` is what a subtopic can relate to."""
    activities, qualifiers, things = [
        "|".join(map(re.escape, words("topics", name))) for name in ("activities", "qualifiers", "things")
    ]
    return re.compile(rf"(?:{activities}) (?P<what>(?:{qualifiers}) (?:{things}))\b")


def write_topics(facts: Facts, mistake_rate: float = 0.0) -> Json:
    """Return subtopics of the topic whose path is in `facts`; in graph mode, also connections to existing
    topics.

    A mistake is a connection to a topic that does not exist, or a topic that exists already.
    """
    path = texts_of(facts, "path")
    draw = Draw(f"topics/{number_of(facts, 'seed', 0)}/{number_of(facts, 'attempt', 1)}/{'/'.join(path)}")
    existing = objects_of(facts, "existing")
    taken = {text_of(item, "topic").casefold() for item in existing}
    taken |= {text.casefold() for text in [*texts_of(facts, "siblings"), *path]}
    ids = [text_of(item, "id") for item in existing] if text_of(facts, "mode") == "graph" else None
    count = max(1, number_of(facts, "count", 1))
    made: list[dict[str, Json]] = []
    for topic in _topics(path, draw, taken, count):
        entry: dict[str, Json] = {"topic": topic}
        if ids is not None:
            entry["connections"] = draw.sample(ids, draw.below(MAX_CONNECTIONS + 1))
            if draw.chance(mistake_rate):
                entry["connections"].append("unknown-topic")
        made.append(entry)
    if draw.chance(mistake_rate) and existing:
        made[-1]["topic"] = text_of(existing[-1], "topic")
    return {"subtopics": made}


def _topics(path: Sequence[str], draw: Draw, taken: set[str], count: int) -> list[str]:
    """Return different topics that do not occur in `taken`."""
    lists = {name: words("topics", name) for name in ("qualifiers", "links", "settings")}
    activities = draw.shuffled(words("topics", "activities"))
    things = draw.shuffled(words("topics", "things"))
    anchor = anchor_of(path)
    made: list[str] = []
    for index in range(10 * count):
        what = f"{draw.pick(lists['qualifiers'])} {things[index % len(things)]}"
        topic = f"{activities[index % len(activities)]} {what}"
        if anchor and draw.chance(0.75):
            topic += f" {draw.pick(lists['links'])} {anchor}"
        else:
            topic += f" {draw.pick(lists['settings'])}"
        if topic.casefold() not in taken:
            taken.add(topic.casefold())
            made.append(topic)
        if len(made) == count:
            break
    return made


def anchor_of(path: Sequence[str]) -> str:
    """Return the words of the topic at `path` that its subtopics can contain; empty without such words."""
    if not path:
        return ""
    if known := _made().match(path[-1]):
        return known["what"]
    runs: list[list[str]] = [[]]
    for word in _WORD.findall(path[-1]):
        if word.lower() not in words("topics", "fillers"):
            runs[-1].append(word)
        else:
            runs.append([])
    # The longest run says more than a verb at the beginning, as in "Running a small hotel".
    found = max(runs, key=len)
    if len(found) > 1 and found[0].istitle():
        found[0] = found[0].lower()
    return " ".join(found[:3])


def words_of(topic: str) -> list[str]:
    """Return the words of a topic that say what it is about, in lower case unless they are abbreviations."""
    found = [word if word.isupper() else word.lower() for word in _WORD.findall(topic)]
    return [word for word in found if word.lower() not in words("topics", "fillers")]


def things_of(path: Sequence[str]) -> str:
    """Return what the topic at `path` is about, as a plural noun for problems."""
    if path and (found := _made().match(path[-1])):
        return found["what"]
    name = " ".join([word.lower() for word in words_of(path[-1])[-2:]] if path else [])
    return name if name.endswith("s") else f"{name} items".strip()
