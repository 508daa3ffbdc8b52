"""What `treadle tools call` does."""

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from treadle.agent.driving import make_run_id
from treadle.cli.terminal.execute import execute
from treadle.cli.terminal.output import clean, print_error, print_lines, print_note, stdout, write_count
from treadle.core.errors import ConfigError
from treadle.core.events import SnapshotTaken
from treadle.core.types import FileDelta, ToolCall, ToolErrorKind, ToolResult
from treadle.loop.outbox import Collected
from treadle.loop.workbench import Order, Workbench
from treadle.sandbox.memory import MemorySandbox
from treadle.tools.protocol import Tool
from treadle.tools.resolve import resolve_tools
from treadle.tools.toolbox import Toolbox


def call_tool(name: str, arguments: str, texts: Sequence[str], mount: Path | None, *, is_json: bool) -> int:
    """Make the call and print what came of it; the exit code. Raises: `ConfigError` for what cannot be called."""
    tools = {tool.spec.name: tool for tool in resolve_tools(list(texts))}
    if name not in tools:
        near = difflib.get_close_matches(name, tools, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"there is no tool {name!r}{hint}; the tools are {', '.join(tools) or 'none'}")
    text = _read_stdin() if arguments == "-" else arguments
    sandbox = MemorySandbox.from_folder(mount) if mount is not None else MemorySandbox()
    result, delta = execute(_call(ToolCall("call_1", name, text), tools, sandbox))
    if result.error_kind in (ToolErrorKind.INVALID_JSON, ToolErrorKind.INVALID_ARGUMENTS):
        raise ConfigError(result.content)
    if is_json:
        print_lines([msgspec.json.encode(result)])
    elif result.is_error:
        print_error(result.content)
    else:
        text = clean(result.content)
        stdout().print(text, soft_wrap=True, end="" if text.endswith("\n") else "\n")
    if not is_json and (delta.changed or delta.deleted):
        changes = [*delta.changed, *[f"-{path}" for path in delta.deleted]]
        print_note(f"{write_count(len(changes), 'file')} changed in the sandbox: {', '.join(changes)[:500]}")
    return int(result.is_error)


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the arguments on standard input are not UTF-8: {error}") from error


async def _call(
    call: ToolCall, tools: dict[str, Tool], sandbox: MemorySandbox
) -> tuple[ToolResult, FileDelta]:
    """Make the call, and those that it makes of the other tools; return its result and what it changed."""
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
