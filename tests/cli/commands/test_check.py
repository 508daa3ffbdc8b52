"""`treadle check`, and the commands on a journal with a damaged run: they go on with the others and say so."""

import sqlite3
from pathlib import Path

import pytest
from tests.cli.command import Cli
from tests.cli.scripted import Script, say

from treadle import Agent, ScriptedModel, open_journal
from treadle.models import call


@pytest.fixture
async def journal(cli: Cli) -> Path:
    """A journal with the runs `one`, `two` and `three`."""
    path = cli.folder / ".treadle" / "runs.db"
    path.parent.mkdir()
    with open_journal(path) as journal:
        for run_id in ("one", "two", "three"):
            texts = ["a line\n" * 200 + "another line\n" * count for count in (20, 40)]
            grow = [[call("write_file", {"file_path": "notes", "content": text})] for text in texts]
            agent = Agent(ScriptedModel([*grow, "done"]), tools=["files"], journal=journal)
            await agent.run(f"Grow {run_id}.", run_id=run_id, files={"notes": b"a line\n" * 200})
    return path


def change(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()


LAST_FRAME = "(SELECT frame FROM heads JOIN runs ON runs.id = run WHERE run_id = 'two')"
EVENT = f"UPDATE frames SET body = replace(body, 'done', 'gone') WHERE id = {LAST_FRAME}"
FACTS = "UPDATE runs SET input = 'Shrink two.' WHERE run_id = 'two'"


def test_a_whole_journal_is_whole(cli: Cli, journal: Path) -> None:
    found = cli("check")
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith("3 runs whole; ")
    assert cli("check", "two").code == 0
    lines = cli("check", "--json").lines
    assert [(line["run_id"], line["problems"]) for line in lines] == [("one", []), ("two", []), ("three", [])]
    assert lines[0]["contents"] == 3


def test_check_says_what_is_damaged_and_what_to_do(cli: Cli, journal: Path, script: Script) -> None:
    server = script(lambda _: say("done"))
    change(journal, EVENT)
    found = cli("check")
    assert found.code == 1
    assert "2 runs whole, 1 run damaged" in found.out
    assert "run 'two' is damaged" in found.err
    assert (
        "restore a backup of the journal, or continue from before the damage: treadle fork two --at"
        in found.err
    )
    at = found.err.split("--at ")[1].split()[0]
    given = ("-m", "one", "--base-url", server.url, "--tools", "files")
    forked = cli("fork", "two", "--at", at, "--run-id", "four", *given)
    assert forked.code == 0, forked
    assert cli("check", "one", "three", "four").code == 0


def test_check_finds_a_damaged_content_and_facts(cli: Cli, journal: Path) -> None:
    change(journal, FACTS)
    assert "row in the table `runs`" in cli("check", "two").err
    change(journal, "UPDATE blobs SET content = substr(content, 2) WHERE substr(content, 1, 1) = x'00'")
    found = cli("check")
    assert found.code == 1
    assert "needs a content" in found.err


@pytest.mark.parametrize("statement", [EVENT, FACTS])
def test_one_damaged_run_ends_no_command(cli: Cli, journal: Path, statement: str) -> None:
    change(journal, statement)
    for command in (
        ("replay", "--all"),
        ("verify", "--all"),
        ("export", "--all", "--format", "journal"),
        ("export", "--all"),
    ):
        found = cli(*command)
        assert "Traceback" not in found.err
        assert "Grow one" in found.out or "one" in found.out, found
        assert "Grow three" in found.out or "three" in found.out, found
        if statement == EVENT:
            assert found.code == 1, found
            assert "run 'two' is damaged" in found.err
            assert '"two"' not in found.out
    listed = cli("runs")
    assert all(run_id in listed.out for run_id in ("one", "two", "three"))
    if statement == FACTS:
        assert listed.code == 1
        assert "run 'two' is damaged" in listed.err
        assert "✗ damaged" in listed.out
        assert [line["run_id"] for line in cli("runs", "--status", "damaged", "--json").lines] == ["two"]


async def test_resume_goes_on_with_the_others(cli: Cli, journal: Path) -> None:
    with open_journal(journal) as opened:
        for run_id in ("open", "spoilt"):
            writer = opened.create(run_id)
            writer.append_events(opened.read("one", until_seq=3))
            await writer.release()
            await writer.sync()
    frame = LAST_FRAME.replace("two", "spoilt")
    change(journal, f"UPDATE frames SET body = replace(body, 'Grow', 'Glow') WHERE id = {frame}")
    found = cli("resume", "--all", "-m", "oracle", "--tools", "files")
    assert found.code == 1
    assert "run 'spoilt' is damaged" in found.err
    assert "2 runs, " in found.err
    assert "Traceback" not in found.err
