"""Whether a message asks for work that needs tools, and for which kind.

What counts is the verb that a clause begins with, after any politeness, and the thing that the verb is about. What
the clause excludes ("without jargon") and what a document is about ("a letter about research") does not count.
"""

import re
from collections.abc import Iterable

from treadle.core.judgement import TaskFound, TaskKind
from treadle.core.types import ToolSpec
from treadle.routing.judging.clauses import Clause, find_clauses
from treadle.routing.judging.concepts import profile_tools
from treadle.routing.judging.reading import ADDRESS, CODE, FILE, read

_DOCUMENT = (
    r"(?:letters?|reports?|memos?|e-?mails?|mail|complaints?|briefs?|summar(?:y|ies)|minutes|documents?"
    r"|guides?|proposals?|articles?|posts?"
    r"|blog|speech(?:es)?|toast|invitations?|contract|cv|resume|press release|newsletter|agenda|essay"
    r"|paper|notes?"
    r"|overview|write-up|handbook|manual"
    r"|brev\w*|rapport\w*|notat\w*|e-?post\w*|klage\w*|sammendrag\w*|referat\w*|dokument\w*|veileder\w*"
    r"|forslag\w*|artikkel\w*|innlegg\w*"
    r"|tale[nr]?|kontrakt\w*|søknad\w*|nyhetsbrev\w*|invitasjon\w*|innkalling\w*)\b"
)
_PICTURE = (
    r"(?:images?|pictures?|photos?|logos?|illustrations?|drawings?|sketch|icons?|poster|banner|painting"
    r"|bilde\w*|logo\w*|illustrasjon\w*"
    r"|tegning\w*|ikon\w*|plakat\w*)\b"
)
_FEW = r"(?:[^\s.]+ ){0,4}?"
_MEETING = (
    r"(?:meetings?|calls?|appointments?|bookings?|reservations?|interviews?|sync|workshop|lunch|dinner|demo"
    r"|møte\w*|time[rn]?|avtale\w*|intervju\w*|samtale\w*|lunsj\w*|middag\w*)\b"
)

_RULES: tuple[tuple[TaskKind, str], ...] = (
    (
        TaskKind.IMAGE,
        rf"(?:draw|paint|sketch|illustrate|tegn|mal|illustrer)(?: me| oss| meg)? (?:an?|the|some|my|our"
        rf"|two|three|en|et|ei)\b"
        rf"|(?:generate|create|make|design|produce|render|lag|generer|design)(?: me| oss"
        rf"| meg)? {_FEW}{_PICTURE}"
        rf"|(?:a|an|en|et|ei) {_FEW}{_PICTURE}",
    ),
    (
        TaskKind.RESEARCH,
        r"(?:research|investigate|undersøk|utred)\b|(?:do|make|gjør|run|conduct)(?: me)? (?:a |an |some "
        r"|en |litt |grundig |thorough |quick )*+"
        r"(?:research|deep dive|investigation|literature (?:review|search)|undersøkelse|litteratursøk)"
        r"|(?:look|dig|dykk|grav|grave) (?:deep(?:ly|er)? |a bit |litt |ned )?(?:into|i|ned i)\b"
        r"|(?:compile|make|build|lag|sett opp) (?:a |en )?(?:list|overview|liste"
        r"|oversikt)\b.{0,120}\b(?:links|sources|references|lenker|kilder)\b"
        r"|deep dive|(?:gather|find|collect|finn|samle)(?: me| meg)? (?:\w+ ){0,2}?(?:sources|studies"
        r"|papers|evidence|literature|kilder|studier|forskning)\b"
        r"|find out (?:everything|all|as much|more)|(?:a|en) (?:literature|litteratur)\w*|finn ut (?:alt"
        r"|mer|mest)",
    ),
    (
        TaskKind.SCHEDULE,
        r"(?:schedule|book|reserve|reschedule|bestill|reserver|booke)\b(?! (?:review|report|club"
        r"|summary))|(?:set|sett) (?:up|opp) (?:an? |the |et |en |my |our )?(?:\w+ )?"
        r"(?:meeting|call|appointment|møte|samtale|avtale|sync|interview)|(?:remind me"
        r"|minn meg på)\b(?! (?:what|who|how|why|hva|hvem|hvordan))"
        r"|(?:set|sett|create|add|make|lag) (?:an? |en )?(?:\w+ )?(?:reminder|alarm|appointment|calendar"
        r"|event|påminnelse)"
        r"|(?:put|add|enter|legg|skriv)\b.{1,80}(?:calendar|kalender)|(?:move|cancel|shift|flytt"
        r"|avlys) (?:my|the|our|all|mitt|møtet|mine|timen)\b.{0,40}?"
        r"(?:meeting|appointment|call|booking|reservation|møte\w*|time\w*|avtale\w*)|(?:check|look at"
        r"|sjekk) (?:my|the) calendar|flytt møtet|avlys møtet"
        r"|avbestill|cancel (?:my|the) (?:appointment|meeting|booking|reservation|flight)"
        rf"|(?:move|cancel|postpone|arrange|plan|organi[sz]e|reschedule|shift|confirm|flytt|utsett|avlys"
        rf"|avtal|planlegg|bekreft) {_FEW}{_MEETING}"
        r"|(?:block|reserve|free up|keep|sett av|hold av|blokker) (?:[^ ]+ ){1,4}?(?:hours?|minutes"
        r"|morning|afternoon|day|timer?|minutter|formiddag\w*|ettermiddag\w*|dag\w*)\b",
    ),
    (
        TaskKind.SEND,
        r"(?:send|forward|videresend)\b(?= \w)(?! (?:means|is))|(?:e-?mail|mail|message|text|dm)\b (?!is"
        r"|was|are)\w|(?:reply|respond|svar)(?: to)? (?:to|på|\w+'s)"
        r"|(?:write|skriv) (?:to|til) \w|(?:drop|give|let|shoot|gi|sende?|ping|tell|inform|notify|ask|si"
        r"|be|varsle|spør)\b.{1,80}\b(?:e-?mail|a mail|sms|text message|e-post|epost|mail)\b|(?:post"
        r"|publish|publiser)\b.{0,60}\b(?:on|to|på) (?:slack"
        r"|twitter|x|linkedin|facebook|the channel|kanalen)",
    ),
    (
        TaskKind.FETCH,
        rf"(?:fetch|open|get|download|read|visit|summari[sz]e|list|scrape|check|load|translate|hent|åpne"
        rf"|les|oppsummer|last ned|besøk|sjekk)\b.{{0,120}}?{ADDRESS}"
        r"|(?:fetch|open|read|visit|summari[sz]e|hent|åpne|les|oppsummer) (?:this|the|that|den"
        r"|denne) (?:web ?)?(?:page|url|link|site|nettside\w*|lenke\w*)\b"
        rf"|{ADDRESS}++\s*+$",
    ),
    (
        TaskKind.COMPUTE,
        rf"(?:plot|chart|graph|tabulate|fit|regn ut|beregn|plott)\b.{{0,120}}?(?:{FILE}|{CODE}|data"
        rf"|column|kolonne|dataset)"
        rf"|(?:compute|calculate|analy[sz]e|analyser|aggregate|cluster|forecast|visuali[sz]e|sum up"
        rf"|average|count)\b.{{0,120}}?(?:{FILE}|data(?:set)?\b|csv|column|kolonne)"
        r"|(?:run|do|fit|kjør|lag|make|draw) (?:a |an |the |en |et )?(?:\w+ )?(?:regression|t-test"
        r"|simulation|analysis|bar chart|histogram|scatter plot|regresjon|analyse"
        r"|stolpediagram|histogram|diagram)",
    ),
    (
        TaskKind.CODE,
        rf"(?:refactor|debug|lint|refaktorer|feilsøk|kompiler)\b|compile (?:the|my|it|this)\b"
        rf"|(?:run|kjør|execute|rerun)(?: (?:the|all|my|our|alle|hele))?+ (?:\w+ )?(?:tests?|test ?suite"
        rf"|build|linter|script|migration|testene|skriptet|bygget|{FILE}|{CODE})"
        rf"|(?:add|write|legg til|skriv|lag)(?: (?:some|more|unit|a|an|en|noen|flere))*+ (?:tests?|tester"
        rf"|function|funksjon|class|klasse|method|script|skript|regex|module|endpoint|unit tests)\b"
        rf"|(?:fix|change|edit|replace|rename|remove|delete|drop|insert|append|add|move|convert|update"
        rf"|upgrade|optimi[sz]e|port|migrate|implement|clean up|format|sort|merge"
        rf"|split|extract|bump|slett|fjern|endre|rediger|bytt|erstatt|oppdater|oppgrader|fiks|konverter"
        rf"|flytt|gi nytt navn|rydd opp)\b[^?]{{0,160}}?"
        rf"(?:{FILE}|{CODE}|{'code'}|codebase|string|function|bug|build|tests?|import|imports|class"
        rf"|script|dependencies|database schema|whitespace|column|koden|strengen|funksjon\w*"
        rf"|feilen i|kolonne\w*|mellomrom)(?![\w-])|publish version|make the (?:script|program|code"
        rf"|function|build)|(?:fix|fiks|improve)\b[^?]{{0,20}}?[:({CODE}]"
        rf"|clean up the code|rydd opp i koden",
    ),
    (
        TaskKind.WRITE,
        rf"(?:write|draft|compose|prepare|produce|put together|write up|create|make|update|skriv|utarbeid"
        rf"|lag|forfatt|sett sammen|skisser)\b(?: (?:up|me|us|ned|meg|oss|ut))?+ {_FEW}{_DOCUMENT}"
        rf"|(?:write|save|store|create|make|put|export|append|dump|lagre|lag|skriv|opprett"
        rf"|eksporter)\b.{{0,160}}?{FILE}|(?:save|store|write|lagre|skriv) (?:it|this|that|these|dette"
        rf"|det|den) "
        rf"(?:to|in|as|i|til|som) (?:a|an|the|en|ei) (?:\w+ )?(?:file|fil)\b|(?:a|an|now a|en"
        rf"|et) {_FEW}(?:report|brief|memo|proposal|rapport|notat)\b",
    ),
    (
        TaskKind.READ,
        rf"(?:read|open|show|view|summari[sz]e|check|inspect|look at|list|print|explain|translate|quote"
        rf"|les|åpne|vis|oppsummer|sjekk|se på|forklar|oversett)\b.{{0,120}}?{FILE}"
        rf"|(?:read|open|les|åpne) (?:the|my|filen|den) (?:\w+ )?(?:file|notes|document|log|dokumentet)",
    ),
    (
        TaskKind.SEARCH,
        r"(?:search|google|browse|søk)\b(?! engine)|(?:look|slå) (?:up|opp)\b|look \w+ (?:\w+ )?up\b"
        r"|(?:check|find out|see|sjekk|finn ut)(?: me| for me)? (?:whether|if|when|om|når)\b(?!.{0,40}"
        rf"{FILE})|(?:find|get|finn|check|sjekk)(?: me| meg| oss| us)? (?:the |a |an |some |en |et |ei "
        rf"|de )?(?:\w+ )?"
        r"(?:latest|news|cheap\w*|best|current|today's|nearest|price\w*|flights?|hotels?|restaurants?"
        r"|opening hours|weather|siste|nytt|billig\w*|beste|nærmeste|pris\w*|hotell\w*|været)\b",
    ),
)
_COMPILED = tuple((kind, re.compile(rf"(?:{pattern})")) for kind, pattern in _RULES)
_ASKED: tuple[tuple[TaskKind, str], ...] = (
    (TaskKind.FETCH, rf"^.{{0,80}}{ADDRESS}"),
    (TaskKind.READ, rf"^(?:what(?:'s| is| does)?|hva|which|how many|hvor mange)\b.{{0,60}}{FILE}"),
    (
        TaskKind.SCHEDULE,
        r"^(?:when|what|når|hva|am i|har jeg|do i)\b.{0,60}(?:\bmy calendar|am i free|is free"
        r"|kalenderen min|er jeg ledig)|^(?:am i|er jeg) (?:free|ledig)",
    ),
    (
        TaskKind.SEARCH,
        r"^(?:what|how|hva|hvordan|will|is|er|blir)\b.{0,40}(?:\bweather|\bforecast|\bnews\b|\bvær(?:et"
        r"|meldingen)?\b|\bnyhetene?\b|exchange rate|share price|stock price)"
        r".{0,60}|^(?:what|how much|hva|hvor mye)\b.{0,60}(?:\bcost|\bkoster?|\bprice"
        r"|\bprisen)\b.{0,60}\b(?:now|today|today's|nå|i dag|vanligvis|right now|currently|tickets?"
        r"|flights?|hotell?)\b",
    ),
)
_QUESTIONS = tuple((kind, re.compile(pattern)) for kind, pattern in _ASKED)
_ABOUT = re.compile(r"\b(?:about|regarding|concerning|on the (?:topic|subject)|om|angående)\b")
_TOLD = re.compile(
    r"(?:tell|say|let me know|give me|list|count|find|quote|does|si|fortell|gi meg|tell opp|finn|gjengi)\b"
)
_ABILITY = re.compile(
    r"(?:search|browse|access|use|open|read|write|see|generate|create|draw|make|run|execute|send|søke?"
    r"|lese|åpne|lage|kjøre|sende|skrive|tegne|bruke)"
    r"(?: (?:on|in|to|and|or|på|i|og|the|my|any|a|up|for me|web|internet|online|nettet|files?|filer"
    r"|images?|pictures?|bilder|code|kode|emails?|e-poster?|e-post|links?|pages?"
    r"|websites?|python|things|stuff|write|read|anything|documents?))*+$"
)

_SUITS: dict[TaskKind, tuple[frozenset[str], frozenset[str]]] = {
    TaskKind.RESEARCH: (frozenset({"web", "page"}), frozenset({"search", "fetch"})),
    TaskKind.SEARCH: (frozenset({"web", "weather"}), frozenset({"search"})),
    TaskKind.FETCH: (frozenset({"page"}), frozenset({"fetch"})),
    TaskKind.READ: (frozenset({"file"}), frozenset({"read"})),
    TaskKind.WRITE: (frozenset({"file"}), frozenset({"write"})),
    TaskKind.IMAGE: (frozenset({"image"}), frozenset({"make"})),
    TaskKind.COMPUTE: (frozenset({"code", "shell", "database"}), frozenset({"run", "query"})),
    TaskKind.CODE: (frozenset({"code", "shell", "file"}), frozenset({"run", "write", "delete"})),
    TaskKind.SEND: (frozenset({"mail", "phone"}), frozenset({"send"})),
    TaskKind.SCHEDULE: (frozenset({"calendar"}), frozenset({"plan"})),
}
"""The things and the actions that a tool is about if it suits a kind of work. It must be about one of each."""


def judge_task(message: str, *, tools: Iterable[ToolSpec]) -> TaskFound | None:
    """Return the work in a message that is worth an agent's run with its `tools`.

    Return `None` if an answer suffices, or if no tool suits the work. "Can you research X" asks for work; "can you
    search the web?" asks for an ability.
    """
    given = tuple(tools)
    if not given:
        return None
    reading = read(message)
    for clause in find_clauses(reading):
        kind = _find_kind(clause)
        if kind is not None and (suited := find_suited(kind, given)):
            return TaskFound(kind, suited, reading.span(clause.start, clause.end))
    return None


def _find_kind(clause: Clause) -> TaskKind | None:
    if clause.is_capability and _ABILITY.match(clause.text):
        return None
    if clause.is_question:
        return next((kind for kind, pattern in _QUESTIONS if pattern.search(clause.text)), None)
    if not clause.is_request:
        return None
    about = _ABOUT.search(clause.text)
    head = clause.text[: about.start()].rstrip() if about else ""
    for text in (head, *clause.forms):
        for kind, pattern in _COMPILED:
            if pattern.match(text):
                return kind
    if ADDRESS in clause.text:
        return TaskKind.FETCH
    if FILE in clause.text:
        return TaskKind.READ if _TOLD.match(clause.text) else TaskKind.CODE
    return None


def find_suited(kind: TaskKind, tools: Iterable[ToolSpec]) -> tuple[str, ...]:
    """Return the names of the tools that suit a kind of work."""
    things, deeds = _SUITS[kind]
    profiles = profile_tools(tools).items()
    return tuple([name for name, tool in profiles if tool.things & things and tool.deeds & deeds])
