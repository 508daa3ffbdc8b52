"""Answers and decisions that arrive from outside while somebody is asked. The one that is given first counts."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from treadle.core import events as e
from treadle.core.asking import to_answer
from treadle.tools.protocol import Decision

T = TypeVar("T")


class Arrivals:
    """The questions and approvals of one run that somebody is asked about now, by id."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._arrived: set[str] = set()
        self.on_wait: Callable[[], None] | None = None
        """The function that is called when somebody is asked; it may find what has arrived before."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of what somebody is asked about."""
        return tuple(self._waiting)

    async def first(self, key: str, asked: Coroutine[Any, Any, T]) -> T:
        """Return what `asked` returns, or what arrives for `key` before; then `asked` is cancelled."""
        arriving: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting[key] = arriving
        asking = asyncio.ensure_future(asked)
        try:
            if self.on_wait is not None:
                self.on_wait()
            await asyncio.wait((asking, arriving), return_when=asyncio.FIRST_COMPLETED)
            return arriving.result() if arriving.done() else asking.result()
        finally:
            del self._waiting[key]
            if not asking.done():
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    def settle_all(self, bodies: Iterable[e.DurableBody]) -> None:
        """Pass on the answers and decisions in events, which are recorded already."""
        for body in bodies:
            if isinstance(body, e.QuestionAnswered):
                self.settle(body.question_id, to_answer(body.text))
            elif isinstance(body, e.ApprovalDecided):
                self.settle(body.call_id, Decision(body.is_approved, body.reason, body.arguments))

    def settle(self, key: str, value: object) -> None:
        """Pass on the answer or decision for `key`, which is recorded already."""
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            self._arrived.add(key)
            waiting.set_result(value)

    def has_recorded(self, key: str) -> bool:
        """Return whether the answer or decision that `first` returned for `key` was recorded already."""
        return key in self._arrived
