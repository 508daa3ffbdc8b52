"""Attachments: files that are sent to the model with the user's message."""

import mimetypes
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from treadle.core.errors import ConfigError
from treadle.core.parts import make_part
from treadle.core.types import Artifact

MAX_ATTACHMENT_BYTES = 50 * 1024 * 1024
"""The largest file that can be attached."""

Attachable: TypeAlias = str | Path | Artifact
"""The path of a file, or a part with its content inline."""


def read_attachments(items: Iterable[Attachable]) -> tuple[tuple[Artifact, ...], dict[str, bytes]]:
    """Return the parts for a message, and a mapping of hash to content for the store.

    The ending of a file's name determines its type; a file without a known ending counts as text if it is UTF-8.

    Raises: `ConfigError` for a file that cannot be read, is too large, or has no known type.
    """
    parts: list[Artifact] = []
    blobs: dict[str, bytes] = {}
    for item in items:
        if isinstance(item, Artifact):
            parts.append(item)
            continue
        part, contents = _read(Path(item))
        parts.append(part)
        blobs |= contents
    return tuple(parts), blobs


def _read(path: Path) -> tuple[Artifact, dict[str, bytes]]:
    mime_type, _ = mimetypes.guess_type(path.name)
    try:
        if path.stat().st_size > MAX_ATTACHMENT_BYTES:
            size = f"{path.stat().st_size:,} bytes"
            raise ConfigError(f"cannot attach {str(path)!r}: it has {size}, over {MAX_ATTACHMENT_BYTES:,}")
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot attach {str(path)!r}: {error.strerror}") from error
    if mime_type is None:
        try:
            content.decode()
        except UnicodeDecodeError:
            raise ConfigError(
                f"cannot attach {str(path)!r}: the file name does not tell its type; give it an ending such as .png"
            ) from None
        mime_type = "text/plain"
    return make_part(content, mime_type, name=path.name)
