"""The locks between threads, all of which are made here, and what else a forked child has to renew.

A forked child has only the thread that forked. A lock that another thread held at that moment would never be
released there, so the child renews all locks.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

T = TypeVar("T")

_locks: WeakSet[Any] = WeakSet()
_awaited: WeakSet[Any] = WeakSet()
_owners: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()
_held = threading.local()
_FORK_SECONDS = 1.0
"""How long a fork waits for the locks that are awaited."""


def new_lock(*, is_awaited: bool = False) -> threading.Lock:
    """Return a lock that a forked child renews.

    `is_awaited`: the process is forked while no other thread holds the lock, if it becomes free in time. The locks
    of connections to databases need that: what a database's library locks itself would stay locked in the child.
    """
    return _register(threading.Lock(), is_awaited)


def new_reentrant_lock(*, is_awaited: bool = False) -> "threading.RLock":
    """Return a reentrant lock that a forked child renews. See `new_lock`."""
    return _register(threading.RLock(), is_awaited)


def in_child(function: Callable[[], object]) -> None:
    """Call `function` in each child that is forked from now on, after its locks are renewed."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def renew_in_child(owner: T, renew: Callable[[T], object]) -> None:
    """Call `renew` with `owner` in each forked child, after the locks are renewed, while `owner` exists."""
    _owners[owner] = renew


def _register(lock: T, is_awaited: bool) -> T:
    (_awaited if is_awaited else _locks).add(lock)
    return lock


def _hold() -> None:
    """Take the locks that are awaited while this thread forks."""
    end_at = time.monotonic() + _FORK_SECONDS
    _held.locks = [
        lock for lock in list(_awaited) if lock.acquire(timeout=max(0.0, end_at - time.monotonic()))
    ]


def _let_go() -> None:
    for lock in _held.locks:
        lock.release()
    _held.locks = []


def _renew() -> None:
    """Release the locks in a forked child, except for those that its only thread holds, then renew the rest."""
    _let_go()
    for lock in (*_locks, *_awaited):
        if not (hasattr(lock, "_is_owned") and lock._is_owned()):
            lock._at_fork_reinit()  # as the standard library's modules do with their locks
    for owner, renew in list(_owners.items()):
        renew(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_renew)
