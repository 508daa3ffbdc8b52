"""Texts of people, models and servers neither control the terminal nor pass for lines of Treadle."""

import asyncio
import json
import re

import pytest
from rich.console import Console
from tests.cli.command import Cli

from treadle import Agent, ScriptedModel, open_journal
from treadle.cli.terminal.terminal_asker import print_question
from treadle.core.asking import Question
from treadle.core.types import Json, Option
from treadle.knowledge.memory import Author, Draft, Store, open_memory

EVIL = "Paid\x1b[2J\x1b]0;x\x07\x9b31m\u202egpj.exe\u2028\r\n0f3a  1  forged line\x00\x08"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture
def hostile(cli: Cli) -> Cli:
    """A journal whose sessions and memories have a text that would control a terminal."""

    async def talk() -> None:
        with open_journal(cli.folder / "runs.db") as journal:
            agent = Agent(ScriptedModel([EVIL, EVIL]), journal=journal)
            async with agent.session(metadata={"title": EVIL}) as first:
                await first.send("a")
            async with agent.session() as second:
                await second.send(EVIL)
            memory = open_memory(journal, "default", "default")
            for store in (Store.SELF_FACTS, Store.EPISODIC):
                await memory.write(Draft(store=store, text=f"{store} {EVIL}", author=Author.USER))

    asyncio.run(talk())
    return cli


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        (["sessions"], 4),
        (["sessions", "--grep", "forged"], 5),
        (["memory", "list"], 2),
        (["memory", "search", "paid"], 2),
        (["show", "last"], None),
        (["show", "last", "--markdown"], None),
        (["runs"], None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_listings_have_a_line_for_each_thing(hostile: Cli, command: list[str], lines: int | None) -> None:
    """Rules out that a title clears the screen, changes the window, or adds a line to a list."""
    shown = hostile(*command, "--journal", "runs.db")
    assert shown.code == 0, shown
    assert "Paid" in shown.out
    assert not _CONTROL.search(shown.out + shown.err), shown
    assert lines is None or len([line for line in shown.out.splitlines() if line.strip()]) == lines, shown


@pytest.mark.parametrize(
    "command",
    [
        *[
            "show last --json",
            "show last --context 1 --json",
            "runs --json",
            "sessions --json",
            "stats --json",
        ],
        *["sessions --grep forged --json", "memory list --json"],
        *["replay last --json", "export last --format journal", "export last --format atif"],
        *[f"export last --format {name}" for name in ("treadle", "openai", "trl", "hermes", "sharegpt")],
    ],
)
def test_json_on_standard_output_controls_nothing(hostile: Cli, command: str) -> None:
    """Rules out that what a file may have raw reaches the terminal raw. The values are those of the journal."""
    shown = hostile(*command.split(), "--journal", "runs.db")
    assert shown.code == 0, shown
    assert not _CONTROL.search(shown.out + shown.err), shown
    values = [json.loads(line) for line in shown.out.splitlines()]
    assert values
    if "show last --json" in command or "export" in command:
        assert "\x9b31m" in str(shown.out.encode().decode("unicode_escape"))


def test_an_export_from_standard_output_is_imported_and_known(hostile: Cli) -> None:
    lines = hostile("export", "--all", "--format", "journal", "--journal", "runs.db").out
    hostile.write("runs.jsonl", lines)
    assert hostile("import", "runs.jsonl", "--journal", "other.db").code == 0
    again = hostile("import", "runs.jsonl", "--journal", "runs.db")
    assert (again.code, "in the journal already" in again.err) == (0, True), again


def test_the_question_before_a_deletion_is_one_line(hostile: Cli) -> None:
    listed = hostile("sessions", "--journal", "runs.db", "--json").out
    runs = [json.loads(line) for line in listed.split("\n") if line]
    refused = hostile("sessions", "--journal", "runs.db", "--delete", runs[1]["run_id"])
    assert refused.code == 2
    assert not _CONTROL.search(refused.err)
    assert len(refused.err.strip().splitlines()) == 1, refused


def test_the_greeting_of_a_persona_controls_nothing(cli: Cli) -> None:
    persona = {"name": "Eve\u202e", "greeting": "hello\u202e\u2028\x9b31m there"}
    cli.write("eve.yaml", json.dumps(persona))
    shown = cli("chat", "-m", "mock:echo", "--persona", "eve.yaml", text="/quit\n")
    assert shown.code == 0, shown
    assert "hello" in shown.out
    assert not _CONTROL.search(shown.out + shown.err)


@pytest.mark.parametrize("text", [EVIL, "Which?\n  1. forged\n? forged\nanswer: "])
def test_a_question_cannot_forge_options_or_questions(text: str) -> None:
    """Rules out that the server which asks writes lines that seem to come from Treadle."""
    console = Console(width=200, record=True, file=open("/dev/null", "w"), markup=False)  # noqa: SIM115
    about: Json = {"type": "string", "title": text, "description": text, "enum": [text]}
    schema: dict[str, Json] = {"type": "object", "properties": {text: about}}
    print_question(Question(text, (Option(text, text), Option("no")), schema=schema), console)
    shown = console.export_text()
    assert not _CONTROL.search(shown)
    lines = shown.splitlines()
    assert len([line for line in lines if line.startswith("? ")]) == 1, shown
    assert len([line for line in lines if re.match(r"  \d\. ", line)]) == 2, shown
    assert all(line.startswith("  ") for line in lines[1:]), shown
