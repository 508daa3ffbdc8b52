"""How hard a message is to answer well, as a number for the routers."""

import re

from treadle.routing.judging.boilerplate import is_boilerplate
from treadle.routing.judging.clauses import find_clauses
from treadle.routing.judging.reading import CODE, read

_HEADS: tuple[tuple[float, str], ...] = (
    # What a clause asks for: an argument, a design, a proof.
    (
        0.55,
        r"prove|show that|derive|design|architect|optimi[sz]e|refactor|debug|diagnose|formali[sz]e|find the bug"
        r"|bevis|vis at|utled|optimaliser|refaktorer|feilsøk|diagnostiser|finn feilen",
    ),
    (
        0.45,
        r"analy[sz]e|compare|contrast|evaluate|assess|critique|reconcile|negotiate|implement|migrate|simulate"
        r"|forecast|estimate|model|discuss|argue|analyser|sammenlign|vurder|drøft|kritiser|implementer"
        r"|migrer|estimer"
        r"|simuler|diskuter|argumenter",
    ),
    (
        0.3,
        r"explain|describe|research|investigate|plan|summari[sz]e|recommend|advise|teach|outline|why"
        r"|how (?:do|does|would"
        r"|should|can|did|is|are)|look into|put together|upgrade|gather|add|write (?:a|the|some|up)"
        r"|deep dive|what makes"
        r"|what(?:'s| is| are) the (?:differences?|best|reasons?|effects?|causes?)|forklar|beskriv"
        r"|undersøk|utred|planlegg"
        r"|oppsummer|anbefal|hvorfor|hvordan|hva er forskjellen|hva er (?:det beste|årsaken\w*)|legg til"
        r"|finn kilder|skriv"
        r"|(?:now )?a report|report|rapport|give me (?:some|\w+ )ideas|what is cheaper|what stands",
    ),
)
_WORDS: tuple[tuple[float, str], ...] = (
    # Depth and care.
    (
        0.35,
        r"trade-?offs?|pros and cons|implications|strateg\w+|architecture|algorithm\w*|complexity|root cause"
        r"|step by step|in depth|thorough\w*|rigorous\w*|zero downtime|at scale|does it scale|avvei\w*"
        r"|fordeler og ulemper"
        r"|konsekvense\w*|arkitektur\w*|algoritme\w*|kompleksitet\w*|steg for steg|grundig\w*|nedetid|skalerer",
    ),
    (
        0.2,
        r"overview|literature|sources|exhaustive|comprehensive|detail\w*|differences?|ideas|options"
        r"|oversikt|kilder"
        r"|detaljert|i detalj|utfyllende|forskjell\w*|forslag|alternativer|a million|en million",
    ),
    # Large results.
    (
        0.5,
        r"novel|thesis|dissertation|white ?paper|business plan|curriculum|screenplay|research paper|compiler"
        r"|(?:write|draft) (?:me )?an? (?:\w+ )?(?:book|essay)|(?:\d{2,4}|\w+ty|twenty"
        r"|fifty)[- ](?:pages?|chapters?)"
        r"|\d{3,6} words|operating system|roman|avhandling|forretningsplan|masteroppgave|stiloppgave"
        r"|(?:\d{2,4}|tjue|tretti|femti|hundre) sider|\d{3,6} ord",
    ),
    # A wrong answer does harm.
    (
        0.4,
        r"sue|lawsuit|court|legal|contract|liab\w+|tax(?:es)?|lease|landlord|visa|custody|divorce|inheritance"
        r"|symptoms?|dosage|dose|medication|overdose|chest pain|pregnan\w+|mortgage|vulnerabilit\w+|prescribed"
        r"|saksøke|rettssak|i retten|juridisk\w*|kontrakt\w*|skatt\w*|utleier\w*|skilsmisse|arveoppgjør\w*"
        r"|symptom\w*|dosering|medisin\w*|brystsmerter|gravid\w*|boliglån|oppsigelse\w*|uten varsel"
        r"|without notice",
    ),
    # Formal subjects.
    (
        0.35,
        r"theorem|proofs?|integral|derivative|eigenvalue\w*|probability|bayes\w*|regression|polynomial|np-hard"
        r"|concurren\w+|race condition|deadlock|distributed|consensus|quantum|topolog\w+|memory leak"
        r"|segfault|lock-free"
        r"|stack ?trace|traceback|kubernetes|encryption|cryptograph\w+|type system|recursi\w+|closed form"
        r"|linearizable"
        r"|infinitely many|primes?|threads?|regions|schema|integralet|sannsynlighet\w*|regresjon"
        r"|differensial\w*"
        r"|kvante\w*|samtidighet|vranglås|minnelekkasje|uendelig mange|primtall|tråder|databaseskjema"
        r"|global state",
    ),
    # Several conditions or steps.
    (
        0.15,
        r"unless|except|provided that|as long as|at most|without|but not|must (?:not|never)|no longer"
        r"|med mindre|unntatt|forutsatt|uten å|men ikke|aldri må",
    ),
    (
        0.15,
        r"and then|after that|afterwards|finally|and (?:discuss|estimate|argue|fix|tell)|deretter"
        r"|til slutt|etterpå|og (?:drøft|vurder|legg)",
    ),
)
_HEAD = tuple((weight, re.compile(rf"(?:{pattern})(?![\w-])")) for weight, pattern in _HEADS)
_WORD = tuple((weight, re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])")) for weight, pattern in _WORDS)
_AND = re.compile(r",? (?:and|then|og) (?:then |also |then also )?")
_LOOK_UP = re.compile(
    r"(?:what(?:'s| is| are| was| time| day| year| does \S{1,20} mean)|who (?:is|was|wrote|won)"
    r"|when (?:is|was|did)|where (?:is|was)"
    r"|how (?:many|old|tall|far|long is|much|do you spell|do you say)|define|translate|spell|convert"
    r"|hva (?:er|betyr|heter|koster)"
    r"|hvem (?:er|var|skrev|vant)|når (?:er|var)|hvor (?:er|mange|gammel|høy|langt|ligger)"
    r"|hvilke[tn]? (?:dag|år)|oversett|stav|regn om)\b"
)
_LIST_ITEM = re.compile(r"^[ \t]{0,8}+(?:[-*•]|\d{1,2}[.)])[ \t]", re.MULTILINE)


def rate_difficulty(message: str) -> float:
    """Return how hard a message is to answer well, from 0 (thanks) to 1 (a proof, a design, a long report).

    It grows with what the clauses ask for, with what depends on the answer, with conditions and steps, with
    code and with length. Below 0.3 is easy, from 0.6 on is hard.
    """
    if is_boilerplate(message):
        return 0.0
    reading = read(message)
    prose, words = reading.prose, len(reading.words)
    clauses = [clause for clause in find_clauses(reading) if clause.is_request or clause.is_question]
    heads = [part for clause in clauses for part in _AND.split(clause.text[:400])][:12]
    left = 0.95
    for weight, pattern in _HEAD:
        count = sum(bool(pattern.match(head)) for head in heads)
        left *= (1 - weight) * (1 - weight / 3) ** min(count - 1, 3) if count else 1.0
    for weight, pattern in _WORD:
        count = len(set(pattern.findall(prose)))
        left *= (1 - weight) * (1 - weight / 3) ** min(count - 1, 3) if count else 1.0
    left *= 1 - min(0.4, max(0, words - 6) / 150)
    left *= 0.95 ** min(max(0, len(clauses) - 2), 8) * 0.93 ** min(len(_LIST_ITEM.findall(prose)), 6)
    if CODE in prose:
        left *= 0.8
    if reading.left_out_chars:
        left *= 0.85
    if words <= 14 and clauses and _LOOK_UP.match(clauses[0].text):
        left = 1 - (1 - left) * 0.6
    return round(1 - left, 3)
