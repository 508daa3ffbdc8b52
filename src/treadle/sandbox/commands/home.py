"""The place of sandbox folders on disk: one folder for each process, removed when the process ends.

A process that is killed leaves its folder behind. The next process finds it unlocked and removes it.
"""

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from treadle.core.errors import SandboxError
from treadle.sandbox.commands.tree import remove_tree

PREFIX = "treadle-shell-"


def make_root(folders: tuple[str, ...], owner: int | None) -> Path:
    """Make a folder for one sandbox, with the subfolders `folders`. All belong to `owner`, or to this user.

    Raises: `SandboxError` if there is no room for it.
    """
    try:
        root = Path(tempfile.mkdtemp(prefix="run-", dir=_home()))
        for path in (root, *(root / name for name in folders)):
            path.mkdir(mode=0o755, exist_ok=True)
            if owner is not None:
                os.chown(path, owner, owner)
    except OSError as error:
        raise SandboxError(
            f"cannot make a folder for commands to work in: {error}; set TMPDIR to where there is room"
        ) from error
    return root


def remove_root(root: Path) -> None:
    """Remove a folder that `make_root` made, with all its content. No process may run in it any more."""
    remove_tree(root)


def shared_program(path: str) -> str:
    """Return `path`, or the path of a copy that every user can run if only this user can reach `path`."""
    if is_open_to_all(Path(path)):
        return path
    copy = _home() / Path(path).name
    if not copy.exists():
        part = copy.with_suffix(f".{os.urandom(4).hex()}")
        shutil.copyfile(path, part)
        part.chmod(0o755)
        part.rename(copy)
    return str(copy)


def is_open_to_all(path: Path) -> bool:
    """Return whether every user can reach `path`."""
    real = path.resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (real, *real.parents))


@cache
def _home() -> Path:
    os.register_at_fork(after_in_child=_home.cache_clear)
    base = _base()
    _sweep(base)
    while True:
        home = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        home.chmod(0o711)
        # It stays open, and so locked, until the process ends.
        lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), home.stat()):
                atexit.register(_leave, home, os.getpid())
                return home
        os.close(lock)


def _base() -> Path:
    """Return the first folder for temporary files that the user of sandboxes can reach."""
    wanted = tempfile.gettempdir()
    if os.geteuid() != 0 or is_open_to_all(Path(wanted)):
        return Path(wanted)
    for place in ("/tmp", "/var/tmp"):
        if os.access(place, os.W_OK) and is_open_to_all(Path(place)):
            return Path(place)
    raise SandboxError(f"only root can reach {wanted!r}; set TMPDIR to a folder that other users may enter")


def _leave(home: Path, pid: int) -> None:
    if os.getpid() == pid:
        with suppress(OSError):
            remove_tree(home)


def _sweep(base: Path) -> None:
    """Remove the folders that ended processes of this user left behind."""
    for path in base.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if path.lstat().st_uid != os.geteuid():
                continue
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(path)
            finally:
                os.close(fd)
