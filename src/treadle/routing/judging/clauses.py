"""The clauses of a message, without politeness: what each one asks for or tells, and whether it is a question."""

import re
from functools import lru_cache

from msgspec import Struct

from treadle.routing.judging.reading import Reading

_QUESTION_WORDS = (
    r"(?:what|what's|whats|who|who's|whom|whose|when|where|why|how|which|is|isn't|are|aren't|am|was|were"
    r"|does|doesn't|do (?=you|i|we|they|the|people|any|all|most|dogs|cats|these|those)|did|didn't|has"
    r"|have you|should|shall|may|might|hva|hvem|når|hvor|hvorfor|hvordan|hvilke[nt]?|er|var|har du|bør"
    r"|skal|kva|kven|korleis|kvifor"
    r"|finnes|gjelder|blir|må)"
)
_SPLIT = re.compile(
    r"[!?\n;]++|\.++(?=\s|$)|(?::|,| -| –)[ ]?(?=(?:but|so|now|just|then|please|and then|what|how|who|why"
    r"|when|where|is|can you"
    r"|could you|would you|men|så|nå|bare|vennligst|hva|hvordan|hvem|hvorfor|når|kan du|don't|do not"
    r"|it should|keep it"
    r"|but don't)\b)"
)
_FILLER = re.compile(
    r"(?:[\s,:-]|(?:ok|okay|alright|right|great|perfect|thanks|thank you|cool|nice|hi|hello"
    r"|hey(?: there)?|well|and|so|now|but|then|also"
    r"|just|please|pls|kindly|go ahead and|quickly|simply|first|let's|lets|actually|ja|jo|hei|flott"
    r"|supert|fint|takk|greit|og|så|nå|da"
    r"|men|bare|vennligst|gjerne|først|vær så snill(?: å| og)?)(?![\w'-]))++"
)
_ASKED = re.compile(
    r"(?:can|could|will|would|might) (?:you|we) (?:please |kindly |just |maybe |also |perhaps "
    r"|quickly )*+(?:help me (?:to )?)?"
    r"|(?:i|we)(?:'d| would)? (?:like|want|need|love) (?:you )?(?:to )?(?!a\b|an\b|the\b|some\b)"
    r"|(?:i|we)(?:'d| would)? (?:like|want|need|love) (?:to have )?(?=(?:a|an|the|some)\b)"
    r"|(?:do|would) you mind |help me (?:to )?(?!with\b)|you (?:should|must|need to|have to) "
    r"|be so kind (?:and|as to) "
    r"|(?:kan|kunne|vil|ville) (?:du|vi) (?:vennligst |gjerne |også |bare |kanskje |være så snill (?:å "
    r"|og )|hjelpe meg (?:med )?å )*+"
    r"|(?:jeg|vi|eg) (?:vil|ønsker|trenger|må|skulle)(?: gjerne)?(?: ha| at du skal| at du)? "
    r"|hjelp meg (?:med )?å |du (?:må|skal|bør) "
)
_NEGATION = re.compile(
    r"(?:don't|do not|dont|never|no need|you needn't|not |please don't|ikke|ikkje|aldri|trenger ikke"
    r"|du trenger ikke|ingen grunn)(?!\w)"
)
_ABLE = re.compile(
    r"(?:are you able to|do you know how to|is it possible|have you got|er du i stand til"
    r"|har du mulighet)(?!\w)"
)
_QUESTION = re.compile(rf"{_QUESTION_WORDS}(?![\w-])")
_EXCEPT = re.compile(
    r"[,(]? ?\b(?:without|no(?= \w+ (?:in|on)\b)|uten(?: å)?|but not|men ikke)\b[^.,;]{0,200}+"
)
_TELLING = re.compile(
    r"(?:i|i'm|i've|my|we|he|she|they|it|it's|this is|there|jeg|vi|han|hun|de|min|mitt|mine|eg)(?![\w'-])"
)

_TOLD = re.compile(
    r"[\w'-]{1,40}+ (?:is|was|are|were|means|meant|er|var|betyr)(?![\w'-])(?! (?:not )?(?:the|what|how)\b)"
)
"""A noun that looks like a verb, as in "schedule is pronounced differently"."""
_ENDING = re.compile(r"^([^\W\d_]{2,30}?)(?:et|e|t)(?=\s|$)")
_SUPINE = {
    "skrevet": "skriv",
    "skrive": "skriv",
    "funnet": "finn",
    "gitt": "gi",
    "laget": "lag",
    "gjort": "gjør",
}
"""Verbs whose imperative is not what remains without the ending."""


class Clause(Struct, frozen=True):
    """A part of a message that asks for one thing."""

    text: str
    """The clause in lower case, without politeness and without what it excludes."""
    forms: tuple[str, ...]
    """`text`, and the same with the imperative of its verb, where Norwegian has another form after "kan du"."""
    start: int
    """The position of `text` in the reading's text."""
    end: int
    is_question: bool
    """True if it asks for information."""
    is_capability: bool
    """True if it was introduced with "can you", so that it may ask for an ability."""
    is_request: bool
    """True if it tells what to do. Otherwise it tells something."""


@lru_cache(maxsize=64)
def find_clauses(reading: Reading) -> tuple[Clause, ...]:
    """Return the clauses of a message that ask for something or tell something. Negated clauses are left out."""
    found, start = [], 0
    prose = reading.prose
    for match in _SPLIT.finditer(prose):
        found.append(_read_clause(prose, start, match.start(), "?" in match[0]))
        start = match.end()
    found.append(_read_clause(prose, start, len(prose), False))
    return tuple([clause for clause in found if clause is not None])


def _read_clause(prose: str, start: int, end: int, is_asked: bool) -> Clause | None:
    """Return the clause in a part of the prose; `None` if it is empty or says what is not to be done."""
    can = False
    while start < end:
        if found := _FILLER.match(prose, start, end):
            start = found.end()
        elif found := _ASKED.match(prose, start, end):
            can = can or found[0].startswith(("can", "could", "will", "would", "kan", "kunne", "vil"))
            start = found.end()
        else:
            break
    text = _EXCEPT.sub("", prose[start:end]).rstrip()
    if not text or _NEGATION.match(text):
        return None
    is_able = bool(_ABLE.match(text))
    is_question = is_able or bool(_QUESTION.match(text))
    is_telling = bool(_TELLING.match(text) or _TOLD.match(text))
    forms = tuple(dict.fromkeys((text, _to_imperative(text)))) if can else (text,)
    return Clause(text, forms, start, end, is_question, can and is_asked, not is_question and not is_telling)


def _to_imperative(text: str) -> str:
    """Return a clause whose first word, an infinitive or participle in Norwegian, is an imperative."""
    verb, _, rest = text.partition(" ")
    return f"{_SUPINE[verb]} {rest}" if verb in _SUPINE else _ENDING.sub(r"\1", text)
