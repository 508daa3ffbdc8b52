"""`treadle chat`, with input from a pipe and from a terminal."""

import os
import pty
import signal
import threading

from tests.cli.command import Cli
from tests.cli.scripted import Json, Script, say


def _count(body: dict[str, Json]) -> Json:
    return say(f"answer {sum(message['role'] == 'user' for message in body['messages'])}")


def test_turns_of_one_session(cli: Cli, script: Script) -> None:
    server = script(_count)
    cli.write("data/a.txt", "one")
    base = ["-m", "m", "--base-url", server.url]
    result = cli("chat", *base, "--mount", "data", text="hi\n\nthere\n/files\n/help\n/nope\n/quit\nnever\n")
    assert result.code == 0, result
    assert result.out.index("answer 1") < result.out.index("answer 2")
    assert "answer 3" not in result.out
    assert "a.txt  3 bytes" in result.out
    assert "/quit         leave" in result.err
    assert "there is no command '/nope'" in result.err
    run_id = cli("runs", "--json").lines[0]["run_id"]
    assert f"treadle chat --session {run_id}" in result.err
    again = cli("chat", "--session", "last", "--max-steps", "7", text="more\n/files\n")
    assert again.code == 0, again
    assert "a.txt  3 bytes" in again.out
    assert "2 turns so far" in again.err
    assert "answer 3" in again.out
    assert cli("resume", "--all").err == "no run is unfinished\n"


def test_turn_that_fails_has_its_exit_code(cli: Cli, script: Script) -> None:
    server = script(lambda body: 401)
    assert cli("chat", "-m", "m", "--base-url", server.url, text="hi\n").code == 1
    assert cli("chat", "-m", "m", "--base-url", server.url, text="").code == 0


def test_misuse(cli: Cli, script: Script) -> None:
    server = script(_count)
    assert cli("chat").code == 2
    assert cli("chat", "--session", "none").code == 2
    assert cli("run", "hi", "-m", "m", "--base-url", server.url, "-q", "--run-id", "mine").code == 0
    result = cli("chat", "--session", "mine", text="hi\n")
    assert result.code == 2
    assert "run 'mine' is not a session" in result.err
    kept = cli("chat", "--session", "mine", "--instructions", "Be brief.", text="hi\n")
    assert (kept.code, "a session keeps its files and instructions" in kept.err) == (2, True), kept


class Terminal:
    """A command on a pseudo-terminal."""

    def __init__(self, cli: Cli, *arguments: str) -> None:
        self._main, other = pty.openpty()
        process = cli.start(*arguments, stdin=other, env={"TERM": "dumb"}, start_new_session=True)
        os.close(other)
        self.process = process
        self.out = ""
        self._seen = 0
        self._more = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while text := os.read(self.process.stdout.fileno(), 4096):
            with self._more:
                self.out += text.decode()
                self._more.notify_all()

    def wait_for(self, text: str) -> None:
        """Wait until the command has printed `text` again."""
        with self._more:
            assert self._more.wait_for(lambda: text in self.out[self._seen :], 60), self.out
            self._seen = self.out.index(text, self._seen) + len(text)

    def interrupt_for(self, text: str) -> None:
        """Send Ctrl-C until the command has printed `text` again.

        One Ctrl-C may not be enough, because one that comes just before the command reads is lost.
        """
        with self._more:
            for _ in range(60):
                self.process.send_signal(signal.SIGINT)
                if self._more.wait_for(lambda: text in self.out[self._seen :], 1):
                    return
        raise AssertionError(self.out)

    def type(self, text: str) -> None:
        r"""Send keys. Ctrl-D is \x04."""
        os.write(self._main, text.encode())


def test_person_stops_a_turn_and_leaves(cli: Cli, script: Script) -> None:
    stopped = threading.Event()
    server = script(lambda body: _count(body) if stopped.is_set() else stopped.wait(60) and 500)
    terminal = Terminal(cli, "chat", "-m", "m", "--base-url", server.url)
    terminal.wait_for("› ")
    terminal.type("hi\n")
    server.asked.wait(60)
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for("› ")
    stopped.set()
    terminal.type("again\n")
    terminal.wait_for("answer 2")
    terminal.wait_for("› ")
    terminal.interrupt_for("› ")
    terminal.type("\x04")
    assert terminal.process.wait(60) == 0
    assert "stopped" in (terminal.process.stderr.read() if terminal.process.stderr else "")
