"""A tool with an effect that was interrupted: it is not called again, and its sample is not a row."""

from pathlib import Path

from tests.datagen.conversations.cast import SCENARIO, Cast, spec, think
from tests.datagen.conversations.test_resume import RecordingJournal, keep

from treadle import tool
from treadle.core import events as e
from treadle.core.types import Effect, Request, Role
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.conversations.make import make_sample
from treadle.datagen.conversations.studio import Studio
from treadle.datagen.quality.pipeline import Pipeline, is_good
from treadle.datagen.quality.protocol import Candidate
from treadle.datagen.scenarios.environment import Environments
from treadle.datagen.scenarios.scenario import Environment
from treadle.journal.protocol import Journal
from treadle.models.scripted import call


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
