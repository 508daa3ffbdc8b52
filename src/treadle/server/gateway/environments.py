"""Environments of others, as processes: each plays tasks with its own code, and asks its model over the gateway.

A process is started once, with the command of its tasks (`PlayedTask.environment`), and reads and writes lines of
JSON. Its first line is an object, with the key `error` if it cannot be used. Then it is asked `{"id": 1, "task":
"7", "base_url": URL, "api_key": KEY, "model": NAME}`, many at the same time, and answers with the same `id` and
`reward`, `detail`, `metrics` and `output`, or with `error`. `{"cancel": 1}` ends the work on a task.
"""

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from treadle.core.errors import ConfigError, ServerError

_MAX_LINE_BYTES = 2**26
_STOP_SECONDS = 5.0
# If this process is killed, the program is too.
_GUARD = ("--pdeathsig", "KILL", "--")


async def start_guarded(argv: Sequence[str], **given: Any) -> asyncio.subprocess.Process:
    """Start a program in a session of its own, which ends if this process is killed."""
    guard = shutil.which("setpriv")
    whole = (guard, *_GUARD, *argv) if guard else argv
    return await asyncio.create_subprocess_exec(*whole, start_new_session=True, **given)


async def end_all(process: asyncio.subprocess.Process) -> None:
    """End a program, and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


class EnvironmentProcess:
    """The process of an environment."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._starting: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0

    async def play(self, task_id: str, base_url: str, api_key: str, model: str) -> dict[str, Any]:
        """Return the outcome of a task. Cancelling ends the work on it.

        Raises: `ConfigError` if the environment cannot be used; `ServerError` if its process ends.
        """
        if self._starting is None or (self._starting.done() and not self.is_alive):
            self._starting = asyncio.ensure_future(self._start())
        await asyncio.shield(self._starting)
        self._number += 1
        number = self._number
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        asked = {"task": task_id, "base_url": base_url, "api_key": api_key, "model": model}
        try:
            self._write({"id": number, **asked})
            return await answer
        except asyncio.CancelledError:
            self._write({"cancel": number})
            raise
        finally:
            self._asked.pop(number, None)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs and answers."""
        return self._process is not None and self._reading is not None and not self._reading.done()

    def _write(self, told: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(ConnectionError):  # the reader tells of it
            self._process.stdin.write(json.dumps(told).encode() + b"\n")

    async def _start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await start_guarded(
            self._command, stdin=pipe, stdout=pipe, stderr=self._said, limit=_MAX_LINE_BYTES
        )
        assert self._process.stdout is not None
        try:
            first = await self._process.stdout.readline()
            why = _read_line(first).get("error") if first else self._last_words()
        except ValueError as error:
            why = str(error)
        if why is not None:
            await end_all(self._process)
            raise ConfigError(f"the environment cannot be loaded: {why}")
        self._reading = asyncio.ensure_future(self._read(self._process.stdout))

    async def _read(self, lines: asyncio.StreamReader) -> None:
        why = ""
        try:
            while line := await lines.readline():
                told = _read_line(line)
                answer = self._asked.get(told["id"])
                if answer is not None and not answer.done():
                    answer.set_result(told)
        except (ValueError, KeyError) as error:
            why = f"it wrote something other than an answer ({error}); "
            assert self._process is not None
            await end_all(self._process)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(
                    ServerError(f"the process of the environment ended: {why}{self._last_words()}")
                )

    def _last_words(self) -> str:
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - 1000))
        return " ".join(self._said.read().decode(errors="replace").split()) or "it printed no error"

    async def close(self) -> None:
        """Let the process end what it has begun, for a few seconds, and end it."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
        await end_all(self._process)
        if self._reading is not None:
            await asyncio.wait([self._reading])
        self._said.close()


def _read_line(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line that a process wrote. Raises: `ValueError` if there is none."""
    try:
        told = json.loads(line)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise ValueError(f"a line on standard output is not an object of JSON: {line!r:.100}")
    return told
