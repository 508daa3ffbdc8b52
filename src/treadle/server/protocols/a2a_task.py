"""Runs as tasks of the A2A protocol. Source: A2A 1.0, JSON-RPC binding.

A context is a session, and a task is one of its turns. The texts of the model are the task's artifacts, one for
each step; the last one is the answer. A task that needs input waits for the client: for an answer, a decision or a
result.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from treadle.core import events as e
from treadle.core.events.narrowing import Item
from treadle.core.texts.hiding import hide_servers
from treadle.core.types import Json, StopReason
from treadle.journal.run_info import RunInfo
from treadle.runs.run import Run
from treadle.server.turn_order import write_needs

CONTEXT = "treadle.a2a_context"
"""The label with the context of A2A that a run stands for."""
COMPLETED, FAILED, CANCELED = "TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED"
WORKING, INPUT_REQUIRED = "TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED"
OVER = frozenset((COMPLETED, FAILED, CANCELED))


class TaskId(Struct, frozen=True):
    """The place of a task in its run."""

    run_id: str
    turn: int

    def __str__(self) -> str:
        return f"{self.run_id}.{self.turn}"

    @classmethod
    def read(cls, text: str) -> "TaskId | None":
        """Return the place that an id names; `None` if it is no such id."""
        run_id, _, turn = text.rpartition(".")
        is_number = turn.isascii() and turn.isdecimal() and len(turn) < 10
        return cls(run_id, int(turn)) if run_id and is_number else None


def write_task(run: Run[Any], task_id: TaskId, history_length: int | None = None) -> dict[str, Json] | None:
    """Return a task as it is now; `None` if the run has no such turn."""
    events = _events_by_turn(run.events).get(task_id.turn)
    return None if events is None else _write(run, task_id, events, history_length)


def _write(
    run: Run[Any], task_id: TaskId, events: list[e.Event], history_length: int | None = None
) -> dict[str, Json]:
    started = events[0].body
    assert isinstance(started, e.TurnStarted)
    task: dict[str, Json] = {
        "id": str(task_id),
        "contextId": context_of(run),
        "status": status_of(run, task_id, events),
        "artifacts": [artifact for event in events if (artifact := artifact_of(event.body)) is not None],
        "metadata": {"runId": run.run_id},
    }
    if history_length != 0:
        said = {
            "messageId": f"{task_id}.user",
            "role": "ROLE_USER",
            "parts": [{"text": started.message.content}],
        }
        task["history"] = [{**said, "taskId": str(task_id), "contextId": context_of(run)}]
    return task


def context_of(run: Run[Any]) -> str:
    """Return the context that a run stands for."""
    return str(run.metadata.get(CONTEXT, run.run_id))


def _events_by_turn(events: Iterable[e.Event]) -> dict[int, list[e.Event]]:
    now, found = 0, dict[int, list[e.Event]]()
    for event in events:
        if isinstance(event.body, e.TurnStarted):
            now = event.body.turn
        if now:
            found.setdefault(now, []).append(event)
    return found


class TaskFilter(Struct, frozen=True, kw_only=True):
    """What a list of tasks has, the task with the newest status first."""

    state: str | None = None
    since: float = 0.0
    """The time of the oldest status."""
    before: tuple[float, str] | None = None
    """The time and the id of the last task of the page before."""
    limit: int
    history_length: int | None = None
    has_artifacts: bool = False

    def may_have(self, info: RunInfo) -> bool:
        """Return whether a run may have such tasks."""
        is_recent = info.turns > 0 and info.updated_at >= self.since
        if self.state == INPUT_REQUIRED:
            return is_recent and info.is_waiting
        return is_recent and (self.state != WORKING or info.is_turn_open)


def list_tasks(
    infos: Iterable[RunInfo], load: Callable[[str], Run[Any] | None], chosen: TaskFilter
) -> tuple[list[dict[str, Json]], tuple[float, str] | None, int]:
    """Return a page of the tasks of runs, the end of the page if another one follows, and how many tasks there are.

    `load` returns a run, or `None` if it was deleted meanwhile. Only as many runs are loaded as are needed.
    """
    runs = sorted(filter(chosen.may_have, infos), key=lambda info: info.updated_at, reverse=True)
    is_counted = chosen.state is None and not chosen.since
    found: list[tuple[float, str, dict[str, Json]]] = []
    total, last = 0, chosen.before or (math.inf, "")
    for info in runs:
        found.sort(key=lambda item: item[:2], reverse=True)
        is_full = len(found) > chosen.limit and found[chosen.limit][0] > info.updated_at
        total += info.turns if is_counted else 0
        if is_full and is_counted:
            continue
        run = load(info.run_id)
        for turn, events in ({} if run is None else _events_by_turn(run.events)).items():
            assert run is not None
            task_id = TaskId(info.run_id, turn)
            task = _write(run, task_id, events, chosen.history_length)
            at = datetime.fromisoformat(task["status"]["timestamp"]).timestamp()
            if at < chosen.since or chosen.state not in (None, task["status"]["state"]):
                continue
            total += 0 if is_counted else 1
            if (at, task["id"]) < last:
                found.append((at, task["id"], task))
    found.sort(key=lambda item: item[:2], reverse=True)
    page = found[: chosen.limit]
    if not chosen.has_artifacts:
        for *_, task in page:
            del task["artifacts"]
    end = page[-1][:2] if len(found) > chosen.limit else None
    return [task for *_, task in page], end, total


def artifact_of(body: e.DurableBody) -> dict[str, Json] | None:
    """Return the text of a step as an artifact; `None` if an event has none."""
    if isinstance(body, e.InferenceCompleted) and (text := body.completion.message.content):
        return {"artifactId": f"text-{body.step}", "parts": [{"text": text}]}
    return None


def status_of(run: Run[Any], task_id: TaskId, events: Iterable[e.Event]) -> dict[str, Json]:
    """Return the status of a turn, which has these events."""
    at = 0.0
    for event in events:
        at, body = event.body.at, event.body
        if isinstance(body, e.TurnCompleted):
            return _status_at(at, *_ending_of(body), task_id, run)
    if run.open_questions or run.approvals or run.external_calls:
        return _status_at(at, INPUT_REQUIRED, _needs_of(run), task_id, run)
    return _status_at(at, WORKING, None, task_id, run)


def _ending_of(body: e.TurnCompleted) -> tuple[str, str | None]:
    if body.stop_reason is StopReason.COMPLETED:
        return COMPLETED, None
    if body.stop_reason is StopReason.CANCELLED:
        return CANCELED, None
    return FAILED, hide_servers(body.error or f"the turn ended because of {body.stop_reason}")


def _status_at(at: float, state: str, text: str | None, task_id: TaskId, run: Run[Any]) -> dict[str, Json]:
    status: dict[str, Json] = {"state": state, "timestamp": datetime.fromtimestamp(at, UTC).isoformat()}
    if text is not None:
        parts: list[Json] = [{"text": text}]
        if state == INPUT_REQUIRED:
            parts.append({"data": write_needs(run)})
        said = {"messageId": f"{task_id}.status", "role": "ROLE_AGENT", "parts": parts}
        status["message"] = {**said, "taskId": str(task_id), "contextId": context_of(run)}
    return status


def _needs_of(run: Run[Any]) -> str:
    """Return what a run waits for, as a text for people."""
    lines = [question.text for question in run.open_questions.values()]
    lines += [f"May I call {call.name}({call.arguments})?" for call in run.approvals.values()]
    lines += [f"Please call {call.name}({call.arguments})." for call in run.external_calls.values()]
    return "\n".join(lines)


class TaskStream:
    """The fold of a task's stream: what is said of a task while it works."""

    def __init__(self, task_id: TaskId, context: str) -> None:
        self._where = {"taskId": str(task_id), "contextId": context}
        self._step = 0
        self._said = ""
        """The text of the step that was sent so far."""

    def take(self, item: Item) -> Iterator[dict[str, Json]]:
        """Yield the updates that an event or a piece of output means, except the last status."""
        body = item.body
        if isinstance(body, e.InferenceStarted):
            self._step, self._said = body.step, ""
        elif isinstance(body, e.TextDelta) and self._step:
            yield self._artifact(body.text, appends=bool(self._said))
            self._said += body.text
        elif isinstance(body, e.InferenceCompleted):
            text = body.completion.message.content
            self._step = body.step
            is_rest = bool(self._said) and text.startswith(self._said)
            if text:
                rest = text[len(self._said) :] if is_rest else text
                yield self._artifact(rest, appends=is_rest, is_last=True)
            self._said = ""
        elif isinstance(body, e.ToolStarted):
            status = {"state": WORKING, "timestamp": datetime.fromtimestamp(body.at, UTC).isoformat()}
            yield {"statusUpdate": {**self._where, "status": status, "metadata": {"tool": body.name}}}

    def _artifact(self, text: str, *, appends: bool, is_last: bool = False) -> dict[str, Json]:
        artifact = {"artifactId": f"text-{self._step}", "parts": [{"text": text}]}
        return {
            "artifactUpdate": {**self._where, "artifact": artifact, "append": appends, "lastChunk": is_last}
        }
