"""Judgements about messages, made before or after a model is asked. The patterns are pure functions of the text."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from treadle.context.judging.judges import MessageJudge, ModelJudge, PatternJudge, make_judge
    from treadle.context.judging.patterns import judge_message
    from treadle.context.judging.refusals import find_refusal
    from treadle.context.judging.work import judge_task

__all__ = [
    "Ambiguity",
    "AmbiguityClass",
    "Facts",
    "Judgement",
    "MessageJudge",
    "Missing",
    "ModelJudge",
    "PatternJudge",
    "Refusal",
    "TaskFound",
    "TaskKind",
    "find_refusal",
    "is_boilerplate",
    "is_identity_sensitive",
    "judge_ambiguity",
    "judge_message",
    "judge_task",
    "make_judge",
    "rate_difficulty",
]


def __getattr__(name: str) -> object:
    from treadle.core.registry import load_name

    return load_name(__name__, name, _WHERE)


_PACKAGE = "treadle.context.judging"
_VALUES = ("Ambiguity", "AmbiguityClass", "Facts", "Judgement", "Missing", "Refusal", "TaskFound", "TaskKind")
_WHERE = {
    **dict.fromkeys(_VALUES, f"{_PACKAGE}.judgement"),
    **dict.fromkeys(("MessageJudge", "ModelJudge", "PatternJudge", "make_judge"), f"{_PACKAGE}.judges"),
    "find_refusal": f"{_PACKAGE}.refusals",
    "is_boilerplate": f"{_PACKAGE}.boilerplate",
    "is_identity_sensitive": f"{_PACKAGE}.identity",
    "judge_ambiguity": f"{_PACKAGE}.ambiguity",
    "judge_message": f"{_PACKAGE}.patterns",
    "judge_task": f"{_PACKAGE}.work",
    "rate_difficulty": f"{_PACKAGE}.difficulty",
}
