"""Calls that need approval: asked for on a real terminal, or decided later with `treadle approve`."""

import os
import pty
import re
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import Cli
from tests.cli.scripted import Script, call_once

TOOLS = '''
from treadle import tool

@tool(effect="once")
def send(to: str) -> str:
    """Send a letter."""
    with open("sent.txt", "a") as file:
        print(to, file=file)
    return f"sent to {to}"
'''


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path)
    cli.write("letters.py", TOOLS)
    return cli


def sent(cli: Cli) -> list[str]:
    path = cli.folder / "sent.txt"
    return path.read_text().split() if path.exists() else []


def begin(cli: Cli, url: str, *more: str) -> list[str]:
    options = ["--model", "m", "--base-url", url, "--api-key", "k", "--tools", "letters.py", *more]
    return ["run", "write to a", *options]


def test_without_anybody_the_run_waits_and_goes_on_with_a_yes(cli: Cli, script: Script) -> None:
    server = script(call_once("send", to="a"))
    done = cli(*begin(cli, server.url, "--approve", "ask", "--run-id", "r"))
    assert done.code == 4, done
    assert "run r · openai:m\n" in done.out
    assert "waits for approval" in done.out
    assert "treadle approve r call_1 yes" in done.err
    for options in (("r",), ("r", "-o", "rows.jsonl")):
        nothing = cli("export", *options)
        assert nothing.code == 1, nothing
        assert "r left out: it is not finished; go on with it: treadle resume r" in nothing.err
    assert sent(cli) == []
    assert cli("runs", "--status", "waiting").out.count("r ") >= 1
    listed = cli("approve", "r")
    assert (listed.code, listed.out.strip()) == (0, 'call_1  send(to="a")')
    assert "decide with: treadle approve r call_1 yes" in listed.err
    assert "decide with: treadle approve r call_1 yes" in cli("answer", "r").err
    unsaid = cli("approve", "r", "call_1")
    assert (unsaid.code, ": treadle approve r call_1 yes\n" in unsaid.err) == (2, True), unsaid
    done = cli("approve", "r", "call_1", "yes", "--api-key", "k", "-q")
    assert (done.code, done.out.strip(), sent(cli)) == (0, "done: sent to a", ["a"]), done
    shown = cli("show", "r").out
    assert '? waits for approval: send(to="a")' in shown
    assert "› yes" in shown


def test_the_only_call_that_waits_need_not_be_named(cli: Cli, script: Script) -> None:
    server = script(call_once("send", to="a"))
    for run_id, words in (("y", ["YES"]), ("n", ["no", "--reason", "why"]), ("e", ["edit", '{"to": "b"}'])):
        cli(*begin(cli, server.url, "--approve", "ask", "--run-id", run_id))
        done = cli("approve", run_id, *words, "--api-key", "k", "-q")
        assert done.code == 0, done
    assert sent(cli) == ["a", "b"]
    nothing = cli("approve", "y", "yes")
    assert (nothing.code, "no call of run 'y' waits" in nothing.err) == (2, True), nothing
    listed = cli("approve", "y")
    assert (listed.code, "no call of run y waits" in listed.err) == (2, True), listed


def test_one_of_several_calls_must_be_named(cli: Cli) -> None:
    text = 'call send {"to": "a"}\ncall send {"to": "b"}'
    assert (
        cli("run", text, "-m", "mock:echo", "-t", "letters.py", "--approve", "ask", "--run-id", "r").code == 4
    )
    done = cli("approve", "r", "yes")
    assert (done.code, ": treadle approve r all yes\n" in done.err) == (2, True), done
    first = cli("approve", "r").out.split()[0]
    assert cli("approve", "r", first, "yes", "-q").code == 4


def test_a_call_is_shown_with_its_arguments_after_the_decision(cli: Cli, script: Script) -> None:
    server = script(call_once("send", to="a"))
    cli(*begin(cli, server.url, "--approve", "ask", "--run-id", "r"))
    done = cli("approve", "r", "all", "yes", "--api-key", "k")
    assert re.search(r'● send\(to="a"\)(  [0-9.]+ s)?\n  sent to a\n', done.out), done


def test_a_no_with_a_reason_and_an_edit_are_told_to_the_model(cli: Cli, script: Script) -> None:
    server = script(call_once("send", to="a"))
    for run_id in ("no", "edit"):
        cli(*begin(cli, server.url, "--approve", "send=ask", "--run-id", run_id))
    done = cli("approve", "no", "call", "no", "--reason", "not to a", "--api-key", "k", "-q")
    assert done.out.strip() == "done: Not run: the user refused it. They said: not to a"
    done = cli("approve", "edit", "all", "edit", '{"to": "b"}', "--api-key", "k", "-q")
    assert done.out.strip() == 'done: The user changed the arguments to {"to": "b"}\nsent to b'
    assert sent(cli) == ["b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("r", "call_2", "yes"),
            "no call begins with 'call_2'; did you mean 'call_1'? the waiting calls are: call_1",
        ),
        (("r", "yess"), "'yess' is not a decision, and no call that waits begins with it; list these with: "),
        (("r", "call_1", "maybe"), "'maybe' is not a decision; say yes, no or edit"),
        (("r", "call_1", "edit"), "edit needs the arguments"),
        (("r", "call_1", "edit", "{}"), "missing parameter 'to'"),
        (("r", "call_1", "edit", "{"), "not valid JSON"),
        (("r", "call_1", "yes", "{}"), "arguments come with edit, not with yes"),
        (("r", "call_1", "yes", "--reason", "x"), "--reason comes with no"),
        (("r", "call_1"), "say yes, no or edit: treadle approve r call_1 yes --api-key KEY"),
        (("nope", "call_1", "yes"), "there is no run 'nope'"),
    ],
)
def test_what_cannot_be_decided_is_said(
    cli: Cli, script: Script, arguments: tuple[str, ...], message: str
) -> None:
    server = script(call_once("send", to="a"))
    cli(*begin(cli, server.url, "--approve", "ask", "--run-id", "r"))
    done = cli("approve", *arguments, "--api-key", "k")
    assert done.code == 2, done
    assert message in done.err
    assert "Traceback" not in done.err
    assert sent(cli) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--approve", "perhaps"), "'perhaps' is not one of ask, never and always"),
        (("--tool-limit", "send"), "write TOOL:calls=3"),
        (("--tool-limit", "send:cals=3"), "write TOOL:calls=3"),
    ],
)
def test_options_that_say_nothing(cli: Cli, options: tuple[str, ...], message: str) -> None:
    done = cli(*begin(cli, "http://127.0.0.1:9/v1", *options))
    assert (done.code, message in done.err) == (2, True), done


def test_a_limit_of_a_tool_is_kept(cli: Cli, script: Script) -> None:
    server = script(call_once("send", to="a"))
    done = cli(*begin(cli, server.url, "--tool-limit", "se*:calls=0"))
    assert "may be called 0 times" in done.out
    assert "At most 0 calls in one turn." in server.requests[0]["tools"][0]["function"]["description"]
    assert sent(cli) == []


class Terminal:
    """A command on its own terminal, into which a test types."""

    def __init__(self, cli: Cli, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        streams = {"stdin": slave, "stdout": slave, "stderr": slave}
        self.process = cli.start(*arguments, env={"TERM": "xterm"}, start_new_session=True, **streams)
        os.close(slave)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.seen:
            assert select.select([self._master], [], [], deadline - time.monotonic())[0], self.seen
            try:
                data = os.read(self._master, 65536)
            except OSError:
                data = b""
            assert data, self.seen
            self.seen += data.decode(errors="replace")

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self._master, text.encode())

    def close(self) -> int:
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            if not select.select([self._master], [], [], 0.1)[0]:
                continue
            try:
                self.seen += os.read(self._master, 65536).decode(errors="replace")
            except OSError:
                break
        code = self.process.wait(timeout=60)
        os.close(self._master)
        return code


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    started: list[Terminal] = []
    yield started
    for item in started:
        if item.process.poll() is None:
            item.process.kill()
            item.process.wait()


def test_the_person_at_the_terminal_is_asked(cli: Cli, script: Script, terminals: list[Terminal]) -> None:
    server = script(call_once("send", to="a"))
    terminal = Terminal(cli, *begin(cli, server.url, "--approve", "ask"))
    terminals.append(terminal)
    terminal.wait_for("[l]ater")
    assert "it cannot be undone" in terminal.seen
    terminal.type("what\n")
    terminal.wait_for("[l]ater")
    terminal.type("e\n")
    terminal.wait_for("as JSON")
    terminal.type("[1]\n")
    terminal.wait_for("must be a JSON object")
    terminal.wait_for("as JSON")
    terminal.type('{"to": "b"}\n')
    terminal.wait_for("completed")
    assert terminal.close() == 0
    assert sent(cli) == ["b"]


def test_a_ctrl_c_at_the_question_leaves_the_run_waiting(
    cli: Cli, script: Script, terminals: list[Terminal]
) -> None:
    server = script(call_once("send", to="a"))
    terminal = Terminal(cli, *begin(cli, server.url, "--approve", "ask", "--run-id", "r"))
    terminals.append(terminal)
    terminal.wait_for("[l]ater")
    terminal.process.send_signal(2)
    assert terminal.close() == 130
    assert re.search(r"\[l\]ater:.*\n.*interrupted", terminal.seen), terminal.seen
    assert sent(cli) == []
    done = cli("approve", "r", "call_1", "no", "--api-key", "k", "-q")
    assert done.out.strip() == "done: Not run: the user refused it."


@pytest.mark.parametrize(("option", "rule"), [("--approve", "sned=ask"), ("--tool-limit", "sned:calls=1")])
def test_a_rule_for_a_tool_that_does_not_exist_is_an_error(
    cli: Cli, script: Script, option: str, rule: str
) -> None:
    error = "the policy names the tool 'sned', which the agent does not have; did you mean 'send'?"
    server = script(call_once("send", to="a"))
    done = cli(*begin(cli, server.url, option, rule, "--run-id", "r"))
    assert (done.code, sent(cli)) == (2, [])
    assert error in done.err
    assert cli(*begin(cli, server.url, "--approve", "send=ask", "--run-id", "r")).code != 2
    done = cli("resume", "r", option, rule, "--api-key", "k")
    assert done.code != 0
    assert error in done.err + done.out


@pytest.mark.parametrize(("option", "rule"), [("--approve", "sedn*=ask"), ("--tool-limit", "sedn*:calls=1")])
def test_a_pattern_that_fits_no_tool_is_an_error(cli: Cli, script: Script, option: str, rule: str) -> None:
    server = script(call_once("send", to="a"))
    done = cli(*begin(cli, server.url, option, rule, "--run-id", "r"))
    assert (done.code, sent(cli)) == (2, [])
    assert "a rule for 'sedn*', which fits no tool of the agent; did you mean 'send'?" in done.err
    assert cli(*begin(cli, server.url, "--approve", "sen*=ask", "--run-id", "r")).code != 2
    done = cli("resume", "r", option, rule, "--api-key", "k")
    assert done.code != 0
    assert "which fits no tool of the agent" in done.err + done.out


def test_a_rule_for_a_tool_that_the_task_does_not_have_is_an_error(cli: Cli) -> None:
    done = cli("run", "--task", "files:csv_sum-0001", "--model", "oracle", "--approve", "writ_file=ask")
    assert done.code == 2
    assert "the policy names the tool 'writ_file'" in done.err
    assert "did you mean 'write_file'" in done.err


def test_a_run_that_asks_at_a_terminal_takes_a_decision_of_another_process(
    cli: Cli, script: Script, terminals: list[Terminal]
) -> None:
    server = script(call_once("send", to="a"))
    terminal = Terminal(cli, *begin(cli, server.url, "--approve", "ask", "--run-id", "r"))
    terminals.append(terminal)
    terminal.wait_for("[l]ater")
    assert [run["run_id"] for run in cli("runs", "--status", "waiting", "--json").lines] == ["r"]
    assert cli("approve", "r", "call_1", "edit", "[1]").code == 2
    done = cli("approve", "r", "call", "edit", '{"to": "b"}')
    assert (done.code, "takes the decision in" in done.err) == (0, True), done
    terminal.wait_for("completed")
    assert terminal.close() == 0
    assert sent(cli) == ["b"]
    late = cli("approve", "r", "call_1", "yes")
    assert (late.code, "no call of run 'r' waits" in late.err) == (2, True), late
