"""The encoding of messages as turns that alternate between user and model, for APIs that require it."""

from collections.abc import Callable
from typing import TypeAlias

from treadle.core.types import Message, Role
from treadle.models.wire.parts import Contents, Encode

Turns: TypeAlias = tuple[Role | None, tuple[str, ...], bytes]
"""The state between two messages of a transcript.

It consists of the role of the open turn (`None` before the first turn), the system messages so far, which these
APIs take in a separate field, and the elements that still have to be added to a user's turn after the results of
the step.
"""
NO_TURNS: Turns = (None, (), b"")
"""The state before the first message."""


class TurnWriter:
    """A writer of messages as turns. An instance is a function for `Log.join`."""

    def __init__(
        self,
        openers: dict[Role, bytes],
        encode: Encode,
        *,
        merges: Callable[[Role], bool],
        attach: Callable[[Message, Contents], bytes],
    ) -> None:
        """Make a writer.

        `openers` maps each role to the text that begins its turn; roles with the same object share turns.
        `encode` returns the elements of a message, joined by commas. `merges` says whether consecutive messages
        of a role share a turn. `attach` returns the elements of a user's turn for the parts that `encode` leaves
        out of a message.
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
            return (last, instructions, waiting), b""
        elements = self._encode(message, contents)
        written = self._join(last, role, elements) if elements else b""
        if waiting and role is not Role.TOOL:
            written = self._join(last, Role.USER, waiting)
            if elements:
                written += self._join(Role.USER, role, elements)
            last, waiting = Role.USER, b""
        if elements:
            last = role
        if message.parts and role is not Role.USER and (more := self._attach(message, contents)):
            waiting = waiting + b"," + more if waiting else more
        return (last, instructions, waiting), written

    def close(self, state: Turns) -> bytes:
        """Return the text that ends the list of turns after the last message."""
        last, _, waiting = state
        if waiting:
            return self._join(last, Role.USER, waiting) + b"]}]"
        return b"]" if last is None else b"]}]"

    def _join(self, last: Role | None, role: Role, elements: bytes) -> bytes:
        """Return `elements` with the separators that must come before them."""
        if last is None:
            return self._openers[role] + elements
        if self._openers[role] is self._openers[last] and self._merges(role) and self._merges(last):
            return b"," + elements
        return self._next[role] + elements
