"""The log of turns: a hook that writes one record for each turn.

Invariant: a record is written once, whatever process is killed when. It is written after its turn is durable. If
the process is killed in between, the hook writes the record when the run is resumed, because it then finds no line
with the record's key.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.http.locks import new_lock
from treadle.loop.listener import Hook
from treadle.models.config.recipe import load_config
from treadle.telemetry.turn_records import RecordFold, TurnRecord

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


_WINDOW = 10
"""How many turns the warning about fallbacks looks at."""
_MANY, _FEW = 0.3, 0.2
"""The shares of turns with a fallback above which there is a warning, and up to which it may be given again."""
_BEGINNING = b'{"key":'
"""The beginning of every record."""
_LOOK_SECONDS = 0.5
"""How often to look whether another process has renamed the file. Until then, records go to the renamed file."""


class TurnLog:
    """A hook that passes the record of each turn to a function.

    It logs a warning if more than 30 % of the last ten turns needed a fallback.
    """

    is_patient = True

    def __init__(self, write: Callable[[TurnRecord], None]) -> None:
        self._write = write
        self._folds: dict[str, RecordFold] = {}
        self._fell_back: deque[bool] = deque(maxlen=_WINDOW)
        self.has_warned = False
        """True from the warning about fallbacks until at most 20 % of the last ten turns needed one."""

    def __call__(self, event: e.Event) -> None:
        self.take(event.run_id, event.seq, (event.body,))

    def take(self, run_id: str, first_seq: int, bodies: Sequence[e.DurableBody]) -> None:
        """Take the next events of a run."""
        fold = self._folds.get(run_id)
        if fold is None:
            fold = self._folds[run_id] = RecordFold(run_id)
        for record in fold.add(first_seq, bodies):
            self._write(record)
            self._watch(record)

    def catch_up(self, run_id: str, events: Iterable[e.Event]) -> None:
        """Read the events so far of a run that goes on, and write its last record if that was not written."""
        fold, last = RecordFold(run_id), None
        for event in events:
            for record in fold.add(event.seq, (event.body,)):
                last = record
        if last is not None and not self._is_written(last):
            self._write(last)
        self._folds[run_id] = fold

    def leave(self, run_id: str) -> None:
        """Forget a run that this process no longer drives."""
        self._folds.pop(run_id, None)

    def close(self) -> None:
        """Close the log. It is opened again if another record is written."""

    def _is_written(self, record: TurnRecord) -> bool:
        return True

    def _watch(self, record: TurnRecord) -> None:
        self._fell_back.append(bool(record.fallbacks))
        share = sum(self._fell_back) / _WINDOW
        if share > _MANY and not self.has_warned:
            told = "%d of the last %d turns needed another model than the first: the newest failed with %s"
            reasons = ", ".join(dict.fromkeys([item.error_type for item in record.fallbacks])) or "no error"
            logging.getLogger("treadle").warning(told, sum(self._fell_back), len(self._fell_back), reasons)
        self.has_warned = share > (_FEW if self.has_warned else _MANY)


class JsonlTurnLog(TurnLog):
    """A log of turns as lines of JSON in a file, which any number of processes may append to.

    When the file would grow beyond `max_bytes` it is renamed: `PATH.1` is the newest of the `keep` older files.
    """

    def __init__(self, path: str | Path, *, max_bytes: int = 50_000_000, keep: int = 5) -> None:
        """Make a log. The file and its folder are created with the first record."""
        if max_bytes < 1 or keep < 1:
            raise ConfigError(f"max_bytes is {max_bytes!r} and keep is {keep!r}; give at least 1 for both")
        super().__init__(self._append)
        self.path = Path(path).expanduser()
        self._max_bytes = max_bytes
        self._keep = keep
        self._name = str(self.path)
        self._file: int | None = None
        self._inode = (0, 0)
        """The number and the device of the file."""
        self._size = 0
        """The size of the file when it was looked at, and what this process has written since."""
        self._looks_at = 0.0
        """The time at which to look again whether another process has renamed the file."""
        self._lock = new_lock()
        """Held while the file is used, because runs are caught up with in threads."""

    def check(self) -> None:
        """Check that the file, and those that it is renamed to, hold records of turns, as nothing else is written
        into, renamed or replaced. Raises: `ConfigError`."""
        for path in (self.path, *[self._beside(number) for number in range(1, self._keep + 1)]):
            with suppress(FileNotFoundError), path.open("rb") as file:
                begun = file.read(len(_BEGINNING))
                if not _BEGINNING.startswith(begun):
                    raise ConfigError(
                        f"{str(path)!r} is no log of turns, and stays as it is; give the log another path"
                    )

    def close(self) -> None:
        """Close the file. It is opened again if another record is written."""
        with self._lock:
            self._close()

    def _append(self, record: TurnRecord) -> None:
        line = msgspec.json.encode(record) + b"\n"
        with self._lock:
            file, size = self._open()
            if size and size + len(line) > self._max_bytes:
                self._rotate(len(line))
                file, _ = self._open()
            with _locked(file, is_shared=True):
                written = os.write(file, line)
            self._size += written
            if written < len(line):
                # Whoever opens the file next ends the line that is not whole.
                self._close()
                raise OSError(f"the disk has no room for the record {record.key!r} in {str(self.path)!r}")

    def _open(self) -> tuple[int, int]:
        """Return the file, which another process may have renamed since the last record, and its size."""
        now = time.monotonic()
        if self._file is not None:
            if now < self._looks_at:
                return self._file, self._size
            with suppress(FileNotFoundError):
                found = os.stat(self._name)
                if (found.st_ino, found.st_dev) == self._inode:
                    self._looks_at, self._size = now + _LOOK_SECONDS, found.st_size
                    return self._file, self._size
            self._close()
        self.check()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        found = os.fstat(file)
        self._inode = (found.st_ino, found.st_dev)
        self._looks_at, self._size = now + _LOOK_SECONDS, found.st_size
        if found.st_size:
            # Once no other process is writing, a line without an end comes from a process that was killed.
            with _locked(file):
                os.lseek(file, -1, os.SEEK_END)
                if os.read(file, 1) != b"\n":
                    os.write(file, b"\n")
        return file, found.st_size

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _rotate(self, needed_bytes: int) -> None:
        """Rename the files, unless another process has just done so."""
        self._close()
        with self._beside("lock").open("a") as lock, _locked(lock.fileno()):
            if not self.path.exists() or self.path.stat().st_size + needed_bytes <= self._max_bytes:
                return
            self.check()
            for number in range(self._keep - 1, 0, -1):
                with suppress(FileNotFoundError):
                    self._beside(number).replace(self._beside(number + 1))
            self.path.replace(self._beside(1))

    def _beside(self, suffix: object) -> Path:
        return self.path.with_name(f"{self.path.name}.{suffix}")

    def _is_written(self, record: TurnRecord) -> bool:
        """Return whether a file has the record, or had it before it was deleted."""
        start = _BEGINNING + b"%b," % msgspec.json.encode(record.key)
        oldest: bytes | None = None
        count = 0
        with self._lock:
            for path in (self.path, *[self._beside(number) for number in range(1, self._keep + 1)]):
                try:
                    data = path.read_bytes()
                except FileNotFoundError:
                    continue
                count += 1
                oldest = data.partition(b"\n")[0]
                if any(line.startswith(start) and _is_whole(line) for line in _lines_with(data, start)):
                    return True
        if count <= self._keep or oldest is None or not _is_whole(oldest):
            return False
        return msgspec.json.decode(oldest, type=_Ended).ended_at > record.ended_at


class _Ended(msgspec.Struct):
    ended_at: float


def _lines_with(data: bytes, start: bytes) -> Iterator[bytes]:
    """Yield the lines of `data` that begin with `start`."""
    at = -1
    while (at := data.find(start, at + 1)) >= 0:
        if at == 0 or data[at - 1 : at] == b"\n":
            end = data.find(b"\n", at)
            yield data[at:] if end < 0 else data[at:end]


def _is_whole(line: bytes) -> bool:
    with suppress(msgspec.DecodeError):
        msgspec.json.decode(line, type=_Ended)
        return True
    return False


@contextmanager
def _locked(file: int, *, is_shared: bool = False) -> Iterator[None]:
    """Hold the lock of a file against other processes. Where the system has no such locks, do nothing."""
    if fcntl is None:
        yield
        return
    fcntl.flock(file, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def configured_hooks() -> list[Hook]:
    """Return the hooks that treadle.toml asks for. Raises: `ConfigError`."""
    config = load_config()
    table = config.file.telemetry
    found: list[Hook] = []
    if table.turn_log is not None:
        from treadle.telemetry.turn_log import JsonlTurnLog

        path = config.resolve(table.turn_log)
        log = JsonlTurnLog(path, max_bytes=table.turn_log_max_bytes, keep=table.turn_log_keep)
        log.check()
        found.append(log)
    if table.open_telemetry:
        from treadle.telemetry.open_telemetry import OpenTelemetry

        found.append(OpenTelemetry(records_content=table.records_content))
    return found
