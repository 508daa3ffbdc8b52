"""The encoding of messages: their parts (text files, images, audio), and turns that have to alternate."""

import base64
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeAlias

from treadle.core.errors import UnsupportedPartError
from treadle.core.log import Log
from treadle.core.parts import base64_of, content_of, describe, make_part
from treadle.core.prompts.fence import fence, neutralise_foreign
from treadle.core.prompts.foreign import let_in, make_own
from treadle.core.types import Artifact, Message, Role

Contents: TypeAlias = Mapping[str, bytes]
"""The type of `Request.contents`."""
AcceptedParts: TypeAlias = Mapping[str, frozenset[str] | None]
"""The MIME types that a dialect takes, by the kind of the part; `None`: all. Text files are always taken."""
Encode: TypeAlias = Callable[[Message, Contents], bytes]
Step: TypeAlias = Callable[[bytes | None, Message, Contents], tuple[bytes | None, bytes]]
"""The type of the functions that `with_attached` returns."""

AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
"""The names of audio formats in OpenAI's APIs, by MIME type."""

NO_TEXT = "(no text)"
"""The text that stands for an empty message, because some servers refuse it, or two user messages in a row."""
_EMPTY_ANSWER = b'{"role":"assistant","content":"%b"}' % NO_TEXT.encode()


def text_or_placeholder(content: str) -> str:
    """Return the content of a message without parts and calls, as servers accept it."""
    return NO_TEXT if not content or content.isspace() else content


def check_part(part: Artifact, dialect: str, accepted: AcceptedParts, links: str) -> None:
    """Check that a dialect can send `part`. `links` has the kinds of parts that may be links, with spaces.

    Raises: `UnsupportedPartError` if it cannot.
    """
    if part.kind == "text":
        if part.digest is not None or part.data is not None:
            return
        raise UnsupportedPartError(f"the dialect {dialect} cannot send {describe(part)}: it has no content")
    if part.kind not in accepted:
        kinds = ", ".join(["text", *accepted])
        raise UnsupportedPartError(
            f"the dialect {dialect} cannot send {describe(part)}: it accepts only {kinds}; use a model of another "
            "dialect, or leave the part out"
        )
    if is_link(part) and part.kind not in links.split():
        raise UnsupportedPartError(
            f"the dialect {dialect} cannot send {describe(part)} as a link: give its content, such as by a "
            "data URL"
        )
    if part.size_bytes == 0:
        raise UnsupportedPartError(f"cannot send {describe(part)}: it is empty")
    types = accepted[part.kind]
    if types is not None and part.mime_type not in types and part.uri is None:
        raise UnsupportedPartError(
            f"the dialect {dialect} cannot send {describe(part)}: of {part.kind} parts it accepts only "
            f"{', '.join(sorted(types))}; convert the part, or leave it out"
        )


def is_link(part: Artifact) -> bool:
    """Return whether `part` has a URL instead of content, so that the server has to fetch it."""
    return part.uri is not None and part.digest is None and part.data is None


def data_url(part: Artifact, contents: Contents) -> str:
    """Return the URL of `part`: its own if it is a link, else a `data:` URL with its content."""
    if part.uri is not None and is_link(part):
        return part.uri
    return f"data:{part.mime_type or 'application/octet-stream'};base64,{base64_of(part, contents)}"


def text_of_part(part: Artifact, contents: Contents) -> str:
    """Return the text of a text file between the marks of a document, so that it does not pass for the message."""
    return fence("document", content_of(part, contents).decode(errors="replace"), name=part.name)


def with_files(message: Message, contents: Contents) -> Message:
    """Return the message let in, with its parts, which must be text files, as a part of its content."""
    message = let_in(message)
    if not message.parts:
        return message
    texts = [text_of_part(part, contents) for part in message.parts]
    return make_own(message.role, "\n\n".join([message.content, *texts] if message.content else texts))


def file_name(part: Artifact) -> str:
    """Return a file name for a document, let in. APIs derive its type from the name's ending."""
    return (
        neutralise_foreign(part.name or "")
        or f"document.{(part.mime_type or '').rpartition('/')[2] or 'bin'}"
    )


def attached(message: Message, parts: tuple[Artifact, ...]) -> Message:
    """Return a user message with the parts of a tool or assistant message, and a text that says where they come
    from. The names of the parts are fenced off, because a tool may have chosen them."""
    kinds = fence("result", "\n".join([describe(part) for part in parts]))
    place = "your last answer"
    if message.role is Role.TOOL:
        place = f"the result of {message.name or 'the tool'}, call {message.call_id}"
    return make_own(Role.USER, f"[attached to {place}]\n{kinds}", parts)


def parts_apart(message: Message) -> tuple[Artifact, ...]:
    """Return the parts that cannot be in the message itself, because the API takes parts only from users."""
    return () if message.role is Role.USER or message.role is Role.SYSTEM else message.parts


@lru_cache
def with_attached(
    encode: Encode,
    find_parts: Callable[[Message], tuple[Artifact, ...]] = parts_apart,
    *,
    answers_results: bool = False,
) -> Step:
    """Return a function for `Log.join` that encodes messages for an API which accepts parts only in user messages.

    Each result begins with the comma that separates it from the one before. The parts that `find_parts` returns are
    sent in a user message after all results of the step, because the API requires the results to follow their
    calls. The state is the parts that are still to be sent; `None` before the first message. The function is the
    same for the same `encode`, so that encoded messages can be reused. With `answers_results`, an empty answer
    stands between results and a user's message.
    """

    def step(waiting: bytes | None, message: Message, contents: Contents) -> tuple[bytes | None, bytes]:
        encoded = encode(let_in(message), contents)
        if waiting is None:
            waiting = b""
        elif waiting and message.role is not Role.TOOL:
            if waiting != _EMPTY_ANSWER or message.role is not Role.ASSISTANT:
                encoded = b"%b,%b" % (waiting, encoded)
            encoded, waiting = b"," + encoded, b""
        else:
            encoded = b"," + encoded
        if answers_results and message.role is Role.TOOL:
            waiting = waiting or _EMPTY_ANSWER
        if message.parts and (parts := find_parts(message)):
            more = encode(attached(message, parts), contents)
            waiting = waiting + b"," + more if waiting else more
        return waiting, encoded

    return step


def join_body(prefix: bytes, messages: Log[Message], step: Step, contents: Contents) -> bytes:
    """Return a request body: `prefix`, the messages as `with_attached` encodes them, and the end of both lists."""
    pieces, waiting = messages.join(step, None, contents)
    if waiting and waiting != _EMPTY_ANSWER:
        pieces += [b",", waiting]
    return b"".join([prefix, *pieces, b"]}"])


def part_of_base64(
    data: str, mime_type: str, contents: dict[str, bytes], *, name: str | None = None
) -> Artifact:
    """Return a part for base64. A large content is added to `contents`. Raises: `ValueError` if it is wrong."""
    part, kept = make_part(base64.b64decode(data, validate=True), mime_type, name=name)
    contents.update(kept)
    return part


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
        elements = self._encode(let_in(message), contents)
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
