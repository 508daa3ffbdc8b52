"""Judgements about messages, made before or after a model is asked. The patterns are pure functions of the text."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.core.judgement import Ambiguity, AmbiguityClass, Judgement, Missing, TaskFound, TaskKind
    from treadle.routing.judging.ambiguity import judge_ambiguity
    from treadle.routing.judging.boilerplate import is_boilerplate
    from treadle.routing.judging.difficulty import rate_difficulty
    from treadle.routing.judging.identity import is_identity_sensitive
    from treadle.routing.judging.in_sessions import (
        facts_of_message,
        find_refused_tool,
        follows_question,
        judge_safely,
        write_hint,
    )
    from treadle.routing.judging.judges import (
        MessageJudge,
        ModelJudge,
        PatternJudge,
        judge_of_part,
        make_judge,
        part_of_judge,
    )
    from treadle.routing.judging.patterns import MessageFacts, judge_message
    from treadle.routing.judging.refusals import Refusal, find_refusal
    from treadle.routing.judging.work import judge_task

__all__ = [
    "Ambiguity",
    "AmbiguityClass",
    "Judgement",
    "MessageFacts",
    "MessageJudge",
    "Missing",
    "ModelJudge",
    "PatternJudge",
    "Refusal",
    "TaskFound",
    "TaskKind",
    "facts_of_message",
    "find_refusal",
    "find_refused_tool",
    "follows_question",
    "is_boilerplate",
    "is_identity_sensitive",
    "judge_ambiguity",
    "judge_message",
    "judge_of_part",
    "judge_safely",
    "judge_task",
    "make_judge",
    "part_of_judge",
    "rate_difficulty",
    "write_hint",
]


def __getattr__(name: str) -> object:
    from treadle.core.registry import load_name

    return load_name(__name__, name, _WHERE)


_PACKAGE = "treadle.routing.judging"
_VALUES = ("Ambiguity", "AmbiguityClass", "Judgement", "Missing", "TaskFound", "TaskKind")
_USES = ("facts_of_message", "find_refused_tool", "follows_question", "judge_safely", "write_hint")
_JUDGES = (
    "MessageJudge",
    "ModelJudge",
    "PatternJudge",
    "judge_of_part",
    "make_judge",
    "part_of_judge",
)
_WHERE = {
    **dict.fromkeys(_VALUES, "treadle.core.judgement"),
    **dict.fromkeys(_USES, f"{_PACKAGE}.in_sessions"),
    **dict.fromkeys(_JUDGES, f"{_PACKAGE}.judges"),
    **dict.fromkeys(("MessageFacts", "judge_message"), f"{_PACKAGE}.patterns"),
    **dict.fromkeys(("Refusal", "find_refusal"), f"{_PACKAGE}.refusals"),
    "is_boilerplate": f"{_PACKAGE}.boilerplate",
    "is_identity_sensitive": f"{_PACKAGE}.identity",
    "judge_ambiguity": f"{_PACKAGE}.ambiguity",
    "judge_task": f"{_PACKAGE}.work",
    "rate_difficulty": f"{_PACKAGE}.difficulty",
}
