"""The tool `shell`: POSIX sh over a run's files, shut in by bubblewrap.

The folder in which commands run holds the sandbox's files and stays as long as the run is driven; what a command
changes there comes back into the sandbox after it, and so into the next snapshot.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TypeVar

from msgspec.structs import replace

from treadle.core.errors import ConfigError, SandboxError, ToolError
from treadle.core.types import Effect, Json, ToolSpec
from treadle.sandbox.commands.bubblewrap import FOLDERS, OUTER_ID, WRITABLE, is_root, make_etc
from treadle.sandbox.commands.command import Command, Limits, Outcome, Stop
from treadle.sandbox.commands.doctor import find_fault
from treadle.sandbox.commands.folder import Folder
from treadle.sandbox.commands.home import is_open_to_all, make_root
from treadle.sandbox.commands.tree import TooMuchError, clear_folder, remove_tree
from treadle.sandbox.protocol import Sandbox
from treadle.tools.context import ToolContext
from treadle.tools.protocol import Tool, ToolOutput
from treadle.tools.schema.validation import ArgumentChecker

T = TypeVar("T")
MAX_COMMAND_BYTES = 100_000
MAX_NOTES = 10
MAX_COMMANDS = 64
"""How many commands of all runs of the process run at a time; others wait."""


class Shell:
    """The toolset of one tool, `shell`.

    With `network` commands share the host's network, what listens on its loopback too. `read_only_binds`: files
    and folders of the host, to where commands find them. `unprotected` shuts nothing in: commands are run as
    this user, with limits on what they take and an environment of their own, and can read and change whatever the
    user can. With either the tool's effect is `once`.
    """

    def __init__(
        self,
        *,
        network: bool = False,
        limits: Limits | None = None,
        read_only_binds: Mapping[str, str] | None = None,
        unprotected: bool = False,
    ) -> None:
        self._is_protected = not unprotected
        limits = limits or Limits()
        for name in limits.__struct_fields__:
            if not getattr(limits, name) > 0:
                raise ConfigError(f"Limits: {name} is {getattr(limits, name)!r}; it must be above 0")
        self._tool = ShellTool(network, limits, _check_binds(read_only_binds or {}), unprotected)

    def tools(self) -> Sequence[Tool]:
        """See `Toolset.tools`. Raises: `ConfigError` if commands cannot be shut in here."""
        if self._is_protected and (fault := find_fault()) is not None:
            raise ConfigError(
                f"the toolset 'shell' cannot be used here: {fault}. 'shell-unprotected' runs commands without a "
                "sandbox, where it does not matter what they do"
            )
        return (self._tool,)


class ShellTool:
    """See `Shell`."""

    def __init__(self, network: bool, limits: Limits, binds: Mapping[str, str], unprotected: bool) -> None:
        self._has_network = network
        self._limits = limits
        self._binds = binds
        self._is_shut_in = not unprotected
        self.spec = ToolSpec(
            name="shell",
            description=_describe(network, unprotected, limits, binds),
            parameters=_parameters(limits),
            effect=Effect.ONCE if network or unprotected else Effect.IDEMPOTENT,
            is_concurrent=False,
        )
        self.find_fault = ArgumentChecker(self.spec.parameters).find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> ToolOutput:
        """See `Tool.call`. Raises: `ToolError`, `SandboxError`."""
        text = _check_command(arguments["command"])
        if context.sandbox is None:
            raise ToolError("this run has no sandbox; whoever starts it gives it one with `files={...}`")
        workplace = await context.scope.get(self, lambda: _Opening(self._is_shut_in))
        seconds = min(float(arguments.get("timeout_seconds", self._limits.seconds)), self._limits.seconds)
        limits = replace(self._limits, seconds=seconds)
        command = Command(
            text,
            workplace.root,
            limits,
            is_shut_in=self._is_shut_in,
            has_network=self._has_network,
            binds=self._binds,
            report=context.progress,
        )
        sandbox = context.sandbox
        return await _run(command, lambda: workplace.perform(command, sandbox, limits))


class _Workplace:
    """A run's folder, kept from one command to the next."""

    def __init__(self, is_shut_in: bool) -> None:
        owner = OUTER_ID if is_shut_in and is_root() else None
        self.root = make_root(FOLDERS, owner)
        make_etc(self.root)
        self._folder = Folder(self.root / "work", owner)
        self._is_spoiled = False
        self._lock = Lock()

    def perform(self, command: Command, sandbox: Sandbox, limits: Limits) -> ToolOutput:
        """Run a command on the sandbox's files. Raises: `SandboxError`, `ToolError`."""
        with self._lock:
            if self._is_spoiled:
                self._folder.clear()
            # Until the files are back in the sandbox nobody knows what is in the folder.
            self._is_spoiled = True
            try:
                self._folder.push(sandbox)
                links = self._folder.links
                outcome = command.run()
                for name in ("tmp", "shm"):
                    clear_folder(self.root / name)
                notes: list[str] = []
                if outcome.stop not in (Stop.DISK, Stop.CANCELLED):
                    try:
                        notes = self._folder.pull(sandbox, limits.files, limits.disk_bytes)
                        self._is_spoiled = False
                    except TooMuchError as error:
                        outcome = replace(outcome, stop=Stop.DISK, reason=str(error))
            except OSError as error:
                if isinstance(error, SandboxError):
                    raise
                raise SandboxError(f"the folder for commands cannot be used: {error}") from error
        if notes:
            notes = [f"[removed, since the run's files cannot hold it: {_list(notes)}]"]
        if more := sorted(self._folder.links - links):
            notes.append(f"[commands alone see these links, other tools do not: {_list(map(repr, more))}]")
        return _tell(outcome, notes, limits)

    def close(self) -> None:
        """Remove the folder."""
        with self._lock:
            remove_tree(self.root)


class _Opening(AbstractAsyncContextManager[_Workplace]):
    def __init__(self, is_shut_in: bool) -> None:
        self._is_shut_in = is_shut_in

    async def __aenter__(self) -> _Workplace:
        self._workplace = await _in_thread(lambda: _Workplace(self._is_shut_in))
        return self._workplace

    async def __aexit__(self, *error: object) -> None:
        await _in_thread(self._workplace.close)


@cache
def _pool() -> ThreadPoolExecutor:
    # The threads do not survive a fork, so a child makes its own.
    os.register_at_fork(after_in_child=_pool.cache_clear)
    return ThreadPoolExecutor(MAX_COMMANDS, thread_name_prefix="treadle-tool-shell")


async def _in_thread(function: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_pool(), function)


async def _run(command: Command, perform: Callable[[], ToolOutput]) -> ToolOutput:
    """`perform`; being cancelled ends the command, and is passed on once nothing of it is left."""
    work = _pool().submit(perform)
    result = asyncio.wrap_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not result.done():
        try:
            await asyncio.wait([result])
        except asyncio.CancelledError as error:
            if work.cancel():
                # All threads were busy, so it has not begun.
                raise
            command.stop(Stop.CANCELLED)
            cancelled = error
    if cancelled is not None:
        result.exception()
        raise cancelled
    return result.result()


def _tell(outcome: Outcome, notes: list[str], limits: Limits) -> ToolOutput:
    """What the model reads."""
    lines = []
    if outcome.stop is Stop.TIME:
        lines.append(f"[stopped after {limits.seconds:g} seconds, with all that it had started]")
    elif outcome.stop is Stop.DISK:
        lines.append(f"[{outcome.reason}, so all that the command changed was undone]")
    elif outcome.stop is not None:
        lines.append(f"[stopped: {outcome.reason or outcome.stop}]")
    elif outcome.exit_code:
        lines.append(f"[exit code {outcome.exit_code}{_signal_of(outcome.exit_code)}]")
    lines += notes
    text = outcome.text
    if lines and text and not text.endswith("\n"):
        text += "\n"
    has_failed = outcome.exit_code != 0 or outcome.stop is not None
    return ToolOutput(text + "\n".join(lines), is_error=has_failed)


def _list(items: Iterable[str]) -> str:
    shown = list(items)
    more = f" and {len(shown) - MAX_NOTES} more" if len(shown) > MAX_NOTES else ""
    return f"{', '.join(shown[:MAX_NOTES])}{more}"


def _signal_of(exit_code: int) -> str:
    try:
        return f", {signal.Signals(exit_code - 128).name}"
    except ValueError:
        return ""


def _check_command(text: str) -> str:
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise ToolError(f"the command is not valid Unicode: {error}") from None
    if "\0" in text:
        raise ToolError("the command holds a NUL character")
    if size_bytes > MAX_COMMAND_BYTES:
        raise ToolError(
            f"the command has {size_bytes:,} bytes, and at most {MAX_COMMAND_BYTES:,} can be run; write long texts "
            "into files first"
        )
    return text


def _check_binds(binds: Mapping[str, str]) -> dict[str, str]:
    checked = {}
    for outer, inner in binds.items():
        if not os.path.exists(outer):
            raise ConfigError(f"read_only_binds: there is no {outer!r}")
        if is_root() and not is_open_to_all(Path(outer)):
            raise ConfigError(
                f"read_only_binds: only root gets to {outer!r}, and commands run as another user; put it where all "
                "may enter, or start as a user of its own"
            )
        normal = os.path.normpath(inner)
        if not normal.startswith("/") or normal in ("/", "/dev", "/proc", "/etc", *WRITABLE.values()):
            raise ConfigError(
                f"read_only_binds: {inner!r} cannot be where {outer!r} is found; use '/data', say"
            )
        checked[os.path.abspath(outer)] = normal
    return checked


def _parameters(limits: Limits) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "What /bin/sh is to run; it may have many lines."},
            "timeout_seconds": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": limits.seconds,
                "description": f"Stop it after so long; after {limits.seconds:g} seconds, if left out.",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    }


def _describe(network: bool, unprotected: bool, limits: Limits, binds: Mapping[str, str]) -> str:
    """What the model is told, and whoever reads the journal."""
    where = "on this computer, WITHOUT a sandbox" if unprotected else "in a sandbox"
    parts = [
        f"Run a command with /bin/sh {where}; answers what it prints, errors too. The working folder holds the "
        "run's files, and keeps what the command changes there. Elsewhere nothing lasts, and what still runs in "
        "the background is ended."
    ]
    if not unprotected:
        parts.append("There is a network." if network else "There is no network.")
        if binds:
            parts.append(f"To be read, not changed: {', '.join(sorted(binds.values()))}.")
    parts.append(
        f"Limits: {limits.seconds:g} seconds, {limits.memory_bytes // 2**20:,} MiB of memory, {limits.processes} "
        f"processes, {limits.disk_bytes // 2**20:,} MiB in {limits.files:,} files."
    )
    return " ".join(parts)


shell = Shell()
shell_unprotected = Shell(unprotected=True)
