"""The place of sandbox folders on disk: one folder for each process, removed when the process ends.

A process that is killed leaves its folder behind. The next process finds it unlocked and removes it. A shell that
outlives the process ends its commands, because bubblewrap's `--die-with-parent` does not end a sandbox that is
still being made, and nothing else ends commands without a sandbox.
"""

import atexit
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from treadle.core.errors import SandboxError
from treadle.http.locks import in_child
from treadle.sandbox.commands.untrusted import remove_tree

PREFIX = "treadle-shell-"

_SWEEPER = Path(__file__).with_name("sweep.sh").read_text("utf-8")


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
    in_child(_home.cache_clear)
    base = _base()
    _sweep(base)
    while True:
        home = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        if _lock(home):
            atexit.register(_leave, home, os.getpid(), _start_sweeper(home))
            return home


def _lock(home: Path) -> bool:
    """Lock a new folder until this process ends. Return `False` if another process has just swept it away."""
    try:
        home.chmod(0o711)
        # It stays open, and so locked, until the process ends.
        lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), home.stat()):
            return True
    os.close(lock)
    return False


def _base() -> Path:
    """Return the first folder for temporary files that the user of sandboxes can reach."""
    wanted = tempfile.gettempdir()
    if os.geteuid() != 0 or is_open_to_all(Path(wanted)):
        return Path(wanted)
    for place in ("/tmp", "/var/tmp"):
        if os.access(place, os.W_OK) and is_open_to_all(Path(place)):
            return Path(place)
    raise SandboxError(f"only root can reach {wanted!r}; set TMPDIR to a folder that other users may enter")


def _start_sweeper(home: Path) -> "subprocess.Popen[bytes] | None":
    if sys.platform != "linux":
        return None
    sweeper = subprocess.Popen(
        ["/bin/sh", "-c", _SWEEPER, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    assert sweeper.stdin is not None
    # A forked child must not keep the pipe open, nor wait for a process that is not its own.
    in_child(sweeper.stdin.close)
    return sweeper


def _leave(home: Path, pid: int, sweeper: "subprocess.Popen[bytes] | None") -> None:
    if os.getpid() == pid:
        if sweeper is not None:
            sweeper.kill()
            sweeper.wait()
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
