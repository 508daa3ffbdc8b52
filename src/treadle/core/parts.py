"""Parts of messages, such as images: how to make them from content, and how to get the content back.

A part of up to `MAX_INLINE_BYTES` holds its content. A larger part holds only the hash, and the store keeps the
content.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.log import Log
from treadle.core.types import Artifact, Message, Role

MAX_INLINE_BYTES = 4096
"""The largest content that a part holds itself."""
_SHOWN = ("image", "audio", "document")
"""The kinds of artifacts of a tool result that are sent to the model."""
_TEXT_TYPES = frozenset(
    ("json", "jsonl", "javascript", "sql", "toml", "x-ndjson", "x-sh", "x-yaml", "xml", "yaml")
)
"""The types below `application/` that are text."""


def kind_of(mime_type: str) -> str:
    """Return the kind of a part with content of `mime_type`: `text`, `image`, `audio` or `document`."""
    stem = mime_type.partition("/")[0]
    if stem in ("image", "audio"):
        return stem
    plain = mime_type.partition(";")[0].strip().lower()
    is_text = stem == "text" or plain.removeprefix("application/") in _TEXT_TYPES
    return "text" if is_text else "document"


def make_part(
    content: bytes, mime_type: str, *, name: str | None = None, kind: str | None = None
) -> tuple[Artifact, dict[str, bytes]]:
    """Return a part with `content`, and a mapping of hash to content for the store; empty if the part is inline."""
    digest = hashlib.sha256(content).hexdigest()
    is_inline = len(content) <= MAX_INLINE_BYTES
    data = base64.b64encode(content).decode() if is_inline else None
    part = Artifact(kind or kind_of(mime_type), digest, len(content), mime_type, None, name, data)
    return part, {} if is_inline else {digest: content}


def content_of(part: Artifact, contents: Mapping[str, bytes]) -> bytes:
    """Return the content of `part`, inline or from `contents`.

    Raises: `ConfigError` if the content is in neither, or if inline content is not base64.
    """
    if part.data is not None:
        try:
            return base64.b64decode(part.data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ConfigError(f"the data of {describe(part)} is not base64 ({error})") from error
    try:
        return contents[part.digest or ""]
    except KeyError:
        raise ConfigError(
            f"the content of {describe(part)} is missing; give it with the message, or set `data`"
        ) from None


def base64_of(part: Artifact, contents: Mapping[str, bytes]) -> str:
    """Return the content of `part` as base64. Raises: `ConfigError` if the content is missing."""
    return part.data if part.data is not None else base64.b64encode(content_of(part, contents)).decode()


def describe(part: Artifact) -> str:
    """Return a short text that names `part` in messages to people, such as `image 'a.png' (image/png)`."""
    name = f" {part.name!r}" if part.name else ""
    return f"{part.kind}{name} ({part.mime_type or 'unknown type'})"


def parts_among(artifacts: Iterable[Artifact]) -> tuple[Artifact, ...]:
    """Return the artifacts of a tool result that go to the model as parts of the tool message.

    These are images, audio and documents. A `resource` counts as one of them if its MIME type says so.
    """
    found: list[Artifact] = []
    for item in artifacts:
        if item.kind in _SHOWN:
            found.append(item)
        elif item.kind == "resource" and item.digest is not None and item.mime_type is not None:
            kind = kind_of(item.mime_type)
            if kind in ("image", "audio") or item.mime_type == "application/pdf":
                found.append(replace(item, kind=kind))
    return tuple(found)


def digests_of_parts(messages: Log[Message]) -> Log[str]:
    """Return the hashes of all contents that a request with `messages` may need; computed once per history."""
    return messages.derive(_digests)


def _digests(messages: list[Message], _is_first: bool) -> list[str]:
    return [
        part.digest
        for message in messages
        for part in message.parts
        if part.digest is not None and part.data is None
    ]


def leave_out_refused(messages: Sequence[Message]) -> list[Message]:
    """Return `messages` with a note in place of the images and other files that came after the last answer.

    A server that refused a request with them would refuse all later ones too.
    """
    end = len(messages)
    while end and messages[end - 1].role is not Role.ASSISTANT:
        end -= 1
    return [message if at < end else _without_files(message) for at, message in enumerate(messages)]


def _without_files(message: Message) -> Message:
    kept = tuple([part for part in message.parts if part.kind not in _SHOWN])
    if len(kept) == len(message.parts):
        return message
    names = ", ".join([part.name or part.kind for part in message.parts if part.kind in _SHOWN])
    note = f"[{names}: left out, because the request with it was refused]"
    return replace(message, content=f"{message.content}\n\n{note}", parts=kept)
