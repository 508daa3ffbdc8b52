"""Sessions at the command line: listed, searched, exported, forked at a turn and deleted."""

import asyncio
import json

from tests.cli.command import Cli

from treadle import Agent, ScriptedModel, open_journal
from treadle.core.types import Completion, FinishReason, Message, Role, Usage
from treadle.models import call


def make(cli: Cli) -> tuple[str, str]:
    """Make two sessions in `runs.db`, the second with a sub-agent, and return their ids."""

    async def talk() -> tuple[str, str]:
        with open_journal(cli.folder / "runs.db") as journal:
            paid = Completion(
                Message(Role.ASSISTANT, "The invoice is 42 EUR."), FinishReason.STOP, Usage(9, 1), 0.25
            )
            agent = Agent(ScriptedModel([paid, "Until Friday."]), journal=journal)
            async with agent.session() as first:
                await first.send("How much is the invoice of the plumber? I have lost it.")
                await first.send("And when is it due?")
            child = Agent(ScriptedModel(["4"]))
            script = [[call("helper", {"task": "2 + 2"})], "It is `4`."]
            agent = Agent(ScriptedModel(script), tools=[child.as_tool("helper")], journal=journal)
            async with agent.session(metadata={"title": "Sums"}) as second:
                await second.send("Add.")
            async with agent.session():
                pass  # leaves no run
            return str(first.run_id), str(second.run_id)

    return asyncio.run(talk())


def test_sessions_are_listed(cli: Cli) -> None:
    first, second = make(cli)
    shown = cli("sessions", "--journal", "runs.db")
    assert shown.code == 0
    lines = [line for line in shown.out.splitlines() if line.strip()]
    assert [line.split()[0] for line in lines[2:]] == [second, first]
    assert "Sums" in shown.out
    assert "How much is the invoice of the plumber?" in shown.out
    assert "lost it" not in shown.out
    assert [line.split()[2] for line in lines[2:]] == ["$0", "$0.2500"]
    listed = cli("sessions", "--journal", "runs.db", "--json").lines
    assert [(item["title"], item["turns"], item["cost_usd"]) for item in listed] == [
        ("Sums", 1, 0.0),
        ("How much is the invoice of the plumber?", 2, 0.25),
    ]


def test_messages_are_searched(cli: Cli) -> None:
    first, second = make(cli)
    shown = cli("sessions", "--journal", "runs.db", "--grep", "INVOICE")
    assert shown.out.splitlines() == [
        f"{first}  How much is the invoice of the plumber?",
        "  turn 1 user: How much is the invoice of the plumber? I have lost it.",
        "  turn 1 assistant: The invoice is 42 EUR.",
    ]
    found = cli("sessions", "--journal", "runs.db", "--grep", "is", "--json", "--limit", "1").lines
    assert [(item["run_id"], item["turn"], item["role"]) for item in found] == [(second, 1, "assistant")]
    nothing = cli("sessions", "--journal", "runs.db", "--grep", "unheard")
    assert (nothing.code, nothing.out) == (0, "")
    assert "no message contains" in nothing.err


def test_a_session_is_deleted_together_with_its_agents(cli: Cli) -> None:
    first, second = make(cli)
    refused = cli("sessions", "--journal", "runs.db", "--delete", second)
    assert refused.code == 2
    assert "--yes" in refused.err
    deleted = cli("sessions", "--journal", "runs.db", "--delete", second, "--yes")
    assert deleted.code == 0
    assert "and 1 run of its agents" in deleted.err
    assert [item["run_id"] for item in cli("runs", "--journal", "runs.db", "--json").lines] == [first]
    assert cli("check", "--journal", "runs.db").code == 0


def test_the_link_to_a_sub_agent_is_shown(cli: Cli) -> None:
    _, second = make(cli)
    runs = cli("runs", "--journal", "runs.db", "--json").lines
    child = next(item for item in runs if item["caller_run_id"] == second)
    assert f"run {child['run_id']}" in cli("show", second, "--journal", "runs.db").out
    assert f"run {second} ·" in cli("show", "last", "--journal", "runs.db").out
    assert f"called by run {second}" in cli("show", child["run_id"], "--journal", "runs.db").out
    assert f"↳ {second}" in cli("runs", "--journal", "runs.db").out
    resumed = cli("resume", "--all", "--journal", "runs.db")
    assert child["run_id"] not in resumed.out + resumed.err


def test_a_session_is_written_as_markdown(cli: Cli) -> None:
    first, second = make(cli)
    shown = cli("show", first, "--journal", "runs.db", "--markdown").out
    assert shown.startswith("# How much is the invoice of the plumber?\n")
    assert "## Turn 2\n\n**User:**\n\n> And when is it due?\n\n**Assistant:**\n\n> Until Friday.\n" in shown
    shown = cli("show", second, "--journal", "runs.db", "--markdown").out
    assert shown.startswith("# Sums\n")
    assert "<details><summary>Called <code>helper</code></summary>" in shown
    assert json.loads(shown.split("```json\n")[1].split("\n```")[0]) == {"task": "2 + 2"}


def test_a_session_is_forked_after_a_turn(cli: Cli) -> None:
    first, _ = make(cli)
    options = ("--journal", "runs.db", "--model", "mock:echo", "--text", "again", "--run-id", "new")
    assert cli("fork", first, "--turn", "1", *options).code == 0
    shown = cli("show", "new", "--journal", "runs.db").out
    assert "plumber" in shown
    assert "due" not in shown
    missing = cli("fork", first, "--turn", "7", *options)
    assert missing.code == 2
    assert "no turn 7" in missing.err


def test_wrong_usage(cli: Cli) -> None:
    make(cli)
    both = cli("sessions", "--journal", "runs.db", "--delete", "x", "--grep", "y")
    assert both.code == 2
    empty = cli("sessions", "--journal", "runs.db", "--grep", "")
    assert empty.code == 2


def test_a_session_that_another_process_drives_is_left_alone(cli: Cli) -> None:
    """Nobody deletes or continues a session that another process has open. An answer is sent to it."""
    asking = call("ask_user", {"question": "Which?"})

    async def go() -> None:
        with open_journal(cli.folder / "runs.db") as journal:
            agent = Agent(ScriptedModel([[asking], "It is b."]), tools=["ask"], journal=journal)
            async with agent.session("s") as session:
                run = await session.send("go")
                assert len(run.questions) == 1
                for arguments in (
                    ("sessions", "--delete", "s", "--yes"),
                    ("resume", "s", "--model", "mock:echo"),
                ):
                    done = await asyncio.to_thread(cli, *arguments, "--journal", "runs.db")
                    assert done.code == 1, done
                    assert "is being driven by process" in done.err
                sent = await asyncio.to_thread(cli, "answer", "s", "a", "--journal", "runs.db")
                assert (sent.code, "the process that drives the run" in sent.err) == (0, True), sent
                async with asyncio.timeout(60):
                    while session.is_turn_open:
                        await asyncio.sleep(0.01)
                run = session.run
                assert [result.content for result in run.results] == ["a"]
            assert cli("answer", "s", "a", "--journal", "runs.db").code != 0
            assert cli("sessions", "--delete", "s", "--yes", "--journal", "runs.db").code == 0
            async with agent.session("s") as session:
                assert len(session.messages) == 0

    asyncio.run(go())
