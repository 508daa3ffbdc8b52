"""What this user wrote or trusts: journal files, their runs, and files of skills, personas and configurations.

A proof in the file is a seal: a code that only the user's secret makes. The secret is TREADLE_SECRET, or a file in
the user's state folder.

Where the system has extended attributes, such an attribute of the file is a second proof. The attribute is lost
when the file is copied to another machine. It remains when a container gets a new home folder with another secret.

An answer of the user about a file that was found is a file in the state folder, named after its kind and the hash
of its content. A changed content has another hash, so the user is asked again.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import sys
import tempfile
from enum import StrEnum
from pathlib import Path

from treadle.core.errors import ConfigError

VARIABLE = "TREADLE_SECRET"
_ATTRIBUTE = "user.treadle.origin"
_SECRET_BYTES = 32


def make_seal(*texts: str) -> str:
    """Return a seal over `texts`, which `is_sealed` accepts; "" if this user has no place for a secret."""
    return _seal(_read_secret() or _make_secret(), texts)


def is_sealed(seal: str, *texts: str) -> bool:
    """Return whether this user made `seal` over `texts`."""
    return bool(seal) and hmac.compare_digest(seal.encode(), _seal(_read_secret(), texts).encode())


def mark_place(path: Path, origin: str) -> None:
    """Set the attribute that says that the file at `path` was made here."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setxattr(path, _ATTRIBUTE, origin.encode())


def is_marked(path: Path, origin: str) -> bool:
    """Return whether the file at `path` has the attribute that `mark_place` sets."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return os.getxattr(path, _ATTRIBUTE) == origin.encode()
    return False


def _seal(secret: bytes | None, texts: tuple[str, ...]) -> str:
    if secret is None:
        return ""
    joined = "\0".join(texts).encode(errors="surrogatepass")
    return hmac.new(secret, joined, hashlib.sha256).hexdigest()


def state_folder() -> Path:
    """Return the folder of what Treadle keeps for this user: `treadle` in XDG_STATE_HOME, by default
    `~/.local/state`.

    Raises: `RuntimeError` if the user has no home.
    """
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "treadle"


def _secret_path() -> Path | None:
    """Return the path of the file with the secret; `None` if the user has no home folder."""
    try:
        return state_folder() / "secret"
    except RuntimeError:
        return None


def _read_secret() -> bytes | None:
    if given := os.environ.get(VARIABLE):
        return given.encode()
    path = _secret_path()
    with contextlib.suppress(OSError):
        found = path.read_bytes() if path is not None else b""
        return found if len(found) == _SECRET_BYTES else None
    return None


def _make_secret() -> bytes | None:
    """Write a new secret, unless another process does so first, and return the secret in the file."""
    path = _secret_path()
    if path is not None:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The file appears only with its content: other processes may read it at any time.
            with tempfile.NamedTemporaryFile(dir=path.parent) as file:
                file.write(secrets.token_bytes(_SECRET_BYTES))
                file.flush()
                os.link(file.name, path)
    return _read_secret()


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
    """Return what the user has said about a content. `kind` is `skill`, `persona` or `configuration`."""
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
