"""The check whether commands can be isolated on this machine, by isolating one."""

import shutil
import sys
from functools import cache

from treadle.core.errors import SandboxError
from treadle.sandbox.commands.bubblewrap import (
    FOLDERS,
    MISSING,
    OUTER_ID,
    blocking_sysctls,
    find_bwrap,
    is_root,
    make_etc,
)
from treadle.sandbox.commands.command import Command
from treadle.sandbox.commands.home import make_root
from treadle.sandbox.commands.tree import remove_tree
from treadle.sandbox.protocol import Limits


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
        outcome = Command("exit 7", root, Limits(seconds=30)).run()
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
