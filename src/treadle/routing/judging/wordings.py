"""The known wordings of small talk, of gaps and of work, by the word lists. They are strong features of a message;
what they mean together with its other features is learned (see `classifier`).

Small talk is covered completely by known phrases. Gaps and work are looked for clause by clause: only requests
count, and what a message quotes or excludes does not.
"""

import re
from functools import cache
from itertools import product

from msgspec import Struct

from treadle.core.judgement import Ambiguity, AmbiguityClass, Missing, TaskKind
from treadle.routing.judging.clauses import Clause, Reading, find_clauses, is_own
from treadle.routing.judging.lists import (
    ADDRESS,
    FILE,
    compile_pattern,
    expression,
    languages,
    pattern,
    patterns,
    phrases,
)

_MAX_CHARS = 200
_LONGEST = 6
"""The number of words of the longest phrase of small talk."""


def is_small_talk(reading: Reading, *, follows_question: bool) -> bool:
    """Return whether phrases of small talk cover the whole message. If it `follows_question`, a question of the
    assistant, an agreement is an answer that may start work, so only thanks and goodbyes count."""
    if len(reading.text) > _MAX_CHARS:
        return False
    said = reading.words
    if not is_own(reading.prose):
        return False
    if not said:
        return bool(reading.text.strip(" \t\r\n?!.,")) and not follows_question
    asked = _follow(said, _repeat(said, {0}, "lead"), "form")
    if len(said) in _repeat(said, asked, "form_tail"):
        return True
    known = ("gratitude",) if follows_question else ("gratitude", "agreement")
    is_known = bool(_follow(said, set(range(len(said))), *known))
    return is_known and len(said) in _repeat(said, {0}, "gratitude", "agreement", "filler")


def _follow(said: tuple[str, ...], starts: set[int], *names: str) -> set[int]:
    """Return the positions after one of the phrases of the lists that begins at one of the positions `starts`."""
    lists = [phrases("boilerplate", name) for name in names]
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
                pattern("ambiguity", gap["unless"]) if "unless" in gap else None,
                gap.get("is_deictic", False),
            )
            for gap in patterns()["ambiguity"]["gaps"]
            for text in gap["say"]
        ]
    )


_GRAVITY = {kind: number for number, kind in enumerate(AmbiguityClass)}


def find_gap(reading: Reading, *, has_history: bool) -> tuple[Ambiguity | None, bool]:
    """Return the gravest gap that a known wording leaves, `None` if there is none, and whether a wording was found
    that leaves no gap here. Earlier messages may say what "it" and "the document" are. If the message leaves the
    choice to the assistant, only what cannot be undone counts."""
    found: list[Ambiguity] = []
    is_filled = False
    for clause in find_clauses(reading):
        gap, filled = _read_gap(clause, reading, has_history)
        found += [gap] if gap is not None else []
        is_filled = is_filled or filled
    conflict = _find_conflict(reading)
    if conflict is not None:
        found.append(conflict)
    if found and pattern("ambiguity", "leaves_open").search(reading.prose):
        found = [gap for gap in found if gap.kind is AmbiguityClass.SAFETY_CRITICAL_GAP]
    return min(found, key=lambda gap: _GRAVITY[gap.kind], default=None), is_filled and not found


def _read_gap(clause: Clause, reading: Reading, has_history: bool) -> tuple[Ambiguity | None, bool]:
    """Return the gap that a clause leaves, and whether its wording would leave one elsewhere."""
    if not clause.is_request:
        return None, False
    is_held: bool | None = None
    is_filled = False
    for gap, text in product(_gaps(), clause.forms):
        match = gap.pattern.match(text)
        if match is None:
            continue
        if is_held is None:
            is_held = not is_own(reading.prose) or _has_content(reading, clause)
        is_filled = True
        if gap.is_deictic and (has_history or is_held):
            continue
        if gap.unless is None or not gap.unless.search(text, match.end()):
            return Ambiguity(gap.kind, gap.missing, reading.span(clause.start, clause.end)), True
    return None, is_filled


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
    if not is_wish and not pattern("ambiguity", "wanted").search(prose):
        return None
    for one, other in _opposites():
        first, second = one.search(prose), other.search(prose)
        if first is None or second is None:
            continue
        start, end = min(first.start(), second.start()), max(first.end(), second.end())
        middle = prose[min(first.end(), second.end()) : max(first.start(), second.start())]
        is_choice = pattern("ambiguity", "between").search(middle) or re.search(r"[.!?]\s", middle)
        if end - start <= 160 and not is_choice:
            return Ambiguity(
                AmbiguityClass.CONFLICTING_CONSTRAINTS, Missing.PRIORITY, reading.span(start, end)
            )
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


def find_kind(clause: Clause) -> TaskKind | None:
    """Return the kind of work by the verb that a clause begins with and the thing that the verb is about. What a
    document is about ("a letter about research") does not count."""
    if clause.is_capability and pattern("task", "ability").match(clause.text):
        return None
    requests, questions = _kinds()
    if clause.is_question:
        return next((kind for kind, asked in questions.items() if asked.search(clause.text)), None)
    if not clause.is_request:
        return None
    about = pattern("task", "about").search(clause.text)
    head = clause.text[: about.start()].rstrip() if about else ""
    for text in (head, *clause.forms):
        for kind, request in requests.items():
            if request.match(text):
                return kind
    if ADDRESS in clause.text:
        return TaskKind.FETCH
    if FILE in clause.text:
        return TaskKind.READ if pattern("task", "told").match(clause.text) else TaskKind.CODE
    return None
