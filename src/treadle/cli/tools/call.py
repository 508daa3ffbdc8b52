"""`treadle tools call`: one call of one tool, in a fresh sandbox."""

import sys
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.disk import read_mount
from treadle.cli.jobs.execute import execute
from treadle.cli.options import shared as o
from treadle.cli.terminal.bar import spinner
from treadle.cli.terminal.output import clean, print_error, print_json, print_note, stdout, write_count
from treadle.core.errors import ConfigError
from treadle.core.events import SnapshotTaken
from treadle.core.registry import did_you_mean
from treadle.core.types import FileDelta, ToolCall, ToolErrorKind, ToolResult
from treadle.loop.calls.orders import Order
from treadle.loop.calls.workbench import Workbench
from treadle.loop.outbox import Collected
from treadle.runs.begin import make_run_id
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.protocol import Tool
from treadle.tools.toolbox import Toolbox

EXAMPLES = (
    'treadle tools call read_file \'{"file_path": "notes.md"}\' --tools files --mount .',
    'treadle tools call python \'{"code": "2 ** 64"}\' --tools python',
)


def call(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name.", show_default=False)],
    arguments: Annotated[
        str, typer.Argument(metavar="JSON", help="The arguments, as an object; - reads standard input.")
    ] = "{}",
    tools: o.Tools = None,
    *,
    mount: o.MountOptions,
    is_json: o.IsJson = False,
) -> int:
    """Call one tool in a fresh sandbox and print its result.

    The exit code is 1 if the result is an error.
    """
    from treadle.tools.resolve import resolve_tools

    with spinner("starting the tools"):
        found = {item.spec.name: item for item in resolve_tools(tools or ["files"])}
    if tool not in found:
        hint = did_you_mean(tool, found) or ";"
        raise ConfigError(f"there is no tool {tool!r}{hint} the tools are: {', '.join(found) or 'none'}")
    text = _read_stdin() if arguments == "-" else arguments
    sandbox = MemorySandbox(read_mount(mount))
    result, delta = execute(_make_call(ToolCall("call_1", tool, text), found, sandbox))
    if result.error_kind in (ToolErrorKind.INVALID_JSON, ToolErrorKind.INVALID_ARGUMENTS):
        raise ConfigError(result.content)
    if is_json:
        print_json(result)
    elif result.is_error:
        print_error(result.content)
    else:
        text = clean(result.content)
        stdout().print(text, soft_wrap=True, end="" if text.endswith("\n") else "\n")
    if not is_json and (delta.changed or delta.deleted):
        changes = [*delta.changed, *[f"-{path}" for path in delta.deleted]]
        print_note(f"{write_count(len(changes), 'file')} changed in the sandbox: {', '.join(changes)[:500]}")
    return ExitCode.FAILED if result.is_error else ExitCode.DONE


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the arguments on standard input are not UTF-8: {error}") from error


async def _make_call(
    call: ToolCall, tools: dict[str, Tool], sandbox: MemorySandbox
) -> tuple[ToolResult, FileDelta]:
    """Make the call and its inner calls. Return its result and the changed files."""
    sandbox.take_delta()
    bench, outbox = Workbench(Toolbox(tools), run_id=make_run_id(), sandbox=sandbox), Collected()
    bench.report = lambda _, text: print_note(text)
    try:
        result = await bench.make(Order(call), outbox)
    finally:
        bench.scope.is_run_over = True
        await bench.scope.close()
    snapshots = [body.delta for body in outbox.bodies if isinstance(body, SnapshotTaken)]
    return result, snapshots[0] if snapshots else FileDelta()
