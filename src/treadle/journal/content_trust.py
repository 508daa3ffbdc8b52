"""The user's trust in files that were found or came from elsewhere: skills, personas and configurations.

An answer of the user is a file in his state folder, named after the kind of the file and the hash of its content.
A changed content has another hash, so he is asked again.
"""

import os
import tempfile
from enum import StrEnum
from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.journal.identity import state_folder


class Trust(StrEnum):
    """The user's trust in a content."""

    UNTRUSTED = "untrusted"
    """The user has not decided about the content, and is asked before it is used."""
    ALLOWED = "allowed"
    """The user allowed the use of the content, and does not vouch for it: the model gets it as data."""
    TRUSTED = "trusted"
    """The user vouches for the content: the model gets it as instructions."""
    BUILTIN = "builtin"
    """The content is part of Treadle."""


def belongs_to_user(path: Path | int) -> bool:
    """Return whether a file or an open descriptor belongs to this user. Where files have no owners, all do."""
    return not hasattr(os, "geteuid") or os.stat(path).st_uid == os.geteuid()


def read_trust(kind: str, digest: str) -> Trust:
    """Return what the user has said about the content with this hash. `kind` is `skill`, `persona` or
    `configuration`."""
    try:
        said = _place_of(kind, digest).read_text("utf-8").partition(" ")[0]
    except (OSError, RuntimeError, UnicodeError):
        return Trust.UNTRUSTED
    return Trust(said) if said in (Trust.ALLOWED, Trust.TRUSTED) else Trust.UNTRUSTED


def record_trust(kind: str, digest: str, trust: Trust, name: str) -> None:
    """Record what the user says about the content with this hash. `name` is kept for readers of the file.

    Raises: `ConfigError` if it cannot be recorded.
    """
    try:
        place = _place_of(kind, digest)
        if trust is Trust.UNTRUSTED:
            place.unlink(missing_ok=True)
            return
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(dir=place.parent)
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(f"{trust} {name}\n")
        os.replace(path, place)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"the trust in the {kind} {name!r} cannot be recorded: {error}") from error


def _place_of(kind: str, digest: str) -> Path:
    return state_folder() / "trust" / f"{kind}-{digest}"
