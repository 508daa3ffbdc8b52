"""Statements in an answer that a tool which exists cannot be used, or that the answer gives up; and the concepts by
which work, refusals and tools are compared.

A refusal names an inability of the assistant ("I can't", "jeg har ikke mulighet til") and, right after it, an
action of the tool and the thing that it works on. What cannot be done yet, what a server cannot do, and what was
tried and failed are not refusals. A tool is known by its name and the first sentence of its description, so any
tool can be compared. Words that are in no list are compared by their stems.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache

from msgspec import Struct

from treadle.core.types import ToolSpec
from treadle.routing.judging.classifier import Scores, classifier
from treadle.routing.judging.clauses import Reading, find_stems, read, to_lower
from treadle.routing.judging.features import find_features, find_rows
from treadle.routing.judging.lists import ADDRESS, FILE, compile_pattern, languages, pattern, patterns

_SIGNS = {FILE: "file", ADDRESS: "page"}
_LOOKING = frozenset({"read", "fetch", "search", "query"})
_SENTENCE = re.compile(r"[.!?\n]")
_SHORT = 400
"""The number of characters up to which an answer is judged as a whole; a longer sentence is not judged."""
_MAX_PASSAGES = 6
"""How many sentences of the beginning, and how many of the end, of a long answer are judged."""
_REACH = 160
"""How many characters before and after an inability are read."""
_BEGINNING = 400
"""How many characters count as the beginning of an answer."""
_FIRST_WORDS = 4
"""Within how many words after an inability its action must stand."""


class Refusal(Struct, frozen=True, omit_defaults=True):
    """A statement in an answer that a tool which exists cannot be used."""

    tool: str
    """The name of the tool."""
    span: tuple[int, int]
    """The part of the answer: the position of its first character, and the position after its last."""


class ToolProfile:
    """The things and actions that a tool is about."""

    def __init__(self, name: str, description: str) -> None:
        text = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)[:200].replace("_", " ").replace("-", " ").lower()
        first = re.split(r"(?<=[.!?])\s|\n\s*\n", description[:600].strip(), maxsplit=1)[0].lower()
        self.things = find_things(text) | find_things(first)
        """The concepts of what the tool works on."""
        self.deeds = find_deeds(text) | find_deeds(first)
        self.stems = _find_stems(f"{text} {first}")
        self.words = _find_stems(text)
        """The stems of the tool's name."""


def profile_tools(tools: Iterable[ToolSpec]) -> dict[str, ToolProfile]:
    """Return what each of the tools is about, by name."""
    return {tool.name: _profile(tool.name, tool.description[:600]) for tool in tools}


_profile = lru_cache(maxsize=512)(ToolProfile)


def find_suited(kind: str, tools: Iterable[ToolSpec]) -> tuple[str, ...]:
    """Return the names of the tools that suit a kind of work, or a name of the section `tools` of the patterns:
    they are about one of its things and do one of its actions."""
    suits = patterns()["tools"][kind]
    profiles = profile_tools(tools).items()
    return tuple(
        [
            name
            for name, tool in profiles
            if not tool.things.isdisjoint(suits["things"]) and not tool.deeds.isdisjoint(suits["deeds"])
        ]
    )


@cache
def _concepts(section: str) -> dict[str, re.Pattern[str]]:
    names = dict.fromkeys([name for lists in languages().values() for name in lists.get(section, ())])
    return {name: compile_pattern(section, rf"(?<![\w-]){{{name}}}(?![\w-])") for name in names}


def find_things(text: str) -> frozenset[str]:
    """Return the concepts of the things that a text in lower case names."""
    found = [name for name, pattern in _concepts("things").items() if pattern.search(text)]
    return frozenset([*found, *[name for sign, name in _SIGNS.items() if sign in text]])


def find_deeds(text: str) -> frozenset[str]:
    """Return the concepts of the actions that a text in lower case names."""
    return frozenset([name for name, pattern in _concepts("deeds").items() if pattern.search(text)])


def _find_stems(text: str) -> frozenset[str]:
    return find_stems(text, "stems", "small", 4)


def gives_up(text: str) -> bool:
    """Return whether an answer begins with the words that the assistant cannot or does not know."""
    return pattern("refusal", "gives_up").match(_lower(text[:_BEGINNING])) is not None


def find_decline(text: str) -> tuple[str, str] | None:
    """Return `refuses` or `gives up` and the words that say so, in English; `None` if an answer does neither."""
    lowered = _lower(text)
    for what, name in (("refuses", "declines"), ("gives up", "gave_up")):
        if found := pattern("refusal", name).search(lowered):
            return what, text[found.start() : found.end()]
    return None


def is_refusal(text: str) -> bool:
    """Return whether an answer says, near its beginning, that the agent cannot or will not do what was asked."""
    return pattern("refusal", "refuses_task").search(_lower(text[:_BEGINNING])) is not None


def _lower(text: str) -> str:
    return to_lower(text).replace("’", "'")


def find_refusal(text: str, *, tools: Iterable[ToolSpec]) -> Refusal | None:
    """Return the first statement in an answer that one of the `tools` cannot be used; `None` if there is no such
    statement, or if that is not sure. Quotes and code in the text do not count."""
    given = tuple(tools)
    profiles = profile_tools(given)
    if not profiles:
        return None
    reading = read(text)
    for start, end in _find_passages(reading.prose):
        scores, known = _score(reading.text[start:end], profiles)
        if not scores.is_found("refusal"):
            continue
        if known is not None:
            return Refusal(known.tool, reading.span(start + known.span[0], start + known.span[1]))
        suited = {name: found for name in scores.names("tool") if (found := find_suited(name, given))}
        if suited:
            return Refusal(suited[scores.best("tool", suited)][0], reading.span(start, end))
    return None


def _find_passages(prose: str) -> list[tuple[int, int]]:
    """Return the parts of an answer that may refuse: a short answer, or the sentences with words such as "not"."""
    if len(prose) <= _SHORT:
        return [(0, len(prose))]
    negative = pattern("refusal", "negative")
    found, start = [], 0
    for end in [*[match.end() for match in _SENTENCE.finditer(prose)], len(prose)]:
        if end - start < _SHORT and negative.search(prose, start, end):
            found.append((start, end))
        start = end
    return [*found[:_MAX_PASSAGES], *found[_MAX_PASSAGES:][-_MAX_PASSAGES:]]


def _score(passage: str, profiles: dict[str, ToolProfile]) -> tuple[Scores, Refusal | None]:
    """Return the scores of a passage, and the refusal in it by the known wordings."""
    reading = read(passage)
    known = find_known(reading, profiles)
    return classifier("answers").score(find_features(reading), rows_of_known(known)), known


def rows_of_known(known: Refusal | None) -> list[int]:
    """Return the rows of the features that say whether an answer refuses by a known wording."""
    return find_rows(["no refusal" if known is None else "refusal"])


def find_known(reading: Reading, profiles: dict[str, ToolProfile]) -> Refusal | None:
    """Return the first refusal in an answer by a known wording; `None` if there is none."""
    for start, action, end, has_access in _find_inabilities(reading.prose):
        tool = _find_tool(action, profiles, has_access=has_access)
        if tool is not None:
            return Refusal(tool, (start, end))
    return None


def _find_inabilities(prose: str) -> Iterator[tuple[int, str, int, bool]]:
    """Yield for each inability where it begins, the action, where it ends, and whether it is a lack of access."""
    for found in pattern("refusal", "unable").finditer(prose):
        end = _find_end(prose, found.end())
        if not pattern("refusal", "condition").search(_before(prose, found.start())) and not pattern(
            "refusal", "waiting"
        ).search(prose[found.end() : end + 40].partition("\n")[0]):
            has_access = bool(pattern("refusal", "access").search(found[0]))
            yield found.start(), prose[found.start() if has_access else found.end() : end], end, has_access
    for found in pattern("refusal", "afterwards").finditer(prose):
        action = _before(prose, found.start())
        yield found.start() - len(action), action, found.end(), False
    for found in pattern("refusal", "wish").finditer(prose):
        end = _find_end(prose, found.end())
        yield found.start(), prose[found.end() : end], end, False


def _find_end(prose: str, start: int) -> int:
    """Return where the clause ends that `start` is in."""
    found = pattern("refusal", "end").search(prose, start, min(len(prose), start + _REACH))
    return found.start() if found else min(len(prose), start + _REACH)


def _before(prose: str, end: int) -> str:
    """Return the beginning of the sentence up to `end`."""
    return _SENTENCE.split(prose[max(0, end - _REACH) : end])[-1]


def _find_tool(action: str, profiles: dict[str, ToolProfile], *, has_access: bool) -> str | None:
    """Return the tool that an action is about; `None` if there is no such tool."""
    if pattern("refusal", "not_seen").match(action):
        return None
    first = " ".join(action.split()[:_FIRST_WORDS])
    things, deeds = find_things(action), find_deeds(first)
    stems, early = _find_stems(action), _find_stems(first)
    is_general = has_access or "access" in deeds
    best, best_score = None, 0.0
    for name, tool in profiles.items():
        shared, done = things & tool.things, deeds & tool.deeds
        named = len(stems & tool.stems)
        if shared and (done or (is_general and shared != {"image"})):
            score = 2.0 * len(shared) - 0.5 * ("web" in shared) + 1.5 * bool(done) + 0.5 * named
            score += 0.3 * bool(tool.deeds & _LOOKING)
        elif named >= 2 and early & tool.stems and stems & tool.words:
            score = 0.9 * named
        else:
            continue
        if score > best_score:
            best, best_score = name, score
    return best
