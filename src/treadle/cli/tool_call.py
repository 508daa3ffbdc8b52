"""What `treadle tools call` does."""

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from treadle.agent import make_run_id
from treadle.cli.execute import execute
from treadle.cli.output import clean, print_error, print_lines, print_note, stdout, write_count
from treadle.core.errors import ConfigError
from treadle.core.types import ToolCall, ToolErrorKind, ToolResult
from treadle.perform import read_call, run_tool
from treadle.sandbox.memory import MemorySandbox
from treadle.tools.protocol import Scope, Tool, Toolbox, ToolContext
from treadle.tools.resolve import resolve_tools


def call_tool(name: str, arguments: str, texts: Sequence[str], mount: Path | None, *, is_json: bool) -> int:
    """Make the call and print what came of it; the exit code. Raises: `ConfigError` for what cannot be called."""
    tools = {tool.spec.name: tool for tool in resolve_tools(list(texts))}
    if name not in tools:
        near = difflib.get_close_matches(name, tools, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"there is no tool {name!r}{hint}; the tools are {', '.join(tools) or 'none'}")
    text = sys.stdin.read() if arguments == "-" else arguments
    sandbox = MemorySandbox.from_folder(mount) if mount is not None else MemorySandbox()
    result = execute(_call(ToolCall("call_1", name, text), tools, sandbox))
    if result.error_kind in (ToolErrorKind.INVALID_JSON, ToolErrorKind.INVALID_ARGUMENTS):
        raise ConfigError(result.content)
    if is_json:
        print_lines([msgspec.json.encode(result)])
    elif result.is_error:
        print_error(result.content)
    else:
        stdout().print(clean(result.content), soft_wrap=True)
    delta = sandbox.take_delta()
    if not is_json and delta is not None and (delta[0].changed or delta[0].deleted):
        changes = [*delta[0].changed, *[f"-{path}" for path in delta[0].deleted]]
        print_note(f"{write_count(len(changes), 'file')} changed in the sandbox: {', '.join(changes)[:500]}")
    return int(result.is_error)


async def _call(call: ToolCall, tools: dict[str, Tool], sandbox: MemorySandbox) -> ToolResult:
    ready = read_call(call, tools, None)
    if isinstance(ready, ToolResult):
        return ready
    tool, arguments = ready
    sandbox.take_delta()
    scope = Scope()
    context = ToolContext(
        make_run_id(),
        call.call_id,
        1,
        sandbox,
        lambda _, text: print_note(text),
        scope=scope,
        tools=Toolbox(tools).specs,
    )
    try:
        result, _ = await run_tool(call, tool, arguments, context)
    finally:
        await scope.close()
    return result
