"""The way of a run's output to other processes that have the same file open.

A process that listens has a named pipe in a folder beside the file, and there an empty file for each run that it
listens to. Who drives such a run writes into the pipe. What a full pipe does not take is left out, because its
process reads more slowly than the run works. The folder exists while somebody listens; if it cannot be made, other
processes get events only.
"""

import errno
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from msgspec import Struct

from treadle.core.events import Delta
from treadle.http.locks import new_lock
from treadle.journal.driven import DrivenRuns, encode_pieces

_PIPE = ".pipe"
_LINE_BYTES = 4096
"""The longest line that is written as a whole, also if several processes write. POSIX allows systems with less."""
_TICK_NANOSECONDS = 50_000_000
_NAME_BYTES = 200
"""The longest file name of a run; output of a run with a longer id is not passed on."""


class _Outlet(Struct, eq=False):
    """The pipe of another process that listens to runs which this process drives."""

    pipe: int
    lock: Any
    """Held while the pipe is written to or closed: afterwards its number can be that of another file."""
    stops: dict[str, Callable[[], None]] = {}
    """The functions that end passing on, by the run's id."""
    is_broken: bool = False
    """True if the process has died, or the pipe is closed."""

    def write(self, run_id: str, seq: int, delta: Delta) -> None:
        lines = encode_pieces(run_id, seq, delta, _LINE_BYTES)
        with self.lock:
            try:
                for line in () if self.is_broken else lines:
                    os.write(self.pipe, line)
            except BlockingIOError:
                pass  # the pipe is full
            except OSError:
                self.is_broken = True

    def close(self) -> None:
        for stop in self.stops.values():
            stop()
        with self.lock:
            self.is_broken = True
            os.close(self.pipe)


class _Inlet(Struct, eq=False):
    """The pipe of this process."""

    writing: int
    """An end that this process writes to, so that the pipe does not end when another process closes its own."""
    is_over: bool = False


class FileRelay:
    """The relay of one open file."""

    def __init__(self, path: Path, driven: DrivenRuns, look: Callable[[], None]) -> None:
        """Make a relay. `look` is called when a piece of output follows an event that was not looked for yet."""
        self._folder = path.with_name(f"{path.name}-listeners")
        self._driven = driven
        self._look_for_events = look
        self._newest: dict[str, int] = {}
        self._name = secrets.token_hex(4)
        self._lock = new_lock()
        self._inlet: _Inlet | None = None
        """The pipe of this process; `None` if it listens to no run."""
        self._wanted: set[str] = set()
        self._outlets: dict[str, _Outlet] = {}
        """The pipes of other processes by name."""
        self._outlets_lock = new_lock()
        self._looked_at = -1
        self._is_closed = False

    def want(self, run_id: str, *, is_wanted: bool) -> None:
        name = f"{quote(run_id, safe='')}.{self._name}"
        with (
            self._lock,
            suppress(OSError),
        ):  # the folder cannot be written: there is no output of other processes
            if self._is_closed or len(name) > _NAME_BYTES:
                return
            if is_wanted:
                self._folder.mkdir(exist_ok=True)
                if self._inlet is None:
                    self._begin_reading()
                self._wanted.add(name)
                (self._folder / name).touch()
            elif name in self._wanted:
                self._wanted.remove(name)
                self._newest.pop(run_id, None)
                (self._folder / name).unlink(missing_ok=True)
                if not self._wanted:
                    self._end_reading()

    def _begin_reading(self) -> None:
        path = self._folder / f"{self._name}{_PIPE}"
        os.mkfifo(path, 0o600)
        reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(reading, True)
        self._inlet = _Inlet(os.open(path, os.O_WRONLY))
        work = partial(self._read, reading, self._inlet)
        threading.Thread(target=work, name="treadle-output", daemon=True).start()

    def _end_reading(self) -> None:
        """Remove the pipe, and the folder if nobody else listens."""
        inlet, self._inlet = self._inlet, None
        if inlet is not None:
            inlet.is_over = True
            os.write(inlet.writing, b"\n")  # this wakes the thread, which closes the pipe
            _remove(self._folder, self._name, self._wanted)
            self._wanted.clear()

    def close(self) -> None:
        """See `Attached.close`."""
        with self._lock, suppress(OSError):
            self._is_closed = True
            self._end_reading()
        with self._outlets_lock:
            for outlet in self._outlets.values():
                outlet.close()
            self._outlets.clear()

    def disown(self) -> None:
        """See `Attached.disown`. The child closes its ends of the pipes, and leaves the parent's files."""
        self._is_closed = True
        for outlet in self._outlets.values():
            os.close(outlet.pipe)
        if self._inlet is not None:
            os.close(self._inlet.writing)
        self._inlet, self._outlets = None, {}

    def look(self) -> None:
        """Find out who listens to the runs that this process drives. Only the committer's thread calls this."""
        with self._outlets_lock:
            if not self._is_closed:
                self._look()

    def _look(self) -> None:
        for listener in [name for name, outlet in self._outlets.items() if outlet.is_broken]:
            self._outlets.pop(listener).close()
            self._looked_at = -1
        try:
            changed_at = os.stat(self._folder).st_mtime_ns
            names = os.listdir(self._folder) if changed_at != self._looked_at else None
        except OSError:
            changed_at, names = -1, []
        if names is None:
            return
        found: dict[str, set[str]] = {}
        for name in names:
            run, _, listener = name.rpartition(".")
            if f".{listener}" != _PIPE and listener != self._name:
                found.setdefault(listener, set()).add(unquote(run))
        for listener in self._outlets.keys() - found.keys():
            self._outlets.pop(listener).close()
        for listener, runs in found.items():
            self._pass_to(listener, runs)
        # A file that is made in the same tick of the system's clock does not change the folder's time again.
        self._looked_at = changed_at if time.time_ns() - changed_at > _TICK_NANOSECONDS else -1

    def _pass_to(self, listener: str, runs: set[str]) -> None:
        outlet = self._outlets.get(listener)
        if outlet is None:
            try:
                pipe = os.open(self._folder / f"{listener}{_PIPE}", os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno not in (errno.ENXIO, errno.ENOENT):
                    return  # this process may not write to it, or has too many files open
                with suppress(OSError):  # the process has died
                    _remove(self._folder, listener, [f"{quote(run, safe='')}.{listener}" for run in runs])
                return
            outlet = self._outlets[listener] = _Outlet(pipe, new_lock())
        for run_id in outlet.stops.keys() - runs:
            outlet.stops.pop(run_id)()
        for run_id in runs - outlet.stops.keys():
            outlet.stops[run_id] = self._driven.forward(run_id, partial(outlet.write, run_id))

    def _read(self, pipe: int, inlet: _Inlet) -> None:
        """Pass on what other processes write, in the thread."""
        rest = b""
        while not inlet.is_over:
            *lines, rest = (rest + os.read(pipe, 1 << 16)).split(b"\n")
            for line in lines:
                found = self._driven.receive(line)
                if found is not None and self._newest.get(found[0]) != found[1]:
                    self._newest[found[0]] = found[1]
                    self._look_for_events()
        os.close(pipe)
        os.close(inlet.writing)


def _remove(folder: Path, listener: str, names: "set[str] | list[str]") -> None:
    """Remove the files of a process that does not listen any more, and the folder if it is empty then."""
    for name in [*names, f"{listener}{_PIPE}"]:
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # others listen
        folder.rmdir()
