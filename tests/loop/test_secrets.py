"""No result of a tool brings a secret of this process to the model or into the journal."""

import json
from urllib.parse import quote

import pytest

from treadle import (
    Agent,
    Option,
    Policy,
    Question,
    RetryWithMessage,
    ScriptedModel,
    ToolContext,
    tool,
)
from treadle.core import events as e
from treadle.core.texts.masking import forms_of
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.tools.protocol import Attachment, ToolOutput
from treadle.trajectory.run_verification import verify_run

KEY = 'sk-"planted"-0123456789'
PASSWORD = "p@ss-0123/4567"


@tool(effect="pure")
async def answer() -> str:
    """Answer."""
    return f"Authorization: {KEY} for postgres"


@tool(effect="pure")
async def answer_long() -> str:
    """Answer at length."""
    return f"{KEY} {'words ' * 20_000} {KEY}"


@tool(effect="pure")
async def answer_parts() -> ToolOutput:
    """Answer in parts."""
    attachment = Attachment("document", f"key={KEY}".encode(), "text/plain", name=f"{KEY}.txt")
    link = Attachment("link", uri=f"https://files.example/a?key={quote(KEY)}")
    return ToolOutput(json.dumps({"key": KEY}), structured={"key": [KEY]}, attachments=(attachment, link))


@tool(effect="pure")
async def fail() -> str:
    """Fail."""
    raise ValueError(f"401 for postgres://app:{PASSWORD}@db/app")


@tool(effect="pure")
async def ask_again() -> str:
    """Ask for another call."""
    raise RetryWithMessage(f"{KEY} has expired.")


@pytest.mark.parametrize(
    "asked", [answer, answer_long, answer_parts, fail, ask_again], ids=lambda t: t.spec.name
)
async def test_a_secret_of_the_environment_stays_out(asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", KEY)
    monkeypatch.setenv(
        "DATABASE_URL", f"postgres://app:{PASSWORD.replace('/', '%2F').replace('@', '%40')}@db/app"
    )
    monkeypatch.setenv("POSTGRES_PASSWORD", "postgres")
    model = ScriptedModel([[call(asked.spec.name)], "Done."])
    agent = Agent(model, tools=[asked], journal=MemoryJournal())
    run = await agent.run("Go.")
    events = agent.journal.read(run.run_id)
    written = "\n".join(event.to_json().decode() for event in events)
    [result] = [event.body.result for event in events if isinstance(event.body, e.ToolCompleted)]
    contents = [agent.journal.read_blob(part.digest).decode() for part in result.artifacts if part.digest]
    shown = "\n".join([written, *contents, *map(str, model.requests[1].messages)])
    assert "***" in result.content
    assert bool(contents) == (asked in (answer_long, answer_parts))
    for secret in (KEY, PASSWORD):
        assert not [form for form in forms_of(secret) if form in shown]
    assert ("postgres" in result.content) == (asked in (answer, fail))  # an ordinary word stays


@tool(effect="pure")
async def take(key: str) -> str:
    """Take a key."""
    return "right" if key == KEY else "wrong"


@tool(effect="pure")
async def count(key: int) -> str:
    """Count."""
    return str(key)


@tool(effect="pure")
async def speak(context: ToolContext) -> str:
    """Say the key in every other way."""
    context.progress(f"I use {KEY}.")
    schema = {"type": "object", "properties": {"key": {"type": "string", "default": KEY}}}
    options = (Option(f"use {KEY}", f"It is {KEY}."), Option("stop"))
    said = await context.ask(Question(f"May I use {KEY}?", options))
    form = await context.ask(Question(f"Which one, {KEY}?", schema=schema))
    taken = await context.call_tool("take", {"key": KEY})
    refused = await context.call_tool("count", {"key": KEY})
    return f"{said.text} {form.value} {taken.content} {refused.is_error}"


async def test_no_question_progress_or_inner_call_has_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", KEY)
    asked: list[Question] = []
    heard: list[object] = []

    def ask(question: Question) -> object:
        asked.append(question)
        return "stop" if question.schema is None else {"key": "mine"}

    model = ScriptedModel([[call("speak")], "Done."])
    agent = Agent(model, tools=[speak, take, count], journal=MemoryJournal(), asker=ask)
    stream = agent.stream("Go.")
    heard += [item async for item in stream]
    run = stream.run
    assert run is not None
    events = agent.journal.read(run.run_id)
    [result] = [body.result for body in (i.body for i in events) if isinstance(body, e.ToolCompleted)][-1:]
    assert result.content == "stop {'key': 'mine'} right True"  # the inner tool itself gets the key
    assert len(asked) == 2
    assert "***" in str(asked)
    assert "I use ***." in str(heard)
    shown = "\n".join(
        [str(asked), str(heard), str(model.requests), *[item.to_json().decode() for item in events]]
    )
    assert not [form for form in forms_of(KEY) if form in shown]
    assert (await agent.replay(run.run_id)).is_exact


async def test_an_answer_names_the_option_as_the_tool_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user reads of two options may differ by nothing but secrets."""
    other = KEY[::-1]
    monkeypatch.setenv("SHOP_API_KEY", KEY)
    monkeypatch.setenv("BANK_API_KEY", other)
    chosen: list[str] = []

    @tool(effect="pure")
    async def choose(context: ToolContext) -> str:
        """Let the user choose a key."""
        chosen.append(
            (await context.ask(Question("Which one?", (f"use {KEY}", f"use {other}", "none")))).text
        )
        chosen.append((await context.ask(Question("Really?", (f"with {other}", "no")))).text)
        return chosen[0]

    asked: list[Question] = []

    def ask(question: Question) -> object:
        asked.append(question)
        return 2 if len(asked) == 1 else "with ***"

    agent = Agent(
        ScriptedModel([[call("choose")], "Done."]), tools=[choose], journal=MemoryJournal(), asker=ask
    )
    run = await agent.run("Go.")
    assert chosen == [f"use {other}", f"with {other}"]
    assert [option.label for option in asked[0].options] == ["use *** (1)", "use *** (2)", "none"]
    assert [result.content for result in run.results] == ["use ***"]
    assert KEY not in str(agent.journal.read(run.run_id))
    assert (await agent.replay(run.run_id)).is_exact


async def test_no_question_gets_the_answer_to_one_about_another_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The user reads the same text twice, and says yes to the first one only."""
    keys = (KEY, KEY[::-1])
    for number, key in enumerate(keys):
        monkeypatch.setenv(f"SHOP{number}_API_KEY", key)

    @tool(effect="pure")
    async def delete(context: ToolContext) -> str:
        """Delete keys."""
        said = [await context.ask(Question(f"Delete {key}?", ("yes", "no"))) for key in keys]
        return " ".join([answer.text for answer in said])

    asked: list[Question] = []

    def ask(question: Question) -> object:
        asked.append(question)
        return "no" if len(asked) > 1 else "yes"

    model = ScriptedModel([[call("delete")], "Done."])
    agent = Agent(model, tools=[delete], journal=MemoryJournal(), asker=ask)
    run = await agent.run("Go.")
    assert [result.content for result in run.results] == ["yes no"]
    assert [question.text for question in asked] == ["Delete ***?"] * 2
    assert (await agent.replay(run.run_id)).is_exact


async def test_the_same_question_about_the_same_secret_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it asked again with the same options, and with other ones it is."""
    for number, key in enumerate((KEY, KEY[::-1])):
        monkeypatch.setenv(f"SHOP{number}_API_KEY", key)
    first, second = f"use {KEY}", f"use {KEY[::-1]}"
    questions = [
        Question(f"Delete {KEY}?"),
        Question(f"Delete {KEY[::-1]}?"),
        Question(f"Delete {KEY}?"),
        Question("Which one?", (first, second)),
        Question("Which one?", (second, first)),
        Question("Which one?", (first, second)),
    ]
    asked: list[Question] = []

    def ask(question: Question) -> object:
        asked.append(question)
        return 1 if question.options else f"answer {len(asked)}"

    @tool(effect="pure")
    async def delete(context: ToolContext) -> str:
        """Delete keys."""
        said = [await context.ask(question) for question in questions]
        assert [answer.is_repeated for answer in said] == [False, False, True, False, False, True]
        assert [answer.text for answer in said[3:]] == [first, second, first]
        return " ".join([answer.text for answer in said[:3]])

    model = ScriptedModel([[call("delete")], "Done."])
    policy = Policy(autonomy="cautious")
    run = await Agent(model, tools=[delete], policy=policy, journal=MemoryJournal(), asker=ask).run("Go.")
    assert [result.content for result in run.results] == ["answer 1 answer 2 answer 1"]
    assert len(asked) == 4


async def test_a_call_that_runs_again_gets_each_answer_about_the_secret_that_it_was_given_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call waits for the answer to its last question, and then asks them all again."""
    keys = (KEY, KEY[::-1], KEY, KEY.upper())
    for number, key in enumerate(keys):
        monkeypatch.setenv(f"SHOP{number}_API_KEY", key)

    @tool(effect="pure")
    async def delete(context: ToolContext) -> str:
        """Delete keys."""
        said = [await context.ask(Question(f"Delete {key}?")) for key in keys]
        return " ".join([answer.text for answer in said])

    model, journal = ScriptedModel([[call("delete")], "Done."]), MemoryJournal()
    answers = iter(["no", "maybe", None, "yes"])
    policy = Policy(autonomy="cautious")
    agent = Agent(model, tools=[delete], policy=policy, journal=journal, asker=lambda question: next(answers))
    run = await agent.run("Go.")
    assert not run.results
    run = await agent.resume(run.run_id)
    assert [result.content for result in run.results] == ["no maybe no yes"]
    assert (await agent.replay(run.run_id)).is_exact
    assert (await verify_run(journal, run.run_id, [delete])).matched == 1
