"""Overviews of sessions: the summary of one, and the search in all. Both are computed from events."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from treadle.core import events as e
from treadle.core.asking import open_questions
from treadle.core.calls import waiting_calls
from treadle.core.state import State, advance
from treadle.core.types import Delivery, Message, Role, Usage
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter, RunInfo, make_title
from treadle.runs.statuses import iterate_runs


class SessionSummary(Struct, frozen=True, kw_only=True):
    """The summary of a session so far."""

    run_id: str
    title: str
    """The label `title` of the session, or the beginning of its first message."""
    turns: int
    """Turns that the user began. Requests of Treadle to answer again are not counted."""
    steps: int
    """Inferences that were completed."""
    messages: int
    """Messages of the user and of the model."""
    tool_calls: int
    """Calls of the model that have a result."""
    failed_tool_calls: int
    """Calls of the model whose result is an error."""
    errors: tuple[str, ...]
    """What went wrong in turns that failed, in order."""
    usage: Usage
    """Tokens of all inferences, including those of the agents that the session called."""
    cost_usd: float | None
    """The cost of these inferences; `None` if it is unknown."""
    began_at: float
    """The time of the first event, in seconds since the epoch."""
    updated_at: float
    """The time of the newest event."""
    questions: dict[str, str]
    """The questions that wait for an answer, by id."""
    approvals: tuple[str, ...]
    """The names of the tools whose calls wait for approval."""
    queued: tuple[str, ...]
    """The texts of the messages that wait for their turns."""


def summarize_session(run_id: str, bodies: Iterable[e.DurableBody]) -> SessionSummary:
    """Return the summary of a session from the bodies of its events, which are read once."""
    state = State()
    turns = messages = calls = failed = 0
    began_at, title = 0.0, ""
    errors: list[str] = []
    steered: set[int] = set()
    for body in bodies:
        advance(state, body)
        began_at = began_at or body.at
        if isinstance(body, e.TurnStarted):
            turns += not body.message.is_own
            messages += not (body.message.is_own or body.queued_seq in steered)
            title = title or make_title(body.message.content)
        elif isinstance(body, e.InferenceCompleted):
            messages += 1
        elif isinstance(body, e.MessageInjected) and body.delivery is not None:
            # Messages that wait for a turn count when it begins.
            if body.delivery is Delivery.STEER:
                messages += 1
                steered.add(state.seq)
        elif isinstance(body, e.ToolCompleted) and body.parent_call_id is None:
            calls += 1
            failed += body.result.is_error
        elif isinstance(body, e.TurnCompleted) and body.error is not None:
            errors.append(body.error)
    metadata = (state.started.metadata if state.started is not None else None) or {}
    return SessionSummary(
        run_id=run_id,
        title=str(metadata.get("title") or title),
        turns=turns,
        steps=state.step,
        messages=messages,
        tool_calls=calls,
        failed_tool_calls=failed,
        errors=tuple(errors),
        usage=state.usage,
        cost_usd=state.cost_usd,
        began_at=began_at,
        updated_at=state.at,
        questions={body.question_id: body.text for body in open_questions(state)},
        approvals=tuple([item.call.name for item in waiting_calls(state)]),
        queued=tuple([message.content for _, message in state.queued]),
    )


class SessionMatch(Struct, frozen=True):
    """A line of a message in which a text was found."""

    run_id: str
    title: str
    turn: int
    role: str
    """The author of the message: `user`, `assistant`, `tool` or `treadle`."""
    line: str


def search_sessions(journal: Journal, text: str) -> Iterator[SessionMatch]:
    """Yield the lines of messages in sessions that contain `text`, in any case; the newest session comes first.

    Blocks. Few events are in memory at a time.
    """
    condition = RunFilter(is_session=True, run_ids=journal.find_runs(text))
    for info in iterate_runs(journal, condition) if condition.run_ids else ():
        yield from find_lines(journal, info, text)


def find_lines(journal: Journal, info: RunInfo, text: str) -> Iterator[SessionMatch]:
    """Yield the lines of the messages and results of one run that contain `text`, in any case. Blocks."""
    wanted, turn = text.casefold(), 0
    for event in journal.scan(info.run_id):
        body = event.body
        if isinstance(body, e.TurnStarted):
            turn, message = body.turn, body.message
        elif isinstance(body, e.InferenceCompleted):
            message = body.completion.message
        elif isinstance(body, e.ToolCompleted):
            message = Message(Role.TOOL, body.result.content)
        elif isinstance(body, e.MessageInjected) and body.delivery == "steer":
            message = body.message
        else:
            continue
        for line in message.content.splitlines() if wanted in message.content.casefold() else ():
            if wanted in line.casefold():
                role = "treadle" if message.is_own else message.role.value
                yield SessionMatch(info.run_id, info.title, turn, role, line)
