"""Every command that a message prints is typed here as it stands, and works.

A situation is a name and the commands that lead to it. What the last of them prints is collected and run, and must
exit with 0, or with the code that the situation says.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import Cli, Result
from tests.cli.scripted import Script, say

TOOLS = '''
from treadle import tool

@tool(effect="once")
def send(to: str) -> str:
    """Send a letter."""
    return f"sent to {to}"
'''
DIE = '''
import os
from treadle import tool

@tool(effect="once")
def die() -> str:
    """Die."""
    os.kill(os.getpid(), 9)
'''
ECHO = ["--model", "mock:echo"]
SEND = ["""call send {"to": "a"}""", *ECHO, "--tools", "my tools/letters.py", "--approve", "ask"]
TASK = ["run", "--task", "files:csv_sum-0001", "--model", "oracle"]
PLACEHOLDERS = {"TEXT": "call nothing", "DIR": "a new folder", "KEY": "k", "NAME": "mock:echo"}
JOURNALS = [
    pytest.param([], {}, id="default"),
    pytest.param(["--journal", "my 'odd' runs.db"], {}, id="option"),
    pytest.param([], {"TREADLE_JOURNAL": "other/$runs.db"}, id="variable"),
]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path)
    cli.write("my tools/letters.py", TOOLS)
    cli.write("my data/it's here.txt", "one")
    return cli


def commands_in(result: Result) -> Iterator[list[str]]:
    """Yield the words of each command in the output, without `treadle`, with placeholders filled in."""
    text = result.err + result.out
    for quoted, rest in re.findall(r"`(treadle [^`]*)`|(?:: |^)(treadle [a-z][^\n]*)", text, re.M):
        line = quoted or rest.partition("   (")[0]
        yield [PLACEHOLDERS.get(word, word) for word in shlex.split(line)[1:]]


def run_printed(cli: Cli, result: Result, env: dict[str, str], *expected: str) -> dict[str, Result]:
    """Run what a result prints, and return the results by the name of the command."""
    found = {words[0]: cli(*words, env=env, text="") for words in commands_in(result)}
    assert list(found) == list(expected), result
    for name, done in found.items():
        assert (name, done.code, "Traceback" in done.err) == (name, 0, False), done
    return found


@pytest.mark.parametrize(("journal", "env"), JOURNALS)
def test_runs(cli: Cli, journal: list[str], env: dict[str, str]) -> None:
    text = 'call write_file {"file_path": "b", "content": "x"}'
    changed = cli("run", text, *ECHO, "--mount", "my data", *journal, env=env)
    assert "changed in the sandbox only" in changed.err
    run_printed(cli, changed, env, "files")
    assert (cli.folder / "a new folder" / "b").read_text() == "x"
    assert not (cli.folder / "a new folder" / "it's here.txt").exists()
    run_printed(cli, cli("resume", "last", *journal, env=env), env, "fork")
    for run_id in ("-dash", "b", "c"):
        found = run_printed(cli, cli(*TASK, *journal, env=env), env)
        assert found == {}, run_id
    more = cli("runs", "--limit", "2", "--status", "finished", *journal, env=env)
    assert "--status finished" in run_printed(cli, more, env, "runs")["runs"].err


@pytest.mark.parametrize(("journal", "env"), JOURNALS)
def test_approvals(cli: Cli, journal: list[str], env: dict[str, str]) -> None:
    waiting = cli("run", *SEND, *journal, env=env)
    assert waiting.code == 4, waiting
    again = cli("resume", "last", *journal, env=env)
    assert again.code == 4, again
    assert list(commands_in(again)) == list(commands_in(waiting))
    done = run_printed(cli, waiting, env, "approve")["approve"]
    assert "sent to a" in done.out
    words = next(commands_in(waiting))
    run_printed(cli, cli(*words, env=env), env, "show")
    unsaid = cli(*[word for word in words if word != "yes"], env=env)
    assert unsaid.code == 2
    assert "treadle approve" in unsaid.err


def test_answers(cli: Cli) -> None:
    """A call whose outcome was lost is asked about, and the answer continues the run."""
    cli.write("die.py", DIE)
    killed = cli("run", "call die {}", *ECHO, "--tools", "die.py", "--in-doubt", "ask", "--run-id", "r")
    assert killed.code == -9
    unfinished = cli("runs")
    assert "◐ 1 unfinished" in unfinished.err
    asked = cli("resume", "r")
    assert (asked.code, "What came of it?" in asked.err) == (4, True), asked
    run_printed(cli, asked, {}, "answer")


@pytest.mark.parametrize(("journal", "env"), JOURNALS)
def test_chats(cli: Cli, journal: list[str], env: dict[str, str]) -> None:
    waiting = cli("chat", *SEND[1:], *journal, env=env, text=f"{SEND[0]}\nanother\n")
    assert waiting.code == 4, waiting
    assert "agent.resume" not in waiting.err
    printed = [list(words) for words in dict.fromkeys(map(tuple, commands_in(waiting)))]
    assert {words[0] for words in printed} == {"approve", "chat"}
    for words in printed:
        done = cli(*words, env=env, text="")
        assert done.code == 0, done
    between = cli("resume", printed[-1][printed[-1].index("--session") + 1], *journal, env=env)
    assert "no turn of session" in between.err
    run_printed(cli, between, env, "chat")


def test_runs_that_failed(cli: Cli, script: Script) -> None:
    is_down = iter([401, 401])
    server = script(lambda body: next(is_down, None) or say("hi"))
    failed = cli("run", "go", "-m", "m", "--base-url", server.url, "--api-key", "k", "-j", "my runs.db")
    assert failed.code == 1
    unfinished = cli("resume", "last", "--api-key", "k", "-j", "my runs.db")
    assert list(commands_in(unfinished)) == list(commands_in(failed))
    run_printed(cli, failed, {}, "resume")


def test_misuse_that_names_a_command(cli: Cli) -> None:
    for words in commands_in(cli("run")):
        done = cli(*words, env={"TREADLE_MODEL": "mock:echo"})
        assert (words[0], done.code) == ("run", 0), done
    assert cli("run", "hi", "-m", "mock:echo", "--journal", "j.db").code == 0
    run_printed(cli, cli("chat", "--continue", "--journal", "j.db"), {}, "chat")


def test_models_and_configuration(cli: Cli) -> None:
    listed = cli("models", "list")
    assert "`treadle init`" in listed.out
    run_printed(cli, listed, {}, "init")
    made = cli("init", "conf dir/treadle.toml")
    line = re.search(r"next: (.*)", made.err)
    assert line is not None
    variable, *words = shlex.split(line[1])
    done = cli(*words[1:], env=dict([variable.split("=")]))
    assert (done.code, "models of conf dir/treadle.toml" in done.out) == (0, True), done
    assert "next: treadle models list" in cli("init", "--force").err


def test_tools_with_secrets_must_be_given_again(cli: Cli, script: Script) -> None:
    server = script(lambda body: 401)
    cli.write("token=password.json", cli("tools", "list", "-t", "files", "--format", "openai").out)
    tools = ["-t", "mock:token=password.json", "-t", "my tools/letters.py"]
    failed = cli("run", "go", "-m", "m", "--base-url", server.url, *tools)
    (words,) = commands_in(failed)
    assert words[2:] == ["--tools", "mock:...", "--tools", "my tools/letters.py"]
    assert "password" not in failed.err + failed.out
