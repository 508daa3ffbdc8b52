"""The events, step kinds and statuses of the reference's agentic loop can be read from a run's events.

Each of its 13 types of events, with its payload, follows from the journal alone. Steps are numbered from 0, and
events that belong to no step have the number -1.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from treadle import Agent, Policy, ScriptedModel, open_journal, tool
from treadle.core import events as e
from treadle.core.errors import ServerError
from treadle.core.types import Role, StopReason
from treadle.journal.memory import MemoryJournal
from treadle.models import TieredModel, call

STATUSES = {
    StopReason.COMPLETED: "completed",
    StopReason.MAX_STEPS: "max_steps_reached",
    StopReason.CANCELLED: "cancelled",
}


def reference_events(run_id: str, bodies: Sequence[e.DurableBody]) -> list[tuple[str, int, dict[str, Any]]]:
    """Return the events of the reference: type, step and payload."""
    found: list[tuple[str, int, dict[str, Any]]] = []
    step = 0
    for number, body in enumerate(bodies):
        following = bodies[number + 1] if number + 1 < len(bodies) else None
        if isinstance(body, e.TurnStarted):
            found.append(("started", -1, {"task": body.message.content}))
        elif isinstance(body, e.InferenceStarted):
            step = body.step - 1
            if body.route is not None:
                found.append(("tier", -1, {"tier": body.route.tier}))
            found.append(("thinking", step, {}))
        elif isinstance(body, e.InferenceCompleted):
            message = body.completion.message
            if message.tool_calls:
                calls = [
                    {"name": item.name, "call_id": item.call_id, "args": json.loads(item.arguments)}
                    for item in message.tool_calls
                ]
                names = ",".join(item.name for item in message.tool_calls)
                found.append(("tool_calling", step, {"tool_names": names, "tool_calls": calls}))
            elif isinstance(following, e.MessageInjected) and following.is_nudge:
                found.append(("reasoning", step, {"content": message.reasoning or message.content}))
        elif isinstance(body, e.ToolCompleted):
            result = body.result
            data: dict[str, Any] = {
                "tool_name": result.name,
                "is_error": result.is_error,
                "content": result.content,
                "call_id": result.call_id,
            }
            if isinstance(before := bodies[number - 1], e.SnapshotTaken):
                data["produced_files"] = [{"path": path} for path in before.delta.changed]
            found.append(("tool_result", step, data))
        elif isinstance(body, e.QuestionAsked):
            options = [{"label": item.label, "description": item.description} for item in body.options]
            data = {"question": body.text, "options": options, "allow_free_form": body.allows_text}
            found.append(("asking_user", step, data))
        elif isinstance(body, e.QuestionAnswered):
            found.append(("user_responded", step, {}))
        elif isinstance(body, e.TurnCompleted) and body.stop_reason is StopReason.COMPLETED:
            found.append(("completed", step, {"output": body.output}))
        elif isinstance(body, e.TurnCompleted) and body.stop_reason is StopReason.MAX_STEPS:
            found.append(("max_steps", step, {"summary": body.output}))
        elif isinstance(body, e.TurnCompleted) and body.stop_reason is StopReason.CANCELLED:
            found.append(("cancelled", step, {}))
        elif isinstance(body, e.TurnCompleted):
            found.append(("error", step, {"message": body.error}))
        if isinstance(body, e.TurnCompleted):
            status = STATUSES.get(body.stop_reason, "error")
            found.append(("finished", step + 1, {"run_id": run_id, "status": status}))
    return found


@tool(effect="pure")
async def look(at: str) -> str:
    """Look."""
    return f"saw {at}"


@tool(effect="idempotent")
async def wait() -> str:
    """Wait for long."""
    await asyncio.sleep(60)
    return ""


def agent(*answers: Any, model: Any = None, **policy: Any) -> "Agent[str]":
    return Agent(
        model or ScriptedModel(answers),
        tools=[look, wait, "ask", "vfs"],
        policy=Policy(**policy),
        journal=open_journal("memory:"),
        asker=lambda question: 1,
    )


def read(which: "Agent[str]", run_id: str) -> list[tuple[str, int, dict[str, Any]]]:
    assert isinstance(which.journal, MemoryJournal)
    return reference_events(run_id, [event.body for event in which.journal.read(run_id)])


async def test_a_run_of_every_step_kind() -> None:
    """Rules out a journal that lacks what the reference tells: the five step kinds and their payloads, the ids of
    calls and of the run, and the assistant's text beside its calls."""
    question = {"question": "Which?", "options": [{"label": "a", "description": "the first"}]}
    steps: list[Any] = [
        [call("look", {"at": "x"}), call("write_file", {"file_path": "f", "content": "1"})],
        [call("ask_user", question)],
        "",
        "done",
    ]
    which = agent(model=TieredModel({"mid": ScriptedModel(steps)}))
    run = await which.run("go")
    found = read(which, run.run_id)
    assert [(kind, step) for kind, step, _ in found] == [
        ("started", -1),
        ("tier", -1),
        ("thinking", 0),
        ("tool_calling", 0),
        ("tool_result", 0),
        ("tool_result", 0),
        ("thinking", 1),
        ("tool_calling", 1),
        ("asking_user", 1),
        ("user_responded", 1),
        ("tool_result", 1),
        ("thinking", 2),
        ("reasoning", 2),
        ("thinking", 3),
        ("completed", 3),
        ("finished", 4),
    ]
    payloads = {(kind, step): data for kind, step, data in found}
    assert payloads["started", -1] == {"task": "go"}
    assert payloads["tier", -1] == {"tier": "mid"}
    called = payloads["tool_calling", 0]
    assert called["tool_names"] == "look,write_file"
    assert called["tool_calls"][0] == {"name": "look", "call_id": "call_1_0", "args": {"at": "x"}}
    results = [data for kind, _, data in found if kind == "tool_result"]
    assert [item["call_id"] for item in results] == ["call_1_0", "call_1_1", "call_2_0"]
    assert results[1]["produced_files"] == [{"path": "f"}]
    asked = payloads["asking_user", 1]
    assert asked["question"] == "Which?"
    assert asked["options"] == [{"label": "a", "description": "the first"}]
    assert asked["allow_free_form"] is True
    assert payloads["completed", 3] == {"output": "done"}
    assert payloads["finished", 4] == {"run_id": run.run_id, "status": "completed"}


async def test_every_status_is_told_with_its_event() -> None:
    """Rules out statuses and events that are declared and never happen: `error` was dead code in the reference."""
    limited = agent([call("look", {"at": "x"})], "so far", max_steps=1)
    run = await limited.run("go")
    assert read(limited, run.run_id)[-2:] == [
        ("max_steps", 1, {"summary": "so far"}),
        ("finished", 2, {"run_id": run.run_id, "status": "max_steps_reached"}),
    ]
    failing = agent([call("look", {"at": "x"})], ServerError("down"))
    run = await failing.run("go")
    assert read(failing, run.run_id)[-2:] == [
        ("error", 1, {"message": "down"}),
        ("finished", 2, {"run_id": run.run_id, "status": "error"}),
    ]
    slow = agent([call("wait")])
    async with slow.session("s") as session:
        task = asyncio.ensure_future(session.send("go"))
        while not any(event.type == "tool_started" for event in await session.read_events()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [(kind, data) for kind, _, data in read(slow, "s")[-2:]] == [
        ("cancelled", {}),
        ("finished", {"run_id": "s", "status": "cancelled"}),
    ]


async def test_the_text_beside_calls_is_kept() -> None:
    """Rules out a record of steps that drops what the model said together with its calls."""
    from treadle.core.types import Message, ToolCall

    said = Message(Role.ASSISTANT, "I will look.", (ToolCall("c", "look", '{"at": "x"}'),))
    run = await agent(said, "done").run("go")
    assert "I will look." in [message.content for message in run.messages]
