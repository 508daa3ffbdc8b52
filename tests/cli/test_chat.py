"""`treadle chat`, with input from a pipe and from a terminal."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import termios
import threading

import pyte
import pytest
from tests.cli.command import Cli
from tests.cli.scripted import Json, Script, call, say


def _count(body: dict[str, Json]) -> Json:
    return say(f"answer {sum(message['role'] == 'user' for message in body['messages'])}")


def test_turns_of_one_session(cli: Cli, script: Script) -> None:
    server = script(_count)
    cli.write("data/a.txt", "one")
    base = ["-m", "m", "--base-url", server.url]
    result = cli("chat", *base, "--mount", "data", text="hi\n\nthere\n/files\n/help\n/nope\n/quit\nnever\n")
    assert result.code == 2, result  # there is no command '/nope'
    assert result.out.index("answer 1") < result.out.index("answer 2")
    assert "answer 3" not in result.out
    assert "a.txt  3 bytes" in result.out
    assert "/quit           leave" in result.err
    assert "there is no command '/nope'" in result.err
    run_id = cli("runs", "--json").lines[0]["run_id"]
    assert f"treadle chat --session {run_id}" in result.err
    again = cli("chat", "--session", "last", "--max-steps", "7", text="more\n/files\n")
    assert again.code == 0, again
    assert "a.txt  3 bytes" in again.out
    assert "2 turns so far" in again.err
    assert "answer 3" in again.out
    assert cli("resume", "--all").err == "no run is unfinished\n"


def test_a_session_is_forked_taken_back_and_saved(cli: Cli) -> None:
    lines = [
        *("/undo", "/fork", "/save", "/model", "one", "/tools", "two", "/save out.md", "/save out.md"),
        *(
            "/fork",
            "three",
            "/undo",
            "/undo",
            "four",
            "/clear",
            "/cost",
            "five",
            "/undo",
            "/cost",
            "/queue 1",
        ),
    ]
    done = cli("chat", "-m", "mock:echo", "-t", "files", text="\n".join(lines))
    assert done.code == 2, done  # some commands were refused
    assert done.err.count("error: the session has no turn yet") == 2
    assert "write /save FILE" in done.err
    assert "the model is mock:echo\n" in done.err
    assert re.search(r"^read_file +pure +\S", done.out, re.MULTILINE)
    assert "'out.md' exists; name another file" in done.err
    assert "two" in (cli.folder / "out.md").read_text()
    assert "'1' is not the number of a message that waits" in done.err
    sessions = {line["run_id"]: line for line in cli("sessions", "--json").lines}
    said = {
        run_id: [
            item["message"]["content"]
            for item in cli("show", run_id, "--json").lines
            if item["type"] == "turn_started"
        ]
        for run_id in sessions
    }
    assert sorted(said.values()) == [
        ["five"],
        ["one", "four"],
        ["one", "two"],
        ["one", "two"],
        ["one", "two", "three"],
    ]
    assert (
        done.err.count("turn 1 is taken back, with its changes of files; the session before is kept as ") == 1
    )
    assert done.err.count("0 turns · 0 steps") == 2
    # What is taken back is not in the requests of the copy.
    assert "session: 2 turns, " in done.out.partition("› four")[2]


def test_a_command_without_a_text_does_nothing_with_one(cli: Cli) -> None:
    done = cli("chat", "-m", "mock:echo", text="one\ntwo\n/undo 2\n/clear now\nthree\n")
    assert (done.code, len(cli("sessions", "--json").lines)) == (2, 1), done
    assert "error: /undo takes no text; write it alone" in done.err
    assert "session: 3 turns, " in done.out


def test_another_model_goes_on_with_the_session(cli: Cli, script: Script) -> None:
    server = script(_count)
    text = "hi\n/model other\nthere\n/model nope:x\nstill\n/model mock:echo\nyou\n"
    done = cli("chat", "-m", "m", "--base-url", server.url, text=text)
    assert done.code == 2, done  # '/model nope:x' was refused
    assert [body["model"] for body in server.requests] == ["m", "other", "other"]
    assert "answer 3" in done.out
    assert "unknown provider 'nope'" in done.err
    assert "You said: you" in done.out
    assert "session: 4 turns" in done.out


def test_the_first_model_is_asked_again_at_its_own_server(cli: Cli, script: Script) -> None:
    server = script(_count)
    text = "hi\n/model mock:echo\nthere\n/model openai:m\nyou\n"
    done = cli("chat", "-m", "openai:m", "--base-url", server.url, "--api-key", "k", text=text)
    assert done.code == 0, done
    assert [body["model"] for body in server.requests] == ["m", "m"]
    assert server.headers[-1]["authorization"] == "Bearer k"


def test_judging_without_a_way_to_ask_is_told(cli: Cli) -> None:
    told = "messages are judged, and the model cannot ask about unclear ones"
    for options, is_told in (
        (["--judge", "patterns"], True),
        (["--judge", "patterns", "--tools", "ask"], False),
        (["--judge", "none"], False),
        ([], False),  # a default that nobody chose
    ):
        assert (told in cli("chat", "-m", "mock:echo", *options, text="/quit\n").err) is is_told


@pytest.mark.parametrize("columns", [80, 110])
def test_the_help_fits_the_terminal(cli: Cli, columns: int) -> None:
    terminal = Terminal(cli, "chat", "-m", "mock:echo", is_screen=True, columns=columns)
    terminal.wait_for("›")
    terminal.type("/help" + ENTER)
    terminal.wait_for("/quit")
    terminal.wait_for("Ctrl-D leaves.")
    terminal.wait_for("›")
    terminal.type(CTRL_D)
    assert terminal.process.wait(60) == 0
    screen = pyte.Screen(columns, 200)
    pyte.Stream(screen).feed(terminal.out)
    shown = [line.rstrip() for line in screen.display]
    first = next(index for index, line in enumerate(shown) if line.startswith("/help "))
    listed = shown[first : first + 40]
    about = [line for line in listed if line.startswith(("/", " " * 10))]
    # What a command does is in one column, and words are not broken at the end of a line.
    assert all(line[16] != " " and line[15] == " " for line in about), about
    words = " ".join(shown).split()
    assert {"Alt-Enter,", "earlier", "document", "message", "summarise"} <= set(words)


def test_turn_that_fails_has_its_exit_code(cli: Cli, script: Script) -> None:
    server = script(lambda body: 401)
    assert cli("chat", "-m", "m", "--base-url", server.url, text="hi\n").code == 1
    assert cli("chat", "-m", "m", "--base-url", server.url, text="").code == 0


def test_a_turn_that_became_too_long_says_what_goes_on(cli: Cli, script: Script) -> None:
    def answer(body: dict[str, Json]) -> Json:
        last = body["messages"][-1]
        if "one" in last["content"]:
            return call("list_files")
        return say("more") if "go on" in last["content"] else (400, "maximum context length exceeded")

    given = ("-m", "m", "--base-url", script(answer).url, "--tools", "files")
    done = cli("chat", *given, text="one\n/retry\ngo on\n")
    assert "it is too long for the model, and what was done in it stays; make room with /compact" in done.err
    assert "more" in done.out


def test_a_turn_that_failed_is_tried_again(cli: Cli, script: Script) -> None:
    answers = [401, 401]
    server = script(lambda body: answers.pop() if answers else _count(body))
    terminal = Terminal(cli, "chat", "-m", "m", "--base-url", server.url, is_screen=True)
    terminal.wait_for("›")
    terminal.type("/retry" + ENTER)
    terminal.wait_for("did not end with an error")
    terminal.wait_for("›")
    terminal.type("one" + ENTER)
    terminal.wait_for("/retry tries it again")
    terminal.wait_for("›")
    for text in ("/retry tries it again", "answer 1"):
        terminal.type("/retry" + ENTER)
        terminal.wait_for(text)
        terminal.wait_for("›")
    terminal.type(CTRL_D)
    assert terminal.process.wait(60) == 0


def test_a_program_reads_lines_of_json(cli: Cli, script: Script) -> None:
    server = script(_count)
    done = cli("chat", "--json", "-m", "m", "--base-url", server.url, text="one\n/files\n")
    assert done.code == 0, done
    summaries = [line for line in done.lines if line["type"] == "summary"]
    assert [line["output"] for line in summaries] == ["answer 1", "answer 2"]
    assert [line["message"]["content"] for line in done.lines if line["type"] == "turn_started"] == [
        "one",
        "/files",
    ]


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

    def __init__(self, cli: Cli, *arguments: str, is_screen: bool = False, columns: int = 100) -> None:
        """Start the command. With `is_screen` its output also goes to the terminal, else to a pipe."""
        self._main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        outputs = {"stdout": other, "stderr": other} if is_screen else {}
        env = {"TERM": "xterm" if is_screen else "dumb", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = cli.start(*arguments, stdin=other, env=env, start_new_session=True, **outputs)
        os.close(other)
        self._output = self._main
        if not is_screen:
            assert self.process.stdout is not None
            self._output = self.process.stdout.fileno()
        self.out = ""
        self._seen = 0
        self._more = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # a terminal whose process has ended
            while text := os.read(self._output, 4096):
                with self._more:
                    self.out += text.decode(errors="replace")
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


ENTER, ALT_ENTER, TAB, UP, ESC = "\r", "\x1b\r", "\t", "\x1b[A", "\x1b"
CTRL_C, CTRL_D, CTRL_U = "\x03", "\x04", "\x15"


def test_a_person_edits_messages_of_several_lines(cli: Cli, script: Script) -> None:
    server = script(_count)
    terminal = Terminal(cli, "chat", "-m", "m", "--base-url", server.url, is_screen=True)
    terminal.wait_for("›")
    terminal.type("one" + ALT_ENTER + "two\\" + ENTER + "three" + ENTER)
    terminal.wait_for("answer 1")
    terminal.wait_for("session: 1 turn,")
    terminal.wait_for("›")
    terminal.type("\x1b[200~pasted\nlines\n/quit\x1b[201~" + ENTER)
    terminal.wait_for("session: 2 turns,")
    terminal.wait_for("›")
    terminal.type(UP + UP + " again" + ENTER)
    terminal.wait_for("session: 3 turns,")
    terminal.wait_for("›")
    terminal.type("/fi" + TAB)
    terminal.wait_for("les")  # a slow terminal draws the rest alone
    terminal.type(ENTER)
    terminal.wait_for("no files")
    terminal.wait_for("›")
    terminal.type(CTRL_D)
    assert terminal.process.wait(60) == 0
    sent = [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "user"]
    assert sent[:2] == ["one\ntwo\nthree", "pasted\nlines\n/quit"]
    history = cli.folder / "state" / "treadle" / "chat_history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "pasted" in history.read_text()


def test_a_decision_is_asked_for_again(cli: Cli) -> None:
    cli.write(
        "letters.py",
        "import treadle\n\n\n@treadle.tool\nasync def send(to: str) -> str:\n    return f'sent to {to}'\n",
    )
    base = ("chat", "-m", "mock:echo", "--tools", "letters.py", "--approve", "ask")
    first = Terminal(cli, *base, is_screen=True)
    first.wait_for("›")
    first.type('call send {"to": "a"}' + ENTER)
    for text in ("", "never mind"):  # the second message is not sent: the decision is asked for again
        if text:
            first.wait_for("›")
            first.type(text + ENTER)
        first.wait_for("[l]ater")
        first.type("later" + ENTER)
        first.wait_for("asks for the decision again")
    first.wait_for("was not sent")
    first.wait_for("never mind")  # it is on the line again
    first.type(CTRL_U + CTRL_D)
    assert first.process.wait(60) == 0
    again = Terminal(cli, "chat", "--continue", is_screen=True)
    again.wait_for("[l]ater")
    again.type("y" + ENTER)
    again.wait_for("send: sent to a")
    again.wait_for("›")
    again.type(CTRL_D)
    assert again.process.wait(60) == 0


def test_the_exit_code_tells_that_a_command_of_a_script_was_refused(cli: Cli) -> None:
    for text, code in (("/help", 0), ("/typo", 2), ("/attach nofile", 2), ("hi\n/retry", 1), ("hi", 0)):
        assert cli("chat", "-m", "mock:echo", text=text).code == code, text


def test_a_long_paste_is_one_line_on_the_screen_and_whole_in_the_message(cli: Cli, script: Script) -> None:
    server = script(_count)
    terminal = Terminal(cli, "chat", "-m", "m", "--base-url", server.url, is_screen=True)
    pasted = "\n".join(f"line {number}" for number in range(300))
    terminal.wait_for("›")
    terminal.type(f"See: \x1b[200~{pasted}\x1b[201~")
    terminal.wait_for("[paste 1: 300 lines, 2,589 characters]")
    terminal.type(f"\x1b[200~{pasted}\x1b[201~")
    terminal.wait_for("[paste 2: 300 lines")
    terminal.type("\x7f Why?" + ENTER)
    terminal.wait_for("answer 1")
    terminal.wait_for("session: 1 turn,")
    assert "line 150" not in terminal.out
    terminal.wait_for("›")
    terminal.type(CTRL_D)
    assert terminal.process.wait(60) == 0
    [message] = [item["content"] for item in server.requests[-1]["messages"] if item["role"] == "user"]
    assert message == f"See: {pasted} Why?"
    assert "line 150" in (cli.folder / "state" / "treadle" / "chat_history").read_text()


def test_a_misspelt_command_is_not_sent_to_the_model(cli: Cli) -> None:
    cli.write("notes.txt", "notes")
    done = cli("chat", "-m", "mock:echo", text="/atach notes.txt\n/hlp\n/etc/hosts is long\n/tmp is long\n")
    assert done.code == 2
    assert "there is no command '/atach'; did you mean '/attach'? /help lists the commands" in done.err
    assert "there is no command '/hlp'; did you mean '/help'?" in done.err
    assert [line for line in done.out.splitlines() if line.startswith("You said")] == [
        "You said: /etc/hosts is long",
        "You said: /tmp is long",
    ]


def test_the_newest_session_is_continued(cli: Cli) -> None:
    assert "there is no session" in cli("chat", "--continue", "--journal", "memory:", text="").err
    for option in (["--continue"], ["--session", "mine"]):
        assert "there is no journal at" in cli("chat", *option, text="").err
    assert not (cli.folder / ".treadle").exists()
    cli("chat", "-m", "mock:echo", text="one\n")
    cli("run", "two", "-m", "mock:echo", "-q")
    done = cli("chat", "-c", text="three\n")
    assert "You said: one" in done.out
    assert "session: 2 turns, " in done.out
    assert cli("chat", "-c", "--session", "last").code == 2


def test_lines_that_are_typed_during_a_turn_are_answered(cli: Cli, script: Script) -> None:
    """One line waits for the next turn; one that begins with ! is seen by the model at its next step."""
    typed = threading.Event()

    def answer(body: dict[str, Json]) -> Json:
        if len(body["messages"]) == 1:
            typed.wait(60)
        return _count(body)

    server = script(answer)
    terminal = Terminal(cli, "chat", "-m", "m", "--base-url", server.url)
    terminal.wait_for("› ")
    terminal.type("one\n")
    server.asked.wait(60)
    terminal.type("two\n!three\n")
    assert terminal.process.stderr is not None
    for told in ("this is answered after the turn", "the model sees this at its next step"):
        while told not in terminal.process.stderr.readline():
            pass
    typed.set()
    terminal.wait_for("answer 3")
    terminal.wait_for("› ")
    terminal.type("\x04")
    assert terminal.process.wait(60) == 0
    sent = [[message["content"] for message in body["messages"]] for body in server.requests]
    assert sent[1] == ["one", "answer 1", "three"]
    assert sent[2] == ["one", "answer 1", "three", "answer 2", "two"]


def test_an_answer_is_not_mixed_with_what_is_typed_meanwhile(cli: Cli, script: Script) -> None:
    """The first key opens a prompt, a paste is one message, and an unfinished line begins the next message."""
    typed = threading.Event()
    server = script(lambda body: _count(body) if typed.is_set() else typed.wait(60) and _count(body))
    terminal = Terminal(cli, "chat", "-m", "m", "--base-url", server.url, is_screen=True)
    terminal.wait_for("›")
    terminal.type("one" + ENTER)
    server.asked.wait(60)
    terminal.type("tw")
    terminal.wait_for("tw")
    terminal.type("o" + ENTER)
    terminal.wait_for("this is answered after the turn")
    terminal.type("\x1b[200~thr\nee\x1b[201~" + ENTER)
    terminal.wait_for("this is answered after the turn")
    terminal.type("dra")
    terminal.wait_for("dra")
    typed.set()
    for text in ("answer 1", "› two", "answer 2", "› thr", "answer 3", "session: 3 turns,", "dra"):
        terminal.wait_for(text)
    terminal.type("ft" + ENTER)
    terminal.wait_for("answer 4")
    terminal.wait_for("session: 4 turns,")
    terminal.wait_for("›")
    terminal.type(CTRL_D)
    assert terminal.process.wait(60) == 0
    sent = [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "user"]
    assert sent == ["one", "two", "thr\nee", "draft"]


def test_remarks_and_errors_break_between_words(cli: Cli, script: Script) -> None:
    terminal = Terminal(cli, "chat", "-m", "m", "--base-url", script(_count).url, is_screen=True, columns=60)
    terminal.wait_for("›")
    terminal.type("/remember this" + ENTER)
    terminal.wait_for("begin one with --memory")
    terminal.wait_for("or a persona that has one")  # "or" has the last column
    terminal.wait_for("›")
    terminal.type(CTRL_D)
    assert terminal.process.wait(60) == 0


def test_commands_esc_and_drafts_during_a_turn(cli: Cli, script: Script) -> None:
    """Looking is possible at once, changes wait for the end of the turn, and a message that waits is taken back."""
    waits = threading.Event()
    server = script(lambda body: waits.wait(60) and _count(body))
    terminal = Terminal(cli, "chat", "-m", "m", "--base-url", server.url, is_screen=True)
    terminal.wait_for("›")
    terminal.type("one" + ENTER)
    server.asked.wait(60)
    for line, told in (
        ("/cost", "tokens"),
        ("/nope", "there is no command"),
        ("/clear", "/clear is done after the turn"),
        ("two", "this is answered after the turn"),
        ("three", "this is answered after the turn"),
        ("/queue", "/queue N takes a message back"),
        ("/queue 1", "taken back: two"),
    ):
        terminal.type(line + ENTER)
        terminal.wait_for(told)
    assert re.findall(r"\b(\d)  (two|three)\b", terminal.out) == [("1", "two"), ("2", "three")]
    waits.set()
    terminal.wait_for("answer 1")
    terminal.wait_for("answer 2")
    terminal.wait_for("a new session begins")
    terminal.wait_for("two")  # what was taken back is the next line
    sent = [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "user"]
    assert sent == ["one", "three"]
    waits.clear()
    server.asked.clear()
    terminal.type(ENTER)
    server.asked.wait(60)
    terminal.type(ESC)
    terminal.wait_for("stopped")
    server.asked.clear()
    terminal.wait_for("›")
    terminal.type("four" + ENTER)
    server.asked.wait(60)
    terminal.type("half a li")
    terminal.wait_for("li")
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for("stopped")
    terminal.wait_for("half a li")  # a draft that was dropped comes back
    terminal.type(CTRL_C)
    terminal.wait_for("the arrow up brings the line back")
    terminal.wait_for("›")
    terminal.type(UP)
    terminal.wait_for("half a li")
    terminal.type(CTRL_U + CTRL_D)
    assert terminal.process.wait(60) == 0


def test_a_chat_without_a_message_leaves_no_run(cli: Cli, script: Script) -> None:
    server = script(_count)
    result = cli("chat", "-m", "m", "--base-url", server.url, text="/quit\n")
    assert result.code == 0
    assert "continue with" not in result.err
    assert cli("runs", "--json").out == ""


def test_files_come_with_messages_that_name_them(cli: Cli, script: Script) -> None:
    """As `@file`, or as the path that a terminal pastes when a file is dropped on it."""
    server = script(_count)
    cli.write("my notes.txt", "milk")
    cli.write("list.txt", "eggs")
    path = str(cli.folder / "my notes.txt").replace(" ", "\\ ")
    result = cli("chat", "-m", "m", "--base-url", server.url, text=f"{path}\nread them, also @list.txt.\n")
    assert result.code == 0, result
    assert "goes with the next message" in result.err
    sent = str(server.requests[-1]["messages"][-1]["content"])
    assert "milk" in sent
    assert "eggs" in sent


def test_a_file_that_the_model_cannot_be_sent_changes_nothing(cli: Cli, script: Script) -> None:
    """The session goes on: the file is not in the requests of later turns."""
    server = script(_count)
    (cli.folder / "sound.ogg").write_bytes(b"\x00\x01")
    text = "/attach sound.ogg\nlook\nstill there?\n"
    result = cli("chat", "-m", "m", "--base-url", server.url, text=text)
    assert "was not sent" in result.err or "cannot" in result.err
    assert "answer 1" in result.out
    assert len(server.requests) == 1
