"""Bubblewrap: finding the program, and building the command line that isolates a process with it.

The process sees the system's programs, read-only; one folder that holds everything it can write to; its own
devices and its own `/proc`. It has no network, sees no other process, and gets no capability and no variable
of the host's environment. If Treadle runs as root, the process gets another user first, because the kernel
exempts root from the limit on processes and lets it write to `/proc/sys`.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path, PurePosixPath

from msgspec import Struct

from treadle.core.errors import SandboxError
from treadle.sandbox.commands.home import shared_program

WORK = "/work"
"""The folder of the run's files inside the sandbox."""
OUTER_ID = 65_531
"""User and group id, outside the sandbox, of sandboxes that root starts. Nothing else uses it."""
INNER_ID = 1_000
WRITABLE = {"work": WORK, "tmp": "/tmp", "shm": "/dev/shm"}
"""Subfolders of a sandbox's folder on disk, and where they are mounted in the sandbox."""
FOLDERS = (*WRITABLE, "etc")
"""All subfolders of a sandbox's folder on disk."""
LAYER = ("spare", "merged")
"""Further subfolders of a sandbox whose root is an image: the kernel's own, and where the layers are joined."""
MISSING = (
    "there is no bubblewrap (the program `bwrap`) here; install it, for example with: apt install bubblewrap"
)

_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d")
_ETC_NETWORK = ("ssl/certs", "pki", "ca-certificates", "resolv.conf")
_MADE_UP = {
    "passwd": f"agent:x:{INNER_ID}:{INNER_ID}::HOME:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
    "group": f"agent:x:{INNER_ID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_SYSCTLS = {
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "user.max_user_namespaces": ("0", "15000"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
}
"""Kernel settings: the value that forbids user namespaces, and one that allows them."""

_JOIN = Path(__file__).with_name("join_image.sh").read_text("utf-8")


class ImageRoot(Struct, frozen=True, kw_only=True):
    """The content of an image, as the root that commands see."""

    image_id: str
    folder: str
    """The folder on disk with the content. Everything in it belongs to the user that commands run as."""
    begin: str = "/"
    """The path where commands begin."""
    variables: dict[str, str] = {}
    """The whole environment of commands."""
    user: tuple[int, int] = (0, 0)
    """The ids of user and group as commands see them."""
    is_layered: bool = True
    """Whether changes go to the subfolder `work` of the sandbox; otherwise the content itself is changed."""


class Isolation(Struct, frozen=True, kw_only=True):
    """What a command in a sandbox can see and reach."""

    has_network: bool = False
    binds: Mapping[str, str] = {}
    """Files and folders of the host, and the read-only paths where the command finds them."""
    aliases: Mapping[str, str] = {}
    """Further paths where the command finds folders of the run's files; empty for all of them."""
    image: ImageRoot | None = None
    """The content that the command sees in place of the system's, from the root on."""
    variables: Mapping[str, str] = {}
    """What is added to the environment of the command."""


def find_bwrap() -> str | None:
    """Return the path of the program, on PATH or beside Python; `None` if it is not found."""
    return shutil.which("bwrap") or shutil.which("bwrap", path=str(Path(sys.executable).parent))


def is_root() -> bool:
    """Return whether this process is root, so that sandboxes run as `OUTER_ID`."""
    return os.geteuid() == 0


def blocking_sysctls() -> list[str]:
    """Return the kernel settings that forbid user namespaces, each as `name=value` with what would allow them."""
    found = []
    for name, (forbids, allows) in _SYSCTLS.items():
        try:
            value = Path("/proc/sys", *name.split(".")).read_text().strip()
        except OSError:
            continue
        if value == forbids:
            found.append(f"{name}={allows}")
    return found


def wrap(
    root: Path, command: Sequence[str], isolation: Isolation, *, info_fd: int, filter_fd: int | None
) -> list[str]:
    """Return the command line that runs `command`, a program of the system, as process 1 of a sandbox.

    `root` has the subfolders `FOLDERS`, and with an image those of `LAYER`; then the program is one of the image,
    and nothing of the system is seen. Bubblewrap writes JSON with the `child-pid` of process 1 to `info_fd`.
    Raises: `SandboxError` if bubblewrap is not installed.
    """
    has_network, binds, image = isolation.has_network, isolation.binds, isolation.image
    program = find_bwrap()
    if program is None:
        raise SandboxError(MISSING)
    argv = as_other_user()
    if image is not None and image.is_layered:
        network = {"resolv.conf": "/etc/resolv.conf"} if has_network else {}
        argv += join_layers(image.folder, root, {"/proc": "/proc", "/dev": "/dev", **binds, **network})
    argv += [shared_program(program) if is_root() else program]
    argv += ["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    user, group = (INNER_ID, INNER_ID) if image is None else image.user
    argv += ["--unshare-user", "--uid", str(user), "--gid", str(group)]
    argv += ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    argv += ["--hostname", "sandbox"]
    argv += [] if has_network else ["--unshare-net"]
    argv += ["--info-fd", str(info_fd)]
    argv += [] if filter_fd is None else ["--seccomp", str(filter_fd)]
    writable = dict(WRITABLE)
    if image is None:
        argv += _system_binds(has_network)
        for name in _MADE_UP:
            argv += ["--ro-bind", str(root / "etc" / name), f"/etc/{name}"]
    else:
        argv += ["--bind", str(root / "merged" if image.is_layered else image.folder), "/", "--clearenv"]
        argv += ["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"] if has_network else []
        writable = {"shm": WRITABLE["shm"]}
    for name, value in {**(image.variables if image else {}), **isolation.variables}.items():
        argv += ["--setenv", name, value]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    for name, inner in writable.items():
        argv += ["--bind", str(root / name), inner]
    mounts = [("--ro-bind", outer, inner) for outer, inner in binds.items()]
    mounts += [("--bind", str(root / "work" / inner), path) for path, inner in isolation.aliases.items()]
    # A mount hides those below it that were made before.
    mounts.sort(key=lambda mount: mount[2].count("/"))
    argv += chain.from_iterable(mounts)
    # `/` and `/dev`, which bubblewrap makes itself, are in memory and have no size limit.
    # Commands begin in the folder that stands for the whole run, if there is one.
    begin = next((path for path, inner in isolation.aliases.items() if not inner), WORK)
    argv += ["--remount-ro", "/dev"]
    argv += ["--remount-ro", "/", "--chdir", begin] if image is None else ["--chdir", "/"]
    return [*argv, "--", *command]


def as_other_user() -> list[str]:
    """Return the beginning of a command line that runs as the user of sandboxes, if this process is root."""
    if not is_root():
        return []
    return ["setpriv", f"--reuid={OUTER_ID}", f"--regid={OUTER_ID}", "--clear-groups", "--"]


def join_layers(folder: str, root: Path, binds: Mapping[str, str]) -> list[str]:
    """Return the beginning of a command line that sees `folder`, with the changes of a sandbox, in its subfolder
    `merged`, ready for the mounts of `binds`. Raises: `SandboxError` for a folder that cannot be an option of a
    mount."""
    places: dict[str, None] = {}
    for outer, inner in binds.items():
        places.update(dict.fromkeys(f"{parent}/" for parent in [*PurePosixPath(inner).parents][-2::-1]))
        places[f"{inner}/" if os.path.isdir(outer) else inner] = None
    start = ["unshare", "--user", "--map-root-user", "--mount", "--", "/bin/sh", "-c", _JOIN]
    return [*start, _mountable(folder), _mountable(str(root)), *places, "--"]


def _mountable(folder: str) -> str:
    if set(",:\\") & set(folder):
        raise SandboxError(
            f"an image cannot be used with the folder {folder!r}, whose name has a , or : or \\"
        )
    return folder


def make_etc(root: Path, home: str = WRITABLE["tmp"]) -> None:
    """Write the files of `/etc` that a sandbox gets into the subfolder `etc` of `root`.

    `home` is the home folder of the user, also for programs that do not read the variable HOME; one that
    `/etc/passwd` cannot contain counts as the default.
    """
    home = WRITABLE["tmp"] if set(":\n") & set(home) else home
    for name, text in _MADE_UP.items():
        path = root / "etc" / name
        path.write_text(text.replace("HOME", home))
        path.chmod(0o644)


@cache
def _system_binds(has_network: bool) -> tuple[str, ...]:
    argv = ["--ro-bind", "/usr", "/usr"]
    for path in filter(os.path.lexists, _SYSTEM):
        # On most systems these are links into /usr.
        is_link = os.path.islink(path)
        argv += ["--symlink", os.readlink(path), path] if is_link else ["--ro-bind", path, path]
    for name in _ETC + (_ETC_NETWORK if has_network else ()):
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return tuple(argv)
