"""A run as a row: its transcript, its tools and where it came from."""

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from treadle.core.errors import ExportError
from treadle.core.events import VERSION, ToolCompleted
from treadle.core.state import fold
from treadle.core.types import Effect, Fault, Json, Message, Role, ToolSpec
from treadle.journal.protocol import Journal
from treadle.trajectory.transcript import check_transcript


class Lineage(Struct, frozen=True, omit_defaults=True):
    """Where a row came from."""

    run_id: str
    model: str | None
    stop_reason: str
    tools_hash: str
    """SHA-256 of the tools as the row has them, as JSON with sorted keys, hex."""
    task: str | None = None
    """`SET:ID`."""
    seed: int | None = None
    reward: float | None = None
    """Of the task's check; `None` if there was none."""
    parent: str | None = None
    """`RUN:SEQ` of the run that it was forked from."""
    tool_errors: tuple[str, ...] = ()
    """Ids of the calls whose result is an error, which the row's messages cannot say."""
    simulated: tuple[str, ...] = ()
    """Ids of the calls whose result was made up: the row is no record of tools that ran."""
    event_version: str = ""
    treadle_version: str = ""


class Row(Struct, frozen=True):
    """What a format renders, and gives back."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    lineage: Lineage


def load_row(journal: Journal, run_id: str) -> Row:
    """The row of a run.

    Raises: `RunNotFoundError`; `ExportError` if the run is not finished, failed for a reason that is not
    its own, or its transcript breaks an invariant.
    """
    import treadle

    bodies = [event.body for event in journal.read(run_id)]
    state = fold(bodies)
    started = state.started
    if started is None or state.stop_reason is None or state.is_turn_open:
        raise ExportError(f"run {run_id!r} is not finished; resume it first")
    messages = tuple(state.messages)
    if faults := check_transcript(messages):
        raise ExportError(f"run {run_id!r} is not a whole transcript: {'; '.join(faults[:3])}")
    if state.fault in (Fault.INFRASTRUCTURE, Fault.USER):
        raise ExportError(f"run {run_id!r} failed through no fault of its model ({state.error}); resume it")
    if not any(message.role is Role.ASSISTANT for message in messages):
        raise ExportError(f"run {run_id!r} holds no answer ({state.stop_reason}: {state.error})")
    task, parent = started.task, started.parent
    lineage = Lineage(
        run_id=run_id,
        model=started.spec.model.name,
        stop_reason=state.stop_reason.value,
        tools_hash=hash_tools(started.tools),
        task=None if task is None else f"{task.task_set}:{task.task_id}",
        seed=None if task is None else task.seed,
        reward=state.rewards.get("check"),
        parent=None if parent is None else f"{parent.run_id}:{parent.seq}",
        tool_errors=tuple([item.call_id for item in messages if item.is_error and item.call_id]),
        simulated=tuple(
            [
                body.result.call_id
                for body in bodies
                if isinstance(body, ToolCompleted) and body.result.is_simulated
            ]
        ),
        event_version=VERSION,
        treadle_version=treadle.__version__,
    )
    return Row(messages, started.tools, lineage)


def write_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Json]]:
    """Tools in the form that all row formats share."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    ]


def read_tools(raw: Sequence[dict[str, Json]]) -> tuple[ToolSpec, ...]:
    """The tools of `write_tools`. A row does not say their effect, so it is `once`."""
    return tuple(
        [
            ToolSpec(
                item["function"]["name"],
                item["function"].get("description", ""),
                item["function"].get("parameters", {}),
                Effect.ONCE,
            )
            for item in raw
        ]
    )


def hash_tools(tools: Sequence[ToolSpec]) -> str:
    """SHA-256 of the tools as rows have them, hex."""
    return hashlib.sha256(msgspec.json.encode(write_tools(tools), order="sorted")).hexdigest()
