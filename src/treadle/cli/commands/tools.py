"""`treadle tools`: lists, calls, converts and serves tools."""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.options import common as o
from treadle.cli.terminal.output import (
    clean,
    flush,
    print_error,
    print_json,
    print_json_lines,
    print_line,
    print_note,
    print_parts,
    spinner,
    write_count,
)
from treadle.core.errors import ConfigError
from treadle.core.registry import name_known, require
from treadle.core.texts.documents import decode_document, is_yaml_name, read_data
from treadle.core.types import FileDelta, ToolCall, ToolErrorKind, ToolResult, ToolSpec
from treadle.tools.protocol import Tool
from treadle.tools.schema.tool_definitions import (
    DefinitionLoss,
    Shape,
    parse_definitions,
    read_definitions,
    write_definitions,
)

if TYPE_CHECKING:
    from treadle.sandbox.in_memory import MemorySandbox
    from treadle.server.tools.tool_sessions import ToolSessions


def list_tools(
    tools: list[str] | None = None,
    shape: Shape | None = None,
    is_json: bool = False,
) -> None:
    """List tools with their effect and description, or the available toolsets without --tools.

    Examples:
        treadle tools list --tools files --tools python
        treadle tools list --tools 'mcp:npx -y some-server' --format openai
    """
    if tools:
        _print_tools([tool.spec for tool in start_tools(tools)], shape, is_json=is_json)
    elif shape is not None:
        raise ConfigError(
            "--format prints the definitions of tools; name the tools with --tools, such as --tools files"
        )
    else:
        _print_toolsets(is_json=is_json)


def start_tools(names: Sequence[str]) -> tuple[Tool, ...]:
    """Start toolsets, and return their tools. Raises: `ConfigError`."""
    from treadle.tools.resolve import resolve_tools

    with spinner("starting the tools"):
        return resolve_tools(names)


def _print_toolsets(*, is_json: bool) -> None:
    """Print the names that `--tools` takes."""
    from treadle.tools.resolve import TOOLSETS

    names = TOOLSETS.names()
    if is_json:
        print_json(*[{"name": name} for name in names])
        return
    width, abouts = max(map(len, names)), read_data("treadle.cli.commands", "toolsets")
    for name in names:
        about = abouts.get(name.rstrip(":"), "")
        print_line(f"{name:<{width}}  {about}")
    print_note("your own tools: file.py, file.py:name or package.module:name")


def _print_tools(specs: Sequence[ToolSpec], shape: Shape | None, *, is_json: bool) -> None:
    if shape is not None:
        print_json_lines([encode(specs, shape)])
        return
    if is_json:
        print_json(*specs)
        return
    print_specs(specs)


def print_specs(specs: Sequence[ToolSpec]) -> None:
    """Print tools with their effects and the first lines of their descriptions."""
    width = max((len(spec.name) for spec in specs), default=0)
    for spec in specs:
        about = spec.description.strip().partition("\n")[0]
        print_parts((f"{spec.name:<{width}}  ", "bold"), (f"{spec.effect:<10}  ", "dim"), (about, ""))


def call(
    tool: str,
    arguments: str = "{}",
    tools: list[str] | None = None,
    *,
    mount: o.MountOptions,
    is_json: bool = False,
) -> int:
    """Call one tool in a fresh sandbox and print its result.

    The exit code is 1 if the result is an error.

    Examples:
        treadle tools call read_file '{"file_path": "notes.md"}' --tools files --mount .
        treadle tools call python '{"code": "2 ** 64"}' --tools python
    """
    from treadle.cli.jobs.run_files import read_mount
    from treadle.sandbox.in_memory import MemorySandbox

    found = {item.spec.name: item for item in start_tools(tools or ["files"])}
    if tool not in found:
        raise ConfigError(f"there is no tool {tool!r}{name_known(tool, found, 'the tools are:')}")
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
        print_line(clean(result.content).removesuffix("\n"))
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
    call: ToolCall, tools: dict[str, Tool], sandbox: "MemorySandbox"
) -> tuple[ToolResult, FileDelta]:
    """Make the call and its inner calls. Return its result and the changed files."""
    from treadle.core.events import SnapshotTaken
    from treadle.loop.calls.results import Order
    from treadle.loop.calls.workbench import Workbench
    from treadle.loop.outbox import Collected
    from treadle.runs.begin import make_run_id
    from treadle.tools.toolbox import Toolbox

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


def import_tools(
    source: str,
    out: Path | None = None,
    shape: Shape = Shape.TREADLE,
    is_forced: bool = False,
) -> None:
    """Read tool definitions and write them in another shape.

    The result is for a mock, a data set, or another program.

    Examples:
        treadle tools import 'mcp:npx -y some-server' -o tools.json
        treadle tools import tools.yaml --format openai
    """
    from treadle.export.whole import write_whole

    if out is not None and not is_forced and os.path.lexists(out):
        raise ConfigError(f"{str(out)!r} exists; --force replaces it")
    if out is not None and out.is_dir():
        raise ConfigError(f"{str(out)!r} is a folder; name a file in it")
    specs = _read(source)
    data = encode(specs, shape, is_yaml=out is not None and is_yaml_name(out.name))
    if out is None:
        print_json_lines([data])
        return
    write_whole([data], out)
    print_note(f"{write_count(len(specs), 'tool')} written to {out}")


def _read(source: str) -> tuple[ToolSpec, ...]:
    file = Path(source).expanduser()
    is_missing = (file.suffix.lower() == ".json" or is_yaml_name(file.name)) and ":" not in source
    if source == "-":
        read = parse_definitions(
            decode_document(sys.stdin.buffer.read(), "standard input", is_yaml=False), "standard input"
        )
    elif is_missing or (file.suffix != ".py" and file.is_file()):
        read = read_definitions(source)
    else:
        return tuple([tool.spec for tool in start_tools([source])])
    print_losses(read.lost, "a definition has no place for")
    return read.tools


MAX_NAMED = 5
"""The most tools that one remark names."""


def encode(specs: Sequence[ToolSpec], shape: Shape, *, is_yaml: bool = False) -> bytes:
    """Return definitions as indented JSON or as YAML, and print what the shape cannot hold."""
    written, lost = write_definitions(specs, shape)
    print_losses(lost, f"the shape {shape} cannot hold")
    data = msgspec.json.encode(written)
    if not is_yaml:
        return msgspec.json.format(data, indent=2)
    import yaml

    text: str = yaml.safe_dump(msgspec.json.decode(data), sort_keys=False, allow_unicode=True, width=100)
    return text.rstrip("\n").encode()


def print_losses(lost: Iterable[DefinitionLoss], begin: str) -> None:
    """Print one remark for each thing that was lost, with the tools that lost it."""
    tools_by_what: dict[str, list[str]] = {}
    for item in lost:
        tools_by_what.setdefault(item.what, []).append(item.tool)
    for what, tools in tools_by_what.items():
        more = f" and {len(tools) - MAX_NAMED} more" if len(tools) > MAX_NAMED else ""
        names = ", ".join(tools[:MAX_NAMED]) + more
        print_note(f"{begin} {what}: {names}" if names else f"{begin} {what}")


def serve(
    tools: list[str] | None = None,
    mcp: Literal["stdio", "http"] | None = None,
    has_spin: bool = False,
    host: str = "127.0.0.1",
    port: int = 3000,
    *,
    mount: o.MountOptions,
    idle: float = 3600.0,
    max_sessions: int = 1000,
    is_json: bool = False,
) -> None:
    """Serve tools over MCP and over the Spin protocol.

    Each session has its own files, which begin as those of --mount.

    Examples:
        treadle tools serve --tools files --tools python --port 3000
        treadle tools serve --tools python --mcp stdio
    """
    from treadle.cli.jobs.run_files import read_mount
    from treadle.sandbox.in_memory import MemorySandbox
    from treadle.server.tools.tool_sessions import ToolSessions

    if has_spin and mcp is not None:
        raise ConfigError("--spin and --mcp each serve one protocol alone; leave out both to serve both")
    sessions = ToolSessions(
        start_tools(tools or ["files"]),
        files=MemorySandbox(read_mount(mount)),
        idle_seconds=idle,
        max_sessions=max_sessions,
    )
    if mcp == "stdio":
        from treadle.server.tools.mcp_tools import serve_stdio

        execute(serve_stdio(sessions))
        return
    require("starlette", "serve")
    from treadle.server.listening import listen
    from treadle.server.tools.tool_app import serve_http

    listener, url = listen(host, port)
    protocols = [
        name for name, is_left_out in (("mcp", has_spin), ("spin", mcp is not None)) if not is_left_out
    ]

    def tell(paths: dict[str, str]) -> None:
        _print_addresses(paths, sessions, is_json=is_json)

    execute(serve_http(sessions, listener, host, url, protocols, tell))


def _print_addresses(paths: dict[str, str], sessions: "ToolSessions", *, is_json: bool) -> None:
    if is_json:
        print_json({**paths, "tools": list(sessions.tools)})
        return
    for name, address in paths.items():
        print_line(f"{name:<5} {address}", "bold")
    flush()
    print_note(f"tools: {', '.join(sessions.tools)}; Ctrl-C stops the server")
