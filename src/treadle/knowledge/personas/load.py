"""The reading of a persona's file. All mistakes in it are reported together, each with its line.

The file may come from elsewhere. Reading it starts, imports, opens and sends nothing.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.core.places import Document, KeyPath, Problem, parse_document
from treadle.core.registry import did_you_mean
from treadle.core.types import Json
from treadle.tools.resolve import FILE, REFERENCE, TOOLSETS, place_in

MAX_BYTES = 1_000_000
"""The size limit of a persona's file."""
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def read_persona(path: str | Path) -> tuple[Document, dict[str, Json], list[Problem]]:
    """Return the content of a persona's file, the same content with absolute paths, and the mistakes that the
    pydantic models cannot find. Raises: `ConfigError` for a file that cannot be read, or that is not a mapping."""
    file = Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the persona {str(file)!r}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"the persona {str(file)!r} has more than {MAX_BYTES:,} bytes; put long texts into `documents`"
        )
    document = parse_document(data, str(file))
    value = document.value
    problems = [*document.duplicates(), *_find_unprintable(value, ()), *_find_wrong_names(value)]
    return document, _place(value, file.parent.absolute()), problems


def _place(value: dict[str, Json], folder: Path) -> dict[str, Json]:
    """Return `value` with its paths relative to `folder`."""
    placed = dict(value)
    if isinstance(tools := value.get("tools"), list):
        placed["tools"] = [place_in(item, folder) for item in tools]
    for key in ("skills", "documents"):
        if isinstance(paths := value.get(key), list):
            placed[key] = [
                str(folder / Path(item).expanduser()) if isinstance(item, str) and item else item
                for item in paths
            ]
    return placed


def _find_unprintable(value: Json, path: KeyPath) -> Iterator[Problem]:
    """Yield a problem for each text that has control characters, or is not valid Unicode."""
    if isinstance(value, str) and (found := _UNPRINTABLE.search(value)):
        yield Problem(path, f"the character {found[0]!r} cannot be used in a text; delete it")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _find_unprintable(item, (*path, key))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _find_unprintable(item, (*path, position))


def _find_wrong_names(value: dict[str, Json]) -> Iterator[Problem]:
    """Yield a problem for each toolset that does not exist."""
    tools = value.get("tools")
    for position, item in enumerate(tools if isinstance(tools, list) else ()):
        name = item.get("name") if isinstance(item, dict) else item
        if isinstance(name, str) and name.strip() and (fault := _check_toolset(name)):
            yield Problem(("tools", position), fault)


def _check_toolset(name: str) -> str | None:
    """Return what is wrong with the name of a toolset, without loading it; `None` if it may exist."""
    kind, colon, _ = name.partition(":")
    if name in TOOLSETS or (colon and f"{kind}:" in TOOLSETS):
        return None
    if FILE.fullmatch(name) or REFERENCE.fullmatch(name):
        return None
    known = [item.rstrip(":") for item in TOOLSETS.names()]
    return f"{name!r:.60} is no toolset{did_you_mean(kind, known) or ';'} known are {', '.join(known)}"
