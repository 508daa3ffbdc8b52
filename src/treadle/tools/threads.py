"""The threads in which functions of the user that are not coroutines run: as tools, as rewards, to make agents.

The end of a command does not wait for them. A thread cannot be stopped. If its call is cancelled or runs out of
time, the thread goes on; it is then kept under the key of its call until it ends, so that nobody runs the call a
second time beside it without knowing.
"""

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from treadle.http.locks import in_child

MAX_THREADS = 64


class Threads:
    """The threads of a process, at most `MAX_THREADS` at a time."""

    def __init__(self) -> None:
        self.left: dict[str, Future[Any]] = {}
        """The calls that go on in their threads although they were given up, by idempotency key."""
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, function: Callable[..., object], arguments: dict[str, Any]) -> object:
        """Call `function` in a thread with the caller's context variables, and return its result.

        An awaitable result is awaited. If the caller is cancelled while the function runs, the `CancelledError`
        can be given to `keep`.
        """
        self._pool = self._pool or ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="treadle-tool")
        future = self._pool.submit(contextvars.copy_context().run, _call, function, arguments)
        try:
            value = await asyncio.wrap_future(future)
        except asyncio.CancelledError as error:
            if not future.cancel() and not future.done():
                error.__dict__[_THREAD] = future
            raise
        return await value if inspect.isawaitable(value) else value

    def keep(self, key: str, error: BaseException | None) -> bool:
        """Keep the thread that a cancelled call left behind until it ends, and return whether there is one.

        `error` is the `CancelledError` that ended the call.
        """
        future: Future[Any] | None = getattr(error, "__dict__", {}).pop(_THREAD, None)
        if future is None or future.done():
            return False
        self.left[key] = future
        future.add_done_callback(lambda _: self.left.pop(key, None))
        return True

    def of_run(self, run_id: str) -> dict[str, Future[Any]]:
        """Return the calls of a run that go on although they were given up, by call id."""
        prefix = f"{run_id}/"
        return {key[len(prefix) :]: item for key, item in self.left.copy().items() if key.startswith(prefix)}

    async def wait(self, futures: Iterable[Future[Any]], timeout_seconds: float) -> None:
        """Wait until calls that go on have ended, but no longer than `timeout_seconds`."""
        waiters = [asyncio.wrap_future(item) for item in futures]
        for waiter in waiters:
            # Nobody needs the outcome, so an error must not be reported as unseen.
            waiter.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait(waiters, timeout=timeout_seconds)

    def forget(self) -> None:
        """Begin anew in a forked process, where the threads do not exist."""
        self.left, self._pool = {}, None


_THREAD = "treadle_thread"
"""The name under which a `CancelledError` carries the future of a thread that goes on."""

THREADS = Threads()
"""The threads of this process."""
in_child(THREADS.forget)


def _call(function: Callable[..., object], arguments: dict[str, Any]) -> object:
    try:
        return function(**arguments)
    except StopIteration as error:
        # A future cannot hold this exception, so the caller would wait forever.
        raise RuntimeError("StopIteration was raised") from error
