"""The command in its own process, in a folder that is empty at first.

The process is forked from one that has done its imports (`tests.forks`), because importing is most of what a
command does. What comes before that is tested by `RealCli`, which starts the installed program: its entry point,
and how signals and closed pipes end it.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.forks.process import FORKS, Started

Json = Any
WITHOUT = (
    "import sys; sys.modules[sys.argv[1]] = None; sys.argv[:2] = ['']; from treadle.cli import main; main()"
)
"""A program that is the command where the module that it gets as its first argument is not installed."""


class Result:
    """The exit code and the output of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"

    @property
    def lines(self) -> list[Json]:
        """The output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


class Cli:
    """A launcher of `treadle` in a folder that is empty at first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        cleared = ("TREADLE_", "OPENAI_", "NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "COV_")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(cleared)}
        self.env |= {"COLUMNS": "100", "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
        # What the user of this machine has stored must not change the tests.
        self.env |= {"XDG_CONFIG_HOME": str(folder / "config"), "XDG_STATE_HOME": str(folder / "state")}

    def start(self, *arguments: str, **options: Any) -> Started:
        """Start a process that runs at the same time as the test."""
        options = {
            "cwd": self.folder,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **options,
            "env": {**self.env, **options.get("env", {})},
        }
        return self._start(arguments, options)

    def _start(self, arguments: Sequence[str], options: dict[str, Any]) -> Started:
        return FORKS.start("-m", "treadle", *arguments, **options)

    def __call__(
        self, *arguments: str, text: str | bytes | None = None, env: dict[str, str] | None = None
    ) -> Result:
        """Run a command to its end."""
        stdin = subprocess.DEVNULL if text is None else subprocess.PIPE
        process = self.start(*arguments, stdin=stdin, env=env or {})
        if isinstance(text, bytes):
            assert process.stdin
            process.stdin.buffer.write(text)
            text = ""
        out, err = process.communicate(text, timeout=240)
        return Result(process.returncode, out, err)

    def run_all(self, commands: Iterable[Sequence[str]]) -> list[Result]:
        """Run several commands at the same time, to their ends."""
        processes = [self.start(*arguments) for arguments in commands]
        outputs = [process.communicate(timeout=240) for process in processes]
        return [
            Result(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)
        ]

    def write(self, name: str, text: str) -> Path:
        """Return the path of a file in the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path


class RealCli(Cli):
    """A launcher of the installed program `treadle`, as a shell starts it."""

    def _start(self, arguments: Sequence[str], options: dict[str, Any]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [str(Path(sys.executable).with_name("treadle")), *arguments],
            text=True,
            encoding="utf-8",
            # These tests send SIGINT, so the process must not inherit that it is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            **options,
        )


class Oracle:
    """A process that runs `treadle mock`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._process = Cli(folder).start("mock", "--port", "0", "--json", *options)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.communicate()
        self.url: str = json.loads(line)["base_url"]

    def stop(self) -> int:
        """Interrupt the process, and return its exit code."""
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=60)
        return self._process.returncode
