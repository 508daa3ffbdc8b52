"""Folders with untrusted content: walking, measuring and removing them without following links.

All functions go from open folder to open folder. So nothing outside is reached, even while the untrusted program
runs, and neither the depth nor the length of paths is a problem.
"""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from treadle.core.errors import SandboxError

MAX_DEPTH = 100
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TooMuchError(SandboxError):
    """Raised if a folder holds more than is allowed."""


class TreeEntry(Struct, frozen=True):
    """One file, folder or link."""

    path: str
    """The path relative to the root of the walk. Bytes that are not UTF-8 are lone surrogates."""
    name: str
    folder_fd: int
    """The parent folder, which is open until the walk continues."""
    status: os.stat_result


def walk(root: Path, *, is_quiet: bool = False) -> Iterator[TreeEntry]:
    """Yield everything below `root`, each folder before its content.

    With `is_quiet`, entries that cannot be read are skipped, for folders that change meanwhile. Raises:
    `TooMuchError` if folders are nested more than `MAX_DEPTH` deep; `OSError`.
    """
    stack = [("", open_folder(str(root)))]
    entries = [os.scandir(stack[0][1])]
    try:
        while stack:
            prefix, fd = stack[-1]
            entry = next(entries[-1], None)
            if entry is None:
                entries.pop().close()
                os.close(stack.pop()[1])
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                yield TreeEntry(prefix + entry.name, entry.name, fd, status)
                if not stat.S_ISDIR(status.st_mode):
                    continue
                if len(stack) == MAX_DEPTH:
                    raise TooMuchError(f"folders are nested more than {MAX_DEPTH} deep")
                inner = open_folder(entry.name, fd)
                stack.append((f"{prefix}{entry.name}/", inner))
                entries.append(os.scandir(inner))
            except TooMuchError:
                raise
            except OSError:
                if not is_quiet:
                    raise
    finally:
        for iterator in entries:
            iterator.close()
        for _, fd in stack:
            os.close(fd)


def open_folder(name: str, folder_fd: int | None = None) -> int:
    """Open a folder for reading, even if its mode forbids that. Raises: `OSError`."""
    try:
        return os.open(name, _OPEN, dir_fd=folder_fd)
    except PermissionError:
        return _force_open(name, folder_fd, _OPEN)


def read_file(found: TreeEntry) -> bytes:
    """Return the content of a regular file, even if its mode forbids reading. Raises: `OSError`."""
    # Without O_NONBLOCK, opening a pipe would wait for ever.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(found.name, flags, dir_fd=found.folder_fd)
    except PermissionError:
        fd = _force_open(found.name, found.folder_fd, flags)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise SandboxError(f"{found.path!r} is no longer a regular file")
        return file.read()


def _force_open(name: str, folder_fd: int | None, flags: int) -> int:
    if not hasattr(os, "O_PATH"):
        raise PermissionError(f"{name!r} cannot be read by this user")
    # A thing opened as a path can be changed and reopened; nothing else can be put in its place meanwhile.
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder_fd)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISLNK(mode):
            raise PermissionError(f"{name!r} is a symlink")
        more = 0o700 if stat.S_ISDIR(mode) else 0o400
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(mode) | more)
        return os.open(f"/proc/self/fd/{handle}", flags & ~os.O_NOFOLLOW)
    finally:
        os.close(handle)


def measure(folders: list[Path], max_files: int, max_bytes: int) -> None:
    """Check that `folders` together hold no more than allowed. If they change meanwhile, the check is approximate.

    Raises: `TooMuchError`.
    """
    files = size_bytes = 0
    for folder in folders:
        for found in walk(folder, is_quiet=True):
            files += 1
            size_bytes += size_of(found.status)
            check_size(files, size_bytes, max_files, max_bytes)


def size_of(status: os.stat_result) -> int:
    """Return the size of a file on disk, or its apparent size if that is larger."""
    return max(status.st_size, status.st_blocks * 512) if stat.S_ISREG(status.st_mode) else 0


def check_size(files: int, size_bytes: int, max_files: int, max_bytes: int) -> None:
    """Check the number and the size of files. Raises: `TooMuchError` if one of them is above its limit."""
    if files > max_files:
        raise TooMuchError(f"there are more than {max_files:,} files and folders")
    if size_bytes > max_bytes:
        raise TooMuchError(f"the files hold more than {max_bytes:,} bytes")


def remove_tree(path: Path) -> None:
    """Remove a folder of any depth. No process may run in it any more. Raises: `OSError`."""
    clear_folder(path)
    path.rmdir()


def clear_folder(path: Path) -> None:
    """Remove the content of a folder of any depth. No process may run in it any more. Raises: `OSError`."""
    fd = open_folder(str(path))
    try:
        clear_open(fd)
    finally:
        os.close(fd)


def clear_open(top: int) -> None:
    """Remove the content of an open folder. See `clear_folder`."""
    os.fchmod(top, 0o755)
    number = 0
    while folders := _remove_files(top):
        # Nested folders are moved to the top one by one, so that no path and no stack grows with the depth.
        for name in folders:
            fd = open_folder(name, top)
            try:
                for inner in _remove_files(fd):
                    number = _move_up(inner, fd, top, number)
            finally:
                os.close(fd)
            _remove_empty(name, top)


def _remove_files(fd: int) -> list[str]:
    """Remove everything in an open folder except its subfolders, and return their names."""
    folders: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _make_writable(entry.name, fd)
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=fd)
    return folders


def _remove_empty(name: str, folder_fd: int) -> None:
    try:
        os.rmdir(name, dir_fd=folder_fd)
    except OSError as error:
        # Some file systems omit entries from a listing while others are removed; the next round finds them.
        if error.errno != errno.ENOTEMPTY:
            raise


def _make_writable(name: str, folder_fd: int) -> None:
    fd = open_folder(name, folder_fd)
    try:
        os.fchmod(fd, 0o700)
    finally:
        os.close(fd)


def _move_up(name: str, folder_fd: int, top: int, number: int) -> int:
    """Move a folder to the top under a free name. Return the last number tried."""
    while True:
        number += 1
        try:
            os.rename(name, f".removed-{number}", src_dir_fd=folder_fd, dst_dir_fd=top)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            return number
