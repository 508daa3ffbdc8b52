"""The view of a generation: on a terminal of any size, in a pipe, as JSON, and with Ctrl-C."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pyte
import pytest
from rich.cells import chop_cells
from tests.forks.process import FORKS, ROOT, Process

STOPS = "finishes the samples in flight"


class Terminal:
    """A terminal of a given size in which the stand-in for a generation runs."""

    def __init__(self, columns: int, lines: int, *arguments: str) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._lock = threading.Lock()
        self.raw = b""
        self._main, other = pty.openpty()
        fcntl.ioctl(self._main, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.write(other, b"$ treadle generate\r\n")
        env = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        streams = {"stdin": other, "stdout": other, "stderr": other}
        self.process = start(*arguments, env={**env, "TERM": "xterm"}, **streams)
        os.close(other)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError):
            while data := os.read(self._main, 65536):
                with self._lock:
                    self.raw += data
                    self._stream.feed(data)
        os.close(self._main)

    def resize(self, columns: int, lines: int) -> None:
        """Change the size, and wrap the lines that have become too long, as most terminals do."""
        with self._lock:
            fcntl.ioctl(self._main, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            shown = [line.rstrip() for line in self.screen.display[: self.screen.cursor.y + 1]]
            wrapped = [part for line in shown for part in chop_cells(line, columns) or [""]]
            self.screen.resize(lines, columns)
            self.screen.reset()
            self._stream.feed("\r\n".join(wrapped).encode())

    def lines(self) -> list[str]:
        """Return the lines on the screen that are not blank."""
        with self._lock:
            return [line.rstrip() for line in self.screen.display if line.strip()]

    def wait_until(self, is_true: Callable[[list[str]], bool]) -> list[str]:
        """Return the lines as soon as `is_true` of them."""
        while not is_true(lines := self.lines()):
            assert self.process.poll() is None, self.raw.decode()
            threading.Event().wait(0.02)
        return lines

    def end(self) -> tuple[int, list[str]]:
        """Return the exit code and the last lines."""
        code = self.process.wait()
        self._thread.join()
        return code, self.lines()


def start(*arguments: str, **options: object) -> Process:
    return FORKS.start("-m", "tests.cli.generating", *arguments, cwd=ROOT, **options)  # type: ignore[arg-type]


@pytest.fixture
def begin() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_terminal(columns: int, lines: int, *arguments: str) -> Terminal:
        opened.append(Terminal(columns, lines, *arguments))
        return opened[-1]

    yield open_terminal
    for terminal in opened:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()


def has_rows(lines: list[str]) -> bool:
    return any(re.search("[1-9][0-9]* of ", line) for line in lines)


def test_everything_that_a_person_wants_to_know_is_shown(begin: Callable[..., Terminal]) -> None:
    terminal = begin(120, 24, "100000", "0.1")
    lines = terminal.wait_until(
        lambda lines: all(word in "\n".join(lines) for word in ("rows/s", "left", "rejected", "in a result"))
    )
    text = "\n".join(lines)
    assert lines[0] == "$ treadle generate"
    assert re.match(r"parcels  ━+  [0-9,]+ of 100,000 rows · [0-9.]+ rows/s · .* left$", lines[1]), text
    assert re.search(r"tokens · \$0 · [0-9.]+ s", text)
    assert re.search(r"[0-9]+ in flight · [0-9,]+ rejected \(grounding [0-9,]+\)", text)
    assert "  chained " in text
    assert re.search(r"s[0-9]{6} Logistics › Customs › Zölle und Gebühren 关 ?税", text)
    assert "\ufffd[31mparcels?" in text, "a model's text must not control the terminal"
    assert STOPS in lines[-1]
    assert b"\x1b[?1049h" not in terminal.raw, "the alternate screen would hide the last state"


@pytest.mark.parametrize(("columns", "height"), [(100, 24), (40, 10), (12, 5), (5, 3), (200, 60)])
def test_terminals_of_any_size_show_the_view_once(
    begin: Callable[..., Terminal], columns: int, height: int
) -> None:
    terminal = begin(columns, height, "40", "0.05")
    terminal.wait_until(lambda lines: len(lines) > 1)
    code, lines = terminal.end()
    assert code == 0
    assert sum(line.startswith("par") for line in lines) == (height > 3), lines
    assert not any(STOPS in line for line in lines)


def test_a_terminal_that_is_resized_is_not_garbled(begin: Callable[..., Terminal]) -> None:
    terminal = begin(100, 24, "1000", "0.1")
    terminal.wait_until(has_rows)
    for columns, height in ((60, 24), (30, 12), (90, 30), (45, 8), (120, 24)):
        terminal.resize(columns, height)
        drawn = len(terminal.raw)
        terminal.wait_until(lambda lines, drawn=drawn: terminal.raw.count(b"parcels", drawn) >= 3)  # type: ignore[misc]
        lines = terminal.lines()
        assert columns != 60 or lines[0].startswith("$ treadle"), lines
        assert sum(line.startswith("parcels") for line in lines) == 1, lines
        assert sum("tokens" in line for line in lines) <= 1, lines


def test_the_last_state_stays_on_the_screen(begin: Callable[..., Terminal]) -> None:
    code, lines = begin(100, 24, "20", "0.02").end()
    assert code == 0
    assert re.match("parcels  ━+  20 of 20 rows", lines[1]), lines
    assert "rejected (grounding" in "\n".join(lines)
    assert "in flight" not in "\n".join(lines)


def test_the_first_ctrl_c_finishes_what_is_in_flight(begin: Callable[..., Terminal]) -> None:
    terminal = begin(100, 24, "1000", "0.1", "--held")
    terminal.wait_until(lambda lines: any("Logistics" in line for line in lines))
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_until(lambda lines: any("4 samples in flight will be finished" in line for line in lines))
    terminal.process.send_signal(signal.SIGUSR1)
    code, lines = terminal.end()
    assert code == 130
    assert "of 1,000 rows" in lines[1], lines
    assert " 0 of " not in lines[1], "the samples in flight were lost"


def test_a_narrow_terminal_shows_the_whole_hint(begin: Callable[..., Terminal]) -> None:
    terminal = begin(60, 24, "1000", "0.1", "--held")
    terminal.wait_until(lambda lines: any("Logistics" in line for line in lines))
    assert "Ctrl-C: finish and stop; twice: stop now" in terminal.lines()[-1]
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_until(lambda lines: lines[-1] == "finishing 4 samples; Ctrl-C: stop now")
    terminal.process.send_signal(signal.SIGINT)
    terminal.end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_stops_at_once(begin: Callable[..., Terminal], number: int) -> None:
    terminal = begin(100, 24, "1000", "600")
    terminal.wait_until(lambda lines: any("4 in flight" in line for line in lines))
    terminal.process.send_signal(number)
    terminal.wait_until(lambda lines: any("press Ctrl-C again" in line for line in lines))
    terminal.process.send_signal(number)
    code, lines = terminal.end()
    assert (code, lines[-1]) == (131, "interrupted")


@pytest.mark.parametrize(("grace", "code"), [("0.2", 131), ("600", 130)])
def test_sigterm_stops_at_once_after_a_grace(grace: str, code: int) -> None:
    """It waited for what is in flight without a limit, and a service manager then kills the process."""
    seconds = "600" if code == 131 else "1"
    environment = {**os.environ, "TREADLE_STOP_SECONDS": grace}
    process = start("1000", seconds, "--json", stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    while "sample_begun" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == code


def test_a_grace_that_is_no_number_is_told() -> None:
    environment = {**os.environ, "TREADLE_STOP_SECONDS": "soon"}
    process = start("10", "0.01", stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert "TREADLE_STOP_SECONDS is 'soon'; give a number of seconds" in process.communicate(timeout=60)[1]


def test_a_pipe_gets_plain_lines() -> None:
    process = start("60", "0.01", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    lines = out.splitlines()
    assert lines[0] == "parcels: 9 leaf topics, 1 could not be expanded"
    assert lines[1].startswith("parcels: 1 of 60 rows")
    assert lines[-1].startswith("parcels: 60 of 60 rows · ")
    assert not re.search(r"[\x00-\x08\x0b-\x1f━]", out)
    assert err == ""


def test_json_has_a_line_for_each_notice_and_a_summary() -> None:
    process = start("10", "0.01", "--json", stdout=subprocess.PIPE)
    lines = [json.loads(line) for line in process.communicate(timeout=60)[0].splitlines()]
    kept = [line["sample_id"] for line in lines if line.get("status") == "kept"]
    assert len(set(kept)) == 10
    assert {line["event"] for line in lines} >= {
        "topic_expanded",
        "topics_ready",
        "sample_begun",
        "sample_step",
    }
    assert lines[-1].items() >= {"event": "summary", "kept": 10, "wanted": 10, "path": "dataset"}.items()


def test_quiet_shows_only_how_to_stop() -> None:
    process = start("1000", "0.5", "--quiet", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    threading.Event().wait(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out == ""
    assert "press Ctrl-C again to stop now" in err


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_reader_of_the_pipe_has_gone(options: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start("1000", "0.01", *options, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    _, err = process.communicate(timeout=60)
    assert "BrokenPipeError" in err
    assert process.returncode == 1
