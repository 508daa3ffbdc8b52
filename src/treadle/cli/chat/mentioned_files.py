"""The files that a message names: they are sent with it."""

import re
from pathlib import Path
from urllib.parse import unquote

_MAX_PATH_CHARS = 4096
_ENDS = ".,;:!?)"
"""The marks that may end a sentence with the name of a file."""
_NAMED = re.compile(r"""(?<!\S)@(?:'([^'\n]+)'|"([^"\n]+)"|((?:\\ |[^\s@'"])(?:\\ |[^\s@])*))""")


def as_file(text: str) -> str | None:
    """Return the path that a message consists of, as of a file dropped on a terminal; `None` if it is none."""
    name = text
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        name = text[1:-1]
    elif text.startswith("file://"):
        name = unquote(text.removeprefix("file://"))
    elif "\\ " in text:
        name = text.replace("\\ ", " ")
    is_path = "/" in name and "\n" not in name and len(name) < _MAX_PATH_CHARS
    return name if is_path and Path(name).expanduser().is_file() else None


def find_files(text: str) -> tuple[list[Path], list[str]]:
    r"""Return the files that a message names as `@path`, `@'a path'` or `@a\ path`, and names of no file."""
    found: list[Path] = []
    missing: list[str] = []
    for quoted, double, plain in _NAMED.findall(text):
        name = quoted or double or plain.replace("\\ ", " ")
        paths = [Path(item).expanduser() for item in (name, name.rstrip(_ENDS)) if item]
        path = next((path for path in paths if len(name) < _MAX_PATH_CHARS and path.is_file()), None)
        if path is not None:
            found.append(path)
        elif "/" in name or Path(name.rstrip(_ENDS)).suffix:
            missing.append(name.rstrip(_ENDS))
    return found, missing
