"""How hard a message is to answer well, as a number for the routers."""

import re

from treadle.context.judging.boilerplate import is_boilerplate
from treadle.context.judging.reading import CODE, read

_SIGNS: tuple[tuple[float, str], ...] = (
    # Work that needs an argument, a design or a proof.
    (
        0.55,
        r"(?:prove|derive|design|architect|optimi[sz]e|refactor|debug|diagnose|formali[sz]e|reverse-engineer"
        r"|bevis|utled|designe?|optimaliser|refaktorer|feilsøk|diagnostiser)\b",
    ),
    (
        0.45,
        r"(?:analy[sz]e|compare|contrast|evaluate|assess|critique|critically|trade-?offs?"
        r"|pros and cons|implications"
        r"|strategy|architecture|algorithm|complexity|root cause|why does|why is|why do|why would"
        r"|how come|negotiat\w*"
        r"|analyser|sammenlign\w*|vurder|drøft|kritiser|avvei\w*|fordeler og ulemper|konsekvense\w*|strategi\w*"
        r"|arkitektur\w*|algoritme\w*|kompleksitet\w*|hvorfor)\b",
    ),
    (
        0.4,
        r"(?:implement|plan|migrat\w+|reconcile|simulat\w+|investigate|research|deep dive|estimate"
        r"|model|forecast"
        r"|step by step|in depth|thorough\w*|comprehensive|detailed|rigorous\w*|implementer|planlegg|migrer\w*"
        r"|undersøk|utred|estimer|prognose|steg for steg|grundig\w*|detaljert\w*|omfattende)\b",
    ),
    # Large results.
    (
        0.5,
        r"(?:novel|thesis|dissertation|book|white ?paper|business plan|curriculum|essay"
        r"|research paper|screenplay"
        r"|\d{2,4}[- ](?:pages?|chapters?|words?|slides?)|\d{3,6} words|compiler|operating system"
        r"|database engine"
        r"|roman|avhandling|forretningsplan|masteroppgave|stiloppgave|rapport på|\d{2,4} sider|\d{3,6} ord)\b",
    ),
    # A wrong answer does harm.
    (
        0.4,
        r"(?:sue|lawsuit|court|legal\w*|contract|liab\w+|tax(?:es)?|lease|landlord|visa|custody"
        r"|divorce|inherit\w*"
        r"|diagnos\w+|symptoms?|dosage|dose|medication|chest pain|pregnan\w+|invest\w*|mortgage"
        r"|security vulnerabilit\w+"
        r"|saksøke|rettssak|juridisk|kontrakt\w*|ansvar|skatt\w*|husleie\w*|utleier\w*|skilsmisse|arv\w*"
        r"|symptom\w*|dosering|medisin\w*|brystsmerter|gravid\w*|boliglån|arbeidsgiver\w*|oppsigelse\w*)\b",
    ),
    # Formal subjects.
    (
        0.35,
        r"(?:theorem|proof|integral|derivative|eigenvalue\w*|probability|bayes\w*|regression"
        r"|differential|polynomial"
        r"|np-hard|concurren\w+|race condition|deadlock|distributed|consensus|quantum|topolog\w+"
        r"|memory leak|segfault"
        r"|stack ?trace|traceback|kubernetes|encryption|crypto\w*|compiler|type system|sql query"
        r"|regex|recursi\w+"
        r"|integralet|sannsynlighet\w*|regresjon|differensial\w*|kvante\w*|samtidighet|vranglås"
        r"|minnelekkasje)\b",
    ),
    # Several conditions or steps.
    (0.2, r"(?:unless|except|provided that|as long as|at most|at least|without|but not|must not"
          r"|med mindre|unntatt"
        r"|forutsatt|minst|høyst|uten å|men ikke)\b"),
    (0.2, r"(?:and then|after that|afterwards|finally|first,|second,|thirdly|deretter|til slutt"
          r"|etterpå|først)\b"),
)  # fmt: skip
_COMPILED = tuple((weight, re.compile(rf"(?<!\w){pattern}")) for weight, pattern in _SIGNS)
_LOOK_UP = re.compile(
    r"(?:hi|hello|hey|please|so|and|ok|okay|hei|og)?[ ,]*(?:what(?:'s| is| are| was| time| day"
    r"| year)|who (?:is|was|wrote|won)"
    r"|when (?:is|was|did)|where (?:is|was)|how (?:many|old|tall|far|long is|do you spell"
    r"|do you say)|define|translate"
    r"|spell|convert|hva (?:er|betyr|heter|koster)|hvem (?:er|var|skrev|vant)|når (?:er|var)"
    r"|hvor (?:er|mange|gammel|høy"
    r"|langt|ligger)|hvilke[tn]? (?:dag|år)|oversett|stav|regn om)\b"
)
_CLAUSE = re.compile(r"[.!?;\n]++")
_LIST_ITEM = re.compile(r"^[ \t]{0,8}+(?:[-*•]|\d{1,2}[.)])[ \t]", re.MULTILINE)


def rate_difficulty(message: str) -> float:
    """Return how hard a message is to answer well, from 0 (thanks) to 1 (a proof, a design, a long report).

    It grows with the words for demanding work, with what depends on the answer, with the conditions and steps, with
    code and with length. Below 0.3 is easy, from 0.6 on is hard.
    """
    if is_boilerplate(message):
        return 0.0
    reading = read(message)
    prose, words = reading.prose, len(reading.words)
    left = 0.9
    for weight, pattern in _COMPILED:
        count = len(set(pattern.findall(prose)))
        left *= (1 - weight) * (1 - weight / 3) ** min(count - 1, 3) if count else 1.0
    left *= 1 - min(0.35, max(0, words - 12) / 300)
    clauses = sum(len(part.split()) > 3 for part in _CLAUSE.split(prose))
    left *= 0.95 ** min(max(0, clauses - 2), 8) * 0.93 ** min(len(_LIST_ITEM.findall(prose)), 6)
    if CODE in prose:
        left *= 0.75
    if reading.left_out_chars:
        left *= 0.85
    if words <= 14 and _LOOK_UP.match(prose):
        left = 1 - (1 - left) * 0.6
    return round(1 - left, 3)
