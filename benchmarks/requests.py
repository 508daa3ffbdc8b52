"""Users' requests for the search for duplicates: different requests that share most words, and planted paraphrases.

A request is a template with an operation, a column, a condition and a subject; two requests are different if one of
these differs. Paraphrases have other numbers and names, clauses in another order, and inserted words.
"""

import math
import random
from collections.abc import Sequence

from msgspec import Struct


def _split(text: str, by: str | None = None) -> list[str]:
    return text.split(by)


_OPERATIONS = _split(
    "add up|count|average|list|sort|export|round|compare|plot|validate|archive|group|anonymise|translate", "|"
)
_COLUMNS = _split(
    "amount|net price|gross price|discount|quantity|weight|delivery date|tax|status|region|comment|rating",
    "|",
)
_CONDITIONS = _split(
    "paid|open|refunded|disputed|cancelled|overdue|duplicated|shipped late|flagged by the auditor|marked as draft",
    "|",
)
_SUBJECTS = _split(
    "orders|invoices|timesheets|log entries|tickets|bookings|support calls|sensor readings|shipments|contracts|"
    "job applications|inventory items|loan records|meter readings",
    "|",
)
_TEMPLATES: tuple[tuple[str, ...], ...] = (
    ("{op} the {col} of all {sub} that are {cond}", "write the result to {path}"),
    ("please {op} the column {col} in {path}", "only the {sub} that are {cond} matter"),
    ("in {path} there are {sub} from {name}", "{op} their {col}", "leave out everything that is not {cond}"),
    ("{name} needs the {sub} for the meeting on {day}", "{op} the {col} where they are {cond}"),
    ("for the audit {op} the {col} of the {sub}", "skip rows above {number}", "use the ones that are {cond}"),
    ("take the {sub} of {name} out of {path}", "{op} them by {col} if {cond}", "answer with one number"),
    ("which {sub} in {path} are {cond}", "{op} the {col} and tell me the first {number}"),
    ("I have {number} {sub} here", "for those which are {cond}, {op} the {col}", "put a summary in {path}"),
    ("{name} says the {col} of some {sub} is wrong", "{op} it where {cond}", "report what you changed"),
    ("check the {sub} against {path}", "if they are {cond}, {op} the {col}", "mail {mail} when finished"),
    ("my boss {name} wants a table of {sub}", "{op} by {col}", "keep at most {number} rows that are {cond}"),
    (
        "yesterday the import of {sub} stopped at line {number}",
        "{op} the {col} again",
        "repeat it for {cond} ones",
    ),
    ("use {path} as the source", "{op} {col} over the {cond} {sub}", "show the three biggest differences"),
    ("the folder {path} has {sub} of several years", "{op} {col} per year", "ignore what is {cond}"),
    ("before {day} we must {op} the {col} of our {sub}", "start with those that are {cond}"),
    ("{op} the {sub} so that the {col} is readable", "the {cond} ones go to {path}", "delete nothing"),
)
_NAMES = _split("Anna Bruno Chidi Dana Emeka Farah Goran Hana Ivo Jana Kaito Leila Marek Nadia Omar Petra")
_LAST = _split("Abel Bauer Castro Dahl Eriksen Fontana Gupta Haas Ito Keller Novak Okafor Rossi Silva Weber")
_FOLDERS = ("data", "reports", "archive", "shared")
_DAYS = _split("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_FILLERS = ("please", "if you can", "thanks", "quickly", "by the way", "as soon as possible", "carefully")
_EXTRAS = ("in our shared drive", "for the quarterly review", "as discussed", "with the usual rounding")
_SLOTS: tuple[Sequence[object], ...] = (_TEMPLATES, _OPERATIONS, _COLUMNS, _CONDITIONS, _SUBJECTS)
_SYNONYMS = {"add up": "sum", "count": "tally", "average": "mean", "list": "enumerate", "sort": "order"}


class Request(Struct):
    """A message with the request that it makes."""

    text: str
    asks: int
    """The number of the request. Paraphrases have the number of their source."""
    is_paraphrase: bool = False


def make_requests(count: int, share: float, variant: str = "usual", seed: int = 1) -> list[Request]:
    """Return `count` messages, a `share` of them paraphrases of earlier ones, in a mixed order.

    Variants of the paraphrases: `usual` (clauses in another order, other numbers and names, small words),
    `shuffled` (all words in another order), `longer` (also a phrase of two or three words), `synonym` (another
    verb).
    """
    draw = random.Random(seed)
    planted = round(count * share)
    chosen = [_slot(number) for number in draw.sample(range(math.prod(map(len, _SLOTS))), count - planted)]
    sources = set(draw.sample(range(len(chosen)), planted))
    made: list[tuple[float, Request]] = []
    for number, slot in enumerate(chosen):
        position = draw.random()
        made.append((position, Request(_write(draw, slot), number)))
        if number in sources:
            text = _paraphrase(draw, slot, variant)
            made.append((draw.uniform(position, 1), Request(text, number, True)))
    return [request for _, request in sorted(made, key=lambda item: item[0])]


def _slot(number: int) -> list[object]:
    """Return the request with a number: its template, operation, column, condition and subject."""
    chosen = []
    for choices in _SLOTS:
        number, place = divmod(number, len(choices))
        chosen.append(choices[place])
    return chosen


def _write(draw: random.Random, slot: Sequence[object]) -> str:
    return _join(draw, _clauses(draw, slot))


def _clauses(draw: random.Random, slot: Sequence[object]) -> list[str]:
    template, operation, column, condition, subject = slot
    values = {
        "op": operation,
        "col": column,
        "cond": condition,
        "sub": subject,
        "path": f"{draw.choice(_FOLDERS)}/{draw.choice(_LAST).lower()}-"
        f"{draw.randint(1, 999)}.{draw.choice(['csv', 'json', 'txt'])}",
        "name": f"{draw.choice(_NAMES)} {draw.choice(_LAST)}",
        "number": str(draw.randint(2, 9999)),
        "day": draw.choice(_DAYS),
        "mail": f"{draw.choice(_NAMES).lower()}@{draw.choice(_LAST).lower()}.org",
    }
    return [clause.format(**values) for clause in template]  # type: ignore[attr-defined]


def _paraphrase(draw: random.Random, slot: Sequence[object], variant: str) -> str:
    if variant == "synonym":
        template, operation, *rest = slot
        slot = (template, _SYNONYMS.get(str(operation), operation), *rest)
    clauses = _clauses(draw, slot)
    draw.shuffle(clauses)
    for _ in range(draw.randint(0, 2)):
        place = draw.randrange(len(clauses))
        filler = draw.choice(_FILLERS)
        clauses[place] = draw.choice([f"{filler} {clauses[place]}", f"{clauses[place]} {filler}"])
    if variant == "longer":
        clauses[-1] += f" {draw.choice(_EXTRAS)}"
    if variant == "shuffled":
        words = " ".join(clauses).split()
        draw.shuffle(words)
        return " ".join(words)
    return _join(draw, clauses)


def _join(draw: random.Random, clauses: Sequence[str]) -> str:
    """Return the clauses as sentences, or as one sentence."""
    if draw.random() < 0.7:
        return " ".join([f"{clause[0].upper()}{clause[1:]}{draw.choice('..!')}" for clause in clauses])
    text = ", ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."
