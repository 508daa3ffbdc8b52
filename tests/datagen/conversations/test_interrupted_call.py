"""A tool with an effect that was interrupted: it is not called again, and its sample is not a row."""

import asyncio
import sys
from pathlib import Path

from tests.datagen.conversations.cast import SCENARIO, Cast, spec, think
from tests.datagen.conversations.test_resume import RecordingJournal, keep

from treadle import Agent, ScriptedModel, tool
from treadle.core import events as e
from treadle.core.errors import NoResultError
from treadle.core.types import Effect, Request, Role
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.conversations.make import make_sample
from treadle.datagen.conversations.studio import Studio
from treadle.datagen.quality.pipeline import Pipeline, is_good
from treadle.datagen.quality.protocol import Candidate
from treadle.datagen.scenarios.environment import Environments
from treadle.datagen.scenarios.scenario import Environment
from treadle.export.rows import load_row
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal
from treadle.models.scripted import call
from treadle.tools.mcp import MCPServer


async def test_a_call_whose_outcome_was_lost_is_not_made_again_and_gives_no_row(tmp_path: Path) -> None:
    """Every tool result of a row comes from a tool that ran; the note about an unknown outcome does not."""
    orders = tmp_path / "orders"

    @tool(effect=Effect.ONCE)
    def order(item: str) -> str:
        """Order an item."""
        with orders.open("a") as file:
            file.write(f"{item}\n")
        return f"ordered {item}"

    def agent(request: Request):
        if request.messages[-1].role is Role.TOOL:
            return "I have ordered the flour."
        return think("I order it.", call("order", {"item": "flour"}))

    config = GenerationConfig.model_validate({"topics": {"prompt": "orders"}})

    def studio(journal: Journal) -> Studio:
        cast = Cast(agent, [{**SCENARIO, "message": "Please order the flour today."}])
        return Studio(config, {"default": cast.model}, journal, Environments(Environment(), (order,)))

    whole = RecordingJournal()
    made = await make_sample(studio(whole), spec())
    assert made.row is not None
    assert made.row.lineage.in_doubt == ()
    (begun,) = [
        number
        for number, (_, bodies, _) in enumerate(whole.batches, 1)
        if any(isinstance(body, e.ToolStarted) for body in bodies)
    ]
    journal = await keep(whole.batches[:begun])
    again = await make_sample(studio(journal), spec())
    assert orders.read_text() == "flour\n"
    assert again.row is not None
    assert again.dialogue is not None
    assert len(again.row.lineage.in_doubt) == 1
    candidate = Candidate(
        row=again.row,
        run_id=again.run_id,
        events=again.events,
        spec=spec(),
        scenario=again.scenario,
        environment=again.dialogue.environment,
        journal=journal,
    )
    verdicts = await Pipeline(config, tools=[order]).check(candidate)
    assert not is_good(verdicts)
    assert [item.filter for item in verdicts if not item.is_passed] == ["transcript", "grounding"]


async def test_a_call_whose_server_died_gives_no_row(tmp_path: Path) -> None:
    def agent(request: Request):
        if request.messages[-1].role is Role.TOOL:
            return "I have ordered the flour."
        return think("I order it.", call("once", {}))

    config = GenerationConfig.model_validate({"topics": {"prompt": "orders"}})
    cast = Cast(agent, [{**SCENARIO, "message": "Please order the flour today."}])
    journal = MemoryJournal()
    odd_server = str(Path(__file__).parents[2] / "tools/mcp/odd_server.py")
    async with MCPServer(sys.executable, args=[odd_server, "dies", str(tmp_path / "state")]) as server:
        models, environments = {"default": cast.model}, Environments(Environment(), server.tools())
        made = await make_sample(Studio(config, models, journal, environments), spec())
    assert made.row is not None
    assert made.dialogue is not None
    candidate = Candidate(
        row=made.row,
        run_id=made.run_id,
        events=made.events,
        spec=spec(),
        scenario=made.scenario,
        environment=made.dialogue.environment,
        journal=journal,
    )
    verdicts = {item.filter: item for item in await Pipeline(config, tools=server.tools()).check(candidate)}
    assert "has no result of its tool" in verdicts["transcript"].reason


async def test_every_call_without_a_result_of_its_tool_is_named() -> None:
    @tool(effect=Effect.PURE, timeout_seconds=0.05)
    async def slow() -> str:
        await asyncio.sleep(600)
        return ""

    @tool
    async def lost() -> str:
        raise NoResultError("the service is gone")

    @tool
    async def failed() -> str:
        raise ValueError("no such order")

    calls = [call("slow", {}), call("lost", {}), call("failed", {})]
    journal = MemoryJournal()
    run = await Agent(ScriptedModel([calls, "ok"]), tools=[slow, lost, failed], journal=journal).run("go")
    results = {item.call_id: item for item in run.results}
    named = {results[call_id].name for call_id in load_row(journal, run.run_id).lineage.in_doubt}
    assert named == {"slow", "lost"}
    assert "the service is gone" in [item.content for item in run.results]
