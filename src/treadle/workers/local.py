"""The workers `local:N`: N worker processes on this machine, which end together with this process."""

import asyncio
import os
import sys
from collections.abc import Callable

import msgspec

from treadle.core.errors import ConfigError, WorkerError
from treadle.journal.protocol import Journal
from treadle.loop.wayout import see_through
from treadle.workers.protocol import WorkerOptions
from treadle.workers.queued import (
    STOP_SECONDS,
    QueueWorkers,
    WorkerHandle,
    WorkerReport,
    import_path,
    share_window,
)
from treadle.workers.registry import read_count

_WRONG_USAGE = 2
"""The exit status of `treadle` if its options or its configuration are wrong."""
_SHOWN_LINES, _SHOWN_BYTES = 5, 2000
"""How many of the last lines and bytes that a dead worker printed are in the error."""
_REPORT_BYTES = 1024 * 1024
"""The longest report that is read."""


class Process:
    """One worker process. It ends when its standard input does, so also when this process is killed."""

    def __init__(self, address: str, options: WorkerOptions) -> None:
        self._options = options
        # Other users can see a command line, and an address may have a password.
        self._environment = {
            **os.environ,
            "TREADLE_JOURNAL": address,
            "PYTHONPATH": os.pathsep.join(import_path()),
        }
        self._said = b""
        """The end of what the worker printed on standard error."""
        self.pid: int | None = None
        """The id of the running process."""

    async def work(self, tell: Callable[[WorkerReport], None]) -> None:
        """See `WorkerHandle.work`."""
        options = self._options
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "treadle", "worker", "--json", "--ends-with-stdin"),
            *(
                "--queue",
                options.queue,
                "--window",
                str(options.window),
                "--retries",
                str(options.retries.attempts - 1),
            ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
            start_new_session=True,  # Ctrl-C is for this process, which tells its workers
            limit=_REPORT_BYTES,
        )
        self.pid = process.pid
        self._said = b""
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        reading = asyncio.ensure_future(self._read_errors(process.stderr))
        try:
            async for line in process.stdout:
                tell(msgspec.json.decode(line, type=WorkerReport))
            code = await process.wait()
            await reading
        except BaseException:
            process.stdin.close()
            await see_through(lambda: _finish(process))
            raise
        finally:
            self.pid = None
            reading.cancel()
        kind = ConfigError if code == _WRONG_USAGE else WorkerError
        lines = self._said.decode(errors="replace").split("\n")[-_SHOWN_LINES - 1 :]
        said = " ".join(" ".join(lines).split())
        raise kind(f"a worker process ended with status {code}: {said or 'it printed no error'}")

    async def _read_errors(self, stream: asyncio.StreamReader) -> None:
        # Tools print here too, perhaps very long lines.
        while data := await stream.read(65536):
            self._said = (self._said + data)[-_SHOWN_BYTES:]


async def _finish(process: asyncio.subprocess.Process) -> None:
    """Wait until a process that was told to stop has ended, reading what it still prints."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.stdout.read()
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def make_local(journal: Journal, argument: str, options: WorkerOptions) -> QueueWorkers:
    """Return workers with as many processes as `argument` says. Raises: `ConfigError`."""
    count = read_count("local", argument)
    shared = share_window(options, count)
    handles: list[WorkerHandle] = [Process(journal.address or "", shared) for _ in range(count)]
    return QueueWorkers(journal, options, handles)
