"""The teacher plays every role of a generation: it writes topics, scenarios, users' turns and judgements, and it is
the agent."""

import json

import pytest

from treadle.agent.agent import Agent
from treadle.core.types import Message, Role
from treadle.journal.memory import MemoryJournal
from treadle.models.config.build import model
from treadle.tasks.files.task_set import TASK_SET
from treadle.teacher.teacher import TeacherModel


def write_facts(facts: dict) -> str:
    return f"<facts>\n{json.dumps(facts, indent=1, ensure_ascii=False)}\n</facts>"


def ask(facts: dict) -> dict:
    messages = [Message(Role.SYSTEM, "You write."), Message(Role.USER, write_facts(facts))]
    return json.loads(TeacherModel().complete(messages).message.content)


def scenario_facts(**given: object) -> dict:
    task = TASK_SET.get("csv_sum-0001")
    files = [
        {"path": path, "size_bytes": len(data), "head": data.decode()[:200]}
        for path, data in task.files.items()
    ]
    return {
        "write": "scenario",
        "topic": ["Office work", "Checking overdue invoices"],
        "kind": "chained",
        "difficulty": "easy",
        "persona": {"name": "Ada Berg", "role": "clerk", "style": "brief", "expertise": "novice"},
        "turns": 1,
        "tools": [],
        "files": files,
        "task": {"reference": "files:csv_sum-0001", "input": task.input},
        "conversation": "agent",
        "seed": 7,
        **given,
    }


async def test_an_agent_solves_a_task_within_a_longer_message():
    task = TASK_SET.get("csv_sum-0001")
    message = ask(scenario_facts())["message"]
    assert task.input in message
    assert message != task.input
    run = await Agent(model("mock:teacher"), tools=["files"], journal=MemoryJournal()).run(
        message, files=dict(task.files)
    )
    assert task.check(run.output, run.files).reward == 1.0
    assert all(item.reasoning for item in run.messages if item.tool_calls)


@pytest.mark.parametrize("mode", ["tree", "graph"])
def test_topics_depend_on_the_facts_alone(mode):
    existing = [{"id": "a1", "topic": "Planning daily recipes"}]
    facts = {
        "write": "subtopics",
        "path": ["Kitchens"],
        "count": 5,
        "mode": mode,
        "existing": existing,
        "seed": 1,
    }
    made = ask(facts)
    assert made == ask(facts) != ask({**facts, "seed": 2})
    assert len({item["topic"] for item in made["subtopics"]}) == 5
    connections = [one for item in made["subtopics"] for one in item.get("connections", ())]
    assert set(connections) == ({"a1"} if mode == "graph" else set())
