"""Cancellations that a library loses. Source: pyreqwest 0.15, where one comes together with what is waited for."""

import asyncio


class CancellationCheck:
    """Made before something is waited for; asked after."""

    __slots__ = ("_count", "_task")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._count = self._task.cancelling() if self._task is not None else 0

    def check(self) -> None:
        """Raises: `asyncio.CancelledError` if the present task was cancelled meanwhile."""
        if self._task is not None and self._task.cancelling() > self._count:
            raise asyncio.CancelledError
