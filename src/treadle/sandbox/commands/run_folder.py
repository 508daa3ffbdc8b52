"""A run's files in a folder on disk: written before a command, and read back after it.

After a command the folder contains only what the sandbox can hold, so that a resumed run finds the same files.
Facts that a sandbox cannot hold (executable files, empty folders, links) are stored as a tool state next to its
files. If the folder is a layer of the kernel's overlay file system over an image, so are the removed paths of the
image, and modes. Links are never followed. No command may run in the folder while this code works on it.
"""

import os
import stat
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.core.errors import SandboxError
from treadle.sandbox.commands.untrusted import (
    TreeEntry,
    check_size,
    clear_folder,
    clear_open,
    open_folder,
    read_file,
    size_of,
    walk,
)
from treadle.sandbox.in_memory import MemorySandbox
from treadle.sandbox.paths import normalize_file
from treadle.sandbox.protocol import RunFiles, Sandbox

STATE = "shell"
"""The name under which the sandbox stores the state."""
PROGRAMS = (b"#!", b"\x7fELF")
"""The beginnings of files that can be run. Before the first command, nothing else says which files can."""
RACY_NS = 50_000_000
"""A file that changed so recently may change again without a new time stamp: file systems' clocks are coarse."""

_OPAQUE = "user.overlay.opaque"
"""The attribute of a folder in a layer that hides all that the image has in it. Source: Linux, overlayfs.rst."""
_WHITEOUT = os.makedev(0, 0)
"""The number of the device that stands for a removed path in a layer."""
_MAX_LINKS = 40
"""How many links are followed on the way to a file, as by Linux."""
_LOOK = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Extras(Struct, frozen=True, omit_defaults=True):
    """The content of the state. Paths are those of the sandbox."""

    executable: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """The empty folders."""
    links: dict[str, str] = {}
    """Each link's path and target. The target may be anywhere; only commands follow it."""
    removed: tuple[str, ...] = ()
    """The paths of an image that are removed. With a slash at the end, all that the image has in a folder."""
    modes: dict[str, int] = {}
    """The permissions of files and folders over an image, where they are unusual."""


def open_for_check(
    files: Mapping[str, bytes], held: Mapping[str, bytes], hidden: Collection[str]
) -> MemorySandbox:
    """Return a sandbox with a run's files, and what else commands left if they are `RunFiles`.

    All that the run has at or below the paths `hidden` is replaced by the files `held`; programs and scripts among
    these can be run.
    """

    def is_kept(path: str) -> bool:
        return not any(f"{path}/".startswith(f"{item}/") for item in hidden)

    box = MemorySandbox({**{path: content for path, content in files.items() if is_kept(path)}, **held})
    state = files.read_state(STATE) if isinstance(files, RunFiles) else None
    if state is not None:
        found = msgspec.json.decode(state, type=Extras)
        programs = [path for path, content in held.items() if content.startswith(PROGRAMS)]
        kept = Extras(
            executable=(*filter(is_kept, found.executable), *programs),
            folders=tuple(filter(is_kept, found.folders)),
            links={path: target for path, target in found.links.items() if is_kept(path)},
            removed=tuple(filter(is_kept, found.removed)),
            modes={path: mode for path, mode in found.modes.items() if is_kept(path)},
        )
        box.write_state(STATE, msgspec.json.encode(kept))
    return box


class _Held(Struct):
    """The known facts about a file on disk."""

    content: bytes
    stamp: tuple[int, ...] | None
    """Facts that change when the file does. `None`: the file must be read to see a change."""
    is_executable: bool


class RunFolder:
    """A folder on disk for one sandbox. Its methods block."""

    def __init__(self, path: Path, owner: int | None = None, image: Path | None = None) -> None:
        self.path = path
        self._owner = owner
        """User and group id of the files written there. `None`: those of this process."""
        self._image = image
        """The content of the image over which the folder is a layer, if it is one."""
        self._is_layer = image is not None
        self._held: dict[str, _Held] = {}
        self._state: bytes | None = None
        self._is_fresh = True
        self.links: frozenset[str] = frozenset()
        """The paths of the links in the folder."""

    def clear(self) -> None:
        """Empty the folder; the next `push` writes everything. Raises: `OSError`."""
        self._held.clear()
        self._is_fresh = True
        clear_folder(self.path)

    def is_other(self, sandbox: Sandbox) -> bool:
        """Return whether commands changed more than a sandbox's files, so that `push` makes the folder anew."""
        return not self._is_fresh and sandbox.read_state(STATE) != self._state

    def push(self, sandbox: Sandbox) -> None:
        """Write the sandbox's files to the folder. Raises: `SandboxError`, `OSError`."""
        state = sandbox.read_state(STATE)
        if self.is_other(sandbox):
            self.clear()
        extras = msgspec.json.decode(state, type=Extras) if self._is_fresh and state else Extras()
        executable = frozenset(extras.executable)
        self._state = state
        writer = self._writer()
        try:
            for path in extras.removed:
                writer.hide(path)
            self._follow_image(sandbox)
            paths = sandbox.paths()
            for path in self._held.keys() - set(paths):
                if self._is_layer:
                    writer.hide(path)
                else:
                    writer.remove(path)
                    writer.remove_empty(path.rpartition("/")[0])
                del self._held[path]
            for path in paths:
                content = sandbox.read(path)
                held = self._held.get(path)
                # It is usually the same object, which is compared at no cost.
                if held is not None and held.content == content:
                    continue
                can_run = path in executable if held is None else held.is_executable
                can_run = can_run or (state is None and held is None and content.startswith(PROGRAMS))
                writer.write(path, content, can_run)
                # A change by a command within the same clock tick would not change the stamp.
                self._held[path] = _Held(content, None, can_run)
            for path in extras.folders:
                writer.make_folder(path)
            for path, target in extras.links.items():
                if path not in self._held:
                    writer.link(path, target)
            for path in sorted(extras.modes, reverse=True):
                writer.set_mode(path, extras.modes[path])
        finally:
            writer.close()
        if self._is_fresh:
            self.links = frozenset(extras.links)
        self._is_fresh = False

    def _follow_image(self, sandbox: Sandbox) -> None:
        """Move new files to where commands find them if the image has links on the way, such as from /bin to
        /usr/bin. As a folder of the layer, `bin` would hide all programs."""
        if self._image is None:
            return
        for path in sandbox.paths():
            if path not in self._held and (place := _find_place(path, self.path, self._image)) != path:
                content = sandbox.read(path)
                sandbox.delete(path)
                sandbox.write(place, content)

    def make_folders(self, paths: Iterable[str], covered: Iterable[str] = ()) -> None:
        """Make folders that may have no files. In the way to the paths `covered`, where bubblewrap mounts, and
        makes what is missing, links are replaced by folders, as it would follow them. Raises: `OSError`."""
        writer = self._writer()
        try:
            for path in paths:
                writer.make_folder(path)
            for path in covered:
                writer.remove_link(path)
        finally:
            writer.close()

    def pull(self, sandbox: Sandbox, max_files: int, max_bytes: int) -> list[str]:
        """Write the folder's changes to the sandbox.

        Return the things that the sandbox cannot hold, which are removed, each with the reason. Raises:
        `TooMuchError` if the folder holds more than allowed, before the sandbox is changed; `OSError`.
        """
        change = _Change(self._held, time.time_ns() - RACY_NS, self._is_layer)
        size_bytes = 0
        for files, found in enumerate(walk(self.path), 1):
            size_bytes += size_of(found.status)
            check_size(files, size_bytes, max_files, max_bytes)
            change.take(found)
        for path in self._held.keys() - change.held.keys():
            sandbox.delete(path)
        for path, content in change.written.items():
            sandbox.write(path, content)
        self._held = change.held
        self.links = frozenset(change.links)
        if change.left_out:
            writer = self._writer()
            try:
                for path in change.left_out:
                    writer.remove(path)
            finally:
                writer.close()
        state = msgspec.json.encode(change.extras())
        if state != self._state and (self._state is not None or state != b"{}"):
            sandbox.write_state(STATE, state)
            self._state = state
        return [f"{path!r} ({reason})" for path, reason in change.left_out.items()]

    def _writer(self) -> "_Writer":
        return _Writer(self.path, self._owner)


class _Change:
    """The differences that a walk through the folder finds."""

    def __init__(self, before: dict[str, _Held], racy_after_ns: int, is_layer: bool) -> None:
        self._before = before
        self._racy_after_ns = racy_after_ns
        self._is_layer = is_layer
        self.held: dict[str, _Held] = {}
        self.written: dict[str, bytes] = {}
        self.left_out: dict[str, str] = {}
        """Each path that is left out, and the reason. Everything in a folder that is left out goes with it."""
        self._last_left_out = "\0"
        self._empty: dict[str, None] = {}
        self.links: dict[str, str] = {}
        self._removed: list[str] = []
        self._modes: dict[str, int] = {}

    def take(self, found: TreeEntry) -> None:
        """Record one file, folder or link."""
        path, mode = found.path, found.status.st_mode
        if path.startswith(self._last_left_out):
            return
        is_hidden = self._is_layer and _is_whiteout(found.status)
        reason = None if is_hidden else _KINDS.get(stat.S_IFMT(mode))
        reason = reason or _name_fault(path)
        if reason is None and stat.S_ISLNK(mode):
            target = os.readlink(found.name, dir_fd=found.folder_fd)
            reason = None if _is_text(target) else "a link to a name that is not UTF-8"
            self.links[path] = target
        if reason is not None:
            self.left_out[path] = reason
            self._last_left_out = f"{path}/"
            self.links.pop(path, None)
            return
        self._empty.pop(path.rpartition("/")[0], None)
        if is_hidden:
            self._removed.append(path)
        elif self._is_layer and not stat.S_ISLNK(mode):
            self._take_mode(found)
        if stat.S_ISDIR(mode):
            self._empty[path] = None
        elif stat.S_ISREG(mode):
            self._take_file(found)

    def _take_mode(self, found: TreeEntry) -> None:
        mode = stat.S_IMODE(found.status.st_mode) & ~(stat.S_ISUID | stat.S_ISGID)
        is_folder = stat.S_ISDIR(found.status.st_mode)
        if mode not in ((0o755,) if is_folder else (0o644, 0o755)):
            self._modes[found.path] = mode
        if is_folder:
            with suppress(OSError):
                place = f"/proc/self/fd/{found.folder_fd}/{found.name}"
                if os.getxattr(place, _OPAQUE, follow_symlinks=False) == b"y":
                    self._removed.append(f"{found.path}/")

    def _take_file(self, found: TreeEntry) -> None:
        status = found.status
        can_run = bool(status.st_mode & stat.S_IXUSR)
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        old = self._before.get(found.path)
        if old is not None and old.stamp == stamp:
            content = old.content
        else:
            content = read_file(found)
            if old is not None and old.content == content:
                content = old.content
            else:
                self.written[found.path] = content
        is_racy = status.st_ctime_ns > self._racy_after_ns
        self.held[found.path] = _Held(content, None if is_racy else stamp, can_run)

    def extras(self) -> Extras:
        """Return the new content of the state."""
        return Extras(
            executable=tuple(sorted(path for path, held in self.held.items() if held.is_executable)),
            folders=tuple(sorted(self._empty)),
            links=dict(sorted(self.links.items())),
            removed=tuple(sorted(self._removed)),
            modes=dict(sorted(self._modes.items())),
        )


class _Writer:
    """A writer of files, folders and links below a root. It removes what is in the way, such as a link."""

    def __init__(self, root: Path, owner: int | None) -> None:
        self._root = open_folder(str(root))
        _make_usable(self._root)
        self._owner = owner
        self._last: tuple[str, int] = ("", self._root)
        """The folder that was used last, still open."""

    def close(self) -> None:
        self._leave_last()
        os.close(self._root)

    def write(self, path: str, content: bytes, can_run: bool) -> None:
        """Write a new file, and replace anything at its path. Raises: `OSError`."""
        fd, name = self._find(path)
        self._make_room(path, name, fd)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, 0o644, dir_fd=fd)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(file, view) :]
            os.fchmod(file, 0o755 if can_run else 0o644)
            self._give(file)
        finally:
            os.close(file)

    def make_folder(self, path: str) -> None:
        """Make a folder and its parents. Raises: `OSError`."""
        self._enter(path)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link. Raises: `OSError`."""
        fd, name = self._find(path)
        self._make_room(path, name, fd)
        os.symlink(target, name, dir_fd=fd)
        if self._owner is not None:
            os.chown(name, self._owner, self._owner, dir_fd=fd, follow_symlinks=False)

    def hide(self, path: str) -> None:
        """Remove a path of the image below this layer; with a slash at its end, all in it. Raises: `OSError`."""
        if path.endswith("/"):
            os.setxattr(self._enter(path[:-1]), _OPAQUE, b"y")
            return
        fd, name = self._find(path)
        self._make_room(path, name, fd)
        os.mknod(name, stat.S_IFCHR, _WHITEOUT, dir_fd=fd)

    def set_mode(self, path: str, mode: int) -> None:
        """Set the permissions of a file or folder, if there is one. Raises: `OSError`."""
        with suppress(FileNotFoundError, NotADirectoryError):
            folder, name = self._find(path, may_make=False)
            fd = os.open(name, _LOOK, dir_fd=folder)
            try:
                if not stat.S_ISLNK(os.fstat(fd).st_mode):
                    os.chmod(f"/proc/self/fd/{fd}", mode & 0o1777)
            finally:
                os.close(fd)

    def remove(self, path: str) -> None:
        """Remove the file, link or folder at `path`, if there is one. Raises: `OSError`."""
        try:
            fd, name = self._find(path, may_make=False)
        except (FileNotFoundError, NotADirectoryError):
            return
        self._make_room(path, name, fd)

    def remove_link(self, path: str) -> None:
        """Make the folder of `path`, and remove the link there, if there is one. Raises: `OSError`."""
        fd, name = self._find(path)
        with suppress(FileNotFoundError):
            if stat.S_ISLNK(os.lstat(name, dir_fd=fd).st_mode):
                os.unlink(name, dir_fd=fd)

    def remove_empty(self, path: str) -> None:
        """Remove a folder and its parents as long as they are empty, as a sandbox has no empty folders."""
        while path:
            folder, _, name = path.rpartition("/")
            try:
                os.rmdir(name, dir_fd=self._enter(folder, may_make=False))
            except OSError:
                return
            path = folder

    def _make_room(self, path: str, name: str, fd: int) -> None:
        try:
            os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            inner = open_folder(name, fd)
            try:
                clear_open(inner)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=fd)

    def _find(self, path: str, *, may_make: bool = True) -> tuple[int, str]:
        """Return the open folder of the thing at `path`, and its name there."""
        folder, _, name = path.rpartition("/")
        _check_name(path, name)
        return self._enter(folder, may_make=may_make), name

    def _enter(self, path: str, *, may_make: bool = True) -> int:
        """Return the open folder at `path`, and make it if it is missing."""
        if path == self._last[0]:
            return self._last[1]
        self._leave_last()
        for name in path.split("/") if path else ():
            _check_name(path, name)
            before = self._last[1]
            inner = self._step(name, before, may_make)
            self._leave_last()
            # Until the whole path is opened, the folder must not be found under a name.
            self._last = ("\0", inner)
        self._last = (path, self._last[1])
        return self._last[1]

    def _step(self, name: str, fd: int, may_make: bool) -> int:
        try:
            inner = open_folder(name, fd)
        except OSError:
            if not may_make:
                raise
        else:
            _make_usable(inner)
            return inner
        is_hidden = os.path.lexists(place := f"/proc/self/fd/{fd}/{name}") and _is_whiteout(os.lstat(place))
        self._make_room(name, name, fd)
        os.mkdir(name, 0o755, dir_fd=fd)
        inner = open_folder(name, fd)
        self._give(inner)
        if is_hidden:
            # What the image has there stays removed.
            os.setxattr(inner, _OPAQUE, b"y")
        return inner

    def _give(self, fd: int) -> None:
        if self._owner is not None:
            os.fchown(fd, self._owner, self._owner)

    def _leave_last(self) -> None:
        if self._last[1] != self._root:
            os.close(self._last[1])
        self._last = ("", self._root)


def _check_name(path: str, name: str) -> None:
    if name in ("", ".", ".."):
        raise SandboxError(f"{path!r} is not a path in a sandbox")


def _find_place(path: str, layer: Path, image: Path) -> str:
    """Return `path` with the links of an image to its folder followed, unless the layer has replaced them."""
    *folders, name = path.split("/")
    found: list[str] = []
    pending, links = folders[::-1], 0
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        if part == "..":
            found = found[:-1]
            continue
        here = "/".join((*found, part))
        is_link, is_replaced = (image / here).is_symlink(), os.path.lexists(layer / here)
        if is_replaced and (is_link or (layer / here).is_symlink()):
            # What is below is only in the layer.
            return "/".join((*found, part, *reversed(pending), name))
        if not is_link:
            found.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            return path
        target = os.readlink(image / here)
        found = [] if target.startswith("/") else found
        pending += target.split("/")[::-1]
    return "/".join((*found, name))


def _is_whiteout(status: os.stat_result) -> bool:
    """Return whether a thing in a layer says that its path is removed. Source: Linux, overlayfs.rst."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == _WHITEOUT


def _make_usable(fd: int) -> None:
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & 0o700 != 0o700:
        os.fchmod(fd, mode | 0o700)


def _name_fault(path: str) -> str | None:
    """Return why a sandbox cannot hold a path that a folder on disk has, or `None` if it can."""
    try:
        normalize_file(path)
    except SandboxError:
        if not _is_text(path):
            return "a name that is not UTF-8"
        return "a backslash in its name" if "\\" in path else "a path that is too long"
    return None


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
