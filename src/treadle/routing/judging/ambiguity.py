"""What a message leaves open that its author should be asked for.

Only requests are judged, never questions ("how do I delete everything?") and never what a message quotes. What a
request names, a file, a line, an address, a number, is not open.
"""

import re
from itertools import product

from treadle.core.judgement import Ambiguity, AmbiguityClass, Missing
from treadle.routing.judging.clauses import Clause, find_clauses
from treadle.routing.judging.reading import ADDRESS, CODE, FILE, QUOTE, Reading, read

_THIS = r"(?:it|this|that|these|those|them|him|her|det|den|dette|disse|dem|ham|henne)"
_PLEASE = (
    r"(?: (?:please|pls|now|for me|today|asap|thanks|takk|nå|for meg|er du snill|vær så snill"
    r"|at once|then|da|i dag|out|up|again|opp|ut|igjen))*+ *$"
)
_TIME = re.compile(
    r"\d|\b(?:today|tomorrow|tonight|tonite|next|this (?:week|month|morning|afternoon|evening|friday"
    r"|monday|tuesday|wednesday|thursday|saturday|sunday|year)|every|daily"
    r"|weekly|monthly|mon|tue|wed|thu|fri|sat|sun|mondays?|tuesdays?|wednesdays?|thursdays?|fridays?"
    r"|saturdays?|sundays?|noon|midnight|morning|afternoon|evening|asap"
    r"|immediately|now|soon|later|in an? (?:hour|minute|week|month|day)|half (?:an )?hour|january"
    r"|february|march|april|june|july|august|september|october|november|december"
    r"|easter|christmas|weekend|as soon as|first available|i dag|i morgen|i kveld|neste|denne uk\w*|hver"
    r"|daglig|ukentlig|mandag\w*|tirsdag\w*|onsdag\w*|torsdag\w*|fredag\w*"
    r"|lørdag\w*|søndag\w*|klokk\w+|kl|om en time|om en uke|snarest|januar|februar|mars|april|mai|juni"
    r"|juli|oktober|desember|helg\w*|påske\w*|jul\w*|nå|midnatt|morges"
    r"|ettermiddag|formiddag)\b"
)
_DOCUMENT = (
    r"(?:letter|report|memo|e-?mail|mail|complaint|document|proposal|article|blog post|post|speech|essay"
    r"|message|text|summary|brief|contract|brev|rapport|notat|e-?post|mail"
    r"|klage|dokument|forslag|artikkel|innlegg|tale|melding|tekst|sammendrag|søknad|kontrakt)"
)
_RESTRICTED = re.compile(
    rf"\b(?:from|in|after|before|older|newer|than|named|called|matching|where|that|which|with|between"
    rf"|line|lines|column|row|rows|function|method|class|ending|starting|beginning"
    rf"|unused|duplicate\w*|empty|blank|trailing|leading|white ?spaces?|spaces|tabs|commas|comments?"
    rf"|newlines|temporary|generated|fra|etter|før|eldre|enn|som heter|som|mellom|linje"
    rf"|linjer|kolonne|rad|rader|funksjon\w*|tomme|doble|mellomrom|kommentarer|i)\b"
    rf"|[{FILE}{CODE}{QUOTE}{ADDRESS}]|\d"
)
_HELD = re.compile(rf"[{FILE}{CODE}{QUOTE}{ADDRESS}]")

_DESTROY = (
    r"(?:delete|remove|wipe|erase|drop|purge|get rid of|clear(?: out)?|empty|destroy|trash|nuke|uninstall"
    r"|shred|format|overwrite|slett"
    r"|fjern|tøm|visk ut|kast|overskriv|formater|bli kvitt|avinstaller|makuler)"
)
_ALL = (
    r"(?:everything|all|alt|alle|alt sammen|(?:the|my|our) (?:whole|entire)|hele|each and every|every|both)\b"
)
_VALUED = (
    r"(?:database\w*|db|server\w*|disk\w*|drive|backups?|account|history|production|tables?"
    r"|repo(?:sitory)?|branch|site|website|cluster|bucket|inbox|calendar|contacts"
    r"|sikkerhetskopi\w*|konto\w*|harddisk\w*|kalender\w*|innboks\w*|tabellene)"
)
_MONEY = (
    r"(?:money|funds?|cash|payment|invoices?|bills?|rent|salary|salaries|refund|deposit|kroner"
    r"|dollars|penger|faktura\w*|regning\w*|husleie\w*|lønn\w*|beløpet|depositum\w*)"
)


class Rule:
    """One way in which a request leaves something open."""

    def __init__(
        self,
        kind: AmbiguityClass,
        missing: Missing,
        pattern: str,
        *,
        unless: re.Pattern[str] | None = None,
        is_deictic: bool = False,
    ) -> None:
        self.kind = kind
        self.missing = missing
        self.pattern = re.compile(rf"(?:{pattern})")
        self.unless = unless
        """What the clause must not contain after the match."""
        self.is_deictic = is_deictic
        """True if earlier messages may say what is meant."""


_D, _A, _B, _C = (
    AmbiguityClass.SAFETY_CRITICAL_GAP,
    AmbiguityClass.MISSING_PARAMETER,
    AmbiguityClass.VAGUE_SCOPE,
    AmbiguityClass.CONFLICTING_CONSTRAINTS,
)
_RULES = (
    Rule(
        _D,
        Missing.SCOPE,
        rf"{_DESTROY} {_ALL}(?! (?:the )?(?:words?|letters?|formatting|emojis?|quotes?|ord)\b)",
        unless=_RESTRICTED,
    ),
    Rule(
        _D,
        Missing.SCOPE,
        rf"(?:overwrite|purge|drop|erase|overskriv|slett|delete|wipe) (?:the |my |our |alle |de )*+{_VALUED}",
        unless=_RESTRICTED,
    ),
    Rule(
        _D,
        Missing.TARGET,
        rf"(?:reset|wipe|drop|truncate|format|shut down|shut|restart|reboot|stop|kill|disable|nullstill"
        rf"|slå av|tøm|steng"
        rf"|stopp|restart) (?:the "
        rf"|my |our )?{_VALUED}",
        unless=_RESTRICTED,
    ),
    Rule(_D, Missing.TARGET, rf"{_DESTROY} {_THIS}{_PLEASE}", is_deictic=True),
    Rule(
        _D,
        Missing.TARGET,
        rf"(?:publish|post|deploy|release|ship|push|merge|announce|publiser|deploy|legg ut|rull"
        rf"|slipp) {_THIS}(?: (?:ut|out))?(?: (?:publicly|online|live|now|to|i|til|på"
        rf"|offentlig)\b[^.]{{0,40}})?$",
        is_deictic=True,
    ),
    Rule(
        _D,
        Missing.TARGET,
        rf"(?:make|gjør) {_THIS} (?:public|live|offentlig)\b|go live\b",
        is_deictic=True,
    ),
    Rule(
        _D,
        Missing.SCOPE,
        r"(?:revoke|cancel|disable|terminate|fire|block|unsubscribe from|fjern|trekk tilbake|si opp|avlys"
        r"|blokker|steng) "
        r"(?:everyone|everybody|all|alle)\b[^.]{0,40}",
        unless=_RESTRICTED,
    ),
    Rule(
        _D,
        Missing.SCOPE,
        r"(?:e-?mail|send|message|text|invite|forward|share|call|ring|inviter|del) (?:(?:this|it|den|det"
        r"|dette) (?:to|with|til|med) "
        r"|e-post til )?(?:everyone|everybody|all (?:my |our |the )?(?:contacts|customers|users|clients"
        r"|employees|subscribers)"
        r"|the whole (?:company|list|team)|alle)\b",
    ),
    Rule(
        _D,
        Missing.AMOUNT,
        rf"(?:pay|send|transfer|wire|refund|betal|overfør|send|refunder"
        rf"|vipps)\b(?: [^ \d]+){{0,4}}? {_MONEY}\b[^\d]*$",
    ),
    Rule(
        _D,
        Missing.AMOUNT,
        r"(?:pay|refund|reimburse|vipps|betal|refunder) (?:back )?(?:my|the|him|her|them|everyone|tilbake"
        r"|min|mitt|ham|kunden)\b[^\d]{0,60}$",
    ),
    Rule(
        _A,
        Missing.TARGET,
        rf"(?:send|book|schedule|translate|call|ring|e-?mail|order|buy|cancel|forward|rename|convert"
        rf"|bestill|oversett|kjøp|avbestill|videresend){_PLEASE}",
    ),
    Rule(
        _A,
        Missing.TARGET,
        rf"(?:book|order|buy|bestill|kjøp|reserver|call|ring|e-?mail|message|text|meld|fix|handle|sort"
        rf"|print|finish|start|stop"
        rf"|change|update|move|copy|rewrite|continue|sign|renew|return|schedule|install|run|skriv|kjør"
        rf"|endre|oppdater|flytt"
        rf"|kopier|fullfør|start|stopp|installer|signer|forny|meld"
        rf"|deal with|solve|resolve|fiks|ordne|løs|ta deg av|translate|oversett|convert|konverter|explain"
        rf"|forklar|send|forward|summari[sz]e|oppsummer|rename|open|check|sjekk) {_THIS}\b(?: (?:the"
        rf"|numbers|to (?:pdf|norwegian|english|word|csv)|til (?:norsk|engelsk|pdf)|out|ut)){{0,2}}{_PLEASE}",
        unless=_HELD,
        is_deictic=True,
    ),
    Rule(
        _A,
        Missing.TARGET,
        rf"(?:summari[sz]e|translate|convert|rename|open|read|review|proofread|edit|explain|oppsummer"
        rf"|oversett|konverter|åpne|les|rett) (?:(?:the|my|our) (?:document|file|text|article|report|page"
        rf"|paper|letter|email)|dokumentet|filen|teksten|artikkelen|rapporten|siden){_PLEASE}",
        is_deictic=True,
    ),
    Rule(
        _A,
        Missing.TARGET,
        rf"(?:compare|sammenlign|choose between|velg mellom) (?:the|de) (?:two|three|to|tre"
        rf"|both)? ?(?:options|alternatives|versions|products|offers|alternativene|versjonene"
        rf"|tilbudene){_PLEASE}",
        is_deictic=True,
    ),
    Rule(
        _A,
        Missing.TARGET,
        rf"(?:book|reserve|order|buy|get me|find me|bestill|reserver|kjøp|skaff) (?:an?|the|some|my|en|et"
        rf"|ei|noen)? ?(?:table|flight|hotel|hotel room|room|train|taxi|tickets?|seat|car|bord"
        rf"|flybillett\w*|fly|hotell|hotellrom|rom|billett\w*|togbillett\w*|drosje){_PLEASE}",
    ),
    Rule(
        _A,
        Missing.TARGET,
        rf"(?:cancel|avlys|avbestill) (?:my|the|our|min|mitt)? ?(?:appointment|meeting|booking"
        rf"|reservation|subscription|order|timen?|avtalen?|møtet?|bestilling\w*|abonnement\w*)(?: min"
        rf"| mitt| mi)?{_PLEASE}",
        is_deictic=True,
    ),
    Rule(
        _A,
        Missing.RECIPIENT,
        rf"(?:send|forward|mail|e-?mail|videresend) (?:the|my|our|a|an|en|et)? ?(?!it\b|this\b|that\b"
        rf"|them\b|him\b|her\b|me\b|us\b|everyone\b|meg\b|oss\b)[\w-]+(?: [\w-]+)?{_PLEASE}",
    ),
    Rule(
        _A,
        Missing.TIME,
        r"(?:set up|schedule|arrange|plan|book|organi[sz]e|sett opp|planlegg|avtal|book"
        r"|kall inn til) (?:an? |the |et |en )?(?:\w+ ){0,2}?(?:meeting|call|appointment|interview|møte"
        r"|samtale|avtale|intervju)\b",
        unless=_TIME,
    ),
    Rule(
        _A,
        Missing.TIME,
        r"(?:move|reschedule|postpone|shift|flytt|utsett) (?:my|the|our|mitt)? ?(?:\w+ )?(?:meeting|call"
        r"|appointment|interview|møtet?|samtalen?|avtalen?|timen)\b",
        unless=_TIME,
    ),
    Rule(
        _A,
        Missing.SUBJECT,
        r"(?:remind me|minn meg|minne meg)(?: på (?:det|den|dette))?(?: (?:again|tomorrow|today|later"
        r"|tonight|on \w+|at [\w:.]+|next \w+|in [\w ]{1,12}|i morgen|i kveld|på \w+dag|neste \w+|senere"
        r"|klokk\w+ \d+))*+$",
    ),
    Rule(
        _A,
        Missing.SUBJECT,
        r"(?:set|create|make|add|sett|lag) (?:me )?(?:an? |en )?(?:reminder|alarm|påminnelse)(?: (?:for"
        r"|at|on|til|klokka|kl|på) [\w:. ]{1,16})?$",
    ),
    Rule(
        _A,
        Missing.SUBJECT,
        rf"(?:write|draft|compose|prepare|create|put together|skriv|lag|utarbeid|forfatt)(?: me"
        rf"| meg)? (?:an?|another|en|et|ei) (?:short |long |formal |quick |nice |kort "
        rf"|formell )?(?:{_DOCUMENT}|toast|note|invitation|invitasjon){_PLEASE}"
        r"|(?:write|draft|compose|prepare|skriv|lag) (?:something|noe|a few words|noen ord)(?: (?:for|to"
        r"|til) (?:the |my )?[\w-]+)?$",
    ),
    Rule(
        _B,
        Missing.CRITERIA,
        rf"(?:make|gjør|get|give|gi) {_THIS} (?:a bit |much |way |a little |look |sound |litt |mye )*+(?:better"
        rf"|nicer|pop|good|great|awesome|cooler|cleaner|more professional|perfect|nice|fun|funnier"
        rf"|stronger|modern|more \w+|some \w+|bedre|finere|penere"
        rf"|kulere|bra|tøffere|morsommere|mer \w+|litt \w+){_PLEASE}",
        is_deictic=True,
    ),
    Rule(
        _B,
        Missing.CRITERIA,
        rf"(?:improve|enhance|polish|optimi[sz]e|upgrade|tweak|tidy|clean|freshen|spruce|rydd|forbedre"
        rf"|optimaliser|puss på"
        rf"|oppgrader) (?:{_THIS}|things|everything|ting|alt)(?: (?:up|opp))?(?: (?:a bit|a little"
        rf"|somewhat|litt))?{_PLEASE}",
        is_deictic=True,
    ),
    Rule(
        _B,
        Missing.SCOPE,
        rf"(?:(?:do|handle|fix|take care of|finish|deal with|gjør|fiks|ordne|ta|ta deg av"
        rf"|fullfør) )?(?:everything|all of (?:it|them|that)"
        rf"|the usual|the rest|whatever is left|alt|alt sammen|alt det|det vanlige|resten)(?:, ?)?{_PLEASE}",
    ),
    Rule(
        _B,
        Missing.SCOPE,
        rf"(?:clean up|tidy|tidy up|organi[sz]e|sort|update|fix|improve|refactor|modernize|rydd opp i"
        rf"|rydd i|rydd|organiser|sorter|oppdater|fiks|forbedre) (?:the |my |our )?(?:code|codebase"
        rf"|website|site|files|folder|project|things|stuff|documents|data|app|photos|koden|nettsiden"
        rf"|nettsidene|filene|prosjektet|dokumentene|appen|bildene)(?: mine| mitt| min| våre)?{_PLEASE}",
    ),
    Rule(
        _B,
        Missing.SCOPE,
        rf"(?:help me with|sort out|tackle|handle|manage|få orden på|få styr på|ordne|hjelp meg med"
        rf"|help with|do something (?:about|with)|gjør noe med|work on"
        rf"|jobb med|look after) (?:the |my |our |this |that )?[\w-]+(?: (?:mitt|min|mine|vårt))?{_PLEASE}",
    ),
)

_POLES = (
    (
        r"cheap\w*|budget|inexpensive|low-cost|billig\w*|rimelig\w*",
        r"luxur\w+|premium|high-end|five-star|best (?:screen|quality)|luksus\w*|eksklusiv\w*|førsteklasses",
    ),
    (
        r"(?:very )?(?:short|brief|concise)|(?:one|a single|two) (?:lines?|sentences?|words?)|kort\w*"
        r"|én (?:linje|setning)|en (?:linje|setning)|to setninger",
        r"comprehensive|exhaustive|complete|(?:full|great|every) detail|in[- ]depth|utfyllende|i detalj"
        r"|uttømmende|fullstendig\w*",
    ),
    (r"(?:strictly |very )?formal|formell\w*", r"casual|informal|uformell\w*"),
    (
        r"tiny|smallest|very small|knøttliten|minste",
        r"huge|lots of (?:space|room)|spacious|enormous|(?:four|five|six|\d) bedrooms|diger|enorm\w*"
        r"|masse plass",
    ),
    (r"vegan|vegansk\w*", r"beef|chicken|pork|cheese|bacon|biff|kylling|ost"),
    (
        r"in[- ]depth|thorough\w*|detailed|grundig\w*",
        r"(?:a |one )?single (?:sentence|line|word)|én setning|ett ord",
    ),
    (r"secret|hemmelig", r"everyone|every public|publicly|alle|offentlig\w*"),
    (
        r"as fast as possible|faster|quicker|change|optimi[sz]e|raskere|raskest mulig",
        r"(?:don't|do not|without) chang\w+ (?:a |any |one )?(?:single )?\w+ of|uten å endre noe",
    ),
    (r"today|i dag|now|nå", r"not before tomorrow|ikke før i morgen"),
    (r"public|offentlig", r"secret|confidential|hemmelig|konfidensiell\w*"),
)
_CONFLICTS = tuple((re.compile(rf"\b(?:{one})\b"), re.compile(rf"\b(?:{other})\b")) for one, other in _POLES)
_BETWEEN = re.compile(
    r"\b(?:or|versus|vs|than|then|between|compared?|instead of|not|eller|enn|mellom|i stedet for|deretter"
    r"|another|one)\b"
)
_OVERRIDE = re.compile(
    r"\b(?:just do it|just go ahead|use your (?:own |best )?judge?ment|whatever you (?:think|prefer|like)"
    r"|up to you|you (?:decide|choose|pick)|your call|surprise me|don't ask"
    r"|no questions|take a guess|make a guess|just guess|bare gjør det|bruk skjønn|bestem selv"
    r"|du (?:bestemmer|velger)|opp til deg|hva du vil|ikke spør|overrask meg|bare gjett)\b"
)


def judge_ambiguity(message: str, *, has_history: bool = False) -> Ambiguity | None:
    """Return what a message leaves open that its author should be asked for; `None` if it is clear enough.

    If the message `has_history`, earlier messages may say what "it" and "the document" are, so only gaps that they
    cannot fill count. If the message leaves the choice to the assistant ("use your judgement"), only what cannot be
    undone counts. Of several gaps, the gravest is returned.
    """
    reading = read(message)
    found = [gap for clause in find_clauses(reading) for gap in _find_gaps(clause, reading, has_history)]
    conflict = _find_conflict(reading)
    if conflict is not None:
        found.append(conflict)
    if _OVERRIDE.search(reading.prose):
        found = [gap for gap in found if gap.kind is AmbiguityClass.SAFETY_CRITICAL_GAP]
    return min(found, key=lambda gap: _GRAVITY[gap.kind], default=None)


_GRAVITY = {kind: number for number, kind in enumerate(AmbiguityClass)}


def _find_gaps(clause: Clause, reading: Reading, has_history: bool) -> list[Ambiguity]:
    if not clause.is_request:
        return []
    held = bool(_HELD.search(reading.prose)) or _has_content(reading, clause)
    for rule, text in product(_RULES, clause.forms):
        match = rule.pattern.match(text)
        if match is None or (rule.is_deictic and (has_history or held)):
            continue
        if rule.unless is None or not rule.unless.search(text, match.end()):
            return [Ambiguity(rule.kind, rule.missing, reading.span(clause.start, clause.end))]
    return []


def _has_content(reading: Reading, clause: Clause) -> bool:
    """Return whether text follows that a clause may be about, after a colon or on further lines."""
    rest = reading.prose[clause.start :]
    colon = rest.find(":")
    return (0 <= colon < 200 and len(rest[colon:].split()) > 1) or len(rest.partition("\n")[2].split()) > 3


def _find_conflict(reading: Reading) -> Ambiguity | None:
    """Return two conditions of one request that exclude each other; `None` if there are none."""
    prose = reading.prose
    if not any(clause.is_request for clause in find_clauses(reading)) and not _WANTED.search(prose):
        return None
    for one, other in _CONFLICTS:
        first, second = one.search(prose), other.search(prose)
        if first is None or second is None:
            continue
        start, end = min(first.start(), second.start()), max(first.end(), second.end())
        middle = prose[min(first.end(), second.end()) : max(first.start(), second.start())]
        if end - start <= 160 and not _BETWEEN.search(middle) and not re.search(r"[.!?]\s", middle):
            return Ambiguity(
                AmbiguityClass.CONFLICTING_CONSTRAINTS, Missing.PRIORITY, reading.span(start, end)
            )
    return None


_WANTED = re.compile(r"\b(?:i want|i need|i'd like|jeg vil ha|jeg trenger|jeg ønsker)\b")
