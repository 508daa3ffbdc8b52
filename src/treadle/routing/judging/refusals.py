"""Statements in an answer that a tool which exists cannot be used.

A refusal names an inability of the assistant ("I can't", "jeg har ikke mulighet til") and, right after it, an
action of the tool and the thing that it works on. What cannot be done yet, what a server cannot do, and what was
tried and failed are not refusals.
"""

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from treadle.core.types import ToolSpec
from treadle.routing.judging.concepts import Profile, find_deeds, find_stems, find_things, profile_tools
from treadle.routing.judging.reading import read


class Refusal(Struct, frozen=True, omit_defaults=True):
    """A statement in an answer that a tool which exists cannot be used."""

    tool: str
    """The name of the tool."""
    span: tuple[int, int]
    """The part of the answer."""


_HOW = (
    r"(?:(?:simply|really|also|currently|just|actually|unfortunately|sadly|directly|still|personally"
    r"|dessverre|heller|nå|bare|egentlig|faktisk) )*+"
)
_UNABLE = re.compile(
    rf"(?<![\w'])(?:i {_HOW}(?:can't|cannot|can not|am {_HOW}unable to|am {_HOW}not able to"
    rf"|am {_HOW}incapable of|am {_HOW}not capable of|won't be able to"
    rf"|will not be able to|lack(?: the ability to| access to| the tools? to| any way to)?|(?:don't"
    rf"|do not|have never had)(?: {_HOW})?have (?:the |any |an? |direct |real |live )*+"
    rf"(?:ability to|capability to|abilities to|way to|means to|tools? to|tools? for|permission to"
    rf"|capacity to|access to|access|connection to|internet|real-time)"
    rf"|have no (?:direct |real )?(?:way to|way of|ability to|means to|means of|tools? to|tools? for"
    rf"|access to|capability to|connection to))"
    rf"|i'm {_HOW}(?:unable to|not able to|incapable of|not capable of)|(?:there is"
    rf"|there's) no way for me to|it(?:'s| is) (?:not possible|impossible) for me to"
    rf"|(?:jeg|eg) {_HOW}(?:kan|får|klarer|evner|greier) {_HOW}(?:ikke|ikkje)|(?:jeg"
    rf"|eg) har {_HOW}(?:ikke|ikkje|ingen) {_HOW}(?:noen |direkte )?(?:tilgang til"
    rf"|mulighet til å|muligheten til å|mulighet for å|evne til å|måte å|verktøy til å|verktøy for å"
    rf"|tilgang)|(?:jeg|eg) er {_HOW}(?:ikke|ikkje) i stand til å"
    rf"|(?:jeg|eg) mangler (?:mulighet til å|tilgang til|verktøy for å)|(?:kan|har) (?:jeg"
    rf"|eg) {_HOW}(?:ikke|ikkje)(?: tilgang til| mulighet til å)?)(?![\w'])"
)
_AFTERWARDS = re.compile(
    r"(?:is|are) (?:not|n't|sadly not) (?:something|a thing|anything) (?:that )?i(?:'m| am)? (?:can"
    r"|able to|capable of)|(?:isn't|aren't|is not) (?:something|anything) (?:that )?i(?:'m| am| can)"
    r"|is (?:beyond|outside|not within) (?:my|the) (?:capabilit\w+|abilit\w+|reach|scope)|(?:that|this"
    r"|which) is(?: not|n't) possible for me"
    r"|er (?:dessverre )?(?:noe|ikke noe) jeg (?:dessverre )?(?:ikke )?kan|(?:ligger|er) utenfor (?:mine"
    r"|det jeg)"
)
_WISH = re.compile(r"(?<!\w)i wish i could |skulle ønske jeg kunne ")
_WAITING = re.compile(
    r"\b(?:yet|until|unless|without|before|as long as|if you|ennå|enda|før|uten|med mindre|hvis du)\b"
)
_CONDITION = re.compile(r"\b(?:if|when|whenever|hvis|når|dersom|without|uten)\b")
_ACCESS = re.compile(r"access|tilgang|connection|internet|real-time|lack$")
_LOOKING = frozenset({"read", "fetch", "search", "query"})
_NOT_SEEN = re.compile(r" ?(?:see|find|spot|se|finne) (?:an?|any|no|much|en|et|ei|noe|noen|ingen)\b")
"""Something that was looked for, and is not there."""
_END = re.compile(r"[.!?;:\n]|,? (?:but|because|since|so|for instance|men|fordi|siden|så)\b|$")
_SENTENCE = re.compile(r"[.!?\n]")
_REACH = 160
"""How many characters before and after an inability are read."""
_FIRST_WORDS = 4
"""Within how many words after an inability its action must stand."""


def find_refusal(text: str, *, tools: Iterable[ToolSpec]) -> Refusal | None:
    """Return the first statement in an answer that one of the `tools` cannot be used; `None` if there is none.

    Quotes and code in the text do not count.
    """
    profiles = profile_tools(tools)
    if not profiles:
        return None
    reading = read(text)
    for start, action, end, has_access in _find_inabilities(reading.prose):
        tool = _find_tool(action, profiles, has_access=has_access)
        if tool is not None:
            return Refusal(tool, reading.span(start, end))
    return None


def _find_inabilities(prose: str) -> Iterator[tuple[int, str, int, bool]]:
    """Yield for each inability where it begins, the action, where it ends, and whether it is a lack of access."""
    for found in _UNABLE.finditer(prose):
        end = _find_end(prose, found.end())
        if not _CONDITION.search(_before(prose, found.start())) and not _WAITING.search(
            prose[found.end() : end + 40].partition("\n")[0]
        ):
            has_access = bool(_ACCESS.search(found[0]))
            yield found.start(), prose[found.start() if has_access else found.end() : end], end, has_access
    for found in _AFTERWARDS.finditer(prose):
        action = _before(prose, found.start())
        yield found.start() - len(action), action, found.end(), False
    for found in _WISH.finditer(prose):
        end = _find_end(prose, found.end())
        yield found.start(), prose[found.end() : end], end, False


def _find_end(prose: str, start: int) -> int:
    """Return where the clause ends that `start` is in."""
    found = _END.search(prose, start, min(len(prose), start + _REACH))
    return found.start() if found else min(len(prose), start + _REACH)


def _before(prose: str, end: int) -> str:
    """Return the beginning of the sentence up to `end`."""
    return _SENTENCE.split(prose[max(0, end - _REACH) : end])[-1]


def _find_tool(action: str, profiles: dict[str, Profile], *, has_access: bool) -> str | None:
    """Return the tool that an action is about; `None` if there is none."""
    if _NOT_SEEN.match(action):
        return None
    words = action.split()
    first = " ".join(words[:_FIRST_WORDS])
    things, deeds = find_things(action), find_deeds(first)
    stems, early = find_stems(action), find_stems(first)
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
