"""The connections of one event loop to one server, both busy and idle, with their time-outs.

A pool belongs to its event loop: only its timers and connections, which the loop holds, keep it alive. It closes
its connections when `asyncio.run` shuts the loop's asynchronous generators down.
"""

import asyncio
import contextlib
import errno
import math
import os
import socket
import weakref
from collections.abc import AsyncGenerator

from treadle.core.errors import ProviderError
from treadle.http import failures
from treadle.http.plain.connection import Connection
from treadle.http.plain.dial import dial

_STALE_SECONDS = 2.0
"""The age, from its last activity, at which the server may close a connection as idle. A connection
that breaks earlier is a failure of the server, which is reported to the caller."""
_SWEEP_SECONDS = 45.0
"""The interval of sweeps. A connection is closed after being idle for one to two intervals."""


class Pool:
    """The connections of one event loop to one server, for requests with the same time-outs."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, host: str, port: int, origin: str, timeouts: failures.Timeouts
    ) -> None:
        self.loop = loop
        self.origin = origin
        self.is_closed = False
        self._host = host
        self._port = port
        self._timeouts = timeouts
        self._idle: dict[Connection, None] = {}
        """The idle connections. The one that was used last is used next."""
        self._busy: set[Connection] = set()
        self._unwritten: list[tuple[Connection, bytes]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf
        self._sweeper: asyncio.TimerHandle | None = None
        self._guard = _close_at_shutdown(weakref.ref(self))
        # The first step makes the generator known to the loop.
        with contextlib.suppress(StopIteration):
            self._guard.asend(None).send(None)

    def take(self, now: float) -> Connection | None:
        """Return an idle connection, if there is one."""
        if not self._idle:
            return None
        connection = self._idle.popitem()[0]
        connection.may_be_stale = now - connection.active_at > _STALE_SECONDS
        return connection

    def send(self, connection: Connection, payload: bytes) -> None:
        """Write a request at the end of this turn of the event loop, with those of other connections.

        A system call between two tasks slows the second task down, because the processor's caches are cold
        afterwards; this costs more than the call itself. Written together, 64 requests cost a third less.
        """
        if not self._unwritten:
            self.loop.call_soon(self._write_all)
        self._unwritten.append((connection, payload))

    def _write_all(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for connection, payload in unwritten:
            connection.write(payload)

    def watch(self, connection: Connection) -> None:
        """Make the request of a connection fail at its deadline."""
        self._busy.add(connection)
        due = self._due(connection)
        if due < self._rings_at:
            self._set_timer(due)

    def _due(self, connection: Connection) -> float:
        """Return the time at which the request of a connection fails, if no more of the answer arrives before
        it."""
        return min(connection.end, connection.active_at + self._timeouts.silence)

    def release(self, connection: Connection) -> None:
        """Take back a connection that can be used again."""
        self._busy.discard(connection)
        if self.is_closed:
            connection.drop()
            return
        self._idle[connection] = None
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self.sweep)

    def forget(self, connection: Connection) -> None:
        """Remove a connection that is closed."""
        self._busy.discard(connection)
        self._idle.pop(connection, None)

    def close(self) -> None:
        """Close all connections, and from now on each one that is released."""
        self.is_closed = True
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()
        for connection in [*self._idle, *self._busy]:
            connection.fail(failures.broken(self.origin, "the event loop shuts down"))

    async def connect(self, end: float) -> Connection:
        """Return a new connection, made before `end`. Raises: the errors of `treadle.http.failures`."""
        connected = await self._dial(end)
        try:
            _, connection = await self.loop.create_connection(lambda: Connection(self), sock=connected)
        except OSError as error:
            connected.close()
            raise self._explain(error) from None
        except BaseException:
            connected.close()
            raise
        return connection

    async def _dial(self, end: float) -> socket.socket:
        in_time = self.loop.time() + self._timeouts.connect
        try:
            async with asyncio.timeout_at(min(in_time, end)):
                return await dial(self.loop, self._host, self._port)
        except OSError as error:
            # `TimeoutError` is an `OSError`, and has a number if it is the operating system's.
            if not isinstance(error, TimeoutError) or error.errno is not None:
                raise self._explain(error) from None
            if in_time <= end:
                raise failures.connect_timeout(self.origin, self._timeouts) from None
            is_total = self._timeouts.total <= self._timeouts.silence
            raise failures.answer_timeout(self.origin, self._timeouts, is_total=is_total) from None

    def _explain(self, error: OSError) -> ProviderError:
        """Return the typed error for a failure to connect."""
        if isinstance(error, socket.gaierror):
            detail = f"failed to lookup address information: {(error.strerror or '').lower()}"
            return failures.cannot_connect(self.origin, detail, failures.UNKNOWN_HOST)
        detail = os.strerror(error.errno or errno.EIO).lower()
        return failures.cannot_connect(self.origin, detail, failures.SERVER_DOWN)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = at
        self._timer = self.loop.call_at(at, self._expire)

    def _expire(self) -> None:
        """Fail the requests whose time is over, and set the timer for the next one.

        The timer is not moved when requests end, so that it fires about once per time-out and not for each
        request.
        """
        now = self.loop.time()
        self._timer, self._rings_at = None, math.inf
        for connection in [item for item in self._busy if self._due(item) <= now]:
            is_total = connection.end <= now
            connection.fail(failures.answer_timeout(self.origin, self._timeouts, is_total=is_total))
        if self._busy:
            # uvloop's timers may fire a little early.
            self._set_timer(max(min(map(self._due, self._busy)), now + 0.001))

    def sweep(self) -> None:
        """Close the connections that have been idle since the last sweep."""
        for connection in list(self._idle):
            if connection.is_resting:
                connection.drop()
            connection.is_resting = True
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self.sweep) if self._idle else None


async def _close_at_shutdown(found: "weakref.ref[Pool]") -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        pool = found()
        if pool is not None:
            pool.close()


_pools: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, weakref.WeakValueDictionary[tuple[str, int, failures.Timeouts], Pool]
] = weakref.WeakKeyDictionary()


def find_pool(
    loop: asyncio.AbstractEventLoop, host: str, port: int, origin: str, timeouts: failures.Timeouts
) -> Pool:
    """Return the pool of the running `loop` for a server. `origin` is the server's name in errors."""
    pools = _pools.get(loop)
    if pools is None:
        pools = _pools[loop] = weakref.WeakValueDictionary()
    key = (host, port, timeouts)
    pool = pools.get(key)
    if pool is None or pool.is_closed:
        pool = pools[key] = Pool(loop, host, port, origin, timeouts)
    return pool
