"""`treadle show RUN --context STEP`: what the model saw, and what was left out."""

import asyncio
from pathlib import Path
from typing import Any

from tests.cli.command import Cli
from tests.context.contexts import Counting, look_up

from treadle import Agent, Policy, open_journal


def write_session(path: Path, turns: int = 12) -> int:
    """Write a session whose context was compacted to a journal, and return its number of steps."""

    async def live(journal: Any) -> int:
        agent = Agent(
            Counting(window=4000),
            instructions="Be brief.",
            tools=[look_up],
            policy=Policy(context_tokens=4000),
            journal=journal,
        )
        async with agent.session("talk") as session:
            for turn in range(turns):
                run = await session.send(f"What about rivers, number {turn}?")
        return run.steps

    with open_journal(path) as journal:
        return asyncio.run(live(journal))


def test_what_a_step_saw_is_shown(cli: Cli) -> None:
    steps = write_session(cli.folder / "runs.db")
    shown = cli("show", "talk", "--journal", "runs.db", "--context", str(steps))
    assert shown.code == 0, shown
    assert "room for 3,500" in shown.out
    assert "window: 4,000 tokens (said), 500 kept for the answer" in shown.out
    assert "read_result, read_message, look_up" in shown.out
    assert "[summary]" in shown.out
    left_out = shown.out.partition("left out:")[2]
    assert "in the summary, by event" in left_out
    first = cli("show", "talk", "--journal", "runs.db", "--context", "1")
    assert "left out" not in first.out
    assert "number 0?" in first.out


def test_what_a_step_saw_as_json(cli: Cli) -> None:
    steps = write_session(cli.folder / "runs.db")
    (view,) = cli("show", "talk", "--journal", "runs.db", "--context", str(steps), "--json").lines
    assert (view["step"], view["is_counted"], view["room"]) == (steps, True, 3500)
    assert view["messages"][0]["message"]["content"] == "Be brief."
    assert view["messages"][2]["is_summary"]
    assert {item["why"] for item in view["left_out"]} == {"summarised"}


def test_a_step_that_is_not_there(cli: Cli) -> None:
    steps = write_session(cli.folder / "runs.db", 2)
    shown = cli("show", "talk", "--journal", "runs.db", "--context", "99")
    assert shown.code == 2
    assert f"no step 99; its steps are 1 to {steps}" in shown.err


def test_a_prompt_that_cannot_be_cut_is_no_consequence_of_its_window(cli: Cli) -> None:
    """The tools alone may be estimated as larger than the window; then the server decides."""
    with open_journal(cli.folder / "runs.db") as journal:
        model, policy = Counting(window=300), Policy(context_tokens=300)
        run = Agent(model, tools=["files"], policy=policy, journal=journal).run_sync("Hello")
    shown = cli("show", run.run_id, "--journal", "runs.db").out
    lines = [line for line in shown.splitlines() if "can be cut" in line]
    assert [line.partition(" tokens, and ")[2] for line in lines] == [
        "the context was nearly full; nothing in it can be cut",
        "the server refused the prompt as too long; nothing in it can be cut",
    ]


def test_a_transcript_says_where_it_was_compacted(cli: Cli) -> None:
    write_session(cli.folder / "runs.db")
    shown = cli("show", "talk", "--journal", "runs.db")
    assert "-- context compacted from about" in shown.out
    assert "number 0?" in shown.out
    listed = cli("show", "talk", "--journal", "runs.db", "--events")
    assert "old messages summarised by scripted" in listed.out
