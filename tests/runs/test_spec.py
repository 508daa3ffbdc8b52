"""The agent spec: what a journal says of an agent, and the agent that is built from it."""

import json
import sys
from pathlib import Path

import pytest
from tests.forks.process import FORKS

from treadle import Agent, ConfigError, Policy, Run, ScriptedModel, model, open_journal, tool
from treadle.core import events as e
from treadle.core.spec import PartSpec
from treadle.core.types import StopReason
from treadle.journal.memory import MemoryJournal
from treadle.models import call


@tool(effect="pure")
async def look(at: str) -> str:
    """Look.

    Args:
        at: Where.
    """
    return f"saw {at}"


def test_an_agent_made_of_names_is_built_again_from_its_spec() -> None:
    agent = Agent(
        model("openai:m", base_url="http://localhost:1/v1", api_key="secret", temperature=0.5),
        instructions="Be brief.",
        tools=["files", look],
        policy=Policy(max_steps=3),
        schema={"type": "object"},
        journal="memory:",
    )
    spec = agent.spec
    assert "secret" not in repr(spec)
    assert [part.name for part in spec.tools] == ["files", f"{__name__}:look"]
    again = Agent.from_spec(spec, journal=agent.journal, api_key="secret")
    assert again.spec == spec
    assert list(again.tools) == list(agent.tools)


async def test_a_run_says_which_agent_drives_it_from_its_start_and_from_each_resume() -> None:
    journal = MemoryJournal()
    first = Agent(
        ScriptedModel([[call("look", {"at": "a"})]]),
        tools=[look],
        journal=journal,
        policy=Policy(max_steps=9),
    )
    await first.run("go", run_id="r")
    assert Run.load("r", journal).stop_reason is StopReason.ERROR  # The script has run out.

    @tool(effect="once")
    async def burn() -> str:
        """Burn."""
        return "burnt"

    second = Agent(ScriptedModel([[call("burn")], "done"]), tools=[look, burn], journal=journal)
    run = await second.resume("r")
    assert run.output == "done", run.error
    started, *resumed = [
        event.body for event in run.events if isinstance(event.body, e.RunStarted | e.RunResumed)
    ]
    assert isinstance(started, e.RunStarted)
    assert [spec.name for spec in started.tools] == ["look"]
    assert [spec.name for body in resumed for spec in body.tools] == ["look", "burn"]
    assert run.spec.policy == Policy(max_steps=9), (
        "an agent without a policy of its own keeps the recorded one"
    )
    assert [part.missing is None for part in run.spec.tools] == [True, False]
    assert (await second.replay("r")).is_exact


async def test_what_only_the_program_has_is_named() -> None:
    def here() -> str:
        """Do it here."""
        return ""

    agent = Agent(ScriptedModel(["hi"]), tools=[here], journal=MemoryJournal())
    run = await agent.run("go")
    with pytest.raises(ConfigError, match=r"the model 'scripted'.*the tool '.*here'"):
        Agent.from_spec(run.spec)
    with pytest.raises(ConfigError, match=r"the tool '.*here'"):
        Agent.from_spec(run.spec, model=ScriptedModel(["hi"]))
    again = Agent.from_spec(run.spec, model=ScriptedModel(["hi"]), tools=[here], journal=agent.journal)
    assert (await again.run("go")).output == "hi"


async def test_the_policy_that_was_given_holds_for_runs_that_are_gone_on_with() -> None:
    journal = MemoryJournal()
    await Agent(ScriptedModel([]), journal=journal, policy=Policy(max_steps=9)).run("go", run_id="r")
    run = await Agent(ScriptedModel(["hi"]), journal=journal, policy=Policy(max_steps=2)).resume("r")
    assert run.spec.policy.max_steps == run.state.policy.max_steps == 2


def test_a_journal_of_version_1_says_what_it_knows() -> None:
    kept = {"model": "openai:m", "base_url": "http://h/v1", "tools": ["files"], "seed": 7}
    raw = {
        "type": "run_started",
        "at": 1.0,
        "version": "1.0",
        "policy": {"max_steps": 4},
        "instructions": "x",
    }
    body = e.decode_body(json.dumps({**raw, "model": "openai:m", "metadata": {"cli": kept}}).encode())
    assert isinstance(body, e.RunStarted)
    spec = body.spec
    assert spec.model == PartSpec(name="openai:m", settings={"base_url": "http://h/v1", "seed": 7})
    assert (spec.tools, spec.policy.max_steps) == ((PartSpec(name="files"),), 4)
    assert body.system_message == "x"
    tools = [{"name": "look", "description": "", "parameters": {}}]
    body = e.decode_body(json.dumps({**raw, "model": "m", "tools": tools}).encode())
    assert isinstance(body, e.RunStarted)
    assert body.spec.tools[0].missing is not None


PROGRAM = """
import asyncio, sys
sys.path.insert(0, {folder!r})
import shop
from treadle import Agent, ScriptedModel, open_journal
from treadle.models import call

with open_journal("runs.db") as journal:
    agent = Agent(ScriptedModel([[call("price", {{"of": "tea"}})]]), tools=[shop.price], journal=journal)
    asyncio.run(agent.run("What is tea?", run_id="r"))
"""
SHOP = '''
def price(of: str) -> str:
    """Say a price.

    Args:
        of: What.
    """
    return "3 EUR"
'''


async def test_a_run_of_a_program_is_gone_on_with_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    program = PROGRAM.format(folder=str(tmp_path))
    FORKS.run("-c", program, cwd=tmp_path).check_returncode()
    with open_journal(tmp_path / "runs.db") as journal:
        spec = Run.load("r", journal).spec
        assert spec.tools == (PartSpec(name="shop:price"),)
        sys.path.insert(0, str(tmp_path))
        try:
            agent = Agent.from_spec(spec, model=ScriptedModel(["3 EUR"]), journal=journal)
        finally:
            sys.path.remove(str(tmp_path))
        assert (await agent.resume("r")).output == "3 EUR"


async def test_what_is_set_on_an_agent_counts_for_its_next_run() -> None:
    agent = Agent(ScriptedModel(["a", "b"]), journal=MemoryJournal())
    await agent.run("go")
    agent.instructions, agent.policy = "Be brief.", Policy(max_steps=3)
    run = await agent.run("go")
    assert run.messages[0].content == "Be brief."
    assert run.state.policy.max_steps == 3
    assert run.spec == agent.spec


async def test_another_model_that_goes_on_is_asked_for_the_schema_in_its_own_way() -> None:
    class Caller(ScriptedModel):
        output_mode = "tool"

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    journal = MemoryJournal()
    await Agent(ScriptedModel([]), journal=journal, schema=schema).run("How many?", run_id="r")
    second = Caller([[call("final_answer", {"n": 3})]])
    run = await Agent(second, journal=journal).resume("r", schema=schema)
    assert run.value == {"n": 3}, run.error
    assert second.requests[0].output_schema is None
    assert [spec.name for spec in second.requests[0].tools] == ["final_answer"]
    assert (await Agent(second, journal=journal).replay("r")).is_exact
    third = ScriptedModel(['{"n": 4}'])
    fork = await Agent(third, journal=journal).fork("r", text="Again.", schema=schema)
    assert (fork.value, third.requests[0].output_schema) == ({"n": 4}, schema)
