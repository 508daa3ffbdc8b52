"""The files that a message names, which are sent with it."""

import re
from pathlib import Path
from urllib.parse import unquote

_MAX_PATH_CHARS = 4096


def as_file(text: str) -> str | None:
    """Return the path that a message consists of, as terminals paste it when a file is dropped; else `None`."""
    name = text
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        name = text[1:-1]
    elif text.startswith("file://"):
        name = unquote(text.removeprefix("file://"))
    elif "\\ " in text:
        name = text.replace("\\ ", " ")
    is_path = "/" in name and "\n" not in name and len(name) < _MAX_PATH_CHARS
    return name if is_path and Path(name).expanduser().is_file() else None


def find_files(text: str) -> list[Path]:
    """Return the files that a message names as `@path`."""
    found: list[Path] = []
    for name in re.findall(r"(?<!\S)@([^\s@]+)", text):
        # A sentence may end with the name.
        paths = [Path(item).expanduser() for item in (name, name.rstrip(".,;:!?)")) if item]
        found += [path for path in paths if len(name) < _MAX_PATH_CHARS and path.is_file()][:1]
    return list(dict.fromkeys(found))
