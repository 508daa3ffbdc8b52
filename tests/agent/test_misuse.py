"""Near misses: what is given wrongly is refused before a run begins, with a message that says what to give."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle import (
    Agent,
    Policy,
    Run,
    ScriptedModel,
    Session,
    ToolContext,
    ToolLimits,
    model,
    open_journal,
    tool,
)
from treadle.core.errors import ConfigError, LeaseHeldError
from treadle.journal.memory import MemoryJournal
from treadle.models import call


class Database:
    pass


@tool(effect="pure")
def look() -> str:
    return "seen"


@tool(effect="pure")
def query(context: ToolContext[Database]) -> str:
    return type(context.deps).__name__


async def late() -> str:
    return "late"


class Tools:
    def tools(self) -> list[Any]:
        return [look]


def deep(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"a": 1}
    for _ in range(levels - 1):
        found = {"a": found}
    return found


def make(**options: Any) -> Agent[Any]:
    return Agent(ScriptedModel(["ok"] * 3), **{"journal": MemoryJournal(), **options})


def done() -> Agent[Any]:
    """Return an agent whose journal has the finished run `r`."""
    agent = make()
    agent.run_sync("go", run_id="r")
    return agent


def asked(**options: Any) -> Run[Any]:
    """Return a run whose call of `look` needs approval."""
    scripted = ScriptedModel([[call("look")], "ok"])
    policy = Policy(approve={"look": "ask"})
    return Agent(scripted, tools=[look], policy=policy, journal=MemoryJournal(), **options).run_sync("go")


def opened() -> Session[Any]:
    return make().session().__enter__()


MISUSES: list[tuple[Callable[[], object], str]] = [
    (lambda: make(tools="files"), r"tools is the str 'files'; give a list: tools=\['files'\]"),
    (lambda: make(tools=look), r"tools is <tool 'look'>; give a list"),
    (lambda: make(tools={"look": look}), "give its values in a list"),
    (lambda: make(tools=None), "tools is None; give a list"),
    (lambda: make(tools=[late()]), r"late\(\) is a coroutine; give the function late itself"),
    (lambda: make(tools=[Tools]), "Tools is a class; give an instance of it"),
    (lambda: make(tools=["fils"]), "did you mean 'files'"),
    (lambda: make(tools=[None]), "None is not a tool"),
    (lambda: make(tools=[look, look]), "two tools are called 'look'"),
    (lambda: Agent(None), "model is None; give a name such as"),
    (lambda: Agent(ScriptedModel), "or an object with a method `infer`"),
    (lambda: Agent("opnai:gpt-5-mini"), "did you mean 'openai:gpt-5-mini'"),
    (lambda: make(policy={"max_steps": 3}), r"give Policy\(\*\*policy\)"),
    (lambda: make(policy=3), "policy is 3; give a Policy"),
    (lambda: Policy(max_steps=-1), "Policy.max_steps is -1"),
    (lambda: Policy(max_step=3), "Policy has no option 'max_step'; did you mean 'max_steps'"),
    (lambda: ToolLimits(max_call=3), "ToolLimits has no option 'max_call'; did you mean 'max_calls'"),
    (lambda: Policy(max_steps="3"), "Policy.max_steps is '3'"),
    (lambda: Policy(approve=["look"]), "Policy.approve is"),
    (lambda: Policy(tool_limits={"look": 3}), "give a ToolLimits"),
    (lambda: Policy(max_steps=2.5), "Policy.max_steps is 2.5; give a whole number of at least 0"),
    (lambda: ToolLimits(max_calls=2.5), "give a whole number"),
    (lambda: Policy(text_markers="no"), "Policy.text_markers is 'no'; give True or False"),
    (lambda: Policy(charges_lost=1), "Policy.charges_lost is 1; give True or False"),
    (lambda: Policy(summary_model=ScriptedModel([])), "give the name of a model, or None"),
    (lambda: Policy(last_step_message=None), "Policy.last_step_message is None; give a str"),
    (lambda: Policy(in_doubt="wonder"), "use 'tell' or 'ask'"),
    (lambda: ToolLimits(max_calls=-1), "ToolLimits.max_calls is -1; give a whole number of at least 0"),
    (
        lambda: make(tools=[look], policy=Policy(approve={"lok": "ask"})),
        "'lok', which the agent does not have",
    ),
    (lambda: make(tools=[look], policy=Policy(tool_limits={"lok": ToolLimits()})), "did you mean 'look'"),
    (lambda: make(files=["a.txt"]), "files is .*give the path of a folder, or a dict"),
    (lambda: make(files={"a.txt": 3}), "files has 'a.txt': 3"),
    (lambda: make(files="/no/such/folder").run_sync("go"), "there is no such file or folder"),
    (lambda: make(journal=3), "journal is 3; give a path"),
    (lambda: make(approver=True), "approver is True; give a function"),
    (lambda: asked(approver=lambda request: "yes"), "the approver returned 'yes'; return a bool, a Decision"),
    (
        lambda: model("openai:m", temperature="hot"),
        "temperature: 'hot' is not possible; it should be a valid number",
    ),
    (lambda: model("openai:m", seed="x"), "seed: 'x' is not possible; it should be a valid integer"),
    (lambda: model("openai:m", stop=3), "stop: 3 is not possible; give a text or a list of texts"),
    (lambda: model(3), "the model is 3; give a name such as"),
    (lambda: model("openai:m", base_url=3), "base_url: it should be a valid string"),
    (lambda: model("openai:m", api_key=["sk-1"]), "api_key: it should be a valid string$"),
    (lambda: model("openai:m", api_key_env=3), "api_key_env: it should be a valid string"),
    (lambda: model("openai:m", headers="x"), "headers: it should be a mapping$"),
    (
        lambda: model("openai:m", total_timeout_seconds="9"),
        "total_timeout_seconds: it should be a valid number",
    ),
    (lambda: model("openai:m", max_attempts=True), "max_attempts: True is not possible; it should be"),
    (lambda: model("openai:m", can_call_tools="no"), "can_call_tools: it should be a valid boolean"),
    (lambda: model("openai:m", price={"input": 3}), "price is .*give a Price"),
    (lambda: make(clock=3), "clock is 3"),
    (lambda: make(user=3), "user is 3; give the name of a user"),
    (lambda: make(trust="no"), "trust is 'no'; give True or False"),
    (lambda: make(skills=3), "skills is 3; give a list of paths"),
    (lambda: make(documents=Database()), "documents is .*give a list of paths"),
    (lambda: make(hooks=[late]), "hooks has .*do not wait"),
    (lambda: make().as_tool(name=3), "3 cannot be the name of a tool"),
    (lambda: make().as_tool("a", description=3), "an option of the tool has a wrong type: .*description"),
    (lambda: make(instructions=["Be kind."]), "instructions is .*give a str, or a function"),
    (lambda: make(instructions=lambda: 3).run_sync("go"), "returned 3; return a str"),
    (lambda: make(instruction="Be kind."), "Agent has no option 'instruction'; did you mean 'instructions'"),
    (lambda: make().run_sync("go", run_ide="r"), "run has no option 'run_ide'; did you mean 'run_id'"),
    (lambda: make().run_sync("go", shema=int), "run has no option 'shema'; did you mean 'schema'"),
    (lambda: make().run_sync(None), "the task is None; give the user's message"),
    (lambda: make().run_sync([{"role": "user"}]), "the task is .*give the user's message"),
    (lambda: make().run_sync("go", run_id=""), "the run's id is ''"),
    (lambda: make().run_sync("go", run_id="a b"), "the run's id is 'a b'; give a str without blanks"),
    (lambda: make().run_sync("go", run_id="last"), "does not begin with a dash and is not 'last'"),
    (lambda: done().fork_sync("r", new_run_id="-x"), "the run's id is '-x'"),
    (lambda: make().run_many(["go"], batch_id="a b"), "batch_id is 'a b'"),
    (lambda: make().session("a b").__enter__(), "the run's id is 'a b'"),
    (lambda: make().run_sync("go", attach="a.txt"), r"attach is 'a.txt'; give a list: attach=\['a.txt'\]"),
    (lambda: make().run_sync("go", attach=[b"x"]), "attach has b'x'; give paths"),
    (lambda: make().run_sync("go", metadata=[1]), r"metadata is \[1\]"),
    (lambda: make().run_sync("go", metadata={"a": object()}), "give a dict of JSON values"),
    (lambda: make().run_sync("go", metadata=deep(101)), "metadata is nested more than 100 levels deep"),
    (lambda: make().run_sync("go", metadata=deep(5_000)), "metadata is nested more than 100 levels deep"),
    (lambda: make().session(3), "the run's id is 3"),
    (lambda: make().session(expects_new="no"), "expects_new is 'no'; give True or False"),
    (lambda: make().run_many(["a"], metadata=3), "metadata is 3; give a dict"),
    (lambda: make().run_many(["a"], batch_id=3), "batch_id is 3"),
    (lambda: make().run_sync("go", on_event="x"), "on_event is 'x'; give a function"),
    (lambda: make().stream("go", on_event=print), "stream has no option 'on_event'"),
    (lambda: make(tools=[query]).run_sync("go"), r"the tool 'query' needs deps \(Database\)"),
    (lambda: make(tools=[query], deps=3).run_sync("go"), "needs deps of the type Database; 3 was given"),
    (lambda: done().resume_sync("r", answer={}), "resume has no option 'answer'; did you mean 'answers'"),
    (lambda: done().resume_sync(Run), "the run's id is"),
    (lambda: done().resume_sync("r", answers={"q": "x"}), "no question 'q' is open"),
    (lambda: done().resume_sync("r", approvals="yes"), "approvals is 'yes'; give a dict"),
    (lambda: done().resume_sync("r", answers=["x"]), r"answers is \['x'\]; give a dict"),
    (lambda: done().resume_sync("r", trust="no"), "trust is 'no'; give True or False"),
    (lambda: done().fork_sync("r", new_run_id=3), "the run's id is 3"),
    (lambda: done().replay_sync([]), "the run's id is"),
    (lambda: done().fork_sync("r", "3"), "at is '3'; give the number of an event"),
    (lambda: done().fork_sync("r", txt="x"), "fork has no option 'txt'; did you mean 'text'"),
    (lambda: done().session("r").__enter__(), "run 'r' is not a session"),
    (lambda: make().session().send_sync("hi"), "the session is not open"),
    (lambda: opened().send_sync(None), "the message is None; give a str"),
    (lambda: opened().send_sync("hi", attac=[]), "send has no option 'attac'; did you mean 'attach'"),
    (lambda: Agent.from_spec(Run), "the spec is .*give an AgentSpec, such as `run.spec`"),
    (lambda: Run.load("r", "runs.db"), "give what `open_journal` returns"),
    (lambda: open_journal({}), r"the journal's path is \{\}"),
    (lambda: open_journal("memory:", lease_seconds="10"), "lease_seconds is '10'; give a number above 0"),
    (lambda: ScriptedModel("one"), "answers is 'one'; give a list of answers"),
    (lambda: tool(efect="pure")(late), "tool has no option 'efect'; did you mean 'effect'"),
    (lambda: tool(description=3)(late), "late.*wrong type: Expected `str`.*description"),
    (lambda: tool(concurrent="no")(late), "wrong type: Expected `bool`"),
    (lambda: tool(max_result_chars=9.5)(late), "wrong type: Expected `int`"),
    (lambda: tool(max_retries=-1)(late), "max_retries is -1; it must be at least 0"),
]


@pytest.mark.parametrize(("use", "why"), MISUSES, ids=[str(number) for number in range(len(MISUSES))])
def test_a_misuse_is_told(use: Callable[[], Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        use()


def test_nothing_is_journalled_for_a_refused_run(tmp_path: Path) -> None:
    with open_journal(tmp_path / "runs.db") as journal:
        agent = make(tools=[query], journal=journal)
        with pytest.raises(ConfigError, match="needs deps"):
            agent.run_sync("go", run_id="r")
        assert journal.runs() == []
        assert agent.run_sync("go", run_id="r", deps=Database()).output == "ok"


async def test_a_second_agent_cannot_drive_a_run_that_is_driven() -> None:
    is_busy = asyncio.Event()

    @tool(effect="pure")
    async def wait() -> str:
        is_busy.set()
        await asyncio.Event().wait()
        return ""

    journal = MemoryJournal()
    agent = Agent(ScriptedModel([[call("wait")]]), tools=[wait], journal=journal)
    running = asyncio.create_task(agent.run("go", run_id="r"))
    await is_busy.wait()
    with pytest.raises(LeaseHeldError, match="'r'"):
        await make(journal=journal).resume("r")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_a_stream_in_a_plain_loop_is_told() -> None:
    with pytest.raises(TypeError, match="write `async for`, or use `stream_sync`"):
        list(make().stream("go"))


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (
            [],
            "the script of the model 'scripted' has 0 answers, and request 1 has none: it ends with the user mes",
        ),
        ([[call("look")]], "has 1 answer, and request 2 has none: it ends with the tool message 'seen'"),
        ([call("look")], "a script has ToolCall"),
    ],
)
def test_a_script_that_does_not_fit_says_so(answers: Any, why: str) -> None:
    run = Agent(ScriptedModel(answers), tools=[look], journal=MemoryJournal()).run_sync("go")
    assert why in (run.error or "")
    assert run.fault == "user"
