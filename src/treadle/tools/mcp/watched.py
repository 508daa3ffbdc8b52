"""The two streams of a session, watched: each request gets an answer even if the server's cannot be read.

The SDK would let a request wait for its time limit if its answer is not valid or has no usable id.
"""

from collections.abc import Callable
from typing import Any, Self

from treadle.core.registry import require
from treadle.tools.mcp.failure import message_of
from treadle.tools.mcp.translation import find_answer, mend_listing, mend_text

_ENDLESS = frozenset({"subscriptions/listen"})
"""Requests that get no answer while all is well."""


class _Stream:
    """A stream of the SDK, whose attributes it has."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *args: Any) -> Any:
        return await self._inner.__aexit__(*args)


class Watched(_Stream):
    """A stream of messages that reports its end and corrects messages that the SDK would refuse.

    An answer that cannot be read becomes an error of its request. If it does not say which request that is, it
    belongs to the one of those it may answer that is left over when the others have been answered.
    """

    def __init__(self, inner: Any, on_end: Callable[[], None]) -> None:
        super().__init__(inner)
        self._on_end = on_end
        self._open: dict[int | str, None] = {}
        """The requests without an answer, in the order of sending."""
        self._orphans: list[tuple[set[int | str], Any]] = []
        """The errors of requests that are not known yet: the requests that they may belong to, and the error."""
        self.ready: list[Any] = []
        """Messages that come before the next one of the stream."""

    def __aiter__(self) -> "Watched":
        return self

    async def __anext__(self) -> Any:
        while not self.ready:
            try:
                item = await self._inner.__anext__()
            except StopAsyncIteration:
                self._on_end()
                raise
            self.read(item)
        return self.ready.pop(0)

    def note_sent(self, message: Any) -> None:
        """Note a message to the server."""
        number, method = getattr(message, "id", None), getattr(message, "method", None)
        if method == "notifications/cancelled":
            self._settle((message.params or {}).get("requestId"))
        elif number is not None and method is not None and method not in _ENDLESS:
            self._open[number] = None

    def read(self, item: Any) -> None:
        """Take in a message of the server, or the error of one that is not valid."""
        if isinstance(item, ValueError):
            item = mend_text(item) or item
        message: Any = getattr(item, "message", None)
        if isinstance(item, ValueError) and (found := find_answer(item)) is not None:
            told = f"what it answers does not follow the protocol ({message_of(item)})"
            types = require("mcp_types", "mcp")
            self._fail(found.number, types.ErrorData(code=types.INTERNAL_ERROR, message=told))
            return
        if getattr(message, "error", None) is not None and message.id is None:
            self._fail(None, message.error)
            return
        result = getattr(message, "result", None)
        if isinstance(result, dict) and isinstance(result.get("tools"), list):
            mend_listing(result)
        self.ready.append(item)
        if not hasattr(message, "method"):
            self._settle(getattr(message, "id", None))

    def _fail(self, number: int | str | None, error: Any) -> None:
        if number is not None:
            self.ready.append(_refuse(number, error))
            self._settle(number)
        elif self._open:
            self._orphans.append((set(self._open), error))
            self._place()

    def _settle(self, number: Any) -> None:
        """Note that a request has its answer, or needs none any more."""
        if isinstance(number, str) and number.isdecimal() and number not in self._open:
            number = int(number)
        self._open.pop(number, None)
        for candidates, _ in self._orphans:
            candidates.discard(number)
        self._place()

    def _place(self) -> None:
        """Give the errors to the requests that they must belong to: as many as there are errors."""
        wanted = set().union(*[candidates for candidates, _ in self._orphans])
        if len(wanted) > len(self._orphans):
            return
        errors, self._orphans = [error for _, error in self._orphans], []
        for number, error in zip([item for item in self._open if item in wanted], errors, strict=False):
            del self._open[number]
            self.ready.append(_refuse(number, error))


class WatchedSender(_Stream):
    """The stream of messages to the server, which tells the other stream what is sent."""

    def __init__(self, inner: Any, received: Watched) -> None:
        super().__init__(inner)
        self._received = received

    async def send(self, item: Any) -> None:
        self._received.note_sent(item.message)
        await self._inner.send(item)


def _refuse(number: int | str, error: Any) -> Any:
    types, shared = require("mcp_types", "mcp"), require("mcp.shared.message", "mcp")
    return shared.SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=number, error=error))
