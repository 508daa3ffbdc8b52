"""The judgement of a message by patterns, without a model."""

from treadle.context.judging.ambiguity import judge_ambiguity
from treadle.context.judging.boilerplate import is_boilerplate
from treadle.context.judging.difficulty import rate_difficulty
from treadle.context.judging.identity import is_identity_sensitive
from treadle.context.judging.judgement import Facts, Judgement
from treadle.context.judging.reading import read
from treadle.context.judging.work import judge_task

_NO_FACTS = Facts()


def judge_message(message: str, facts: Facts = _NO_FACTS) -> Judgement:
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
