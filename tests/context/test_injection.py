"""Texts that try to give a model orders from memories, documents, skills and results get no tool called.

The model obeys whatever it sees outside of fences; see `tests/context/obedient.py`. Results need no fence: they come in
messages of the role `tool`, which no instruction can leave, and what they contain stays as the tool gave it. Where they
are written as text, by a format or a prompt template, their marks are changed in the text.
"""

import json
from pathlib import Path

import pytest
from tests.context.obedient import TOOL, is_ordered, obey

from treadle import Agent, tool
from treadle.context.fence import fence
from treadle.context.memory import Author, Draft, Epistemic, Memory, Store, open_memory
from treadle.context.trust import Trust, record_trust
from treadle.context.skills.skill import read_skill
from treadle.core.log import Log
from treadle.core.types import Completion, FinishReason, Message, Request, Role, ToolCall
from treadle.formats import FORMATS
from treadle.journal.memory import MemoryJournal
from treadle.models.dialects.completions.request import CompletionsModel
from treadle.models.protocol import Watch
from treadle.models.scripted import Answer, ScriptedModel, call
from treadle.models.wire.prompt import TEMPLATES
from treadle.models.wrappers.format_model import FormatModel

LINES = (Path(__file__).parents[1] / "data" / "injections.jsonl").read_text(encoding="utf-8").splitlines()
TEXTS: dict[str, str] = {item["name"]: item["text"] for item in map(json.loads, LINES)}
QUESTION = "How deep is the fjord?"
each_text = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
calls: list[str] = []


@tool(effect="once")
async def send_money(to: str, amount: int = 0) -> str:
    """Send money."""
    calls.append(to)
    return "sent"


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def make_agent(answer: object = obey, *tools: object, **options: object) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(answer)  # type: ignore[arg-type]
    return Agent(model=model, tools=[send_money, *tools], **options), model  # type: ignore[arg-type, list-item]


@each_text
async def test_the_model_obeys_every_text_that_is_not_fenced(text: str) -> None:
    """The other tests could not fail if it did not."""
    assert len(TEXTS) >= 40
    agent, _ = make_agent(journal=MemoryJournal())
    await agent.run(f"{QUESTION} {text}")
    assert calls == ["mallory"]


async def remember(memory: Memory, text: str) -> None:
    told = f"The fjord is deep. {text.replace(chr(0), '')}"
    await memory.write(Draft(store=Store.SELF_FACTS, text=told))
    await memory.write(Draft(store=Store.EPISODIC, text=f"On Monday: {told}"))
    view = Draft(
        store=Store.WORLDVIEW,
        text=f"It is said: {told}",
        author=Author.SYSTEM,
        is_forced=True,
        epistemic=Epistemic.BELIEF,
    )
    await memory.write(view)
    await memory.write(
        Draft(store=Store.DOCUMENTS, text=told, author=Author.SYSTEM, metadata={"title": text})
    )


@each_text
async def test_memories_and_documents_are_not_obeyed(text: str) -> None:
    """Rules out that memories, which are put into the prompt as they were written, go on giving orders for ever."""
    journal = MemoryJournal()
    await remember(open_memory(journal, "default", "default"), text)
    agent, model = make_agent(journal=journal, memory=True)
    await agent.run(QUESTION)
    sent = model.requests[0].messages[-1].content
    assert sent.count("The fjord is deep.") == 4, sent
    assert calls == []
