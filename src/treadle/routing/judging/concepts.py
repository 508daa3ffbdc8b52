"""The concepts that words of English and Norwegian stand for, by which work, refusals and tools are
compared.

A tool is known by its name and the first sentence of its description, so any tool can be compared. Words that are
in no list are compared by their stems.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from treadle.core.types import ToolSpec
from treadle.routing.judging.reading import ADDRESS, FILE

_THINGS = {
    "page": (r"websites? site pages? webpages? urls? links? address(?:es)? lenke\w* nettside\w*"),
    "web": (
        r"web internet online nett(?:et)? net browser google "
        r"(?:real-?time|live|current|up-to-date|newer|recent|latest|oppdatert\w*|fersk\w*|nyere) "
        r"internett\w* look\w*\s(?:\w+\s){0,2}?up slå\s(?:\w+\s){0,3}?opp"
    ),
    "image": (
        r"images? pictures? photos? drawings? illustrations? logos? paintings? icons? bilde\w* tegning\w* "
        r"foto\w* illustrasjon\w* sketch(?:es)?"
    ),
    "file": (
        r"files? folders? director(?:y|ies) disk filesystem fil(?:er|en|ene|a)? mapper? mappen mappene "
        r"disken"
    ),
    "mail": (r"e-?mails? mails? inbox e-?post\w* innboks\w* mailen?"),
    "calendar": (
        r"calendars? events? appointments? meetings? kalender\w* hendelse\w* møte\w* avtale\w* schedules? "
        r"reminders? påminnelse\w*"
    ),
    "weather": (r"weather forecasts? vær(?:et)? værmelding\w* værvarsel\w*"),
    "code": (r"code python scripts? programs? javascript kode[nr]? skript\w* program(?:mer|met)?"),
    "database": (r"databases? sql quer(?:y|ies) database\w* spørring\w*"),
    "shell": (r"commands? shell terminal bash kommando\w* terminalen"),
    "money": (r"money payments? invoices? bills? penger faktura\w* regning\w* betaling\w*"),
    "phone": (r"phone phones telephone sms texts telefon\w*"),
    "music": (r"music songs? tracks? musikk\w* sang\w*"),
    "map": (r"maps? directions? routes? kart\w* rute\w*"),
}
_DEEDS = {
    "access": (
        r"access get connect connection use reach check look interact see view tilgang bruke nå sjekke koble "
        r"se får"
    ),
    "search": (
        r"search(?:ing)? browse browsing google look(?:up|ing)? surf(?:ing)? lookup søk\w* slå google"
    ),
    "fetch": (
        r"fetch(?:ing)? open(?:ing)? visit(?:ing)? download(?:ing)? retrieve follow click hent\w* åpne\w* "
        r"besøk\w* laste"
    ),
    "read": (r"read(?:ing)? open(?:ing)? view(?:ing)? inspect les\w* åpne\w*"),
    "write": (
        r"writ(?:e|ing) sav(?:e|ing) stor(?:e|ing) creat(?:e|ing) edit(?:ing)? modify lagre skriv\w* "
        r"opprett\w* redigere"
    ),
    "make": (
        r"generat(?:e|ing) creat(?:e|ing) draw(?:ing)? mak(?:e|ing) produc(?:e|ing) paint(?:ing)? "
        r"render(?:ing)? illustrate lage generere tegne produsere male"
    ),
    "run": (r"run(?:ning)? execut(?:e|ing) evaluate kjør\w* utføre"),
    "send": (r"send(?:ing)? e-?mail(?:ing)? mail(?:ing)? deliver forward write sende? maile skrive"),
    "delete": (r"delet(?:e|ing) remov(?:e|ing) eras(?:e|ing) slett\w* fjern\w*"),
    "list": (r"list(?:ing)? show browse liste\w* vise?"),
    "query": (r"query(?:ing)? look run ask search spørre spurt kjøre søke"),
    "plan": (
        r"add(?:ing)? put schedul(?:e|ing) book(?:ing)? creat(?:e|ing) set move legge? opprette booke "
        r"avtale planlegge"
    ),
    "pay": (r"pay(?:ing)? transfer(?:ring)? wire betale overføre"),
    "call": (r"call(?:ing)? dial ring ringe"),
    "play": (r"play(?:ing)? spille?"),
}


def _table(groups: dict[str, str]) -> dict[str, re.Pattern[str]]:
    return {
        name: re.compile(rf"(?<![\w-])(?:{'|'.join(text.split())})(?![\w-])") for name, text in groups.items()
    }


THINGS = _table(_THINGS)
DEEDS = _table(_DEEDS)
_SIGNS = {FILE: "file", ADDRESS: "page"}
_SMALL = re.compile(
    r"^(?:the|and|for|from|with|that|this|its|his|her|your|you|user|users|give[ns]?|returns?|get|gets"
    r"|tool|result"
    r"|results|text|some|any|all|one|two|into|not|out|til|med|som|for|fra|den|det|dette|ikke|jeg|kan|har"
    r"|noe|alle"
    r"|about|name|value|values|new|best|current|are|can|has|have|what|when|which|will|also|only|but|more)$"
)
_ENDING = re.compile(r"(?:ations?|ings?|ene|ers?|ed|es|en|et|e|s|y|r)$")


def find_things(text: str) -> frozenset[str]:
    """Return the concepts of the things that a text in lower case names."""
    found = {name for name, pattern in THINGS.items() if pattern.search(text)}
    return frozenset(found | {name for sign, name in _SIGNS.items() if sign in text})


def find_deeds(text: str) -> frozenset[str]:
    """Return the concepts of the actions that a text in lower case names."""
    return frozenset(name for name, pattern in DEEDS.items() if pattern.search(text))


def find_stems(text: str) -> frozenset[str]:
    """Return the stems of the words of a text in lower case, without very common words."""
    words = [word for word in re.findall(r"[^\W\d_]{3,40}+", text) if not _SMALL.match(word)]
    return frozenset(_ENDING.sub("", word) if len(word) > 3 else word for word in words)


class Profile:
    """What a tool is about."""

    def __init__(self, name: str, description: str) -> None:
        text = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)[:200].replace("_", " ").replace("-", " ").lower()
        first = re.split(r"(?<=[.!?])\s|\n\s*\n", description[:600].strip(), maxsplit=1)[0].lower()
        self.things = find_things(text) | find_things(first)
        """The concepts of what the tool works on."""
        self.deeds = find_deeds(text) | find_deeds(first)
        self.stems = find_stems(f"{text} {first}")
        self.words = find_stems(text)
        """The stems of the tool's name."""


@lru_cache(maxsize=512)
def _profile(name: str, description: str) -> Profile:
    return Profile(name, description)


def profile_tools(tools: Iterable[ToolSpec]) -> dict[str, Profile]:
    """Return what each of the tools is about, by name."""
    return {tool.name: _profile(tool.name, tool.description[:600]) for tool in tools}
