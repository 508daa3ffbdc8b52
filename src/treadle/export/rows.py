"""Rows: a run's transcript and tools, with their lineage."""

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from treadle.core.errors import ExportError
from treadle.core.events import (
    VERSION,
    DurableBody,
    InferenceCompleted,
    InferenceStarted,
    RunResumed,
    RunStarted,
    ToolCompleted,
)
from treadle.core.state import fold
from treadle.core.transcript import check_transcript
from treadle.core.types import Effect, Fault, Json, Message, Role, ToolSpec
from treadle.journal.protocol import Journal


class SampleInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The origin of a row that was generated for a dataset."""

    sample_id: str
    """The id of the row in its dataset."""
    dataset: str
    """The name of the dataset."""
    topic: tuple[str, ...] = ()
    """The path of the topic from the root."""
    topic_id: str = ""
    seed: int = 0
    kind: str | None = None
    """The kind of tool use that was planned; `None` for conversations without tools."""
    kinds: tuple[str, ...] = ()
    """The kinds of tool use that the conversation shows."""
    difficulty: str = ""
    persona: str = ""
    """The simulated user, in one sentence."""
    goal: str = ""
    """What the user wanted."""
    conversation: str = "agent"
    """The type of the conversation: `basic`, `cot` or `agent`."""
    reasoning: str | None = None
    """The form of the reasoning: `freetext` or `agent`; `None` if the row shows none."""
    turns: int = 1
    models: dict[str, str] = {}
    """The names of the models by role: `agent`, `scenarios`, `user`, `judge`."""
    input_tokens: int = 0
    """The tokens of all runs of the sample."""
    output_tokens: int = 0
    cost_usd: float | None = None
    """The cost of all runs of the sample; `None` if a price is unknown."""
    prices: dict[str, str] = {}
    """The prices that were applied, by role, in words."""
    tool_hashes: dict[str, str] = {}
    """The SHA-256 of each tool's definition, by name."""
    filters: dict[str, str] = {}
    """The filters that the row passed, by name, with their notes."""
    is_verified: bool = False
    """True if all calls were made again in a fresh sandbox and gave the recorded results."""
    is_from_teacher: bool = False
    """True if the built-in teacher, and not a language model, wrote the conversation."""
    environment: str = ""
    """The origin of the initial files."""
    instructions: str | None = None
    """The system message with which the agent ran, if the row shows another one or none."""


class Lineage(Struct, frozen=True, omit_defaults=True):
    """The origin of a row."""

    run_id: str
    model: str | None
    """The name of the model that gave the last answer."""
    stop_reason: str
    tools_hash: str
    """The SHA-256 of the row's tools as JSON with sorted keys, in hexadecimal."""
    task: str | None = None
    """The task as `SET:ID`; `None` if the run was not on a task."""
    seed: int | None = None
    reward: float | None = None
    """The reward of the task's check; `None` if the run was not checked."""
    parent: str | None = None
    """`RUN:SEQ` of the event that the run was forked from; `None` if it is not a fork."""
    tool_errors: tuple[str, ...] = ()
    """The ids of the calls whose result is an error. Rows have no such flag in their messages."""
    simulated: tuple[str, ...] = ()
    """The ids of the calls whose result was simulated and not returned by a real tool."""
    models: tuple[str, ...] = ()
    """The names of the models that wrote the assistant messages, in order. Empty if `model` wrote all of them."""
    event_version: str = ""
    treadle_version: str = ""
    sample: SampleInfo | None = None
    """The origin of a generated row; `None` if the run was not made for a dataset."""


class Row(Struct, frozen=True):
    """One training example, in Treadle's types."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    lineage: Lineage


def load_row(journal: Journal, run_id: str) -> Row:
    """Return the row of a run.

    Raises: `RunNotFoundError`; `ExportError` if the run is not finished, failed through no fault of its model, or
    has a transcript that breaks an invariant.
    """
    import treadle

    bodies = [event.body for event in journal.read(run_id)]
    state = fold(bodies)
    started = state.started
    if started is None or state.stop_reason is None or state.is_turn_open:
        raise ExportError(f"run {run_id!r} is not finished; resume it first")
    messages = tuple(state.messages)
    if faults := check_transcript(messages):
        raise ExportError(f"run {run_id!r} has a faulty transcript: {'; '.join(faults[:3])}")
    if state.fault in (Fault.INFRASTRUCTURE, Fault.USER):
        raise ExportError(f"run {run_id!r} failed through no fault of its model ({state.error}); resume it")
    if not any(message.role is Role.ASSISTANT for message in messages):
        raise ExportError(f"run {run_id!r} has no answer ({state.stop_reason}: {state.error})")
    task, parent = started.task, started.parent
    models = _find_models(bodies)
    lineage = Lineage(
        run_id=run_id,
        model=models[-1] if models else started.spec.model.name,
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
        models=tuple(models) if len(set(models)) > 1 else (),
        event_version=VERSION,
        treadle_version=treadle.__version__,
    )
    return Row(messages, started.tools, lineage)


def _find_models(bodies: Sequence[DurableBody]) -> list[str]:
    """Return the name of the model that was asked for each answer, in order."""
    found: list[str] = []
    agents = asked = ""
    for body in bodies:
        if isinstance(body, RunStarted):
            agents = body.spec.model.name
        elif isinstance(body, RunResumed) and body.agent is not None:
            agents = body.agent.model.name
        elif isinstance(body, InferenceStarted):
            asked = body.model or agents
        elif isinstance(body, InferenceCompleted):
            found.append(asked)
    return found


def write_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Json]]:
    """Return the column `tools`, which is the same in all row formats."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    ]


def read_tools(raw: Sequence[dict[str, Json]]) -> tuple[ToolSpec, ...]:
    """Return the tools in a column that `write_tools` returned. Rows do not contain effects, so each is `once`."""
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
    """Return the SHA-256 of the column `tools` as JSON with sorted keys, in hexadecimal."""
    return hashlib.sha256(msgspec.json.encode(write_tools(tools), order="sorted")).hexdigest()
