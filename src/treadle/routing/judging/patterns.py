"""The judgement of a message by patterns, without a model."""

from msgspec import Struct

from treadle.core.judgement import Judgement
from treadle.core.types import ToolSpec
from treadle.routing.judging.ambiguity import judge_ambiguity
from treadle.routing.judging.boilerplate import is_boilerplate
from treadle.routing.judging.difficulty import rate_difficulty
from treadle.routing.judging.identity import is_identity_sensitive
from treadle.routing.judging.reading import read
from treadle.routing.judging.work import judge_task


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
