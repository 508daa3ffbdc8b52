"""The run's files as the code sees them: the operations of `open`, `os` and `pathlib`."""

import errno
import os
from pathlib import PurePosixPath
from typing import Any

from pydantic_monty import AbstractOS, MontyFileHandle, StatResult

from treadle.core.errors import SandboxError
from treadle.sandbox.protocol import Sandbox


class SandboxFiles(AbstractOS):
    """A file system over a sandbox. It never touches the host's files.

    A folder exists as long as it holds a file. An empty folder that the code makes exists until the call ends.
    """

    def __init__(self, sandbox: Sandbox | None, max_bytes: int) -> None:
        self._sandbox = sandbox
        self._max_bytes = max_bytes
        self._left: int | None = None
        """How many bytes may still be added to the files. It is counted at the first write."""
        self._made: set[str] = set()
        """Folders that the code made, and that may be empty."""

    def path_exists(self, path: PurePosixPath) -> bool:
        """See `AbstractOS`, also for the other methods."""
        return self.path_is_file(path) or self.path_is_dir(path)

    def path_is_file(self, path: PurePosixPath) -> bool:
        return _name(path) in self._paths()

    def path_is_dir(self, path: PurePosixPath) -> bool:
        name = _name(path)
        return not name or name in self._made or any(item.startswith(f"{name}/") for item in self._paths())

    def path_is_symlink(self, path: PurePosixPath) -> bool:
        return False

    def path_open(self, path: PurePosixPath, mode: str) -> MontyFileHandle:
        if mode[0] == "r":
            self._read(path)
        elif mode[0] == "w" or not self.path_is_file(path):
            self._write(path, b"")
        return MontyFileHandle(str(path), mode)

    def path_read_text(self, path: PurePosixPath | MontyFileHandle) -> str:
        return self._read(_path(path)).decode()

    def path_read_bytes(self, path: PurePosixPath | MontyFileHandle) -> bytes:
        return self._read(_path(path))

    def path_write_text(self, path: PurePosixPath | MontyFileHandle, data: str) -> int:
        self._write(_path(path), data.encode())
        return len(data)

    def path_write_bytes(self, path: PurePosixPath | MontyFileHandle, data: bytes) -> int:
        self._write(_path(path), data)
        return len(data)

    def path_append_text(self, path: PurePosixPath | MontyFileHandle, data: str) -> int:
        self._append(_path(path), data.encode())
        return len(data)

    def path_append_bytes(self, path: PurePosixPath | MontyFileHandle, data: bytes) -> int:
        self._append(_path(path), data)
        return len(data)

    def path_mkdir(self, path: PurePosixPath, parents: bool, exist_ok: bool) -> None:
        name = _name(path)
        if self.path_is_file(path) or (self.path_is_dir(path) and not exist_ok):
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        above = PurePosixPath(name).parent
        if not parents and not self.path_is_dir(above):
            raise _absent(path)
        while name and name != ".":
            if self.path_is_file(PurePosixPath(name)):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", name)
            self._made.add(name)
            name = str(PurePosixPath(name).parent)

    def path_unlink(self, path: PurePosixPath) -> None:
        if self.path_is_dir(path):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        if not self.path_is_file(path):
            raise _absent(path)
        self._made.add(str(PurePosixPath(_name(path)).parent))
        self._files().delete(_name(path))

    def path_rmdir(self, path: PurePosixPath) -> None:
        if self.path_iterdir(path):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))
        self._made.discard(_name(path))

    def path_iterdir(self, path: PurePosixPath) -> list[PurePosixPath]:
        name = _name(path)
        if self.path_is_file(path):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(path))
        if not self.path_is_dir(path):
            raise _absent(path)
        prefix = f"{name}/" if name else ""
        below = [item[len(prefix) :] for item in (*self._paths(), *self._made) if item.startswith(prefix)]
        return [path / item for item in sorted({item.partition("/")[0] for item in below} - {"", "."})]

    def path_stat(self, path: PurePosixPath) -> StatResult:
        if self.path_is_file(path):
            return StatResult.file_stat(size=len(self._read(path)))
        if self.path_is_dir(path):
            return StatResult.dir_stat()
        raise _absent(path)

    def path_rename(self, path: PurePosixPath, target: PurePosixPath) -> None:
        old, new = _name(path), _name(target)
        if self.path_is_file(path):
            content = self._read(path)
            self._write(target, content)
            if old != new:
                self.path_unlink(path)
            return
        if not old or not self.path_is_dir(path):
            raise _absent(path)
        if self.path_exists(target) or new.startswith(f"{old}/"):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(target))
        self._made.add(str(PurePosixPath(old).parent))
        for item in self._paths():
            if item.startswith(f"{old}/"):
                self._write(PurePosixPath(new + item[len(old) :]), self._files().read(item))
                self._files().delete(item)
        self._made = {
            new + item[len(old) :] if (item + "/").startswith(f"{old}/") else item for item in self._made
        }

    def path_absolute(self, path: PurePosixPath) -> PurePosixPath:  # type: ignore[override]
        # `AbstractOS` wants a text, but then the code would get a text too, and no path.
        return PurePosixPath("/" + _name(path))

    path_resolve = path_absolute  # type: ignore[assignment]

    def getenv(self, key: str, default: str | None = None) -> str | None:
        return default

    def get_environ(self) -> dict[str, str]:
        return {}

    def _files(self) -> Sandbox:
        if self._sandbox is None:
            raise PermissionError(errno.EACCES, "this run has no files")
        return self._sandbox

    def _paths(self) -> list[str]:
        return [] if self._sandbox is None else self._sandbox.paths()

    def _read(self, path: PurePosixPath) -> bytes:
        name = _name(path)
        try:
            return self._files().read(name)
        except SandboxError:
            if self.path_is_dir(path):
                raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path)) from None
            raise _absent(path) from None

    def _write(self, path: PurePosixPath, data: bytes) -> None:
        files, name = self._files(), _name(path)
        if self.path_is_dir(path):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        old = len(files.read(name)) if self.path_is_file(path) else 0
        if self._left is None:
            self._left = self._max_bytes - sum(len(files.read(item)) for item in files.paths())
        if len(data) - old > self._left:
            raise OSError(
                errno.ENOSPC, f"the files would be larger than {self._max_bytes:,} bytes together", str(path)
            )
        try:
            files.write(name, data)
        except SandboxError as error:
            raise OSError(errno.EINVAL, str(error), str(path)) from None
        self._left -= len(data) - old

    def _append(self, path: PurePosixPath, data: bytes) -> None:
        old = self._read(path) if self.path_is_file(path) else b""
        self._write(path, old + data)


def _path(item: PurePosixPath | MontyFileHandle) -> PurePosixPath:
    return PurePosixPath(item.path) if isinstance(item, MontyFileHandle) else item


def _name(path: PurePosixPath) -> str:
    """Return a path relative to the sandbox's root. `..` does not leave the root."""
    if "\\" in str(path):
        raise OSError(errno.EINVAL, "a path must not contain a backslash", str(path))
    return os.path.normpath("/" + str(path)).strip("/")


def _absent(path: PurePosixPath) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))


def answer(files: SandboxFiles, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of one operation. Raises: the error that the code sees."""
    try:
        return files(name=name, args=args, kwargs=kwargs, is_async=True)  # type: ignore[arg-type]
    except SandboxError as error:
        raise OSError(errno.EINVAL, str(error)) from None
