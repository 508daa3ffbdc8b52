"""`treadle init`, `doctor`, `completion` and `tasks`: what is there to work with."""

import asyncio
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
from treadle.cli.terminal.output import clean, print_json, print_lines, print_note, stdout, write_count
from treadle.core.errors import ConfigError, TreadleError
from treadle.core.masking import hide_password
from treadle.export.whole import write_whole
from treadle.journal.registry import DEFAULT_PATH
from treadle.tasks import TASK_SETS, load_task, split_reference, task_set

SCHEMA_NAME = "treadle.schema.json"
TEMPLATE = """\
#:schema ./treadle.schema.json
# The models of this project. An editor that knows the schema explains each key.
# `treadle models list` lists the models, `treadle models check NAME` finds out what a model supports.
#
# The environment wins over this file: TREADLE_MODELS__FAST__TEMPERATURE=0 sets `temperature` of [models.fast].
# Do not write API keys here: they are read from the provider's variable, such as OPENAI_API_KEY, or from the
# variable that `api_key_env` names.

# The model that is used without --model.
model = "fast"

[models.fast]
model = "openai:gpt-5-mini"          # provider:name; `treadle models list` shows the providers
# temperature = 0.7
# max_output_tokens = 4096
# seed = 1
# limit = "openai"                   # one of the [limits] below
# fallback = ["claude", "local"]     # asked in this order if this model fails
# cache = ".treadle/answers"         # equal requests get the stored answer, without cost
# price = { input_usd_per_million = 0.25, output_usd_per_million = 2.0 }   # for a model without a known price

[models.claude]
model = "anthropic:claude-sonnet-4-5"
# api_key_env = "MY_OTHER_KEY"

[models.local]
model = "vllm:Qwen/Qwen3-8B"
base_url = "http://localhost:8000/v1"
# return_token_ids = true            # exact tokens, for RL
# logprobs = true
# output_mode = "tool"               # how answers that must fit a schema are asked for: native, tool or text
# extra = { chat_template_kwargs = { enable_thinking = false } }

# The models of the tiers frontier, mid and small. `--tier NAME` uses one, `--model auto` lets a router choose.
[tiers]
# frontier = "claude"
# small = "local"

# What a new session of `treadle chat` uses where no option says otherwise.
[chat]
# persona = "me.yaml"                # who it is, with its tools, skills and documents; see docs/personas.md
# user = "anna"                      # whom the memories are about
# memory = true                      # it remembers from one session to the next

# The limits of a server, for all models that name them. A limit that is not given is found out from the server's
# headers, from the requests that it refuses, and from whether more requests at a time bring more answers.
[limits.openai]
# requests_per_minute = 500
# tokens_per_minute = 200_000
# max_concurrency = 64
"""


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
    from treadle.models.config.toml_file import FILE_NAMES, VARIABLE, config_schema

    if os.path.lexists(path) and not is_forced:
        raise ConfigError(f"{str(path)!r} exists; --force replaces it")
    if path.suffix != ".toml":
        raise ConfigError(f"the name of the file must end with .toml, and {str(path)!r} does not")
    schema = msgspec.json.format(msgspec.json.encode(config_schema()), indent=2)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole([schema], path.parent / SCHEMA_NAME)
        write_whole([TEMPLATE.rstrip().encode()], path)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error.strerror}") from error
    print_note(f"{path} is written, and {SCHEMA_NAME} beside it, which editors use to check it")
    is_found = path.resolve().parent in (Path.cwd(), *Path.cwd().parents) and path.name in FILE_NAMES
    place = "" if is_found else f"{VARIABLE}={shlex.quote(str(path))} "
    print_note(f"next: {place}treadle models list")
    return ExitCode.DONE


_NEEDED = ("msgspec", "pydantic", "pyreqwest", "httptools", "jsonschema-rs", "tenacity", "typer", "rich")
_KEYS = ("OPENAI_API_KEY", "OPENAI_BASE_URL")


class Check(Struct, frozen=True, omit_defaults=True):
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
    can_work = True
    for check in _check_all(journal or DEFAULT_PATH):
        can_work = can_work and (check.is_ok or not check.is_needed)
        if is_json:
            print_json(check)
        else:
            _print(check)
    return ExitCode.DONE if can_work else ExitCode.FAILED


def _print(check: Check) -> None:
    console = stdout()
    mark, style = ("ok     ", "green") if check.is_ok else ("missing", "red" if check.is_needed else "yellow")
    console.print(mark, style=style, end="  ")
    console.print(f"{check.name:<16} {clean(check.seen)}", soft_wrap=True)
    if check.advice is not None:
        console.print(f"{'':<26}{clean(check.advice)}", style="dim", soft_wrap=True)


def _check_all(journal: str) -> Iterator[Check]:
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
        yield Check(
            "shell", False, f"bubblewrap needs Linux, and this is {sys.platform}", "run Treadle on Linux"
        )
    yield _check_keys()


def _check_python() -> Check:
    seen = f"{platform.python_version()} at {sys.executable}, on {platform.system()} {platform.machine()}"
    return Check("python", sys.version_info >= (3, 11), seen, is_needed=True)


def _check_package(name: str, extra: str | None, module: str | None = None) -> Check:
    is_needed = extra is None
    what = "treadle" if extra is None else f"treadle[{extra}]"
    try:
        import_module(module or name.replace("-", "_"))
        return Check(name, True, version(name), is_needed=is_needed)
    except (ImportError, PackageNotFoundError) as error:
        return Check(name, False, f"not installed ({error})", f"pip install '{what}'", is_needed)
    except Exception as error:
        seen = f"installed, but cannot be loaded: {_describe(error)}"
        return Check(name, False, seen, f"pip install --force-reinstall '{what}'", is_needed)


def _check_journal(path: Path) -> Iterator[Check]:
    """Check SQLite, and whether a journal can be made and written at `path`. A file there is not changed."""
    import sqlite3

    yield Check("sqlite", True, sqlite3.sqlite_version, is_needed=True)
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
        yield Check("journal", False, seen, "give another path with --journal or TREADLE_JOURNAL", True)
        return
    if mode != "wal":
        seen = f"the file system of {str(folder.absolute())!r} has no shared memory, which SQLite's WAL needs"
        yield Check("journal", False, seen, "give a path on a local disk with --journal", True)
        return
    yield Check("journal", True, f"{str(path)!r} can be written", is_needed=True)


def _check_store(address: str) -> Iterator[Check]:
    """Check whether the journal at an address can be opened. It must have been made before."""
    from treadle.journal.registry import open_journal

    try:
        open_journal(address, must_exist=True).close()
    except TreadleError as error:
        yield Check("journal", False, str(error), "give another address with --journal", is_needed=True)
    else:
        yield Check("journal", True, f"{hide_password(address)!r} can be opened", is_needed=True)


def _check_monty() -> Check:
    found = _check_package("pydantic-monty", "python")
    if not found.is_ok:
        return found
    try:
        answer = asyncio.run(_ask_monty())
    except Exception as error:
        advice = "pip install --force-reinstall 'treadle[python]'"
        return Check(found.name, False, f"{found.seen}, but no worker starts: {_describe(error)}", advice)
    return Check(found.name, answer == 42, f"{found.seen}, a worker starts")


async def _ask_monty() -> object:
    monty = import_module("pydantic_monty")
    async with (
        asyncio.timeout(60),
        monty.AsyncMonty(min_processes=0, max_processes=1) as pool,
        pool.checkout() as session,
    ):
        return await session.feed_run("6 * 7")


def _check_sandbox() -> Iterator[Check]:
    """Check what the toolset `shell` needs, and whether it works. Its modules need a POSIX system."""
    from treadle.sandbox.commands.bubblewrap import blocking_sysctls, find_bwrap, is_root
    from treadle.sandbox.commands.host import find_fault

    yield _check_bubblewrap(find_bwrap())
    sysctls = blocking_sysctls()
    if sysctls:
        seen = "the kernel forbids them to this user"
        yield Check("user namespaces", False, seen, f"as root: sysctl -w {' '.join(sysctls)}")
    else:
        yield Check("user namespaces", True, "no setting of the kernel forbids them")
    fault = find_fault()
    if fault is None:
        who = "another user than root" if is_root() else "this user"
        yield Check("shell", True, f"a command was run in a sandbox, as {who}")
    else:
        seen, _, advice = fault.partition("; ")
        yield Check("shell", False, seen, advice or None)
    yield _check_cgroups()


def _check_bubblewrap(program: str | None) -> Check:
    name = "bubblewrap"
    if program is None:
        advice = "install it, for example with: apt install bubblewrap"
        return Check(name, False, "there is no program 'bwrap' on PATH or beside Python", advice)
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        return Check(name, False, f"{program} cannot be started: {_describe(error)}")
    return Check(name, done.returncode == 0, f"{done.stdout.strip() or done.stderr.strip()} at {program}")


def _check_cgroups() -> Check:
    """Report control groups, which are not needed."""
    note = "not used: commands are limited without them"
    with suppress(OSError):
        own = Path("/proc/self/cgroup").read_text().split("\n")
        unified = next((line[3:] for line in own if line.startswith("0::")), None)
        if unified is not None and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            folder = Path("/sys/fs/cgroup") / unified.lstrip("/")
            access = "can" if os.access(folder, os.W_OK) else "cannot"
            return Check("cgroups", True, f"version 2, which this user {access} write; {note}")
        if Path("/sys/fs/cgroup/memory").exists():
            return Check("cgroups", True, f"version 1; {note}")
    return Check("cgroups", True, f"none; {note}")


def _check_keys() -> Check:
    names = sorted({*_KEYS, *(name for name in os.environ if name.endswith("_API_KEY"))} & set(os.environ))
    names = [name for name in names if os.environ[name]]
    if any(name in _KEYS for name in names):
        return Check("keys", True, f"set: {', '.join(names)}")
    seen = f"set, but not used by 'openai': {', '.join(names)}" if names else "no key for a model is set"
    advice = (
        "set OPENAI_API_KEY, or OPENAI_BASE_URL for your own server; the model 'oracle' of `treadle demo` needs "
        "neither"
    )
    return Check("keys", False, seen, advice)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class Shell(StrEnum):
    """A shell that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


_PLACES = {
    Shell.BASH: "~/.bashrc",
    Shell.ZSH: "~/.zshrc, after compinit",
    Shell.FISH: "~/.config/fish/config.fish",
    Shell.POWERSHELL: "$PROFILE",
}


def completion(
    shell: Annotated[
        Shell | None,
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


def _find_shell() -> Shell:
    name = Path(os.environ.get("SHELL", "")).name
    try:
        return Shell(name)
    except ValueError:
        raise ConfigError(
            f"the shell {name!r} of $SHELL is not one of {', '.join(Shell)}; name one"
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
    if name is None:
        _print_sets(is_json=is_json)
    elif split_reference(name)[1] or name.endswith(":"):
        _print_task(name, is_json=is_json)
    else:
        _print_set(name, limit or None, is_json=is_json)
    return ExitCode.DONE


def _print_sets(*, is_json: bool) -> None:
    for name in TASK_SETS.names():
        size = len(task_set(name))
        if is_json:
            print_json({"task_set": name, "tasks": size})
        else:
            stdout().print(f"{name}  {write_count(size, 'task')}", soft_wrap=True)


def _print_set(name: str, limit: int | None, *, is_json: bool) -> None:
    found = task_set(split_reference(name)[0])
    ids = (f"{name}:{task.task_id}" for task in islice(found, limit))
    print_lines(msgspec.json.encode({"task": item}) if is_json else item.encode() for item in ids)
    if limit is not None and len(found) > limit:
        print_note(f"{limit} of {len(found):,} tasks; --limit 0 shows all")


def _print_task(ref: str, *, is_json: bool) -> None:
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
