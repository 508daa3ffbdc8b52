"""The checks of this machine: whether packages, stores, sandboxes and keys work, and what to do if they do not."""

import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from msgspec import Struct

from treadle.core.errors import TreadleError
from treadle.core.texts.masking import hide_password

_REQUIREMENT = re.compile(r"([\w.-]+)[^;]*(?:;(.*))?")
_EXTRA = re.compile(r"extra == ['\"](.+?)['\"]")
_MODULES = {"pyyaml": "yaml", "markdown-it-py": "markdown_it", "backports-zstd": "backports.zstd"}
"""The modules whose names do not follow from those of their packages."""
_LOADED = ("uvloop", "mcp", "starlette", "uvicorn")
"""The packages of extras that are loaded, which takes little time."""
_KEYS = ("OPENAI_API_KEY", "OPENAI_BASE_URL")


class MachineCheck(Struct, frozen=True, omit_defaults=True):
    name: str
    is_ok: bool
    seen: str
    """The finding, or the reason why something does not work."""
    advice: str | None = None
    """Advice on how to make the checked thing work; `None` if it works."""
    is_needed: bool = False
    """True if no run is possible without the checked thing."""


def check_machine(journal: str) -> Iterator[MachineCheck]:
    """Yield one check after another. `journal` is the path or the address of the journal that is checked."""
    yield _check_python()
    required = read_requirements()
    yield from [_check_package(name, None) for name in required.get(None, ())]
    yield from _check_store(journal) if "://" in journal else _check_journal(Path(journal))
    for extra in read_extras():
        for name in required.get(extra, ()):
            yield _check_monty() if name == "pydantic-monty" else _check_package(name, extra)
    yield from _check_sandbox()
    yield _check_keys()


def read_extras() -> dict[str, str]:
    """Return what each extra of Treadle adds, by name."""
    lines = (Path(__file__).parent / "extras.txt").read_text("utf-8").splitlines()
    return {name: about for name, _, about in [line.partition(" | ") for line in lines]}


def read_requirements() -> dict[str | None, list[str]]:
    """Return the packages that Treadle needs on this system, by extra; those of the core stand under `None`."""
    found: dict[str | None, list[str]] = {}
    for text in requires("treadle") or ():
        name, marker = _REQUIREMENT.match(text).groups()  # type: ignore[union-attr]
        extra = _EXTRA.search(marker or "")
        is_left_out = ("Windows" in (marker or "") and sys.platform == "win32") or (
            "python_version < '3.14'" in (marker or "").replace('"', "'") and sys.version_info >= (3, 14)
        )
        if name != "treadle" and not is_left_out:
            found.setdefault(None if extra is None else extra[1], []).append(name)
    return found


def _check_python() -> MachineCheck:
    seen = f"{platform.python_version()} at {sys.executable}, on {platform.system()} {platform.machine()}"
    return MachineCheck("python", sys.version_info >= (3, 11), seen, is_needed=True)


def _check_package(name: str, extra: str | None) -> MachineCheck:
    is_needed = extra is None
    what = "treadle" if extra is None else f"treadle[{extra}]"
    try:
        if is_needed or name in _LOADED:
            import_module(_MODULES.get(name, name.replace("-", "_")))
        return MachineCheck(name, True, version(name), is_needed=is_needed)
    except (ImportError, PackageNotFoundError) as error:
        return MachineCheck(name, False, f"not installed ({error})", f"pip install '{what}'", is_needed)
    except Exception as error:
        seen = f"installed, but cannot be loaded: {_describe(error)}"
        return MachineCheck(name, False, seen, f"pip install --force-reinstall '{what}'", is_needed)


def _check_journal(path: Path) -> Iterator[MachineCheck]:
    """Check SQLite, and whether a journal can be made and written at `path`. A file there is not changed."""
    import sqlite3

    yield MachineCheck("sqlite", True, sqlite3.sqlite_version, is_needed=True)
    folder = path.parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".treadle-doctor-", dir=folder) as place:
            database = sqlite3.connect(Path(place) / "runs.db")
            try:
                (mode,) = database.execute("PRAGMA journal_mode=WAL").fetchone()
                database.execute("CREATE TABLE t (a)")
                database.commit()
            finally:
                database.close()
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(f"{str(path)!r} cannot be read and written by this user")
    except (OSError, sqlite3.Error) as error:
        seen = f"runs cannot be stored in {str(folder.absolute())!r}: {error}"
        yield MachineCheck(
            "journal", False, seen, "give another path with --journal or TREADLE_JOURNAL", True
        )
        return
    if mode != "wal":
        seen = f"the file system of {str(folder.absolute())!r} has no shared memory, which SQLite's WAL needs"
        yield MachineCheck("journal", False, seen, "give a path on a local disk with --journal", True)
        return
    yield MachineCheck("journal", True, f"{str(path)!r} can be written", is_needed=True)


def _check_store(address: str) -> Iterator[MachineCheck]:
    """Check whether the journal at an address can be opened. It must have been made before."""
    from treadle.journal.registry import open_journal

    try:
        open_journal(address, must_exist=True).close()
    except TreadleError as error:
        yield MachineCheck(
            "journal", False, str(error), "give another address with --journal", is_needed=True
        )
    else:
        yield MachineCheck("journal", True, f"{hide_password(address)!r} can be opened", is_needed=True)


def _check_monty() -> MachineCheck:
    import asyncio

    found = _check_package("pydantic-monty", "python")
    if not found.is_ok:
        return found
    try:
        answer = asyncio.run(_ask_monty())
    except Exception as error:
        advice = "pip install --force-reinstall 'treadle[python]'"
        return MachineCheck(
            found.name, False, f"{found.seen}, but no worker starts: {_describe(error)}", advice
        )
    return MachineCheck(found.name, answer == 42, f"{found.seen}, a worker starts")


async def _ask_monty() -> object:
    import asyncio

    monty = import_module("pydantic_monty")
    async with (
        asyncio.timeout(60),
        monty.AsyncMonty(min_processes=0, max_processes=1) as pool,
        pool.checkout() as session,
    ):
        return await session.feed_run("6 * 7")


def _check_sandbox() -> Iterator[MachineCheck]:
    """Check what the toolset `shell` needs, and whether it works. Its modules need a POSIX system."""
    if sys.platform != "linux":
        seen = f"bubblewrap needs Linux, and this is {sys.platform}"
        yield MachineCheck("shell", False, seen, "run Treadle on Linux")
        return
    from treadle.sandbox.commands.bubblewrap import find_bwrap, is_root
    from treadle.sandbox.commands.host import find_fault

    program = find_bwrap()
    if program is not None:
        try:
            done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.SubprocessError) as error:
            yield MachineCheck("bubblewrap", False, f"{program} cannot be started: {_describe(error)}")
        else:
            seen = f"{done.stdout.strip() or done.stderr.strip()} at {program}"
            yield MachineCheck("bubblewrap", done.returncode == 0, seen)
    fault = find_fault()
    if fault is None:
        who = "another user than root" if is_root() else "this user"
        yield MachineCheck("shell", True, f"a command was run in a sandbox, as {who}")
        yield _check_images()
    else:
        seen, _, advice = fault.partition("; ")
        yield MachineCheck("shell", False, seen, advice or None)


def _check_images() -> MachineCheck:
    """Check what commands and tasks with an image of their own need, the folder of images included."""
    from treadle.sandbox.commands.images import find_builder, find_image_fault

    fault = find_image_fault(needs_builder=True)
    if fault is None:
        return MachineCheck(
            "images", True, f"{find_builder()} works, and a sandbox can have an image as its root"
        )
    seen, _, advice = fault.partition("; ")
    return MachineCheck("images", False, seen, advice or None)


def _check_keys() -> MachineCheck:
    names = sorted({*_KEYS, *(name for name in os.environ if name.endswith("_API_KEY"))} & set(os.environ))
    names = [name for name in names if os.environ[name]]
    if any(name in _KEYS for name in names):
        return MachineCheck("keys", True, f"set: {', '.join(names)}")
    seen = f"set, but not used by 'openai': {', '.join(names)}" if names else "no key for a model is set"
    advice = (
        "set OPENAI_API_KEY, or OPENAI_BASE_URL for your own server; the models mock:echo, "
        "mock:teacher and oracle need neither"
    )
    return MachineCheck("keys", False, seen, advice)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
