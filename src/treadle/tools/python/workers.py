"""The worker processes that run the code: one pool for this process, and sessions kept warm in it.

A warm session is only a cache: it is used if the state that it was stored with equals the state in the run's
sandbox. Otherwise the state is loaded into a new session.
"""

import asyncio
import zlib
from collections import OrderedDict
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.registry import require
from treadle.http.locks import in_child

MAX_WARM = 16
MAX_WORKERS = 48
MIN_COMPRESSED_BYTES = 4096

_pool: Any = None
_is_of_parent = False
"""True if this process was forked from a process that had a pool."""
_parents: list[object] = []
"""Objects that a forked process got from its parent and must neither use nor release."""
_warm: OrderedDict[tuple[str, int], tuple[Any, bytes]] = OrderedDict()
"""The sessions between two calls, each with its state."""


def pack(dump: bytes) -> bytes:
    """Return a session's dump as it is stored: compressed if it is large, because every call stores one."""
    return b"\0" + dump if len(dump) < MIN_COMPRESSED_BYTES else b"\1" + zlib.compress(dump, 1)


def unpack(state: bytes) -> bytes:
    """Return the dump from its stored form."""
    return zlib.decompress(state[1:]) if state[:1] == b"\1" else state[1:]


async def take(key: tuple[str, int], state: bytes | None, options: dict[str, Any]) -> Any:
    """Return an open session with `state`, a stored dump. Raises: `ConfigError` if Monty is not installed."""
    if key in _warm:
        session, known = _warm.pop(key)
        if known == state:
            return session
        await drop(session)
    pool = await _running_pool()
    session = await pool.checkout(**options).__aenter__()
    if state is not None:
        try:
            await session.load_session(unpack(state))
        except BaseException:
            await drop(session)
            raise
    return session


async def keep(key: tuple[str, int], session: Any, state: bytes) -> None:
    """Keep a session for the next call of the same run."""
    _warm[key] = session, state
    while len(_warm) > MAX_WARM:
        _, (oldest, _) = _warm.popitem(last=False)
        await drop(oldest)


async def forget(key: tuple[str, int]) -> None:
    """Release the session of a run that makes no more calls."""
    if key in _warm:
        await drop(_warm.pop(key)[0])


async def drop(session: Any) -> None:
    """Release a session's worker. It never raises: the pool replaces a worker that has ended."""
    try:
        await session.__aexit__(None, None, None)
    except Exception:
        await asyncio.sleep(0)


async def _running_pool() -> Any:
    global _pool
    if _is_of_parent:
        raise ConfigError(
            "this process was forked from one that had run Python code already, and Monty does not work after a "
            "fork; start processes with 'spawn', or fork before the first call"
        )
    if _pool is None:
        monty = require("pydantic_monty", "python")
        pool = monty.AsyncMonty(min_processes=0, max_processes=MAX_WORKERS)
        await pool.__aenter__()
        if _pool is not None:
            # Another run was faster.
            await pool.__aexit__(None, None, None)
        else:
            _pool = pool
    return _pool


def _start_anew() -> None:
    # The workers and Monty's own threads belong to the parent. Its objects are kept: when a child released them,
    # even a child that only lived until it executed another program, the parent's pool could hang.
    global _pool, _is_of_parent
    _is_of_parent = _is_of_parent or _pool is not None
    _parents.append((_pool, [session for session, _ in _warm.values()]))
    _pool = None
    _warm.clear()


in_child(_start_anew)
