"""The example personas and skills: they are read without a note, and work offline."""

import shutil
from pathlib import Path

import pytest

from treadle import Agent, ScriptedModel
from treadle.journal.memory import MemoryJournal
from treadle.knowledge.personas.persona import Persona, demands_of_persona
from treadle.models import call

EXAMPLES = Path(__file__).parents[3] / "examples"
PERSONAS = sorted((EXAMPLES / "personas").glob("*.yaml"))


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is trusted here from the other tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize("path", PERSONAS, ids=lambda path: path.stem)
async def test_an_example_works_as_it_is(path: Path) -> None:
    persona = Persona.load(path)
    assert demands_of_persona(persona, path.parent) == ()
    agent = Agent(ScriptedModel(["Hello."]), persona=persona, journal=MemoryJournal())
    run = await agent.run("hi")
    assert run.output == "Hello."
    assert agent.known is not None
    assert agent.known.report.lines() == []
    assert 300 < agent.known.report.tokens < 1500


async def test_the_analyst_makes_a_report_with_its_skill(tmp_path: Path) -> None:
    """The skill's own program runs in the sandbox, on a file of the user."""
    profile = (EXAMPLES / "skills" / "csv-report" / "profile.py").read_text()
    model = ScriptedModel(
        [
            [call("use_skill", {"name": "csv-report", "parameters": {"path": "sales.csv"}})],
            [call("python", {"code": profile.replace('"data.csv"', '"sales.csv"')})],
            "Three rows.",
        ]
    )
    agent = Agent(
        model,
        persona=Persona.load(EXAMPLES / "personas" / "analyst.yaml"),
        journal=MemoryJournal(),
        files={"sales.csv": "day,sum\nMon,3\nTue,\nWed,5.5\n"},
        approver=lambda request: True,
    )
    run = await agent.run("What is in sales.csv?")
    brought, profiled = [result.content for result in run.results]
    assert 'set `PATH = "sales.csv"`' in brought
    assert "3 rows, 2 columns, 0 of another length" in profiled
    assert "sum: 1 empty, 2 distinct, number from 3.0 to 5.5, mean 4.25" in profiled
    assert run.files[".skills/csv-report/outline.md"].startswith(b"# Report")


def test_a_copy_of_the_examples_needs_nothing_else(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    for path in sorted((tmp_path / "examples" / "personas").glob("*.yaml")):
        persona = Persona.load(path)
        assert all(Path(item).exists() for item in (*persona.skills, *persona.documents))
