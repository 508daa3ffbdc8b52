"""The commands that a message prints are typed here as they stand, and work; runs go on with their own agents."""

import asyncio
import re
import shlex
import signal
from pathlib import Path

import pytest
from tests.cli.command import Cli, Result
from tests.cli.scripted import Answer, Script, call, call_once, say

from treadle import Agent, ScriptedModel, open_journal, tool

LETTERS = '''
from treadle import tool

@tool(effect="once")
def send(to: str) -> str:
    """Send a letter."""
    return f"sent to {to}"
'''


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path)
    cli.write("letters.py", LETTERS)
    return cli


CLERK = '''
from treadle import Agent, ToolContext, tool

class Books:
    owner = "Ada"

@tool(effect="pure")
def ask_owner(context: ToolContext[Books]) -> str:
    """Say whose books these are."""
    return context.deps.owner

clerk = Agent("mock:echo", tools=[ask_owner, "ask"], deps=Books())
'''


def printed(result: Result, begin: str) -> list[str]:
    """The words of the command that a message prints, without `treadle`."""
    found = re.search(rf"treadle ({begin}[^\n(;`]*)", result.err)
    assert found, result
    words = shlex.split(found[1].strip())
    return ["hi" if word == "TEXT" else "k" if word == "KEY" else word for word in words]


def options(url: str, *more: str) -> list[str]:
    return ["--model", "m", "--base-url", url, "--api-key", "k", "--journal", "my runs.db", *more]


def fail_once(then: Answer) -> Answer:
    is_first = iter([True])
    return lambda body: 401 if next(is_first, False) else then(body)


def test_a_run_that_failed_is_tried_again(cli: Cli, script: Script) -> None:
    server = script(fail_once(call_once("send", to="a")))
    failed = cli("run", "go", *options(server.url, "--tools", "letters.py", "--seed", "3"))
    assert failed.code == 1
    command = printed(failed, "resume")
    assert command[-4:] == ["--journal", "my runs.db", "--api-key", "k"]
    again = cli(*command, "-q")
    assert (again.code, again.out) == (0, "done: sent to a\n"), again
    assert [request["seed"] for request in server.requests[:2]] == [3, 3]
    assert server.headers[-1]["authorization"] == "Bearer k"


def test_a_run_that_waits_is_approved(cli: Cli, script: Script) -> None:
    server = script(call_once("send", to="a"))
    waiting = cli("run", "go", *options(server.url, "--tools", "letters.py", "--approve", "ask"))
    command = printed(waiting, "approve")
    assert "--api-key" in cli(*command[:3], *command[4:]).err
    done = cli(*command, "-q")
    assert (done.code, done.out) == (0, "done: sent to a\n"), done
    finished = cli(*command)
    assert (finished.code, "waits for approval" in finished.err) == (2, True), finished
    shown = cli(*printed(finished, "show"))
    assert (shown.code, "send" in shown.out) == (0, True), shown


def test_a_run_that_is_finished_is_forked(cli: Cli, script: Script) -> None:
    server = script(lambda body: say(f"answer {len(body['messages'])}"))
    cli("run", "go", *options(server.url, "--run-id", "r"))
    over = cli("resume", "r", "--journal", "my runs.db", "--api-key", "k")
    forked = cli(*printed(over, "fork"), "-q")
    assert (forked.code, forked.out) == (0, "answer 3\n"), forked


def test_all_unfinished_runs_are_resumed(cli: Cli, script: Script) -> None:
    server = script(call_once("send", to="a"))
    cli("run", "go", *options(server.url, "--tools", "letters.py", "--approve", "ask", "--run-id", "r"))
    listed = cli("runs", "--journal", "my runs.db")
    assert "waiting" in listed.out
    done = cli("resume", "--all", "--journal", "my runs.db")
    assert done.code == 0
    assert "no run is unfinished; 1 run waits for an answer or an approval\n" in done.err
    cli("run", "go", *options(server.url, "--tools", "letters.py", "--approve", "ask", "--run-id", "s"))
    several = cli("resume", "--all", "--journal", "my runs.db")
    assert "; 2 runs wait for an answer or an approval\n" in several.err
    assert "list them with: treadle runs --status waiting --journal 'my runs.db'" in several.err
    done = cli(*printed(done, "approve"), "-q")
    assert (done.code, "sent" in done.out or "done" in done.out) == (0, True), done


def test_a_chat_goes_on_with_its_own_agent(cli: Cli, script: Script) -> None:
    server = script(lambda body: call_once("send", to="a")(body))
    first = cli("chat", *options(server.url, "--tools", "letters.py", "--approve", "ask"), text="hi\n")
    done = cli(*printed(first, "approve"), "-q")
    assert (done.code, done.out) == (0, "done: sent to a\n"), done
    again = cli(*printed(first, "chat"), text="/quit\n")
    assert (again.code, "tools: send" in again.err) == (0, True), again
    run_id = cli("runs", "--json", "--journal", "my runs.db").lines[0]["run_id"]
    forked = cli("fork", run_id, "--text", "again", "--journal", "my runs.db", "--api-key", "k")
    assert "waits for approval" in forked.out, forked


def test_runs_go_on_with_the_agent_of_a_program(cli: Cli) -> None:
    """A journal has no `deps`."""
    cli.write("clerks.py", CLERK)
    text = 'call ask_user {"question": "Which?"}\nthen\ncall ask_owner\nthen\nsay done'
    waiting = cli("run", text, "--agent", "clerks.py:clerk", "--max-steps", "2")
    command = ["b" if word == "hi" else word for word in printed(waiting, "answer")]
    refused = cli(*command[: command.index("--agent")])
    assert (refused.code, "name an agent with --agent" in refused.err) == (2, True), refused
    done = cli(*command)
    assert (done.code, "Ada" in done.out, "max_steps" in done.out) == (3, True, True), done
    forked = cli("fork", "last", "--text", "call ask_owner", "--agent", "clerks.py:clerk", "-q")
    assert (forked.code, forked.out) == (0, "ask_owner: Ada\n"), forked
    talk = cli("chat", "--agent", "clerks.py:clerk", text="call ask_owner\n")
    again = cli(*printed(talk, "chat"), text="call ask_owner\n")
    assert (again.code, again.out.count("ask_owner: Ada")) == (0, 2), again
    for more in (["--model", "mock:echo"], ["--tools", "files"], ["--temperature", "1"]):
        refused = cli("chat", "--agent", "clerks.py:clerk", *more, text="")
        assert (refused.code, "leave out --" in refused.err) == (2, True), refused


def test_a_fork_of_a_session_goes_on_as_a_chat(cli: Cli) -> None:
    assert cli("chat", "-m", "mock:echo", text="hi\n").err.count("continue") == 1
    forked = cli("fork", "last", "--text", "again")
    assert (forked.code, "another process" in forked.err) == (0, False), forked
    again = cli(*printed(forked, "chat"), text="/quit\n")
    assert (again.code, "2 turns so far" in again.err) == (0, True), again


def test_the_mock_server_names_commands(cli: Cli) -> None:
    process = cli.start("mock", "--port", "0")
    assert process.stderr is not None
    results = [Result(0, "", process.stderr.readline()) for _ in range(2)]
    done = [cli(*printed(result, "run"), "-q") for result in results]
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert [item.code for item in done] == [0, 0], done
    assert "list_files: []" in done[0].out


def test_nothing_of_the_command_line_is_in_the_metadata(cli: Cli, script: Script) -> None:
    server = script(lambda body: say("hi"))
    cli("run", "go", *options(server.url, "--run-id", "r"))
    started = cli("show", "r", "--json", "--journal", "my runs.db").lines[0]
    assert "metadata" not in started
    assert started["agent"]["model"]["name"] == "openai:m"
    assert started["agent"]["model"]["settings"]["base_url"] == server.url


def test_limits_and_another_model_hold_from_a_resume_on(cli: Cli, script: Script) -> None:
    server = script(fail_once(lambda body: call("send", to="a")))
    cli("run", "go", *options(server.url, "--tools", "letters.py", "--run-id", "r"))
    done = cli("resume", "r", *options(server.url, "--model", "other", "--max-tool-calls", "0"))
    assert "m" != server.requests[-1]["model"] == "other"
    assert done.code in (1, 3), done
    lines = cli("show", "r", "--json", "--journal", "my runs.db").lines
    resumed = next(line for line in lines if line["type"] == "run_resumed")
    assert resumed["agent"]["policy"]["max_tool_calls"] == 0
    assert resumed["agent"]["model"]["name"] == "openai:other"


def test_rows_say_which_model_said_what(cli: Cli, script: Script) -> None:
    (cli.folder / "letters.py").write_text(LETTERS.replace("once", "pure"))
    answers = iter([call("send", to="a"), 401, say("sent")])
    server = script(lambda body: next(answers))
    cli("run", "go", *options(server.url, "--tools", "letters.py", "--run-id", "r"))
    done = cli("resume", "r", *options(server.url, "--model", "other", "--json"))
    assert done.lines[-1]["model"] == "openai:other", done
    (row,) = cli("export", "r", "--journal", "my runs.db", "--format", "trl").lines
    assert row["lineage"]["model"] == "openai:other"
    assert row["lineage"]["models"] == ["openai:m", "openai:other"]
    shown = cli("show", "r", "--journal", "my runs.db").out
    assert "step 1 · 100 + 10" in shown, shown
    assert "step 2 · openai:other · 100 + 10" in shown, shown
    assert cli("runs", "--json", "--journal", "my runs.db").lines[0]["model"] == "openai:other"


@tool(effect="pure")
def look() -> str:
    """Look around."""
    return "a view"


def run_of_a_program(folder: Path) -> None:
    """A run of a program, with a model and a tool that are its own, that ended with an error."""

    async def run() -> None:
        with open_journal(folder / "runs.db") as journal:
            local = type("Local", (), {"tools": lambda self: [look]})()
            agent = Agent(ScriptedModel([]), tools=[local], journal=journal, instructions="Be brief.")
            await agent.run("look around", run_id="r")

    asyncio.run(run())


def test_a_run_of_a_program_names_the_options_for_its_missing_parts(cli: Cli, script: Script) -> None:
    run_of_a_program(cli.folder)
    refused = cli("resume", "r", "-j", "runs.db")
    assert refused.code == 2, refused
    assert "give --model for the model 'scripted' (" in refused.err
    assert "and --tools for " in refused.err
    cli.write("look.py", 'def look() -> str:\n    """Look around."""\n    return "another view"\n')
    server = script(call_once("look"))
    given = ("--model", "m", "--base-url", server.url, "--tools", "look.py")
    done = cli("resume", "r", "-j", "runs.db", *given, "-q")
    assert (done.code, done.out) == (0, "done: another view\n"), done
    assert server.requests[0]["messages"][0]["content"] == "Be brief."


PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))


def test_files_are_attached(cli: Cli, script: Script) -> None:
    server = script(lambda body: say("seen"))
    (cli.folder / "a.png").write_bytes(PNG)
    cli.write("notes.txt", "a note")
    base = ("-m", "m", "--base-url", server.url)
    done = cli("run", "look", *base, "--attach", "a.png", "--attach", "notes.txt", "-q")
    assert (done.code, done.out) == (0, "seen\n"), done
    content = server.requests[0]["messages"][-1]["content"]
    assert content[0] == {"type": "text", "text": "look"}
    assert "image_url" in [part["type"] for part in content]
    assert "a note" in str(content)
    shown = cli("show", "last").out
    assert "› look\n  [image of " in shown, shown
    assert "[text of " in shown, shown
    chatted = cli("chat", *base, text="/attach a.png\nlook\n/attach none.png\n/attach\nagain\n")
    assert chatted.code == 2, chatted  # two of its commands were refused
    assert "a.png goes with the next message" in chatted.err
    assert "there is no file 'none.png'" in chatted.err
    assert server.requests[1]["messages"][-1]["content"][1]["type"] == "image_url"
    assert server.requests[2]["messages"][-1]["content"] == "again"
    for arguments, message in (
        (("run", "look", *base, "--attach", "none.png"), "cannot attach 'none.png': No such file"),
        (("run", "--task", "files:csv_sum-0001", "-m", "oracle", "--attach", "a.png"), "leave out --attach"),
    ):
        refused = cli(*arguments)
        assert (refused.code, message in refused.err) == (2, True), refused
