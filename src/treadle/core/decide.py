"""The function `decide`, which derives the next action of a run from its state alone.

This module only has the order in which things are considered. The modules about calls, answers, questions and
limits decide the details, and also apply the events about them.

The driver calls `decide` only while nothing is running. A call that was started and has no result is therefore in
doubt: the process that ran it has ended.
"""

from treadle.core import events as e
from treadle.core.actions import Action, Append, Compact, Infer, tell
from treadle.core.answering import (
    ESCALATED_MESSAGE,
    decide_answer,
    end_answered,
    end_turn,
    name_tools,
    reject,
    tell_schema,
)
from treadle.core.calls import decide_calls, wait_for_results
from treadle.core.limits import can_ask_again, check_limits, is_past_deadline
from treadle.core.prompts.prompting import (
    MOST_OVERFLOWS,
    blame_overflow,
    count_prompt,
    explain_overflow,
    find_room,
    find_trigger,
    is_surely_below,
)
from treadle.core.state import State, Status
from treadle.core.steering import is_steered
from treadle.core.types import Fault, StopReason

# An attribute of an enum takes longer to look up than a global name.
_RUNNING = Status.RUNNING


def decide(state: State) -> Action | None:
    """Return the next action; `None` if the run waits for somebody or is over."""
    if state.status is not _RUNNING:
        return None
    turn = state.turn
    if not turn.is_open:
        return _decide_end(state)
    if state.started is not None and state.started.is_relayed:
        return _decide_relayed(state)
    if turn.calls:
        return decide_calls(state)
    if turn.failure is not None:
        return _decide_failure(state, turn.failure)
    if turn.untold is not None:
        return tell(ESCALATED_MESSAGE.format(why=turn.untold))
    if turn.final is not None:
        return end_turn(state, turn.limit or StopReason.COMPLETED, output=turn.final)
    if turn.answer is not None and not is_steered(state):
        return decide_answer(state, turn.answer)
    if turn.spent.rejected_answers >= state.policy.max_output_attempts:
        return reject(state, "the arguments of its last call broke the schema")
    if turn.limit is None:
        stop = check_limits(state)
        if stop is not None:
            return stop
        if turn.misnamed and state.is_since(2, 2):
            return name_tools(state)
    elif turn.is_wrapped_up or (turn.is_wrap_up_lost and not can_ask_again(state)):
        return end_turn(state, turn.limit)
    if state.shown.is_schema_untold and state.output_spec is not None:
        return tell_schema(state)
    return _decide_size(state) or Infer(state.step + 1, has_tools=turn.limit is None)


def _decide_relayed(state: State) -> Action:
    """Return what follows in a run whose loop is that of another program, which gets every answer as it is."""
    turn = state.turn
    if turn.calls:
        return wait_for_results(state)
    if turn.failure is not None:
        return _decide_failure(state, turn.failure)
    if turn.answer is not None and not turn.steering:
        return end_answered(state)
    return check_limits(state) or Infer(state.step + 1, has_tools=True)


def _decide_end(state: State) -> Action | None:
    """Return what follows the end of a turn: the end of the run, if no other turn can follow."""
    ending = state.ending
    if state.turn.number == 0 or state.stays_open or ending.stop_reason is None:
        return None
    return Append((e.RunFinished(stop_reason=ending.stop_reason, error=ending.error, fault=ending.fault),))


def _decide_failure(state: State, failure: e.InferenceFailed) -> Action:
    """Return what follows an inference that failed: a compaction, a few times in a turn, if the server refused the
    length of the prompt, and otherwise the end of the turn."""
    error, fault = failure.error, failure.fault
    if failure.stop_reason is StopReason.CONTEXT_OVERFLOW:
        is_new = state.is_since(2, 5)
        can_compact = state.policy.compact_at is not None and state.shown.can_compact
        has_tries = state.turn.spent.overflows < (MOST_OVERFLOWS if is_new else 1)
        if can_compact and has_tries and (is_new or len(state.messages) > 2) and not is_past_deadline(state):
            return Compact("overflow")
        if is_new:
            error, fault = explain_overflow(state, error), blame_overflow(state)
    return end_turn(state, failure.stop_reason, error=error, fault=fault)


def _decide_size(state: State) -> Action | None:
    """Return what to do instead of an inference whose prompt is too long; `None` if it is not. A prompt that was
    just compacted is sent, since another compaction would not help: its size is an estimate, and the server
    decides."""
    room = find_room(state)
    if room is None and state.policy.compact_threshold is None:
        return None
    trigger = find_trigger(state, room)
    if trigger is None or state.policy.compact_at is None or not state.shown.can_compact:
        return None
    if is_surely_below(state, trigger) or (tokens := count_prompt(state)) <= trigger:
        return None
    if not state.size.is_fresh:
        return Compact("budget")
    if room is None or tokens <= room or state.is_since(2, 5):
        return None
    error = explain_overflow(state, "", room)
    return end_turn(state, StopReason.CONTEXT_OVERFLOW, error=error, fault=Fault.MODEL)
