"""The end of a turn: the model's answer, its check against a schema, nudges, the wrap-up, and what ends a turn."""

from typing import TYPE_CHECKING

import msgspec

from treadle.core import events as e
from treadle.core.actions import Append, AskUser, CheckAnswer, tell
from treadle.core.asking import FindFault, ask_by_marker, final_text
from treadle.core.texts.json_text import decode_json
from treadle.core.types import Fault, FinishReason, Message, OutputSpec, Role, StopReason

if TYPE_CHECKING:
    from treadle.core.state import State

_NUDGE = (
    "Your last message had no text and called no tool, so the user has seen nothing of it. Go on: call a tool, or "
    "write your answer."
)
REFUSED_MESSAGE = (
    "Your last message says that you cannot do something for which you have the tool {tool}. The user has not been "
    "given that message as an answer. If the tool serves the user's request, call it now. Otherwise write your "
    "whole answer again, and say why you do not use it."
)
"""The message that answers a model which says that it cannot use a tool although it has the tool."""
ESCALATED_MESSAGE = (
    "Another model tried to answer before you, and its answer was not used: {why}\n"
    "The user has not seen that answer. Answer the user's message yourself."
)
"""The message that tells a model which other model tried to answer first, and why that answer was not used."""


def fold_message(state: "State", body: e.MessageInjected) -> None:
    """Record what changes with a message that Treadle has added to the transcript."""
    turn, shown = state.turn, state.shown
    turn.untold = turn.answer = None
    turn.misnamed = ()
    turn.spent.nudges += body.is_nudge
    turn.limit = body.limit or turn.limit
    shown.is_schema_untold = shown.is_schema_untold and not body.tells_schema
    shown.tells_schema = shown.tells_schema or body.tells_schema
    if body.output_fault is not None:
        turn.is_wrapped_up = False
        turn.spent.rejected_answers += 1


def end_turn(
    state: "State",
    stop_reason: StopReason,
    *,
    error: str | None = None,
    fault: Fault | None = None,
    output: str | None = None,
) -> Append:
    """Return the action to end the turn, and also the run, unless another turn may follow.

    Without `output`, the output is the newest answer, or the last text of the model in the turn.
    """
    turn = state.turn
    if output is None:
        output = final_text(state, _last_text(state) if turn.answer is None else turn.answer.content)
    done = e.TurnCompleted(turn=turn.number, stop_reason=stop_reason, output=output, error=error, fault=fault)
    if state.stays_open:
        return Append((done,))
    return Append((done, e.RunFinished(stop_reason=stop_reason, error=error, fault=fault)))


def _last_text(state: "State") -> str:
    """Return the model's last text in this turn, for a turn that ended without an answer."""
    injected = 0 if state.turn.limit is None else 1
    for index in range(len(state.messages) - 1, -1, -1):
        message = state.messages[index]
        if message.role is Role.ASSISTANT:
            return message.content
        if message.role is Role.USER:
            if not injected:
                break
            injected -= 1
    return ""


def announce_limit(state: "State", limit: StopReason) -> Append:
    """Return the action to tell the model that a limit was reached; its next answer is the wrap-up."""
    return tell(state.policy.last_step_message.format(limit=limit.value), limit=limit)


def tell_schema(state: "State") -> Append:
    """Return the action to ask the model for answers that fit the schema."""
    assert state.output_spec is not None
    return tell(ask_for_schema(state.output_spec), tells_schema=True)


def ask_for_schema(output: OutputSpec) -> str:
    """Return the text that asks a model for answers that fit the schema."""
    schema = msgspec.json.encode(output.schema).decode()
    return f"Give your final answer as JSON and nothing else, in this JSON Schema:\n{schema}"


def name_tools(state: "State") -> Append:
    """Return the action that tells the names of the tools to a model that keeps calling unknown tools."""
    wrong = ", ".join(map(repr, state.turn.misnamed))
    known = ", ".join([tool.name for tool in state.tools])
    offered = f"Call only these tools: {known}." if known else "There are no tools at all."
    return tell(
        f"You called {wrong} again, which does not exist. {offered} If none fits, answer without a tool."
    )


def decide_answer(state: "State", answer: Message) -> Append | AskUser | CheckAnswer:
    """Return what follows from an answer of the model: a question, a check, a nudge, or the end of the turn."""
    turn, reason = state.turn, state.turn.finish_reason
    if reason is not FinishReason.CONTENT_FILTER and reason is not FinishReason.LENGTH:
        if turn.limit is None and (action := ask_by_marker(state, answer.content)) is not None:
            return action
        if state.output_spec is not None:
            return CheckAnswer(final_text(state, answer.content))
    if turn.limit is not None:
        return end_turn(state, turn.limit)
    if reason is FinishReason.CONTENT_FILTER or reason is FinishReason.LENGTH:
        return end_answered(state)
    if not turn.spent.nudges:
        if not answer.content.strip() and not answer.parts and state.is_since(2, 2):
            return tell(_NUDGE, is_nudge=True)
        if turn.refused_tool is not None:
            return tell(REFUSED_MESSAGE.format(tool=turn.refused_tool), is_nudge=True)
    return end_answered(state)


def end_answered(state: "State") -> Append:
    """Return the action to end the turn with the answer that the model gave, whole or not."""
    reason = state.turn.finish_reason
    if reason is FinishReason.CONTENT_FILTER:
        return end_turn(state, StopReason.REFUSED, error="the model refused", fault=Fault.MODEL)
    if reason is FinishReason.LENGTH:
        error = "the answer was cut off by the model's output limit"
        return end_turn(state, StopReason.MAX_TOKENS, error=error, fault=Fault.MODEL)
    return end_turn(state, StopReason.COMPLETED)


def check_answer(state: "State", action: CheckAnswer, find_fault: FindFault) -> tuple[e.DurableBody, ...]:
    """Return the events that follow from an answer, which `find_fault` checks against the schema."""
    text = strip_answer(action.text)
    assert state.output_spec is not None
    try:
        value = decode_json(text)
    except msgspec.DecodeError as error:
        return judge_answer(state, text, f"it is not JSON ({error})").bodies
    return judge_answer(state, text, find_fault(state.output_spec.schema, value)).bodies


def strip_answer(text: str) -> str:
    """Return an answer without surrounding white space and without a code fence that encloses all of it."""
    text = text.strip()
    first, _, rest = text.partition("\n")
    # Any other fence is inside a string of the JSON value, so removing the outer one is enough.
    is_fenced = first.startswith("```") and "`" not in first[3:] and rest.endswith("```")
    return rest[:-3].strip() if is_fenced else text


def judge_answer(state: "State", output: str, fault: str | None) -> Append:
    """Return what follows from an answer that was checked against the schema.

    `output` is the answer without white space and code fences around it. `fault` says what does not fit the
    schema; `None` if the answer fits.
    """
    turn = state.turn
    if fault is None:
        return end_turn(state, turn.limit or StopReason.COMPLETED, output=output)
    if turn.limit is not None or turn.spent.rejected_answers + 1 >= state.policy.max_output_attempts:
        return reject(state, fault)
    tool = state.output_tool
    advice = "Answer again, with nothing but" if tool is None else f"Call {tool} with"
    text = f"This is no valid answer: {fault}\n{advice} JSON that fits the schema."
    return tell(text, output_fault=fault)


def reject(state: "State", fault: str) -> Append:
    """Return the end of a turn that has no answer which fits the schema."""
    attempts = state.policy.max_output_attempts
    times = "a wrap-up" if state.turn.limit is not None else f"{attempts} attempt{'s' * (attempts > 1)}"
    error = f"no answer that fits the schema after {times}: {fault}"
    return end_turn(state, state.turn.limit or StopReason.ERROR, error=error, fault=Fault.MODEL)


def recorded_fault(body: e.DurableBody | None) -> str | None:
    """Return the fault of an answer, read from `body`, the event after the answer; `None` if there was none."""
    if isinstance(body, e.MessageInjected):
        return body.output_fault
    if isinstance(body, e.TurnCompleted) and body.fault is Fault.MODEL and body.error is not None:
        return body.error.partition(": ")[2] or body.error
    return None
