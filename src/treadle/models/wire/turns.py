"""Messages as turns that alternate between user and model, for APIs that want them so."""

from collections.abc import Callable
from typing import NamedTuple

from treadle.core.types import Message, Role
from treadle.models.wire.parts import Contents, Encode


class Turns(NamedTuple):
    """The state between two messages of a transcript."""

    last: Role | None = None
    """The role of the turn that is open; `None` before the first one."""
    instructions: tuple[str, ...] = ()
    """The system messages so far, which these APIs take in a field of their own."""
    waiting: bytes = b""
    """What is still to follow in a turn of the user, once the results of the step are there."""


class TurnWriter:
    """Writes messages as turns; an instance is a function for `Log.scan`."""

    def __init__(
        self,
        openers: dict[Role, bytes],
        encode: Encode,
        *,
        merges: Callable[[Role], bool],
        attach: Callable[[Message, Contents], bytes],
    ) -> None:
        """Make a writer.

        `openers` says how the turn of each role begins, up to its first element; `encode` gives the elements of a
        message, joined by commas; `merges` says whether consecutive messages of a role share a turn; `attach` gives
        the elements of a user's turn that hold those parts of a message which `encode` leaves out.
        """
        self._openers = openers
        self._next = {role: b"]}," + opener for role, opener in openers.items()}
        self._encode = encode
        self._merges = merges
        self._attach = attach

    def __call__(self, state: Turns, message: Message, contents: Contents) -> tuple[Turns, bytes]:
        """Return the next state, and what the message adds to the request body."""
        last, instructions, waiting = state
        role = message.role
        if role is Role.SYSTEM:
            if message.content.strip():
                instructions = (*instructions, message.content)
            return Turns(last, instructions, waiting), b""
        written = b""
        if waiting and role is not Role.TOOL:
            written, last = self._join(last, Role.USER, waiting)
            waiting = b""
        if elements := self._encode(message, contents):
            more, last = self._join(last, role, elements)
            written += more
        if message.parts and role is not Role.USER and (more := self._attach(message, contents)):
            waiting = waiting + b"," + more if waiting else more
        return Turns(last, instructions, waiting), written

    def close(self, state: Turns) -> bytes:
        """Return what ends the list of turns after the last message."""
        written, last = (
            self._join(state.last, Role.USER, state.waiting) if state.waiting else (b"", state.last)
        )
        return written + (b"]}]" if last is not None else b"]")

    def _join(self, last: Role | None, role: Role, elements: bytes) -> tuple[bytes, Role]:
        """Return `elements` with what stands before them, and the role of the turn that they are in."""
        if last is None:
            return self._openers[role] + elements, role
        if self._openers[role] == self._openers[last] and self._merges(role) and self._merges(last):
            return b"," + elements, role
        return self._next[role] + elements, role
