"""`treadle files`, and folders that are mounted."""

import asyncio
import re
import stat
from pathlib import Path

from tests.cli.command import Cli

from treadle import Agent, ScriptedModel, open_journal

ECHO = ("--model", "mock:echo")
WRITE = 'call write_file {"file_path": "sub/b.txt", "content": "new"}'


def test_files_are_listed_and_written(cli: Cli) -> None:
    cli.write("data/a.txt", "one")
    cli("run", WRITE, *ECHO, "--mount", "data", "--run-id", "r")
    assert cli("files", "r").out == "a.txt  3 bytes\nsub/b.txt  3 bytes\n"
    assert [line["path"] for line in cli("files", "r", "--json").lines] == ["a.txt", "sub/b.txt"]
    assert cli("files", "r", "--changed").out == "sub/b.txt  3 bytes\n"
    assert cli("files", "r", "--at", "3").out == "a.txt  3 bytes\n"
    assert cli("files", "r", "--out", "out").err == "2 files written to 'out'\n"
    assert (cli.folder / "out/sub/b.txt").read_text() == "new"
    (cli.folder / "out/a.txt").write_text("mine")
    (cli.folder / "out/sub/b.txt").unlink()
    refused = cli("files", "r", "--out", "out")
    assert (refused.code, "'out/a.txt' exists; give a new folder, or --force" in refused.err) == (2, True), (
        refused
    )
    assert not (cli.folder / "out/sub/b.txt").exists(), "nothing was written"
    assert (cli.folder / "out/a.txt").read_text() == "mine"
    assert cli("files", "r", "--out", "out", "--force").code == 0
    assert (cli.folder / "out/a.txt").read_text() == "one"


def test_nothing_is_written_outside_the_folder(cli: Cli) -> None:
    cli("run", WRITE, *ECHO, "--tools", "files", "--run-id", "r")
    (cli.folder / "elsewhere").mkdir()
    (cli.folder / "out").mkdir()
    (cli.folder / "out/sub").symlink_to("../elsewhere")
    for force in ((), ("--force",)):
        refused = cli("files", "r", "--out", "out", *force)
        assert (refused.code, "a symlink leads out of 'out'" in refused.err) == (2, True), refused
    (cli.folder / "out/sub").unlink()
    (cli.folder / "out/sub").mkdir()
    (cli.folder / "out/sub/b.txt").symlink_to("../../elsewhere/b.txt")
    assert cli("files", "r", "--out", "out", "--force").code == 2
    assert list((cli.folder / "elsewhere").iterdir()) == []


def test_paths_of_a_foreign_journal_stay_in_the_folder(cli: Cli) -> None:
    cli("run", WRITE, *ECHO, "--tools", "files", "--run-id", "r")
    exported = cli("export", "r", "--format", "journal").out
    unchecked = re.sub(r',"export":\{[^}]*\}', "", exported)
    cli.write("evil.jsonl", unchecked.replace('"sub/b.txt":', '"../b.txt":'))
    assert cli("import", "evil.jsonl", "-j", "evil.db").code == 0
    refused = cli("files", "r", "--out", "out", "-j", "evil.db")
    assert (refused.code, "leaves the sandbox's root" in refused.err) == (2, True), refused
    assert not (cli.folder / "b.txt").exists()


def test_the_journal_grows_by_what_changed(cli: Cli) -> None:
    """Twelve runs with the whole folder, in which the journal lies, and a copy of it."""
    (cli.folder / "large.bin").write_bytes(bytes(range(256)) * 8000)
    sizes = []
    for number in range(12):
        done = cli("run", f"hi {number}", *ECHO, "--mount", ".", "--journal", "my.db")
        assert done.code == 0, done
        assert "cannot be mounted: my.db" in done.err
        sizes.append((cli.folder / "my.db").stat().st_size)
    assert sizes[0] > 2_000_000
    assert sizes[-1] - sizes[0] < 200_000, sizes
    shown = cli("files", "last", "--journal", "my.db").out
    assert shown == "large.bin  2,048,000 bytes\n"


def test_what_is_left_out_is_told(cli: Cli) -> None:
    cli.write("data/.env", "KEY=1")
    cli.write("data/notes", "x")
    done = cli("run", "hi", *ECHO, "--mount", "data")
    assert "not mounted: .env; --mount-all mounts everything\n" in done.err
    assert cli("files").out == "notes  1 byte\n"
    whole = cli("run", "hi", *ECHO, "--mount", "data", "--mount-all")
    assert "mounted" not in whole.err
    assert cli("files").out == ".env  5 bytes\nnotes  1 byte\n"
    assert cli("run", "hi", *ECHO, "--mount", "data", "-q").err == ""
    assert cli("tools", "call", "list_files", "--mount", "data/notes").out == '["notes"]\n'


def test_an_agent_leaves_out_the_same(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY=1")
    (tmp_path / "notes").write_text("x")
    with open_journal(tmp_path / "runs.db") as journal:
        agent = Agent(ScriptedModel(["done"]), files=tmp_path, journal=journal)
        run = asyncio.run(agent.run("go"))
        assert dict(run.files) == {"notes": b"x"}
        assert run.spec.files == str(tmp_path)


def test_the_default_folder_is_private_and_git_ignores_it(cli: Cli) -> None:
    cli("run", "hi", *ECHO)
    folder = cli.folder / ".treadle"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / ".gitignore").read_text() == "*\n"
    cli("run", "hi", *ECHO, "--journal", "other/.treadle/x.db")
    assert stat.S_IMODE((cli.folder / "other/.treadle").stat().st_mode) == 0o700
    cli("run", "hi", *ECHO, "--journal", "plain/x.db")
    assert not (cli.folder / "plain/.gitignore").exists()
