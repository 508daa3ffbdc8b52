"""Paths in a sandbox: relative to the root, with `/` between the parts.

Every path from a model, a user or a folder on disk is normalised here. A normalised path can be joined to any
folder on disk without leaving that folder.
"""

from functools import lru_cache

from treadle.core.errors import SandboxError

MAX_PATH_BYTES = 4096
MAX_PART_BYTES = 255


@lru_cache(maxsize=1024)
def normalize_file(path: str) -> str:
    """Return the normalised path of a file. A leading `/` or `./` stands for the root.

    Raises: `SandboxError` for a path that leaves the root, names a folder (`""`, `"a/"`, `"a/."`), contains a NUL
    or a backslash, is not valid Unicode, or is longer than file systems allow.
    """
    normal = normalize_folder(path)
    if not normal or path.rpartition("/")[2] in ("", ".", ".."):
        raise SandboxError(f"{path!r} names a folder, not a file")
    return normal


@lru_cache(maxsize=1024)
def normalize_folder(path: str) -> str:
    """Return the normalised path of a folder; `""` is the root. Raises: as `normalize_file`, but takes folders."""
    _check_text(path)
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if not parts:
                raise SandboxError(f"{path!r} leaves the sandbox's root; '..' may not go above it")
            parts.pop()
        elif part not in ("", "."):
            if len(part.encode()) > MAX_PART_BYTES:
                raise SandboxError(f"{_shorten(path)} has a name of more than {MAX_PART_BYTES} bytes")
            parts.append(part)
    return "/".join(parts)


def folders_of(path: str) -> list[str]:
    """Return the parent folders of a normalised path, outermost first, without the root."""
    folders = []
    end = path.find("/")
    while end != -1:
        folders.append(path[:end])
        end = path.find("/", end + 1)
    return folders


def _check_text(path: str) -> None:
    try:
        size_bytes = len(path.encode())
    except UnicodeEncodeError:
        raise SandboxError(f"{path!r} is not valid Unicode, so it cannot name a file") from None
    if size_bytes > MAX_PATH_BYTES:
        raise SandboxError(f"{_shorten(path)} is longer than {MAX_PATH_BYTES} bytes")
    if "\0" in path:
        raise SandboxError(f"{path!r} contains a NUL character, so it cannot name a file")
    if "\\" in path:
        raise SandboxError(f"{path!r} contains a backslash; separate the parts of a path with '/'")


def _shorten(path: str) -> str:
    return f"the path that begins with {path[:80]!r}"
