"""The tool `shell`: commands for `/bin/sh` on a run's files, isolated with bubblewrap."""

import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ConfigError, NoResultError, SandboxError, ToolError
from treadle.core.spec import PartSpec
from treadle.core.types import Effect, Json, ToolSpec
from treadle.sandbox.protocol import CommandOutcome, Limits, Stop
from treadle.tools.context import ToolContext
from treadle.tools.protocol import Tool, ToolOutput
from treadle.tools.schema.validation import ArgumentChecker
from treadle.tools.toolset_parts import settings_of

if TYPE_CHECKING:
    from treadle.sandbox.commands.host import HostCommands

MAX_COMMAND_BYTES = 100_000
MAX_NOTES = 10


class Shell:
    """A toolset with one tool, `shell`.

    With `network`, commands share the host's network, including services on its loopback interface.
    `read_only_binds` maps files and folders of the host to the absolute paths where commands find them. With
    `unprotected`, commands are not isolated: they run as the current user, with limits and a separate
    environment, and can read and change everything that the user can; `network`, `read_only_binds`, `folders`,
    `root` and `variables` then have no effect. `folders` maps further paths to folders of the run's files;
    commands begin in the path that is mapped to the empty text, which stands for all files. `root` is the name or
    id of an image of a container, whose content commands see in place of the system's; the run's files are what
    they change in it. `variables` are added to the environment of commands. `network` or `unprotected` make the
    effect `once`.
    """

    def __init__(
        self,
        *,
        network: bool = False,
        limits: Limits | Mapping[str, float] | None = None,
        read_only_binds: Mapping[str, str] | None = None,
        unprotected: bool = False,
        folders: Mapping[str, str] | None = None,
        root: str | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(limits, Limits):
            limits = Limits(**cast("Any", limits or {}))
        for name in limits.__struct_fields__:
            if not getattr(limits, name) > 0:
                raise ConfigError(f"Limits: {name} is {getattr(limits, name)!r}; it must be above 0")
        from treadle.sandbox.commands.host import HostCommands

        self._commands = HostCommands(
            has_network=network,
            binds=read_only_binds,
            is_protected=not unprotected,
            aliases=folders,
            root=root,
            variables=variables,
        )
        effect = Effect.ONCE if network or unprotected else Effect.IDEMPOTENT
        description = _describe(network, limits, self._commands)
        self._tool = ShellTool(self._commands, limits, effect, description)
        name = "shell-unprotected" if unprotected else "shell"
        settings: dict[str, Json] = {"limits": settings_of(Limits, msgspec.to_builtins(limits))}
        if not unprotected:
            settings |= {"network": network, "read_only_binds": dict(read_only_binds or {}) or None}
            settings |= {"folders": dict(folders or {}) or None, "root": root}
            settings["variables"] = dict(variables or {}) or None
        self.part = PartSpec(name=name, settings=settings_of(Shell, settings))

    def tools(self) -> Sequence[Tool]:
        """See `Toolset.tools`. Raises: `ConfigError` if commands cannot be isolated on this machine."""
        if (fault := self._commands.find_fault()) is not None:
            raise ConfigError(
                f"the toolset 'shell' cannot be used here: {fault}. 'shell-unprotected' runs commands without a "
                "sandbox; use it only where any command may do any harm"
            )
        return (self._tool,)


class ShellTool:
    """The tool `shell`. See `Shell`."""

    def __init__(self, commands: "HostCommands", limits: Limits, effect: Effect, description: str) -> None:
        self._commands = commands
        self._limits = limits
        self.spec = ToolSpec(
            name="shell",
            description=description,
            parameters=_parameters(limits),
            effect=effect,
            is_concurrent=False,
        )
        self.find_fault = ArgumentChecker(self.spec.parameters).find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> ToolOutput:
        """See `Tool.call`. Raises: `ToolError`."""
        command = _check_command(arguments["command"])
        sandbox = context.files
        seconds = min(float(arguments.get("timeout_seconds", self._limits.seconds)), self._limits.seconds)
        limits = replace(self._limits, seconds=seconds)
        try:
            folder = await context.scope.get(self, self._commands.open)
            return _to_output(await folder.run(command, sandbox, limits, context.progress), limits)
        except SandboxError as error:
            raise NoResultError(str(error)) from error


def _to_output(outcome: CommandOutcome, limits: Limits) -> ToolOutput:
    """Return the output of a command, with notes for the model about how it ended."""
    lines = []
    if outcome.stop is Stop.TIME:
        lines.append(f"[stopped after {limits.seconds:g} seconds, with everything that it had started]")
    elif outcome.stop is Stop.DISK:
        lines.append(f"[{outcome.reason}, so all changes of the command were undone]")
    elif outcome.stop is not None:
        lines.append(f"[stopped: {outcome.reason or outcome.stop}]")
    elif outcome.exit_code:
        lines.append(f"[exit code {outcome.exit_code}{_signal_of(outcome.exit_code)}]")
    if outcome.removed:
        lines.append(f"[removed, because the run's files cannot hold it: {_list(outcome.removed)}]")
    if outcome.new_links:
        lines.append(
            f"[only commands see these links, other tools do not: {_list(map(repr, outcome.new_links))}]"
        )
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
    """Return `text`. Raises: `ToolError` if it cannot be a command."""
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise ToolError(f"the command is not valid Unicode: {error}") from None
    if "\0" in text:
        raise ToolError("the command contains a NUL character")
    if size_bytes > MAX_COMMAND_BYTES:
        raise ToolError(
            f"the command has {size_bytes:,} bytes; at most {MAX_COMMAND_BYTES:,} are allowed. Write long texts "
            "into files first"
        )
    return text


def _parameters(limits: Limits) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "The command for /bin/sh. It may have many lines."},
            "timeout_seconds": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": limits.seconds,
                "description": f"Stop the command after this time. Default: {limits.seconds:g} seconds.",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    }


def _describe(network: bool, limits: Limits, commands: "HostCommands") -> str:
    """Return the tool's description, for the model and for readers of the journal."""
    where = "in a sandbox" if commands.is_protected else "on this computer, WITHOUT a sandbox"
    kept = (
        "The working folder holds the run's files and keeps the command's changes. Changes elsewhere are lost"
    )
    if commands.root is not None:
        kept = "Changes of files are kept"
    parts = [
        f"Run a command with /bin/sh {where}. Returns its output, errors included. {kept}, and processes that are "
        "still running in the background are ended."
    ]
    if commands.is_protected:
        parts.append("The network can be used." if network else "There is no network.")
        if commands.read_only_paths:
            parts.append(f"Read-only: {', '.join(commands.read_only_paths)}.")
    parts.append(
        f"Limits: {limits.seconds:g} seconds, {limits.memory_bytes // 2**20:,} MiB of memory, {limits.processes} "
        f"processes, {limits.disk_bytes // 2**20:,} MiB in {limits.files:,} files."
    )
    return " ".join(parts)


def make_shell(
    *,
    network: bool = False,
    limits: Mapping[str, float] | None = None,
    read_only_binds: Mapping[str, str] | None = None,
    folders: Mapping[str, str] | None = None,
    root: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> Shell:
    """Return the toolset with the name `shell`, which always isolates commands. See `Shell`."""
    return Shell(
        network=network,
        limits=limits,
        read_only_binds=read_only_binds,
        folders=folders,
        root=root,
        variables=variables,
    )


def make_unprotected_shell(*, limits: Mapping[str, float] | None = None) -> Shell:
    """Return the toolset with the name `shell-unprotected`. See `Shell`."""
    return Shell(limits=limits, unprotected=True)
