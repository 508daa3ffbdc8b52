"""Domains of tau2-bench: its environment and its evaluators, with a scripted model and a scripted user."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Message, Role
from treadle.journal.memory import MemoryJournal
from treadle.models.scripted import ScriptedModel
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tasks.foreign.tau_set import GREETING, TauTools, TauWorld, open_tau
from treadle.testbed import oracle_for
from treadle.tools.protocol import Toolset

needs_package = pytest.mark.skipif(
    find_spec("tau2") is None or not Path(os.environ.get("TAU2_DATA_DIR", "")).is_dir(),
    reason="it needs tau2-bench from its repository, and TAU2_DATA_DIR",
)


async def drive(task, model, user):
    """Run a task with a scripted user; return the run and what the user was sent."""
    owner = task._owner
    owner.model = ScriptedModel(user)
    domain = owner.name.removeprefix("tau:")
    tools: list[Toolset] = [TauTools(f"{domain}:{task.task_id}")]
    return await Agent(model, tools=tools, journal=MemoryJournal()).run(task), owner.model.requests


@needs_package
@pytest.mark.parametrize("domain", ["mock", "retail"])
async def test_the_reference_has_the_reward_1_and_a_refusal_has_0(domain):
    tasks = list(open_tau(domain))
    changing = [task for task in tasks if task._inner.evaluation_criteria.actions][:12]
    refusals = []
    for task in changing:
        made, _ = await drive(task, oracle_for(task), ["###STOP###"])
        assert made.reward == 1.0, (task.task_id, made, made.results)
        refused, _ = await drive(task, ScriptedModel(["I cannot help you."]), ["###STOP###"])
        refusals.append(refused.reward)
    # The references of some tasks only read, so that a refusal leaves the same state.
    assert refusals.count(0.0) > len(refusals) / 2, refusals


@needs_package
async def test_the_second_model_plays_the_user():
    task = open_tau("mock").get("create_task_1_with_env_assertions")
    said = ["I need a task.", "Thanks. ###STOP###"]
    model = ScriptedModel(["Hi! How can I help?", "Which title?"])
    made, asked = await drive(task, model, said)
    assert [item.content for item in made.messages if item.role is Role.USER] == [GREETING, "I need a task."]
    assert "Important Meeting" in asked[0].messages[0].content
    told = [(item.role, item.content) for item in list(asked[1].messages)[1:]]
    assert told == [
        (Role.USER, "Hi! How can I help?"),
        (Role.ASSISTANT, "I need a task."),
        (Role.USER, "Which title?"),
    ]
    assert made.reward == 0.0
    cut_off = [Message(Role.USER, GREETING), Message(Role.USER, "x")]
    assert task.check_transcript(cut_off).detail == "the conversation was cut off"


@needs_package
def test_an_environment_goes_on_in_another_process():
    task, make = open_tau("mock").get("create_task_1_with_env_assertions"), open_tau("mock").make
    box = MemorySandbox({})
    world = TauWorld(make, task._inner, box)
    assert '"task_2"' in world.call("create_task", {"user_id": "user_1", "title": "x"})
    again = TauWorld(make, task._inner, box)
    assert '"task_3"' in again.call("create_task", {"user_id": "user_1", "title": "y"})
    with pytest.raises(ToolError, match="not found"):
        again.call("create_task", {"user_id": "nobody", "title": "y"})


@needs_package
def test_what_cannot_be_run_says_why():
    with pytest.raises(ConfigError, match=r"tau2 has no domain 'retial'; did you mean 'retail'"):
        open_tau("retial")
    with pytest.raises(
        ConfigError, match=r"update_task_with_user_tools cannot be run here: its user has tools"
    ):
        open_tau("mock").get("update_task_with_user_tools")
    with pytest.raises(ConfigError, match="needs a model that plays the user; write tau:mock@MODEL"):
        open_tau("mock@").model  # noqa: B018


@pytest.mark.skipif(find_spec("tau2") is not None, reason="it is about a missing package")
def test_it_says_where_the_package_is():
    with pytest.raises(
        ConfigError, match=r"github.com/sierra-research/tau2-bench \(the package tau2 on PyPI"
    ):
        open_tau("retail")
