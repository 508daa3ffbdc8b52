"""The protocol of transports: a POST with a complete or a streamed answer, and a GET.

Every failure below HTTP is raised as a `TransportError` that names the server and says what to check. The caller
has to check the status of an answer. Headers never appear in an error or a repr.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""The largest body that is read, after decompression."""


class Answer(Struct, frozen=True, gc=False):
    """A whole answer, with any status."""

    status: int
    body: bytes
    header: Callable[[str], str | None]
    """Return the first header with this name, in any case; `None` if the answer has no such header."""


class StreamedAnswer(Struct, frozen=True):
    """An answer, with any status, whose body is still arriving."""

    status: int
    header: Callable[[str], str | None]
    """Return the first header with this name, in any case; `None` if the answer has no such header."""
    chunks: AsyncIterator[bytes]
    """The body as it arrives, in pieces of any size."""


class Transport(Protocol):
    """A sender of HTTP requests."""

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Awaitable[Answer]:
        """Return the whole answer to a POST.

        Raises: `TransportError` if no answer came, or only a part of one; `ConfigError` for an invalid URL or
        header.
        """

    def get(self, url: str, headers: Mapping[str, str]) -> Awaitable[Answer]:
        """Return the whole answer to a GET. Raises: as `post`."""

    def stream(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> AbstractAsyncContextManager[StreamedAnswer]:
        """Send a POST and return its answer piece by piece.

        Leaving the context before the end of the body closes the connection. Raises: as `post`, on entering the
        context and from `chunks`.
        """
