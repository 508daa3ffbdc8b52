"""The judgements of a message without a model: functions of the text and of a few facts about the conversation.

A trained classifier judges (see `classifier`); what it weighs are the words of the message, their classes, and the
known wordings (see `wordings`). Each judgement has a confidence; below the least that is worth saying, nothing is
said.
"""

import re
from collections.abc import Iterable
from functools import cache, lru_cache

from msgspec import Struct

from treadle.core.judgement import Ambiguity, AmbiguityClass, Judgement, Missing, TaskFound, TaskKind
from treadle.core.types import ToolSpec
from treadle.routing.judging.classifier import Scores, classifier
from treadle.routing.judging.clauses import Clause, Reading, find_clauses, find_stems, is_own, read
from treadle.routing.judging.features import find_features, find_rows, rows_of_words
from treadle.routing.judging.inabilities import find_suited
from treadle.routing.judging.lists import CODE, compile_pattern, languages, pattern, patterns
from treadle.routing.judging.wordings import find_gap, find_kind, is_small_talk


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
    language = read(message).language
    judged = _judge(message, facts.has_history, facts.follows_question)
    if judged.is_boilerplate:
        return Judgement(language=language, is_boilerplate=True)
    return Judgement(
        language=language,
        ambiguity=_find_ambiguity(judged),
        task=_find_task(judged, facts.tools),
        is_identity_sensitive=_is_sensitive(judged, facts.topics),
        difficulty=rate_difficulty(message),
    )


_LONGEST_TALK = 300
"""The number of characters above which a message is never boilerplate."""


class Known(Struct, frozen=True):
    """The known wordings that were found in a message."""

    gap: Ambiguity | None
    kinds: tuple[tuple[Clause, TaskKind], ...]
    """The clauses that ask for work."""
    is_small_talk: bool
    rows: tuple[int, ...]
    """The rows of the features that say so."""


def read_known(reading: Reading, has_history: bool, follows_question: bool) -> Known:
    """Return the known wordings in a message."""
    gap, is_filled = find_gap(reading, has_history=has_history)
    kinds = tuple([(clause, kind) for clause in find_clauses(reading) if (kind := find_kind(clause))])
    names = [f"kind {kinds[0][1]}" if kinds else "no kind"]
    if gap is not None:
        names.append(f"gap {gap.kind}")
    elif is_filled:
        names.append("filled gap")
    talks = is_small_talk(reading, follows_question=follows_question)
    if talks:
        names.append("small talk")
    if pattern("identity", "whole").search(reading.prose):
        names.append("identity")
    return Known(gap, kinds, talks, tuple(find_rows(names)))


def letters_of(has_history: bool, follows_question: bool) -> str:
    """Return the facts about the conversation as `find_features` takes them."""
    return ("h" if has_history else "n") + ("q" if follows_question else "")


class _Judged(Struct, frozen=True):
    """A message with the scores of the classifier."""

    reading: Reading
    known: Known
    scores: Scores

    @property
    def is_boilerplate(self) -> bool:
        """Whether the message needs no thinking."""
        prose = self.reading.prose
        if len(prose) > _LONGEST_TALK or not is_own(prose) or not self.reading.words:
            return self.known.is_small_talk
        return self.scores.is_found("boilerplate")


@lru_cache(maxsize=64)
def _judge(message: str, has_history: bool, follows_question: bool) -> _Judged:
    reading = read(message)
    known = read_known(reading, has_history, follows_question)
    features = find_features(reading, letters_of(has_history, follows_question))
    return _Judged(reading, known, classifier("messages").score(features, known.rows))


def is_boilerplate(message: str, *, follows_question: bool = False) -> bool:
    """Return whether a message needs no thinking: it only thanks, greets, agrees, or asks for the last answer in
    another form.

    The whole message must say no more than that; "Great, now write a novel" is work. If the message
    `follows_question`, a question of the assistant, an agreement is an answer that may start work, so only thanks
    and goodbyes count.
    """
    return _judge(message, follows_question, follows_question).is_boilerplate


def _find_ambiguity(judged: _Judged) -> Ambiguity | None:
    found = judged.scores.find("ambiguity")
    if not found:
        return None
    kind, confidence = AmbiguityClass(found[0][0]), round(found[0][1], 3)
    gap = judged.known.gap
    if gap is not None and gap.kind is kind:
        return Ambiguity(kind, gap.missing, gap.span, confidence)
    missing = Missing(judged.scores.best("missing", list(Missing)))
    span = judged.reading.span(*_find_span(judged, "ambiguity", kind))
    return Ambiguity(kind, missing, span, confidence)


def _find_span(judged: _Judged, head: str, name: str) -> tuple[int, int]:
    """Return the part of a message that is the strongest sign of a judgement: one of its requests."""
    clauses = find_clauses(judged.reading)
    clauses = tuple([clause for clause in clauses if clause.is_request]) or clauses
    if not clauses:
        return 0, len(judged.reading.text)
    weights = classifier("messages")
    best = clauses[0]
    if len(clauses) > 1:
        few = (*clauses[:4], *clauses[4:][-4:])
        best = max(few, key=lambda clause: weights.score(rows_of_words(clause.text), ())[head, name])
    return best.start, best.end


def _find_task(judged: _Judged, tools: tuple[ToolSpec, ...]) -> TaskFound | None:
    for name, sure in judged.scores.find("task"):
        if suited := find_suited(name, tools):
            kind = TaskKind(name)
            known = next((clause for clause, asked in judged.known.kinds if asked is kind), None)
            span = _find_span(judged, "task", kind) if known is None else (known.start, known.end)
            return TaskFound(kind, suited, judged.reading.span(*span), round(sure, 3))
    return None


_MIN_SHARE = 0.5
"""The share of a topic's own words that a message must have. Three of them always suffice."""
_MORE = 0.5
"""How many words more a message must have if the topic is about a subject that the classifier knows: a recipe for
pancakes is not about seafood."""


def is_identity_sensitive(message: str, *, topics: Iterable[str] = ()) -> bool:
    """Return whether a message asks who the assistant is, tries to make it leave its role or rules, or touches one
    of the persona's `topics`, which are its constraints, views and domains as texts.

    A topic is touched if the message has at least half of its own words (more than half where the classifier knows
    the subject) or three of them, or if both are about a known subject: law, medicine, seafood, work from home,
    money, politics, religion or weapons. Words that most messages have, such as "never" and "provide", do not
    count. Words are compared without their endings, in any script.
    """
    return _is_sensitive(_judge(message, False, False), topics)


def _is_sensitive(judged: _Judged, topics: Iterable[str]) -> bool:
    if judged.scores.is_found("self"):
        return True
    prose = judged.reading.prose
    stems: frozenset[str] | None = None
    for topic in topics:
        wanted = _stems(topic)
        subjects = _subjects(topic)
        if wanted:
            stems = _find_stems(prose) if stems is None else stems
            more = _MORE if any(name in judged.scores for name in subjects) else 0
            if len(wanted & stems) >= min(3, len(wanted) * _MIN_SHARE + more):
                return True
        for name in subjects:
            if judged.scores.is_found(name) if name in judged.scores else _subject(name).search(prose):
                return True
    return False


@lru_cache(maxsize=256)
def _stems(topic: str) -> frozenset[str]:
    return _find_stems(topic[:2000].lower())


def _find_stems(text: str) -> frozenset[str]:
    return frozenset([word.removesuffix("s") for word in find_stems(text, "identity", "common", 6)])


@lru_cache(maxsize=256)
def _subjects(topic: str) -> tuple[str, ...]:
    """Return the names of the subjects that a topic is about, of those that constraints are often about."""
    names = dict.fromkeys([name for lists in languages().values() for name in lists.get("subjects", ())])
    return tuple([name for name in names if _subject(name).search(topic[:2000].lower())])


def _subject(name: str) -> re.Pattern[str]:
    return _whole_words("subjects", name)


@cache
def _whole_words(section: str, name: str) -> re.Pattern[str]:
    return compile_pattern(section, rf"(?<![\w-])(?:{pattern(section, name).pattern})(?![\w-])")


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
    heads = [part for clause in clauses for part in pattern("difficulty", "and").split(clause.text[:400])][
        :12
    ]
    left, weights = 0.95, patterns()["difficulty"]["weights"]
    for name, weight in weights["heads"].items():
        left *= _lower_by(weight, sum([bool(_head(name).match(head)) for head in heads]))
    for name, weight in weights["words"].items():
        left *= _lower_by(weight, len(set(_whole_words("difficulty", name).findall(prose))))
    left *= 1 - min(0.4, max(0, count - 6) / 150)
    left *= 0.95 ** min(max(0, len(clauses) - 2), 8) * 0.93 ** min(len(_LIST_ITEM.findall(prose)), 6)
    if CODE in prose:
        left *= 0.8
    if reading.left_out_chars:
        left *= 0.85
    if count <= 14 and clauses and pattern("difficulty", "look_up").match(clauses[0].text):
        left = 1 - (1 - left) * 0.6
    return round(1 - left, 3)


def _lower_by(weight: float, count: int) -> float:
    """Return the share of ease that is left after `count` signs of difficulty. The first sign counts most."""
    return (1 - weight) * (1 - weight / 3) ** min(count - 1, 3) if count else 1.0


@cache
def _head(name: str) -> re.Pattern[str]:
    return compile_pattern("difficulty", f"{{{name}}}(?![\\w-])")
