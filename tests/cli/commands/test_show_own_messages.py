"""What Treadle adds to a transcript is shown as its own, and never as the user's."""

import asyncio

from tests.cli.command import Cli

from treadle import Agent, ScriptedModel, open_journal
from treadle.core.events import TurnStarted
from treadle.core.inbox import Enqueue, decode_message, encode_message
from treadle.core.policy import Policy
from treadle.core.state import fold
from treadle.core.types import Message, Role
from treadle.datagen.conversations.dialogue import count_repairs
from treadle.models import call


def make(cli: Cli) -> None:
    """Make a session whose first answer is asked for again, and in whose last turn a limit is reached."""

    async def talk() -> None:
        with open_journal(cli.folder / "runs.db") as journal:
            script = ["It is 41.", "It is 42.", [call("list_files", {})], "I found nothing."]
            policy = Policy(max_steps=1)
            agent = Agent(ScriptedModel(script), tools=["files"], policy=policy, journal=journal)
            async with agent.session("s") as session:
                await session.send("How much?")
                await session.send("The number is wrong.", is_own=True)
                await session.send("And where is it written?")

    asyncio.run(talk())


def test_a_transcript_says_who_asked(cli: Cli) -> None:
    make(cli)
    shown = cli("show", "s", "--journal", "runs.db").out
    said = [line for line in shown.splitlines() if line.startswith(("›", "!"))]
    assert said[:3] == [
        "› How much?",
        "! Treadle asked again: The number is wrong.",
        "› And where is it written?",
    ]
    assert said[3].startswith("! Treadle: ")
    assert len(said) == 4


def test_a_document_says_who_asked(cli: Cli) -> None:
    make(cli)
    text = cli("show", "s", "--journal", "runs.db", "--markdown").out
    assert "**Treadle asked again:**\n\n> The number is wrong." in text
    assert "## Turn 2\n\n**User:**\n\n> And where is it written?" in text
    assert "## Turn 3" not in text


def test_the_turns_of_the_user_are_counted(cli: Cli) -> None:
    make(cli)
    (listed,) = cli("sessions", "--journal", "runs.db", "--json").lines
    assert listed["turns"] == 2


def test_the_journal_knows_who_asked(cli: Cli) -> None:
    make(cli)
    with open_journal(cli.folder / "runs.db") as journal:
        events = journal.read("s")
    assert count_repairs(events) == [0, 1, 0]
    own = [item.content for item in fold([event.body for event in events]).transcript if item.is_own]
    assert own[0] == "The number is wrong."
    assert len(own) == 2, "the limit is Treadle's too"
    assert [event.body.message.is_own for event in events if isinstance(event.body, TurnStarted)] == [
        False,
        True,
        False,
    ]
    posted = Enqueue(Message(Role.USER, "Again.", is_own=True))
    assert decode_message(1, encode_message(posted)).message == posted


def test_messages_from_before_a_run_are_shown_by_their_roles(cli: Cli) -> None:
    async def answer() -> None:
        with open_journal(cli.folder / "runs.db") as journal:
            agent = Agent(ScriptedModel(["Yes."]), journal=journal)
            history = [Message(Role.USER, "Hello?"), Message(Role.ASSISTANT, "Good day.")]
            async with agent.session("h", history=history) as session:
                await session.send("Are you there?")

    asyncio.run(answer())
    shown = cli("show", "h", "--journal", "runs.db").out
    assert shown.index("› Hello?") < shown.index("\nGood day.") < shown.index("› Are you there?")
