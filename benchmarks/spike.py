"""The second baseline: a tool loop written by hand that makes every step durable before the next.

It has the guarantees of a run's journal at level `process` (each step survives kill -9) and nothing else: no
checks, no limits, no resume. A writer thread commits together what all runs appended meanwhile.
"""

import asyncio
import sqlite3
import threading
from pathlib import Path
from types import TracebackType

import msgspec
from msgspec import Struct
from pyreqwest.client import Client

from benchmarks.bare import HEADERS, TOOLS

Row = tuple[int, int, bytes]


class _Function(Struct):
    name: str
    arguments: str


class _Call(Struct, tag_field="type", tag="function"):
    id: str
    function: _Function


class _Message(Struct, omit_defaults=True):
    role: str
    content: str | None = None
    tool_calls: list[_Call] = []
    tool_call_id: str | None = None


class _Choice(Struct):
    message: _Message


class _Answer(Struct):
    choices: list[_Choice]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Answer).decode
_decode_arguments = msgspec.json.Decoder(dict[str, int]).decode


class Store:
    """A table of events with a writer thread. Use it with `with`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[Row] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._lock = threading.Lock()
        self._is_wanted = threading.Event()
        self._is_stopped = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def append(self, rows: list[Row]) -> "asyncio.Future[None]":
        """Queue rows, and return a future that is done when they are durable."""
        waiter = self._loop.create_future()
        with self._lock:
            self._rows += rows
            self._waiters.append(waiter)
        self._is_wanted.set()
        return waiter

    def _write(self) -> None:
        db = sqlite3.connect(self._path, isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("CREATE TABLE events(run INT, seq INT, body BLOB, PRIMARY KEY(run, seq)) WITHOUT ROWID")
        while True:
            self._is_wanted.wait()
            self._is_wanted.clear()
            with self._lock:
                rows, self._rows = self._rows, []
                waiters, self._waiters = self._waiters, []
            if rows:
                db.execute("BEGIN")
                db.executemany("INSERT INTO events VALUES(?, ?, ?)", rows)
                db.execute("COMMIT")
                self._loop.call_soon_threadsafe(_wake, waiters)
            elif self._is_stopped:
                db.close()
                return

    def __enter__(self) -> "Store":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_stopped = True
        self._is_wanted.set()
        self._thread.join()


def _wake(waiters: "list[asyncio.Future[None]]") -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


class Spike:
    """Makes runs, one after another or many at a time."""

    def __init__(self, client: Client, url: str, store: Store) -> None:
        self._client = client
        self._url = url
        self._store = store
        self._runs = 0
        self._head = _encode({"model": "bench", "tools": TOOLS})[:-1] + b',"messages":['

    async def run(self) -> int:
        """Make one run, and return the number of its steps."""
        self._runs += 1
        number, seq, steps = self._runs, 0, 0
        body = [_encode(_Message("user", "Add 1 and 2."))]
        while True:
            request = self._client.post(self._url).headers(HEADERS)
            content = self._head + b",".join(body) + b"]}"
            response = await request.body_bytes(content).build().send()
            message = _decode(bytes(await response.bytes())).choices[0].message
            steps += 1
            rows = [_encode(message)]
            for call in message.tool_calls:
                values = _decode_arguments(call.function.arguments)
                result = _Message("tool", str(values["a"] + values["b"]), tool_call_id=call.id)
                rows.append(_encode(result))
            body += rows
            await self._store.append([(number, seq + index, row) for index, row in enumerate(rows)])
            seq += len(rows)
            if not message.tool_calls:
                return steps
