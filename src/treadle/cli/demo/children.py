"""The processes of demonstrations. They end when the demonstration ends, even if it is killed.

As a program, this module is `treadle`, ended when standard input ends: the demonstration holds the other end.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Self

import msgspec

from treadle.core.errors import TreadleError
from treadle.core.types import Json


class ChildProcess:
    """A child process that ends when its standard input ends. It is killed at the end of `with`."""

    def __init__(self, *arguments: str) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in __exit__)
        # In its own session, so that Ctrl-C reaches only the parent.
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def events(self) -> Iterator[dict[str, Json]]:
        """Yield the JSON objects that the process prints, one a line, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield msgspec.json.decode(line)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def finish(self) -> None:
        """Wait until the process ends. Raises: `TreadleError` with its error output if it failed."""
        code = self._process.wait()
        if code:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()
            said = said.removeprefix("error: ") or "it printed no error"
            raise TreadleError(f"process {self.pid} ended with {code}: {said}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()


class ModelServer(ChildProcess):
    """The server that plays the models, on a free local port."""

    def __init__(self, *options: str) -> None:
        super().__init__("-m", "treadle", "mock", "--port=0", "--json", "--ends-with-stdin", *options)

    def wait_for_url(self) -> str:
        """Return the base URL, once the server listens. Raises: `TreadleError` if it does not start."""
        for event in self.events():
            return str(event["base_url"])
        self.finish()
        raise TreadleError("the model's server ended before it listened")


class WorkerProcess(ChildProcess):
    """A process with a command of treadle that prints lines of JSON."""

    def __init__(self, *arguments: str) -> None:
        super().__init__("-m", "treadle.cli.demo.children", *arguments, "--json")


def main() -> None:
    """Run `treadle` with the arguments of this process."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    from treadle.cli import main as run_treadle

    sys.argv[0] = "treadle"
    run_treadle()


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
