"""What `treadle tools call` does."""

import difflib
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import msgspec

from treadle.agent.agent import make_run_id
from treadle.cli.terminal.execute import execute
from treadle.cli.terminal.output import clean, print_error, print_lines, print_note, stdout, write_count
from treadle.core.errors import ConfigError
from treadle.core.types import Json, ToolCall, ToolErrorKind, ToolResult
from treadle.loop.perform import read_call, run_tool
from treadle.sandbox.memory import MemorySandbox
from treadle.tools.context import Scope, ToolContext
from treadle.tools.protocol import Tool, ToolOutput
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
    result = execute(_call(ToolCall("call_1", name, text), tools, sandbox))
    if result.error_kind in (ToolErrorKind.INVALID_JSON, ToolErrorKind.INVALID_ARGUMENTS):
        raise ConfigError(result.content)
    if is_json:
        print_lines([msgspec.json.encode(result)])
    elif result.is_error:
        print_error(result.content)
    else:
        text = clean(result.content)
        stdout().print(text, soft_wrap=True, end="" if text.endswith("\n") else "\n")
    delta = sandbox.take_delta()
    if not is_json and delta is not None and (delta[0].changed or delta[0].deleted):
        changes = [*delta[0].changed, *[f"-{path}" for path in delta[0].deleted]]
        print_note(f"{write_count(len(changes), 'file')} changed in the sandbox: {', '.join(changes)[:500]}")
    return int(result.is_error)


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the arguments on standard input are not UTF-8: {error}") from error


async def _call(call: ToolCall, tools: dict[str, Tool], sandbox: MemorySandbox) -> ToolResult:
    """Make the call, and those that it makes of the other tools."""
    sandbox.take_delta()
    run_id, scope, specs, ids = make_run_id(), Scope(), Toolbox(tools).specs, count(1)

    async def make(call: ToolCall) -> ToolResult:
        ready = read_call(call, tools, None)
        if isinstance(ready, ToolResult):
            return ready
        context = ToolContext(
            run_id,
            call.call_id,
            1,
            sandbox,
            lambda _, text: print_note(text),
            scope=scope,
            tools=specs,
            make_caller=lambda _: make_inner,
        )
        result, _ = await run_tool(call, *ready, context)
        return result

    async def make_inner(name: str, arguments: dict[str, Json]) -> ToolOutput:
        text = msgspec.json.encode(arguments).decode()
        result = await make(ToolCall(f"{call.call_id}/{next(ids)}", name, text))
        return ToolOutput(result.content, result.is_error, result.is_simulated, result.structured)

    try:
        return await make(call)
    finally:
        scope.is_run_over = True
        await scope.close()
