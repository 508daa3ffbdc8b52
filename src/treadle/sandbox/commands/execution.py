"""The execution of one command, with limits on the command and everything that it starts.

With bubblewrap the command's processes form a tree that the kernel ends together with the first process. Without
it, processes that detach themselves are searched for and may be missed.
"""

import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from treadle.core.errors import SandboxError
from treadle.http.locks import new_lock
from treadle.sandbox.commands.bubblewrap import WRITABLE, Isolation
from treadle.sandbox.commands.process_family import (
    BareFamily,
    IsolatedFamily,
    ProcessFamily,
    measure_kernel_memory,
    measure_tree,
)
from treadle.sandbox.commands.untrusted import TooMuchError, measure
from treadle.sandbox.protocol import CommandOutcome, Limits, Stop

TICK_SECONDS = 0.1


class SandboxCommand:
    """A command in the folder `root`, which has `bubblewrap.FOLDERS`, and with an `image` `bubblewrap.LAYER`."""

    def __init__(
        self,
        text: str,
        root: Path,
        limits: Limits,
        isolation: Isolation | None = Isolation(),
        report: Callable[[str], None] | None = None,
    ) -> None:
        """Make a command. Without `isolation` it runs as the current user. `report` gets its last printed lines."""
        self._limits = limits
        self._folders = [root / name for name in WRITABLE]
        self._family: ProcessFamily = (
            BareFamily(text, root, limits)
            if isolation is None
            else IsolatedFamily(text, root, limits, isolation)
        )
        image = None if isolation is None else isolation.image
        self._is_layered = image is not None and image.is_layered
        self._report = report
        self._output = CollectedOutput(limits.output_bytes)
        self._reported_bytes = 0
        self._measure_after = self._count_after = 0.0
        self._kernel_bytes = 0
        """What the kernel held for the command when it was counted last."""
        self._lock = new_lock()
        self._stop: Stop | None = None
        self._reason = ""
        self._is_running = False

    def stop(self, stop: Stop, reason: str = "") -> None:
        """End all processes now, from any thread. Only the first reason is reported."""
        with self._lock:
            if self._stop is None:
                self._stop, self._reason = stop, reason
            if self._is_running:
                self._family.kill()

    def run(self) -> CommandOutcome:
        """Run the command, until all its processes have ended. Raises: `SandboxError` if it cannot be started."""
        out, out_end = os.pipe()
        try:
            os.set_blocking(out, False)
            try:
                self._family.start(out_end)
            finally:
                os.close(out_end)
            with self._lock:
                self._is_running = True
                if self._stop is not None:
                    self._family.kill()
            try:
                self._family.let_go()
                self._attend(out)
            finally:
                with self._lock:
                    self._is_running = False
                code, trouble = self._family.end()
            self._drain(out)
        finally:
            os.close(out)
        if trouble and self._stop is None:
            if not self._is_layered or (trouble.startswith("bwrap: ") and "execvp" not in trouble[:14]):
                raise SandboxError(f"the command could not be started: {trouble}")
            # Each image has a shell that works. A command has broken it, or a variable of the image disturbs it.
            self._output.add(f"{trouble}\n".encode())
        return CommandOutcome(code if code >= 0 else 128 - code, self._output.text, self._stop, self._reason)

    def _attend(self, out: int) -> None:
        """Collect output and enforce the limits until the first process has ended."""
        family = self._family
        poller = select.poll()
        poller.register(out, select.POLLIN)
        end = family.end_fd
        tick_seconds = TICK_SECONDS if end is not None else 0.02
        if end is not None:
            poller.register(end, select.POLLIN)
        deadline = time.monotonic() + self._limits.seconds
        tick = time.monotonic() + tick_seconds
        while True:
            now = time.monotonic()
            ready = poller.poll(max(0.0, min(tick, deadline) - now) * 1000 + 1)
            if any(fd == out for fd, _ in ready) and not self._take(out):
                poller.unregister(out)
            if any(fd == end for fd, _ in ready) or (end is None and family.has_ended()):
                return
            now = time.monotonic()
            if now >= deadline:
                self.stop(Stop.TIME)
                deadline = float("inf")
            if now >= tick:
                self._look(now)
                tick = time.monotonic() + tick_seconds

    def _take(self, out: int) -> bool:
        """Read some of the available output. Return whether more may follow later."""
        try:
            data = os.read(out, 1 << 16)
        except BlockingIOError:
            return True
        self._output.add(data)
        return bool(data)

    def _drain(self, out: int) -> None:
        # A pipe holds at most a mebibyte. Output of detached processes that still write is not waited for.
        for _ in range(1 << 8):
            before = self._output.total_bytes
            if not self._take(out) or self._output.total_bytes == before:
                return

    def _look(self, now: float) -> None:
        """Stop the command if it exceeds a limit, and report the last line that it printed."""
        limits = self._limits
        tree = measure_tree(self._family.pid, limits.memory_bytes)
        if now >= self._count_after:
            self._kernel_bytes = measure_kernel_memory(self._family.pid, limits.memory_bytes)
            self._count_after = now + 5 * (time.monotonic() - now)
        if tree.memory_bytes + self._kernel_bytes > limits.memory_bytes:
            self.stop(Stop.MEMORY, f"its processes used more than {limits.memory_bytes:,} bytes of memory")
        elif tree.threads > limits.processes + 1:
            self.stop(Stop.PROCESSES, f"there were more than {limits.processes} processes")
        elif now >= self._measure_after:
            try:
                measure(self._folders, limits.files, limits.disk_bytes)
            except TooMuchError as error:
                self.stop(Stop.DISK, str(error))
            # Even with many files, most of the time remains for other work.
            self._measure_after = now + 5 * (time.monotonic() - now)
        if self._report is not None and self._output.total_bytes > self._reported_bytes:
            self._reported_bytes = self._output.total_bytes
            self._report(self._output.last_line)


class CollectedOutput:
    """Collected output, limited to about `max_bytes` bytes: the beginning and the end are kept."""

    def __init__(self, max_bytes: int) -> None:
        self._head_bytes = max_bytes * 2 // 3
        self._tail_bytes = max_bytes - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Add `data`. If the output is too long, its middle is dropped."""
        self.total_bytes += len(data)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > 2 * self._tail_bytes + 65536:
                del self._tail[: len(self._tail) - self._tail_bytes]

    @property
    def text(self) -> str:
        """The collected output, with a note of how much was dropped. Bytes that are not UTF-8 are replaced."""
        left_out = self.total_bytes - len(self._head) - self._tail_bytes
        if left_out <= 0:
            return (self._head + self._tail).decode(errors="replace")
        head = self._head.decode(errors="replace")
        tail = self._tail[-self._tail_bytes :].decode(errors="replace")
        return f"{head}\n[… {left_out:,} of {self.total_bytes:,} bytes left out …]\n{tail}"

    @property
    def last_line(self) -> str:
        """The last line that has begun, or its end if it is long."""
        end = bytes((self._tail or self._head)[-1000:]).decode(errors="replace").rstrip()
        return end.rpartition("\n")[2][-200:]
