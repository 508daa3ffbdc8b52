"""The judgements of a message by the word lists, without a model: pure functions of the text.

Small talk is covered completely by known phrases. What a message leaves open, and the work that it asks for, is
judged clause by clause: only requests count, and what a message quotes or excludes does not.
"""

import re
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import product

from msgspec import Struct

from treadle.core.judgement import Ambiguity, AmbiguityClass, Judgement, Missing, TaskFound, TaskKind
from treadle.core.types import ToolSpec
from treadle.routing.judging.clauses import (
    Clause,
    Reading,
    endings_of,
    find_clauses,
    find_stems,
    is_own,
    read,
)
from treadle.routing.judging.inabilities import find_suited
from treadle.routing.judging.lists import (
    ADDRESS,
    CODE,
    FILE,
    compile_pattern,
    expression,
    languages,
    pattern,
    patterns,
    phrases,
    words,
)

_pattern = cache(pattern)
_phrases = cache(phrases)


class MessageFacts(Struct, frozen=True):
    """The facts that a judgement may take into account besides the message."""

    tools: tuple[ToolSpec, ...] = ()
    """The tools that the agent has."""
    has_history: bool = False
    """Whether there are earlier messages that "it" and "the document" can refer to."""
    follows_question: bool = False
    """Whether the assistant's last message ended with a question."""
    topics: tuple[str, ...] = ()
    """The constraints, views and domains of the persona, as texts."""


_NO_FACTS = MessageFacts()


def judge_message(message: str, facts: MessageFacts = _NO_FACTS) -> Judgement:
    """Return what a message is and needs. The time that it takes is bounded for a message of any length."""
    if is_boilerplate(message, follows_question=facts.follows_question):
        return Judgement(language=read(message).language, is_boilerplate=True)
    return Judgement(
        language=read(message).language,
        ambiguity=judge_ambiguity(message, has_history=facts.has_history),
        task=judge_task(message, tools=facts.tools),
        is_identity_sensitive=is_identity_sensitive(message, topics=facts.topics),
        difficulty=rate_difficulty(message),
    )


_MAX_CHARS = 200
_LONGEST = 6
"""The number of words of the longest phrase of small talk."""


def is_boilerplate(message: str, *, follows_question: bool = False) -> bool:
    """Return whether a message needs no thinking: it only thanks, greets, agrees, or asks for the last answer in
    another form.

    The whole message must say no more than that; "Great, now write a novel" is work. If the message
    `follows_question`, a question of the assistant, an agreement is an answer that may start work, so only thanks
    and goodbyes count.
    """
    if len(message) > _MAX_CHARS:
        return False
    reading = read(message)
    said = reading.words
    if not is_own(reading.prose):
        return False
    if not said:
        return bool(message.strip(" \t\r\n?!.,")) and not follows_question
    asked = _follow(said, _repeat(said, {0}, "lead"), "form")
    if len(said) in _repeat(said, asked, "form_tail"):
        return True
    known = ("gratitude",) if follows_question else ("gratitude", "agreement")
    is_known = bool(_follow(said, set(range(len(said))), *known))
    return is_known and len(said) in _repeat(said, {0}, "gratitude", "agreement", "filler")


def _follow(said: tuple[str, ...], starts: set[int], *names: str) -> set[int]:
    """Return the positions after one of the phrases of the lists that begins at one of the positions `starts`."""
    lists = [_phrases("boilerplate", name) for name in names]
    return {
        start + length
        for start in starts
        for length in range(1, min(_LONGEST, len(said) - start) + 1)
        if any(said[start : start + length] in known for known in lists)
    }


def _repeat(said: tuple[str, ...], starts: set[int], *names: str) -> set[int]:
    """Return the positions after any number of phrases of the lists, zero included."""
    reached, new = set(starts), set(starts)
    while new:
        new = _follow(said, new, *names) - reached
        reached |= new
    return reached


class _Gap(Struct, frozen=True):
    """One way in which a request leaves something open."""

    kind: AmbiguityClass
    missing: Missing
    pattern: re.Pattern[str]
    unless: re.Pattern[str] | None
    """What the clause must not contain after the match."""
    is_deictic: bool
    """True if earlier messages may say what is meant."""


@cache
def _gaps() -> tuple[_Gap, ...]:
    return tuple(
        [
            _Gap(
                AmbiguityClass(gap["kind"]),
                Missing(gap["missing"]),
                compile_pattern("ambiguity", text),
                _pattern("ambiguity", gap["unless"]) if "unless" in gap else None,
                gap.get("is_deictic", False),
            )
            for gap in patterns()["ambiguity"]["gaps"]
            for text in gap["say"]
        ]
    )


_GRAVITY = {kind: number for number, kind in enumerate(AmbiguityClass)}


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
    if _pattern("ambiguity", "leaves_open").search(reading.prose):
        found = [gap for gap in found if gap.kind is AmbiguityClass.SAFETY_CRITICAL_GAP]
    return min(found, key=lambda gap: _GRAVITY[gap.kind], default=None)


def _find_gaps(clause: Clause, reading: Reading, has_history: bool) -> list[Ambiguity]:
    if not clause.is_request:
        return []
    held = not is_own(reading.prose) or _has_content(reading, clause)
    for gap, text in product(_gaps(), clause.forms):
        match = gap.pattern.match(text)
        if match is None or (gap.is_deictic and (has_history or held)):
            continue
        if gap.unless is None or not gap.unless.search(text, match.end()):
            return [Ambiguity(gap.kind, gap.missing, reading.span(clause.start, clause.end))]
    return []


def _has_content(reading: Reading, clause: Clause) -> bool:
    """Return whether text follows that a clause may be about, after a colon or on further lines."""
    rest = reading.prose[clause.start :]
    colon = rest.find(":")
    return (0 <= colon < 200 and len(rest[colon:].split()) > 1) or len(rest.partition("\n")[2].split()) > 3


@cache
def _opposites() -> list[tuple[re.Pattern[str], re.Pattern[str]]]:
    tables = [lists.get("opposites", {}) for lists in languages().values()]
    names = dict.fromkeys([name for table in tables for name in table])
    sides = [
        [",".join([table[name][side] for table in tables if name in table]) for side in (0, 1)]
        for name in names
    ]
    return [
        (re.compile(rf"\b{expression(one)}\b"), re.compile(rf"\b{expression(two)}\b")) for one, two in sides
    ]


def _find_conflict(reading: Reading) -> Ambiguity | None:
    """Return two conditions of one request that exclude each other; `None` if there are no such conditions."""
    prose = reading.prose
    is_wish = any(clause.is_request for clause in find_clauses(reading))
    if not is_wish and not _pattern("ambiguity", "wanted").search(prose):
        return None
    for one, other in _opposites():
        first, second = one.search(prose), other.search(prose)
        if first is None or second is None:
            continue
        start, end = min(first.start(), second.start()), max(first.end(), second.end())
        middle = prose[min(first.end(), second.end()) : max(first.start(), second.start())]
        is_choice = _pattern("ambiguity", "between").search(middle) or re.search(r"[.!?]\s", middle)
        if end - start <= 160 and not is_choice:
            return Ambiguity(
                AmbiguityClass.CONFLICTING_CONSTRAINTS, Missing.PRIORITY, reading.span(start, end)
            )
    return None


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


@cache
def _kinds() -> tuple[dict[TaskKind, re.Pattern[str]], dict[TaskKind, re.Pattern[str]]]:
    """Return the patterns of requests and of questions by kind of work, in order of precedence."""
    section = patterns()["task"]
    requests = {
        TaskKind(kind): compile_pattern("task", "|".join(texts)) for kind, texts in section["kinds"].items()
    }
    questions = {TaskKind(kind): compile_pattern("task", text) for kind, text in section["questions"].items()}
    return requests, questions


def _find_kind(clause: Clause) -> TaskKind | None:
    """Return the kind of work by the verb that a clause begins with and the thing that the verb is about. What a
    document is about ("a letter about research") does not count."""
    if clause.is_capability and _pattern("task", "ability").match(clause.text):
        return None
    requests, questions = _kinds()
    if clause.is_question:
        return next((kind for kind, asked in questions.items() if asked.search(clause.text)), None)
    if not clause.is_request:
        return None
    about = _pattern("task", "about").search(clause.text)
    head = clause.text[: about.start()].rstrip() if about else ""
    for text in (head, *clause.forms):
        for kind, request in requests.items():
            if request.match(text):
                return kind
    if ADDRESS in clause.text:
        return TaskKind.FETCH
    if FILE in clause.text:
        return TaskKind.READ if _pattern("task", "told").match(clause.text) else TaskKind.CODE
    return None


_MIN_SHARE = 0.5
"""The share of a topic's own words that a message must have. Three of them always suffice."""


def is_identity_sensitive(message: str, *, topics: Iterable[str] = ()) -> bool:
    """Return whether a message asks who the assistant is, tries to make it leave its role or rules, or touches one
    of the persona's `topics`, which are its constraints, views and domains as texts.

    A topic is touched if the message has at least half of its own words or three of them, or if both are about law,
    medicine, money, politics, religion or weapons. Words that most messages have, such as "never" and "provide", do
    not count. Words are compared without their endings, in any script.
    """
    reading = read(message)
    if _pattern("identity", "whole").search(reading.prose):
        return True
    stems: frozenset[str] | None = None
    for topic in topics:
        wanted = _stems(topic)
        if wanted:
            stems = _find_stems(reading.prose) if stems is None else stems
            if len(wanted & stems) >= min(3, len(wanted) * _MIN_SHARE):
                return True
        if any(subject.search(reading.prose) for subject in _subjects(topic)):
            return True
    return False


@lru_cache(maxsize=256)
def _stems(topic: str) -> frozenset[str]:
    return _find_stems(topic[:2000].lower())


def _find_stems(text: str) -> frozenset[str]:
    common, endings = _common()
    return frozenset([word.removesuffix("s") for word in find_stems(text, common, endings, 6)])


@cache
def _common() -> tuple[frozenset[str], re.Pattern[str]]:
    return words("identity", "common"), endings_of("identity")


@lru_cache(maxsize=256)
def _subjects(topic: str) -> tuple[re.Pattern[str], ...]:
    """Return the patterns of the subjects that constraints are often about, if a topic is about them."""
    names = dict.fromkeys([name for lists in languages().values() for name in lists.get("subjects", ())])
    found = [_whole_words("subjects", name) for name in names]
    return tuple([subject for subject in found if subject.search(topic[:2000].lower())])


@cache
def _whole_words(section: str, name: str) -> re.Pattern[str]:
    return compile_pattern(section, rf"(?<![\w-])(?:{pattern(section, name).pattern})(?![\w-])")


_HEADS = {"hard": 0.55, "demanding": 0.45, "explaining": 0.3}
"""How much each list of what a clause asks for adds to the difficulty."""
_WORDS = {
    "care": 0.35,
    "breadth": 0.2,
    "large": 0.5,
    "harmful": 0.4,
    "formal": 0.35,
    "conditions": 0.15,
    "steps": 0.15,
}
"""How much each list of words anywhere in a message adds to the difficulty."""
_LIST_ITEM = re.compile(r"^[ \t]{0,8}+(?:[-*•]|\d{1,2}[.)])[ \t]", re.MULTILINE)


def rate_difficulty(message: str) -> float:
    """Return how hard a message is to answer well, from 0 (thanks) to 1 (a proof, a design, a long report).

    It grows with the kind of the requests, with the importance of the answer, with conditions and steps, with
    code and with length. Below 0.3 is easy, from 0.6 on is hard.
    """
    if is_boilerplate(message):
        return 0.0
    reading = read(message)
    prose, count = reading.prose, len(reading.words)
    clauses = [clause for clause in find_clauses(reading) if clause.is_request or clause.is_question]
    heads = [part for clause in clauses for part in _pattern("difficulty", "and").split(clause.text[:400])][
        :12
    ]
    left = 0.95
    for name, weight in _HEADS.items():
        left *= _lower_by(weight, sum([bool(_head(name).match(head)) for head in heads]))
    for name, weight in _WORDS.items():
        left *= _lower_by(weight, len(set(_whole_words("difficulty", name).findall(prose))))
    left *= 1 - min(0.4, max(0, count - 6) / 150)
    left *= 0.95 ** min(max(0, len(clauses) - 2), 8) * 0.93 ** min(len(_LIST_ITEM.findall(prose)), 6)
    if CODE in prose:
        left *= 0.8
    if reading.left_out_chars:
        left *= 0.85
    if count <= 14 and clauses and _pattern("difficulty", "look_up").match(clauses[0].text):
        left = 1 - (1 - left) * 0.6
    return round(1 - left, 3)


def _lower_by(weight: float, count: int) -> float:
    """Return the share of ease that is left after `count` signs of difficulty. The first sign counts most."""
    return (1 - weight) * (1 - weight / 3) ** min(count - 1, 3) if count else 1.0


@cache
def _head(name: str) -> re.Pattern[str]:
    return compile_pattern("difficulty", f"{{{name}}}(?![\\w-])")
