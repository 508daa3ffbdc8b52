"""The lines of a listing of runs."""

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import JournalError
from treadle.core.state import State, Status, fold
from treadle.journal.protocol import Journal, RunInfo


class Line(Struct, frozen=True, kw_only=True):
    """One run. The fields that are folded from its events are `None` if these cannot be read."""

    run_id: str
    status: str
    """`finished`; `running` if a live process drives it; `unfinished` if no process does and it can be resumed;
    `waiting` for an answer or an approval; `open` for a session between two turns; `unreadable`."""
    stop_reason: str | None
    events: int
    created_at: float
    updated_at: float
    steps: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    reward: float | None = None
    model: str | None = None
    task: str | None = None
    input: str | None = None
    """The first message of the user."""
    error: str | None = None


def read_lines(journal: Journal, *, status: str | None = None, limit: int | None = None) -> list[Line]:
    """Return the newest runs first: of one status if it is given, and at most `limit`."""
    lines: list[Line] = []
    for info in reversed(journal.runs()):
        if limit is not None and len(lines) >= limit:
            break
        line = _read_line(journal, info)
        if status is None or status in (line.status, line.stop_reason):
            lines.append(line)
    return lines


def find_unfinished(journal: Journal, *, has_failed: bool = False) -> list[Line]:
    """Return the runs that no process drives and that can be resumed, the oldest first.

    With `has_failed`, the runs that ended with an error are among them.
    """
    wanted = []
    for info in journal.runs():
        if info.status == "finished" and not (has_failed and info.stop_reason == "error"):
            continue
        line = _read_line(journal, info)
        if line.status == "unfinished" or (has_failed and line.stop_reason == "error"):
            wanted.append(line)
    return wanted


def _read_line(journal: Journal, info: RunInfo) -> Line:
    base = Line(
        run_id=info.run_id,
        status=info.status,
        stop_reason=info.stop_reason if info.status == "finished" else None,
        events=info.events,
        created_at=info.created_at,
        updated_at=info.updated_at,
    )
    try:
        state = fold([event.body for event in journal.read(info.run_id)])
    except JournalError as error:
        return replace(base, status="unreadable", error=str(error))
    started = state.started
    task = started.task if started is not None else None
    user = next((message.content for message in state.messages if message.role == "user"), None)
    return replace(
        base,
        status=_status_of(state, info),
        steps=state.step,
        tokens=state.usage.total_tokens,
        cost_usd=state.cost_usd,
        reward=state.rewards.get("check"),
        model=started.spec.model.name if started is not None else None,
        task=f"{task.task_set}:{task.task_id}" if task is not None else None,
        input=user,
        error=state.error,
    )


def _status_of(state: State, info: RunInfo) -> str:
    if state.status is Status.FINISHED:
        return "finished"
    if info.is_driven:
        return "running"
    if state.waiting_calls or any(answer is None for answer in state.questions.values()):
        return "waiting"
    is_session = state.started is not None and state.started.is_session
    return "open" if is_session and not state.is_turn_open else "unfinished"
