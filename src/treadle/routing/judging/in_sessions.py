"""The use of judgements in a run: before a turn, and about the model's answers.

A judgement is recorded with the beginning of its turn, so that a resumed or replayed run has the same.
"""

import msgspec
from msgspec.structs import replace

from treadle.core.judgement import AmbiguityClass, Judgement
from treadle.core.policy import Approval, Autonomy, Policy
from treadle.core.state import State
from treadle.core.types import Message, Role, ToolSpec
from treadle.routing.judging.inabilities import find_refusal
from treadle.routing.judging.judgements import MessageFacts, judge_message
from treadle.routing.judging.judges import MessageJudge
from treadle.routing.judging.lists import prompts

ASK_TOOL = "ask_user"
"""The name of the tool by which the model asks the user."""
_MAX_ERROR_CHARS = 500
_SURE = 0.7
"""The least confidence with which the model is told to ask."""
_GRAVE = AmbiguityClass.SAFETY_CRITICAL_GAP
_ASKED_ABOUT: dict[Autonomy, tuple[AmbiguityClass, ...]] = {
    Autonomy.CAUTIOUS: tuple(AmbiguityClass),
    Autonomy.BALANCED: (_GRAVE, AmbiguityClass.MISSING_PARAMETER),
    Autonomy.DECISIVE: (_GRAVE,),
}
"""The classes of ambiguity about which the user is asked."""


def facts_of_message(
    state: State,
    message: Message,
    *,
    tools: tuple[ToolSpec, ...],
    topics: tuple[str, ...],
    has_documents: bool,
) -> MessageFacts:
    """Return the facts for the judgement of a message that is to begin the next turn of a run in `state`."""
    return MessageFacts(
        tools=tools,
        has_history=state.turn.number > 0 or bool(message.parts) or has_documents,
        follows_question=follows_question(state),
        topics=topics,
    )


def follows_question(state: State) -> bool:
    """Return whether the newest message of the model ends with a question."""
    for index in range(len(state.messages) - 1, -1, -1):
        message = state.messages[index]
        if message.role is Role.ASSISTANT:
            return message.content.rstrip().endswith("?")
    return False


async def judge_safely(judge: MessageJudge, message: str, facts: MessageFacts) -> Judgement:
    """Return the judgement about a message. If the judge fails, or returns something else, the word lists
    judge, and `Judgement.error` says why."""
    try:
        found = await judge.judge(message, facts)
        # A judge of another package may give values that a journal could not be read with.
        return msgspec.json.decode(msgspec.json.encode(found), type=Judgement)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS]
        return replace(judge_message(message, facts), error=why)


def write_hint(judgement: Judgement, policy: Policy, tools: tuple[ToolSpec, ...]) -> str | None:
    """Return the text that tells the model to ask about what a message leaves open; `None` if the policy's autonomy
    does not ask about it, if the judgement is not sure, or if the model cannot ask. It quotes nothing of the
    message."""
    gap = judgement.ambiguity
    if gap is None or gap.confidence < _SURE or gap.kind not in _ASKED_ABOUT[policy.autonomy]:
        return None
    if not policy.text_markers and all([tool.name != ASK_TOOL for tool in tools]):
        return None
    hints = prompts()["hints"]
    hint: str = hints["grave" if gap.kind is _GRAVE else "usual"]
    return hint.format(what=hints["open"][gap.missing])


def find_refused_tool(state: State, answer: Message) -> str | None:
    """Return the name of an offered tool that an answer says cannot be used; `None` if the answer says no such
    thing. It is also `None` if the model may call no more tools, may not call this tool, or has called it in
    this turn, because then it may have tried."""
    if answer.tool_calls or state.turn.limit is not None or state.output_spec is not None:
        return None
    since = state.messages.after(state.turn.position)
    tried = {call.name for message in since for call in message.tool_calls}
    offered = [
        tool
        for tool in state.tools
        if tool.name not in tried and state.policy.approval_of(tool.name, tool.effect) is not Approval.NEVER
    ]
    refusal = find_refusal(answer.content, tools=offered)
    return None if refusal is None else refusal.tool
