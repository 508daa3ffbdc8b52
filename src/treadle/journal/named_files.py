"""Files and folders that people name: their content, and errors with the nearest name that exists."""

import os
from itertools import islice
from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean, find_near

_MAX_NAMES = 2000
"""How many files of a folder are compared."""


def suggest_path(path: str | os.PathLike[str], otherwise: str = "") -> str:
    """Return the end of an error message about a path that may not exist: the nearest names in its folder, or the
    folder that does not exist either, or is a file. If the path exists, or no name is near, `otherwise` ends it."""
    place = Path(os.path.expanduser(path))
    folder = place.parent
    if os.path.lexists(place):
        return otherwise and f"; {otherwise}"
    if not folder.is_dir():
        if os.path.lexists(folder):
            return f"; {str(folder)!r} is not a folder"
        return f"; there is no folder {str(folder)!r}{suggest_path(folder, otherwise)}"
    try:
        found = [item for item in islice(folder.iterdir(), _MAX_NAMES) if item.name[0] != "."]
        # Two names are not alike because they end in the same way.
        names = [item.name for item in found if find_near(place.stem, [item.stem])]
    except OSError:
        names = []
    return did_you_mean(place.name, names, otherwise)


def explain_unread(what: str, path: str | os.PathLike[str], error: OSError) -> ConfigError:
    """Return the error about a file that cannot be read. `what` says what it holds, as in `the topics of `."""
    return ConfigError(f"cannot read {what}{os.fspath(path)!r}: {error.strerror}{suggest_path(path)}")


def read_named(what: str, path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file. Raises: `ConfigError`, as `explain_unread` makes it."""
    try:
        return Path(os.path.expanduser(path)).read_bytes()
    except OSError as error:
        raise explain_unread(what, path, error) from error
