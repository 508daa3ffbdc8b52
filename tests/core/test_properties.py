"""Properties of every history: of the fold, of the decisions, of the end, and of the transcript."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.histories import LIMITS, History, find_fault, histories

from treadle.core import events as e
from treadle.core.asking import open_questions
from treadle.core.decide import decide
from treadle.core.prompts.prompting import count_prompt, find_room
from treadle.core.prompts.transcript import check_transcript
from treadle.core.replay import replay
from treadle.core.state import State, Status, fold
from treadle.core.types import Role, StopReason

many = settings(
    max_examples=settings().max_examples * 4 // 10,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@many
@given(histories(), st.data())
def test_a_prefix_and_then_the_rest_is_the_whole(history: History, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(history.bodies)))
    prefix = fold(history.bodies[:cut])
    assert fold(history.bodies[cut:], prefix) == fold(history.bodies) == history.state


@many
@given(histories())
def test_old_states_stay_what_they_were(history: History) -> None:
    """Older states share the storage of their messages with newer ones."""
    for index, state in enumerate(history.states):
        assert state == fold(history.bodies[:index])
        assert state.seq == index


@many
@given(histories(), st.data())
def test_states_that_part_do_not_disturb_each_other(history: History, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(history.states) - 1))
    state = history.states[cut]
    before = list(state.messages)
    state.messages.append(history.states[-1].messages[0])
    assert list(state.messages) == before
    assert list(history.states[-1].messages) == list(fold(history.bodies).messages)


@many
@given(histories())
def test_deciding_is_a_function_of_the_state(history: History) -> None:
    for index, state in enumerate(history.states):
        assert decide(state) == decide(fold(history.bodies[:index]))


@many
@given(histories())
def test_every_run_ends_with_a_whole_transcript(history: History) -> None:
    state = history.state
    assert state.ending.stop_reason is not None
    assert not state.turn.is_open
    assert state.turn.calls == {}
    is_session = state.started is not None and state.started.is_session
    assert state.status is (Status.RUNNING if is_session else Status.FINISHED)
    assert check_transcript(list(state.messages)) == []
    assert check_transcript(list(state.transcript)) == []


@many
@given(histories())
def test_compactions_change_what_the_model_sees_and_nothing_else(history: History) -> None:
    """The transcript is whole after any number of compactions, the system message, the first message of the user
    and the message of the open turn stay in the prompt, and no call is parted from its result."""
    rest = [body for body in history.bodies if not isinstance(body, e.ContextCompacted)]
    assert list(history.state.transcript) == list(fold(rest).messages)
    for before, state, body in zip(history.states, history.states[1:], history.bodies, strict=False):
        if not isinstance(body, e.ContextCompacted):
            continue
        assert check_transcript(list(state.messages)) == []
        assert state.messages[0] == before.messages[0]
        assert state.turn.opened is not None
        texts = [message.content for message in state.messages if message.role is Role.USER]
        assert history.first in texts or any(text.endswith(f"\n\n{history.first}") for text in texts)
        if state.turn.is_open:
            said = state.messages[state.turn.position].content
            assert said == state.turn.said or said.endswith(f"\n\n{state.turn.said}")


@many
@given(histories())
def test_no_request_is_over_the_room(history: History) -> None:
    """A prompt that was just compacted is sent whatever its estimated size is: the server decides."""
    for state, body in zip(history.states, history.bodies, strict=False):
        room = find_room(state)
        if (
            isinstance(body, e.InferenceStarted)
            and state.shown.can_compact
            and state.policy.compact_at is not None
            and not state.size.is_fresh
        ):
            assert room is None or count_prompt(state) <= room


@many
@given(histories())
def test_a_limit_that_was_told_is_the_stop_reason(history: History) -> None:
    limit: StopReason | None = None
    for body in history.bodies:
        if isinstance(body, e.TurnStarted):
            limit = None
        elif isinstance(body, e.MessageInjected) and body.delivery is None:
            assert limit is None or body.limit is None, "the model was told of two limits"
            limit = body.limit or limit
        elif isinstance(body, e.InferenceStarted):
            assert body.has_tools is (limit is None)
        elif isinstance(body, e.TurnCompleted) and limit is not None:
            others = (StopReason.ERROR, StopReason.DEADLINE, StopReason.CONTEXT_OVERFLOW)
            assert body.stop_reason in (limit, *others)
            assert limit in LIMITS


@many
@given(histories())
def test_budgets_hold(history: History) -> None:
    for state in history.states:
        policy, spent = state.policy, state.turn.spent
        if policy.max_steps is not None:
            assert spent.steps <= policy.max_steps + 1
        if policy.max_tool_calls is not None:
            assert spent.tool_calls <= policy.max_tool_calls


@many
@given(histories())
def test_questions_hold(history: History) -> None:
    """No turn asks more than the policy allows, and no question is open when its turn is over."""
    for state in history.states:
        assert 0 <= state.turn.spent.questions <= state.policy.autonomy.max_questions
        is_open = bool(open_questions(state))
        assert state.turn.is_open or not is_open
        assert state.turn.spent.nudges <= 1


@many
@given(histories())
def test_sums_count_each_inference_once(history: History) -> None:
    done = [body for body in history.bodies if isinstance(body, e.InferenceCompleted)]
    assert history.state.step == len(done)
    costs = [body.completion.cost_usd for body in done]
    for body in history.bodies:
        if isinstance(body, e.ContextCompacted) and (body.usage is not None or body.model is not None):
            costs.append(body.cost_usd)
        elif isinstance(body, e.ToolCompleted) and body.child is not None:
            costs.append(body.child.cost_usd)
        elif isinstance(body, e.InferenceFailed) and body.usage is not None:
            costs.append(body.cost_usd)
    if None in costs:
        assert history.state.cost_usd is None
    else:
        assert history.state.cost_usd is not None
        assert abs(history.state.cost_usd - sum(cost or 0.0 for cost in costs)) < 1e-9


def test_nothing_is_decided_before_there_is_a_run() -> None:
    assert decide(State()) is None


@many
@given(histories())
def test_every_message_sent_during_a_turn_is_seen_once(history: History) -> None:
    """A message is in one request at least, or waits for a turn that a session never began."""
    sent: dict[int, str] = {}
    for seq, body in enumerate(history.bodies, 1):
        if isinstance(body, e.MessageInjected) and body.delivery is not None:
            sent[seq] = body.message.content
    state = history.state
    waiting = {seq for seq, _ in (*state.queued, *state.turn.steering)}
    assert waiting <= sent.keys()
    assert not state.started or not state.started.is_session or not waiting
    told = [message.content for message in state.transcript if message.role is Role.USER]
    own = [
        body.message.content
        for body in history.bodies
        if (isinstance(body, e.TurnStarted) and body.queued_seq is None)
        or (isinstance(body, e.MessageInjected) and body.delivery is None)
    ]
    blocks = [
        body.recalled.text if body.recalled is not None else ""
        for body in history.bodies
        if isinstance(body, e.TurnStarted)
    ]
    told = [_without(text, blocks) for text in told]
    assert sorted(told) == sorted([*own, *[text for seq, text in sent.items() if seq not in waiting]])
    begun = [
        body.queued_seq for body in history.bodies if isinstance(body, e.TurnStarted) and body.queued_seq
    ]
    assert len(begun) == len(set(begun))


def _without(text: str, blocks: list[str]) -> str:
    """Return a message of the user without what was recalled for it."""
    block = next((item for item in blocks if item and text.startswith(f"{item}\n\n")), None)
    return text if block is None else text[len(block) + 2 :]


@many
@given(histories())
def test_replay_of_messages_sent_at_any_time_is_exact(history: History) -> None:
    """A replay never differs because of a message that came while a model or a tool was working."""
    events = [e.Event("r", seq, body) for seq, body in enumerate(history.bodies, 1)]
    found = replay(events, find_fault)
    assert found.is_exact, found.divergence
