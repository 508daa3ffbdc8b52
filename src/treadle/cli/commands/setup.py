"""`treadle init`, `schema`, `doctor`, `completion` and `tasks`: what is there to work with."""

import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import Struct

from treadle.cli.exit import ExitCode
from treadle.cli.options import common as o
from treadle.cli.table import VARIABLE
from treadle.cli.terminal.output import (
    clean,
    print_json,
    print_lines,
    print_note,
    print_schema,
    stdout,
    write_count,
)
from treadle.core.errors import ConfigError, TreadleError
from treadle.core.masking import hide_password
from treadle.core.types import Json

SCHEMA_NAME = "treadle.schema.json"


def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("treadle.toml"),
    is_forced: o.IsForced = False,
) -> int:
    """Write a commented treadle.toml and its schema.

    The file has named models, fallbacks and limits. Editors use the schema to complete and check it.

    Examples:
        treadle init
        treadle init conf/treadle.toml
    """
    from treadle.export.whole import write_whole
    from treadle.models.config.toml_file import FILE_NAMES, VARIABLE, config_schema, starter_file

    if os.path.lexists(path) and not is_forced:
        raise ConfigError(f"{str(path)!r} exists; --force replaces it")
    if path.suffix != ".toml":
        raise ConfigError(f"the name of the file must end with .toml, and {str(path)!r} does not")
    schema = msgspec.json.format(msgspec.json.encode(config_schema()), indent=2)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole([schema], path.parent / SCHEMA_NAME)
        write_whole([starter_file().rstrip().encode()], path)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error.strerror}") from error
    print_note(f"{path} is written, and {SCHEMA_NAME} beside it, which editors use to check it")
    is_found = path.resolve().parent in (Path.cwd(), *Path.cwd().parents) and path.name in FILE_NAMES
    place = "" if is_found else f"{VARIABLE}={shlex.quote(str(path))} "
    print_note(f"next: {place}treadle models list")
    return ExitCode.DONE


class SchemaOf(StrEnum):
    """A kind of file that has a JSON Schema."""

    CONFIG = "config"
    GENERATE = "generate"
    PERSONA = "persona"
    ROLLOUT = "rollout"


def schema(
    what: Annotated[
        SchemaOf,
        typer.Argument(
            metavar="WHAT",
            help="config (treadle.toml), persona, or the configuration of treadle generate or rollout.",
            show_default=False,
        ),
    ],
) -> int:
    """Print the JSON Schema of a kind of file, which editors use to complete and check it.

    Examples:
        treadle schema config > treadle.schema.json
        treadle schema generate > generate.schema.json
    """
    print_schema(_find_schema(what))
    return ExitCode.DONE


def _find_schema(what: SchemaOf) -> Json:
    if what is SchemaOf.CONFIG:
        from treadle.models.config.toml_file import config_schema

        return config_schema()
    if what is SchemaOf.PERSONA:
        from treadle.knowledge.personas.persona import persona_schema

        return persona_schema()
    if what is SchemaOf.GENERATE:
        from treadle.datagen.config import config_schema as generating

        return generating.schema()
    from treadle.rollout import rollout_config as rolling

    return rolling.schema()


_NEEDED = ("msgspec", "pydantic", "pyreqwest", "httptools", "jsonschema-rs", "tenacity", "typer", "rich")
_KEYS = ("OPENAI_API_KEY", "OPENAI_BASE_URL")


class Finding(Struct, frozen=True, omit_defaults=True):
    """The result of one check."""

    name: str
    is_ok: bool
    seen: str
    """The finding, or the reason why something does not work."""
    advice: str | None = None
    """Advice how to make it work."""
    is_needed: bool = False
    """True if nothing works without it."""


def doctor(journal: o.Journal = None, is_json: o.IsJson = False) -> int:
    """Check what works on this machine, and say how to fix the rest.

    The exit code is 0 if runs can be driven and stored, even if sandboxes, extras or keys are missing.

    Examples:
        treadle doctor
        treadle doctor --json
    """
    from treadle.journal.registry import DEFAULT_PATH

    can_work = True
    for check in _check_all(journal or DEFAULT_PATH):
        can_work = can_work and (check.is_ok or not check.is_needed)
        if is_json:
            print_json(check)
        else:
            _print(check)
    return ExitCode.DONE if can_work else ExitCode.FAILED


def _print(check: Finding) -> None:
    console = stdout()
    mark, style = ("ok     ", "green") if check.is_ok else ("missing", "red" if check.is_needed else "yellow")
    console.print(mark, style=style, end="  ")
    console.print(f"{check.name:<16} {clean(check.seen)}", soft_wrap=True)
    if check.advice is not None:
        console.print(f"{'':<26}{clean(check.advice)}", style="dim", soft_wrap=True)


def _check_all(journal: str) -> Iterator[Finding]:
    yield _check_python()
    yield from (_check_package(name, None) for name in _NEEDED)
    yield from _check_store(journal) if "://" in journal else _check_journal(Path(journal))
    yield _check_package("uvloop", "speed")
    yield _check_package("mcp", "mcp")
    yield _check_monty()
    yield _check_package("starlette", "serve")
    yield _check_package("uvicorn", "serve")
    if sys.platform == "linux":
        yield from _check_sandbox()
    else:
        yield Finding(
            "shell", False, f"bubblewrap needs Linux, and this is {sys.platform}", "run Treadle on Linux"
        )
    yield _check_keys()


def _check_python() -> Finding:
    seen = f"{platform.python_version()} at {sys.executable}, on {platform.system()} {platform.machine()}"
    return Finding("python", sys.version_info >= (3, 11), seen, is_needed=True)


def _check_package(name: str, extra: str | None, module: str | None = None) -> Finding:
    is_needed = extra is None
    what = "treadle" if extra is None else f"treadle[{extra}]"
    try:
        import_module(module or name.replace("-", "_"))
        return Finding(name, True, version(name), is_needed=is_needed)
    except (ImportError, PackageNotFoundError) as error:
        return Finding(name, False, f"not installed ({error})", f"pip install '{what}'", is_needed)
    except Exception as error:
        seen = f"installed, but cannot be loaded: {_describe(error)}"
        return Finding(name, False, seen, f"pip install --force-reinstall '{what}'", is_needed)


def _check_journal(path: Path) -> Iterator[Finding]:
    """Check SQLite, and whether a journal can be made and written at `path`. A file there is not changed."""
    import sqlite3

    yield Finding("sqlite", True, sqlite3.sqlite_version, is_needed=True)
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
        yield Finding("journal", False, seen, "give another path with --journal or TREADLE_JOURNAL", True)
        return
    if mode != "wal":
        seen = f"the file system of {str(folder.absolute())!r} has no shared memory, which SQLite's WAL needs"
        yield Finding("journal", False, seen, "give a path on a local disk with --journal", True)
        return
    yield Finding("journal", True, f"{str(path)!r} can be written", is_needed=True)


def _check_store(address: str) -> Iterator[Finding]:
    """Check whether the journal at an address can be opened. It must have been made before."""
    from treadle.journal.registry import open_journal

    try:
        open_journal(address, must_exist=True).close()
    except TreadleError as error:
        yield Finding("journal", False, str(error), "give another address with --journal", is_needed=True)
    else:
        yield Finding("journal", True, f"{hide_password(address)!r} can be opened", is_needed=True)


def _check_monty() -> Finding:
    import asyncio

    found = _check_package("pydantic-monty", "python")
    if not found.is_ok:
        return found
    try:
        answer = asyncio.run(_ask_monty())
    except Exception as error:
        advice = "pip install --force-reinstall 'treadle[python]'"
        return Finding(found.name, False, f"{found.seen}, but no worker starts: {_describe(error)}", advice)
    return Finding(found.name, answer == 42, f"{found.seen}, a worker starts")


async def _ask_monty() -> object:
    import asyncio

    monty = import_module("pydantic_monty")
    async with (
        asyncio.timeout(60),
        monty.AsyncMonty(min_processes=0, max_processes=1) as pool,
        pool.checkout() as session,
    ):
        return await session.feed_run("6 * 7")


def _check_sandbox() -> Iterator[Finding]:
    """Check what the toolset `shell` needs, and whether it works. Its modules need a POSIX system."""
    from treadle.sandbox.commands.bubblewrap import blocking_sysctls, find_bwrap, is_root
    from treadle.sandbox.commands.host import find_fault

    yield _check_bubblewrap(find_bwrap())
    sysctls = blocking_sysctls()
    if sysctls:
        seen = "the kernel forbids them to this user"
        yield Finding("user namespaces", False, seen, f"as root: sysctl -w {' '.join(sysctls)}")
    else:
        yield Finding("user namespaces", True, "no setting of the kernel forbids them")
    fault = find_fault()
    if fault is None:
        who = "another user than root" if is_root() else "this user"
        yield Finding("shell", True, f"a command was run in a sandbox, as {who}")
    else:
        seen, _, advice = fault.partition("; ")
        yield Finding("shell", False, seen, advice or None)
    yield _check_cgroups()


def _check_bubblewrap(program: str | None) -> Finding:
    name = "bubblewrap"
    if program is None:
        advice = "install it, for example with: apt install bubblewrap"
        return Finding(name, False, "there is no program 'bwrap' on PATH or beside Python", advice)
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(name, False, f"{program} cannot be started: {_describe(error)}")
    return Finding(name, done.returncode == 0, f"{done.stdout.strip() or done.stderr.strip()} at {program}")


def _check_cgroups() -> Finding:
    """Report control groups, which are not needed."""
    note = "not used: commands are limited without them"
    with suppress(OSError):
        own = Path("/proc/self/cgroup").read_text().split("\n")
        unified = next((line[3:] for line in own if line.startswith("0::")), None)
        if unified is not None and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            folder = Path("/sys/fs/cgroup") / unified.lstrip("/")
            access = "can" if os.access(folder, os.W_OK) else "cannot"
            return Finding("cgroups", True, f"version 2, which this user {access} write; {note}")
        if Path("/sys/fs/cgroup/memory").exists():
            return Finding("cgroups", True, f"version 1; {note}")
    return Finding("cgroups", True, f"none; {note}")


def _check_keys() -> Finding:
    names = sorted({*_KEYS, *(name for name in os.environ if name.endswith("_API_KEY"))} & set(os.environ))
    names = [name for name in names if os.environ[name]]
    if any(name in _KEYS for name in names):
        return Finding("keys", True, f"set: {', '.join(names)}")
    seen = f"set, but not used by 'openai': {', '.join(names)}" if names else "no key for a model is set"
    advice = (
        "set OPENAI_API_KEY, or OPENAI_BASE_URL for your own server; the model 'oracle' of `treadle demo` needs "
        "neither"
    )
    return Finding("keys", False, seen, advice)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class CompletingShell(StrEnum):
    """A shell that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


_PLACES = {
    CompletingShell.BASH: "~/.bashrc",
    CompletingShell.ZSH: "~/.zshrc, after compinit",
    CompletingShell.FISH: "~/.config/fish/config.fish",
    CompletingShell.POWERSHELL: "$PROFILE",
}


def completion(
    shell: Annotated[
        CompletingShell | None,
        typer.Argument(metavar="SHELL", help="The shell. Default: that of $SHELL.", show_default=False),
    ] = None,
) -> int:
    """Print the script that makes a shell complete the commands of treadle.

    Put the command of the first example into the startup file of the shell.

    Examples:
        eval "$(treadle completion bash)"
        treadle completion fish > ~/.config/fish/completions/treadle.fish
    """
    from typer._completion_shared import get_completion_script

    shell = shell or _find_shell()
    script = get_completion_script(prog_name="treadle", complete_var=VARIABLE, shell=shell.value)
    print_lines([script.encode()])
    if os.isatty(1):
        print_note(
            f'to use it in every {shell} shell, add to {_PLACES[shell]}: eval "$(treadle completion {shell})"'
        )
    return ExitCode.DONE


def _find_shell() -> CompletingShell:
    name = Path(os.environ.get("SHELL", "")).name
    try:
        return CompletingShell(name)
    except ValueError:
        raise ConfigError(
            f"the shell {name!r} of $SHELL is not one of {', '.join(CompletingShell)}; name one"
        ) from None


FILE_LINES = 20
"""How many lines of each file of a task are shown."""


def tasks(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="SET[:ID]",
            help="A task set, or one of its tasks. Without it, the task sets are listed.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="The number of ids; 0 lists all.")
    ] = 50,
    is_json: o.IsJson = False,
) -> int:
    """List task sets and tasks, or show one task.

    A task is shown with its prompt, its tools and its files.

    Examples:
        treadle tasks files --limit 22
        treadle tasks files:csv_sum-0001
    """
    from treadle.tasks import split_reference

    if name is None:
        _print_sets(is_json=is_json)
    elif split_reference(name)[1] or name.endswith(":"):
        _print_task(name, is_json=is_json)
    else:
        _print_set(name, limit or None, is_json=is_json)
    return ExitCode.DONE


def _print_sets(*, is_json: bool) -> None:
    from treadle.tasks import TASK_SETS, task_set

    for name in TASK_SETS.names():
        size = len(task_set(name))
        if is_json:
            print_json({"task_set": name, "tasks": size})
        else:
            stdout().print(f"{name}  {write_count(size, 'task')}", soft_wrap=True)


def _print_set(name: str, limit: int | None, *, is_json: bool) -> None:
    from treadle.tasks import split_reference, task_set

    found = task_set(split_reference(name)[0])
    ids = (f"{name}:{task.task_id}" for task in islice(found, limit))
    print_lines(msgspec.json.encode({"task": item}) if is_json else item.encode() for item in ids)
    if limit is not None and len(found) > limit:
        print_note(f"{limit} of {len(found):,} tasks; --limit 0 shows all")


def _print_task(ref: str, *, is_json: bool) -> None:
    from treadle.tasks import load_task

    task = load_task(ref)
    if is_json:
        value = {
            "task": ref,
            "input": task.input,
            "instructions": task.instructions,
            "tools": list(task.tools),
            "files": {path: content.decode("utf-8", "replace") for path, content in task.files.items()},
        }
        print_json(value)
        return
    console = stdout()
    console.print(clean(ref), style="bold")
    if task.instructions:
        console.print(f"instructions: {clean(task.instructions)}", style="dim", soft_wrap=True)
    console.print(f"tools: {', '.join(task.tools)}\n", style="dim")
    console.print("› " + clean(task.input).replace("\n", "\n  "), style="cyan", soft_wrap=True)
    for path, content in sorted(task.files.items()):
        console.print(f"\n{clean(path)}", style="bold", end="")
        console.print(f"  {write_count(len(content), 'byte')}", style="dim")
        lines = clean(content.decode("utf-8", "replace")).rstrip("\n").split("\n")
        for line in lines[:FILE_LINES]:
            console.print(f"  {line}", soft_wrap=True)
        if len(lines) > FILE_LINES:
            console.print(f"  … {len(lines) - FILE_LINES:,} more lines", style="dim italic")
