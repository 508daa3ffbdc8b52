"""Python processes whose imports are already done: a server imports modules once and forks for each process.

A forked process is a real one: it has its own id, streams, folder, environment, signals and exit code, its exit
handlers run, and it can be killed. Its start differs: no program file is executed, no interpreter starts and
nothing is imported. So does its end: modules are not torn down. What is tested about these needs `subprocess`.
`ForkServer.start` itself uses `subprocess` if the environment sets variables that change how Python starts.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeAlias

from tests.forks.server import HEAD

ROOT = Path(__file__).parents[2]
PYTHON = str(Path(__file__).with_name("python"))
"""A program that starts `python -m MODULE ...` by a fork server, given `ForkServer.variables`."""
FOLLOWED = ("PYTHONIOENCODING", "PYTHONUNBUFFERED")
"""Variables that the server sets in a forked process. Other variables that Python reads at startup must not
change."""

spent_seconds = 0.0
"""The CPU time of all forked processes that have ended. They are children of the server, not of this process."""


class Process:
    """A forked process, with the interface of `subprocess.Popen` in text mode."""

    def __init__(
        self,
        server: "ForkServer",
        arguments: Sequence[str],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        start_new_session: bool = False,
    ) -> None:
        self.args = list(arguments)
        self.returncode: int | None = None
        order = {
            "arguments": self.args,
            "cwd": str(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "start_new_session": start_new_session,
        }
        with contextlib.ExitStack() as given:
            child_in, self.stdin = _give(given, stdin, 0)
            child_out, self.stdout = _give(given, stdout, 1)
            child_err, self.stderr = _give(given, child_out if stderr == subprocess.STDOUT else stderr, 2)
            answer, told = os.pipe()
            given.callback(os.close, told)
            self._answer = open(answer, "rb", buffering=0)  # noqa: SIM115
            server.order(order, [child_in, child_out, child_err, told])
        self.pid = int(self._line())
        self._outputs: dict[str, str] = {}
        self._threads: list[threading.Thread] = []

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            data = self._answer.read(1)
            assert data, "the fork server is gone"
            line += data
        return line

    def poll(self) -> int | None:
        """Return the exit code, a negative signal number, or `None` while the process runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end, and return its exit code."""
        code = self._wait(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        global spent_seconds
        if self.returncode is None:
            waited_for = select.poll()
            waited_for.register(self._answer, select.POLLIN)
            if not waited_for.poll(None if timeout is None else timeout * 1000):
                return None
            status, seconds = self._line().split()
            self._answer.close()
            spent_seconds += float(seconds)
            self.returncode = os.waitstatus_to_exitcode(int(status))
        return self.returncode

    def communicate(self, text: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Send `text`, read both outputs to their ends, and wait. After a time-out it can be called again."""
        begun = time.monotonic()
        if not self._threads:
            work = [threading.Thread(target=self._feed, args=(text,), daemon=True)] if self.stdin else []
            for name, file in (("out", self.stdout), ("err", self.stderr)):
                if file and not file.closed:
                    work.append(threading.Thread(target=self._read, args=(name, file), daemon=True))
            self._threads = work
            for thread in work:
                thread.start()
        for thread in self._threads:
            left = None if timeout is None else max(0.0, begun + timeout - time.monotonic())
            thread.join(left)
            if thread.is_alive():
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(None if timeout is None else max(0.0, begun + timeout - time.monotonic()))
        return self._outputs.get("out", ""), self._outputs.get("err", "")

    def _feed(self, text: str | None) -> None:
        assert self.stdin
        with contextlib.suppress(OSError, ValueError):
            self.stdin.write(text or "")
        with contextlib.suppress(OSError):
            self.stdin.close()

    def _read(self, name: str, file: IO[str]) -> None:
        with file:
            self._outputs[name] = file.read()

    def send_signal(self, number: int) -> None:
        """Send a signal if the process is still running."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(9)


Started: TypeAlias = Process | subprocess.Popen[str]
"""A process that `ForkServer.start` has started."""


def start_python(*arguments: str, **options: Any) -> "subprocess.Popen[str]":
    """Start Python itself. An interrupt ends it, also if the shell of the tests lets what it starts ignore them."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        text=True,
        encoding="utf-8",
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


class ForkServer:
    """A server that imports `modules`, where `package.*` means a whole package. The first order starts it.

    A server that is `shared` serves all workers of pytest-xdist, and ends after the process that started them.
    """

    def __init__(self, *modules: str, shared: bool = False) -> None:
        self._modules = modules
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID") if shared and hasattr(os, "pidfd_open") else None
        self._owner = os.getpid() if run is None else os.getppid()
        if run is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="treadle-forks-")
            self._folder = Path(self._temporary.name)
        else:
            self._folder = Path(tempfile.gettempdir()) / f"treadle-forks-{run[:16]}"
            self._folder.mkdir(mode=0o700, exist_ok=True)

    @cached_property
    def _door(self) -> Path:
        """The socket through which any process can order processes, of a server that is running."""
        door = self._folder / "door"
        with (self._folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not door.exists():
                program = str(Path(__file__).with_name("server.py"))
                server = subprocess.Popen(
                    [sys.executable, program, str(self._owner), str(door), *self._modules],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                )
                while not door.exists():
                    assert server.poll() is None, (
                        "the server of processes could not start; its output says why"
                    )
                    time.sleep(0.01)
        return door

    def variables(self) -> dict[str, str]:
        """Return the variables with which the programs beside this file find this server, which is running then."""
        return {"TREADLE_TEST_DOOR": str(self._door)}

    def order(self, order: dict[str, Any], fds: list[int]) -> None:
        """Send an order for a process with its standard streams and the pipe for the answer."""
        data = json.dumps(order).encode()
        with socket.socket(socket.AF_UNIX) as visit:
            visit.connect(str(self._door))
            socket.send_fds(visit, [HEAD.pack(len(data))], fds)
            visit.sendall(data)

    def run(
        self, *arguments: str, text: str | None = None, timeout: float | None = 240, **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run `python ARGUMENTS` to its end, with `text` as its standard input, and return what it printed."""
        stdin = subprocess.DEVNULL if text is None else subprocess.PIPE
        pipes = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = self.start(*arguments, **pipes, **options)
        out, err = process.communicate(text, timeout)
        return subprocess.CompletedProcess(process.args, process.wait(), out, err)

    def start(self, *arguments: str, **options: Any) -> Started:
        """Start `python ARGUMENTS`, which begin with `-m MODULE` or `-c CODE`."""
        env = options.get("env")
        if env is not None and _start_of(env) != _start_of(os.environ):
            return start_python(*arguments, **options)
        return Process(self, arguments, **options)


def command_of(program: Path) -> list[str]:
    """Return the command that runs a file of Python in a forked process, given the `variables` of a server."""
    return [PYTHON, "-c", f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"]


FORKS = ForkServer(
    "treadle.*",
    "pyreqwest.client",
    "rich.progress",
    "rich.markdown",
    "rich.live",
    "jsonschema_rs",
    "mcp.server.mcpserver.resolve",
    "mcp.server.elicitation",
    "mcp.server.runner",
    "mcp.server.stdio",
    "uvicorn",
    "typer._adapters",
    "typer._click.decorators",
    "typer.rich_utils",
    "prompt_toolkit.shortcuts",
    "pyreqwest.http",
    "uvloop",
    "tests.crash.scenario",
    "tests.forks.warm",
    shared=True,
)
"""The server of all tests that start `treadle` or a program that uses it. A server takes seconds to start."""


def _start_of(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change how Python starts."""
    names = [name for name in env if name.startswith(("PYTHON", "LC_", "LANG")) and name not in FOLLOWED]
    return {name: env[name] for name in names}


def _give(given: contextlib.ExitStack, wanted: int | None, number: int) -> tuple[int, Any]:
    """Return the file descriptor for the child, and the file at the other end if it is a pipe."""
    if wanted is None:
        return number, None
    if wanted == subprocess.DEVNULL:
        null = os.open(os.devnull, os.O_RDWR)
        given.callback(os.close, null)
        return null, None
    if wanted != subprocess.PIPE:
        return wanted, None
    reading, writing = os.pipe()
    own, child, mode = (writing, reading, "w") if number == 0 else (reading, writing, "r")
    given.callback(os.close, child)
    return child, open(own, mode, encoding="utf-8")
