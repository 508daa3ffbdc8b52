"""Judgements about a message, made before or after a model is asked. They are pure functions of the text."""

from treadle.context.judging.ambiguity import judge_ambiguity
from treadle.context.judging.boilerplate import is_boilerplate
from treadle.context.judging.difficulty import rate_difficulty
from treadle.context.judging.identity import is_identity_sensitive
from treadle.context.judging.judgement import (
    Ambiguity,
    AmbiguityClass,
    Facts,
    Judgement,
    Missing,
    Refusal,
    TaskFound,
    TaskKind,
)
from treadle.context.judging.patterns import judge_message
from treadle.context.judging.refusals import find_refusal
from treadle.context.judging.work import judge_task

__all__ = [
    "Ambiguity",
    "AmbiguityClass",
    "Facts",
    "Judgement",
    "Missing",
    "Refusal",
    "TaskFound",
    "TaskKind",
    "find_refusal",
    "is_boilerplate",
    "is_identity_sensitive",
    "judge_ambiguity",
    "judge_message",
    "judge_task",
    "rate_difficulty",
]
