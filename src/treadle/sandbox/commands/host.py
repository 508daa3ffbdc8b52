"""Commands of runs: a folder for each run, which lasts as long as the run is driven, and threads that run them.

After a command, its changes are copied to the run's files, and so to the next snapshot.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from treadle.core.errors import ConfigError, SandboxError
from treadle.http.background import see_out
from treadle.http.locks import in_child, new_lock
from treadle.sandbox.commands.bubblewrap import (
    FOLDERS,
    LAYER,
    MISSING,
    OUTER_ID,
    WORK,
    WRITABLE,
    ImageRoot,
    Isolation,
    blocking_sysctls,
    find_bwrap,
    is_root,
    make_etc,
)
from treadle.sandbox.commands.execution import SandboxCommand
from treadle.sandbox.commands.home import is_open_to_all, make_root
from treadle.sandbox.commands.images import find_image_fault, open_image
from treadle.sandbox.commands.run_folder import RunFolder
from treadle.sandbox.commands.untrusted import TooMuchError, clear_folder, remove_tree
from treadle.sandbox.protocol import CommandOutcome, Limits, Sandbox, Stop

T = TypeVar("T")
MAX_COMMANDS = 64
"""How many commands of all runs of the process run at the same time. Others wait."""


class HostCommands:
    """Commands on this machine, in bubblewrap or unprotected: what they can see and reach."""

    def __init__(
        self,
        *,
        has_network: bool = False,
        binds: Mapping[str, str] | None = None,
        is_protected: bool = True,
        aliases: Mapping[str, str] | None = None,
        root: str | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Make a place for commands.

        `binds` maps files and folders of the host to the absolute paths where commands can read them. `aliases`
        maps further absolute paths to folders of the run's files, empty for all of them.
        Without `is_protected` commands run as the current user and can read and change everything that this user
        can.
        `root` is the name or id of an image whose content commands see in place of the system's, from the root on.
        The run's files are then what commands have changed in it, and an alias can only say where commands begin.
        `variables` are added to the environment of protected commands.
        Raises: `ConfigError` for a bind that cannot be made.
        """
        self.has_network = has_network
        self.binds = _check_binds(binds or {})
        self.is_protected = is_protected
        self.variables = dict(variables or {})
        self.root = root if is_protected else None
        self.begin: str | None = None
        """Where commands begin in an image; `None` for what the image says."""
        if self.root is not None:
            if any((aliases or {}).values()):
                raise ConfigError(
                    "with an image as the root, folders of the run's files cannot have other paths"
                )
            self.begin, aliases = next(iter(aliases or {}), None), None
        checked = {
            _check_inner(path, "the run's files", {WRITABLE["tmp"]}): inner
            for path, inner in (aliases or {}).items()
        }
        self.folders = tuple(checked.values())
        """The folders of the run's files that commands find, even if they have no files."""
        self.covered = _find_covered({WORK: "", **checked}, [*self.binds.values(), *checked])
        """The paths of the run's files where something else is mounted for commands."""
        self.aliases = {
            path: inner for path, inner in checked.items() if not _is_within(path, inner, checked)
        }
        self.read_only_paths = tuple(sorted(self.binds.values()))
        """The paths, as commands see them, of the host's files that were made readable to them."""

    def find_fault(self) -> str | None:
        """Return why commands cannot be run this way on this machine and what helps, or `None` if they can."""
        if not self.is_protected:
            return None
        return find_fault() or (None if self.root is None else find_image_fault(self.root))

    @asynccontextmanager
    async def open(self) -> AsyncIterator["HostFolder"]:
        """Make a folder for one run, removed on exit. Raises: `SandboxError` without room or a usable image."""
        folder = await _in_thread(lambda: HostFolder(self, self._open_image()))
        try:
            yield folder
        finally:
            await _in_thread(folder.close)

    def _open_image(self) -> ImageRoot | None:
        if self.root is None:
            return None
        try:
            image = open_image(self.root)
        except ConfigError as error:
            raise SandboxError(str(error)) from error
        return replace(image, begin=self.begin or image.begin)


class HostFolder:
    """One run's folder, kept from one command to the next. Commands run in it one at a time."""

    def __init__(self, commands: HostCommands, image: ImageRoot | None) -> None:
        self._commands = commands
        self._isolation = None
        if commands.is_protected:
            self._isolation = Isolation(
                has_network=commands.has_network,
                binds=commands.binds,
                aliases=commands.aliases,
                image=image,
                variables=commands.variables,
            )
        owner = OUTER_ID if commands.is_protected and is_root() else None
        self._root = make_root(FOLDERS if image is None else (*FOLDERS, *LAYER), owner)
        make_etc(self._root, commands.variables.get("HOME", WRITABLE["tmp"]))
        self._folder = RunFolder(self._root / "work", owner, None if image is None else Path(image.folder))
        self._is_spoiled = False
        self._lock = new_lock()

    async def run(
        self, command: str, sandbox: Sandbox, limits: Limits, report: Callable[[str], None] | None = None
    ) -> CommandOutcome:
        """Run a command for `/bin/sh` in a folder with the files of `sandbox`, and copy its changes to `sandbox`.

        While the command runs, `report` is called from a thread with the last printed line. A cancellation stops
        the command; it is raised again after all processes of the command have ended. Raises: `SandboxError` if
        the command cannot be started or the folder cannot be used.
        """
        process = SandboxCommand(command, self._root, limits, self._isolation, report)
        work = _pool().submit(self._perform, process, sandbox, limits)

        def stop() -> None:
            if not work.cancel():  # else all threads were busy, and the command has not been started
                process.stop(Stop.CANCELLED)

        return await see_out(asyncio.wrap_future(work), stop)

    def close(self) -> None:
        """Remove the folder."""
        with self._lock:
            remove_tree(self._root)

    def _perform(self, command: SandboxCommand, sandbox: Sandbox, limits: Limits) -> CommandOutcome:
        with self._lock:
            try:
                return self._perform_alone(command, sandbox, limits)
            except SandboxError:
                raise
            except OSError as error:
                raise SandboxError(f"the folder for commands cannot be used: {error}") from error

    def _perform_alone(self, command: SandboxCommand, sandbox: Sandbox, limits: Limits) -> CommandOutcome:
        if self._is_spoiled:
            self._folder.clear()
        # Until the changes are back in the sandbox, the folder's content is unknown.
        self._is_spoiled = True
        self._folder.push(sandbox)
        if self._commands.root is None:
            self._folder.make_folders(self._commands.folders, self._commands.covered)
        links = self._folder.links
        outcome = command.run()
        for name in ("tmp", "shm"):
            clear_folder(self._root / name)
        if outcome.stop in (Stop.DISK, Stop.CANCELLED):
            return outcome
        try:
            removed = self._folder.pull(sandbox, limits.files, limits.disk_bytes)
        except TooMuchError as error:
            return replace(outcome, stop=Stop.DISK, reason=str(error))
        self._is_spoiled = False
        new_links = tuple(sorted(self._folder.links - links))
        return replace(outcome, removed=tuple(removed), new_links=new_links)


@cache
def _pool() -> ThreadPoolExecutor:
    # The threads do not survive a fork, so a child makes its own.
    in_child(_pool.cache_clear)
    return ThreadPoolExecutor(MAX_COMMANDS, thread_name_prefix="treadle-tool-shell")


async def _in_thread(function: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_pool(), function)


def _check_binds(binds: Mapping[str, str]) -> dict[str, str]:
    """Return `binds` with normalised paths. Raises: `ConfigError`."""
    checked = {}
    for outer, inner in binds.items():
        if not os.path.exists(outer):
            raise ConfigError(f"read_only_binds: there is no {outer!r}")
        if is_root() and not is_open_to_all(Path(outer)):
            raise ConfigError(
                f"read_only_binds: only root can reach {outer!r}, and commands run as another user; move it to a "
                "folder that everybody may enter, or run this program as a user other than root"
            )
        checked[outer if os.path.isabs(outer) else os.path.abspath(outer)] = _check_inner(
            inner, f"read_only_binds: {outer!r}"
        )
    return checked


def _check_inner(path: str, what: str, allowed: Collection[str] = ()) -> str:
    """Return a path at which commands find `what`; `allowed` are such paths that are usually refused.

    Raises: `ConfigError` if nothing can be mounted there.
    """
    normal = os.path.normpath(path)
    taken = {"/", "/dev", "/proc", "/etc", *WRITABLE.values()}.difference(allowed)
    if not normal.startswith("/") or normal in taken:
        raise ConfigError(
            f"{what} cannot be mounted for commands at {path!r}; use an absolute path of its own, such as '/data'"
        )
    return normal


def _find_covered(bases: Mapping[str, str], mounted: Iterable[str]) -> tuple[str, ...]:
    """Return where in the run's files something is mounted. `bases` maps paths to folders of the run."""
    found = []
    for path in mounted:
        base = max((base for base in bases if path.startswith(f"{base}/")), key=len, default=None)
        if base is not None:
            found.append(f"{bases[base]}/{path[len(base) + 1 :]}".lstrip("/"))
    return tuple(found)


def _is_within(path: str, inner: str, aliases: Mapping[str, str]) -> bool:
    """Return whether another alias already has the folder `inner` at `path`."""
    return any(
        path.startswith(f"{other}/") and inner == f"{base}/{path[len(other) + 1 :]}".lstrip("/")
        for other, base in aliases.items()
    )


def find_fault() -> str | None:
    """Return why commands cannot be isolated on this machine and what helps, or `None` if they can."""
    if sys.platform != "linux":
        return f"bubblewrap needs Linux, and this is {sys.platform}"
    if find_bwrap() is None:
        return MISSING
    if is_root() and shutil.which("setpriv") is None:
        return "root needs the program `setpriv` for it; install it, for example with: apt install util-linux"
    try:
        _prove()
    except (SandboxError, OSError) as error:
        return f"{error}; {_advice()}"
    return None


@cache
def _prove() -> None:
    """Run a command in a sandbox. A success is remembered. Raises: `SandboxError`, `OSError`."""
    root = make_root(FOLDERS, OUTER_ID if is_root() else None)
    try:
        make_etc(root)
        outcome = SandboxCommand("exit 7", root, Limits(seconds=30)).run()
    finally:
        remove_tree(root)
    if outcome.exit_code != 7:
        raise SandboxError(
            f"a command in the sandbox exited with {outcome.exit_code} instead of 7: {outcome.text.strip()}"
        )


def _advice() -> str:
    sysctls = blocking_sysctls()
    if sysctls:
        return f"the kernel forbids user namespaces; allow them, as root: sysctl -w {' '.join(sysctls)}"
    return (
        "if this is a container, start it so that user namespaces can be made in it (Docker: --security-opt "
        "seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined)"
    )
