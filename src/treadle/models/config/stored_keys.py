"""API keys that `treadle models set-key` stored, by the names of their environment variables.

A key is in the system's keyring if there is one and the package keyring is installed, otherwise in a file that
only its owner can read. The file also lists the keys in the keyring, so that the keyring is only opened if
necessary. The environment takes precedence over both.
"""

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from treadle.core.errors import ConfigError
from treadle.journal.identity import belongs_to_user

_SERVICE = "treadle"
_IN_KEYRING = ""
"""The entry of a key that is in the keyring."""


def key_file() -> Path:
    """Return the path of the file with keys: `treadle/keys.json` in XDG_CONFIG_HOME, by default `~/.config`."""
    given = os.environ.get("XDG_CONFIG_HOME")
    return (Path(given) if given else Path("~/.config").expanduser()) / "treadle" / "keys.json"


def find_key(variable: str) -> str | None:
    """Return the key of an environment variable, from the environment or from where it was stored; `None` if there
    is none.

    Raises: `ConfigError` if the stored key cannot be read.
    """
    if found := os.environ.get(variable):
        return found
    entry = _read().get(variable)
    return _read_keyring(variable) if entry == _IN_KEYRING else entry


def where_is_key(variable: str) -> str | None:
    """Return where an environment variable's key is: `the environment`, `the keyring` or a path; else `None`."""
    if os.environ.get(variable):
        return "the environment"
    entry = _read().get(variable)
    return None if entry is None else "the keyring" if entry == _IN_KEYRING else str(key_file())


def store_key(variable: str, key: str, *, in_file: bool = False) -> str:
    """Store a key, and return where it is, as `where_is_key` does.

    With `in_file` the keyring is not used. Raises: `ConfigError` if the key cannot be stored.
    """
    is_in_keyring = not in_file and _write_keyring(variable, key)
    _write(_read() | {variable: _IN_KEYRING if is_in_keyring else key})
    return "the keyring" if is_in_keyring else str(key_file())


def delete_key(variable: str) -> bool:
    """Delete a stored key. Return False if there was none. Raises: `ConfigError` if it cannot be deleted."""
    entries = _read()
    entry = entries.pop(variable, None)
    if entry is None:
        return False
    if entry == _IN_KEYRING:
        with suppress(ImportError):
            import keyring

            with suppress(keyring.errors.KeyringError):
                keyring.delete_password(_SERVICE, variable)
    _write(entries)
    return True


def _write_keyring(variable: str, key: str) -> bool:
    """Store a key in the keyring. Return False if there is no keyring."""
    try:
        import keyring
    except ImportError:
        return False
    with suppress(keyring.errors.KeyringError, RuntimeError):
        keyring.set_password(_SERVICE, variable, key)
        return keyring.get_password(_SERVICE, variable) == key
    return False


def _read_keyring(variable: str) -> str | None:
    try:
        import keyring
    except ImportError:
        raise ConfigError(
            f"the key {variable} is in the system's keyring, and the package for it is missing: "
            'pip install "treadle[keyring]"'
        ) from None
    try:
        key: str | None = keyring.get_password(_SERVICE, variable)
    except (keyring.errors.KeyringError, RuntimeError) as error:
        raise ConfigError(f"cannot read {variable} from the system's keyring: {error}") from error
    return key


def _read() -> dict[str, str]:
    """Return the entries of the file. Raises: `ConfigError` if others can read it, or it is malformed."""
    try:
        path = key_file()
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            is_own = belongs_to_user(file.fileno())
            text = file.read()
    except (FileNotFoundError, NotADirectoryError, RuntimeError):  # RuntimeError: there is no home folder
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read the API keys in {str(key_file())!r}: {error.strerror}") from error
    if not is_own:
        raise ConfigError(
            f"the API keys in {str(path)!r} belong to another user; set your own XDG_CONFIG_HOME"
        )
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(f"other users can read the API keys in {str(path)!r}; run: chmod 600 {path}")
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ConfigError(
            f"{str(path)!r} is not a file of API keys; delete it, and set the keys again"
        ) from None


def _write(entries: dict[str, str]) -> None:
    """Replace the file, whose mode is 0600 from the beginning."""
    try:
        path = key_file()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".keys-")
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(entries, file, indent=1)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except RuntimeError as error:
        raise ConfigError("there is no home folder to store the key in; set XDG_CONFIG_HOME") from error
    except OSError as error:
        raise ConfigError(f"cannot store the key in {str(key_file())!r}: {error.strerror}") from error
