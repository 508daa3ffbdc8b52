"""`treadle tools list`: the tools of toolsets, or the toolsets."""

from collections.abc import Sequence
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.terminal.bar import spinner
from treadle.cli.terminal.output import clean, print_json, print_lines, print_note, stdout
from treadle.core.errors import ConfigError
from treadle.core.types import ToolSpec
from treadle.tools.schema.tool_definitions import Shape

EXAMPLES = (
    "treadle tools list --tools files --tools python",
    "treadle tools list --tools 'mcp:npx -y some-server' --format openai",
)
_ABOUT = {
    "ask": "ask the user questions, with options or free text",
    "files": "read, write, edit and search the files of the run",
    "vfs": "read, write, list and delete the files of the run, as DeepFabric's tools do",
    "python": "Python code in a sandbox",
    "shell": "shell commands in a sandbox",
    "shell-unprotected": "shell commands on this machine, without a sandbox",
    "mcp": "an MCP server: mcp:'npx -y server', mcp:https://host/mcp, mcp:servers.json",
    "mock": "mocked tools from a file of definitions: mock:tools.json",
    "openapi": "the operations of an OpenAPI document: openapi:document.json",
    "memory": "remember and recall things across sessions, with --memory or a persona",
    "spin": "a service that speaks DeepFabric's Spin protocol: spin:http://host:port",
}


def list_tools(
    tools: o.Tools = None,
    shape: Annotated[
        Shape | None,
        typer.Option(
            "--format",
            metavar="SHAPE",
            help="Print whole definitions as JSON: treadle, openai, mcp or deepfabric.",
        ),
    ] = None,
    is_json: o.IsJson = False,
) -> int:
    """List tools with their effect and description, or the available toolsets without --tools."""
    from treadle.tools.resolve import resolve_tools

    if tools:
        with spinner("starting the tools"):
            specs = [tool.spec for tool in resolve_tools(tools)]
        _print_tools(specs, shape, is_json=is_json)
    elif shape is not None:
        raise ConfigError(
            "--format prints the definitions of tools; name the tools with --tools, such as --tools files"
        )
    else:
        _print_toolsets(is_json=is_json)
    return ExitCode.DONE


def _print_toolsets(*, is_json: bool) -> None:
    """Print the names that `--tools` takes."""
    from treadle.tools.resolve import TOOLSETS

    names = TOOLSETS.names()
    if is_json:
        print_json(*[{"name": name} for name in names])
        return
    width = max(map(len, names))
    for name in names:
        about = _ABOUT.get(name.rstrip(":"), "")
        stdout().print(f"{name:<{width}}  {about}", soft_wrap=True)
    print_note("your own tools: file.py, file.py:name or package.module:name")


def _print_tools(specs: Sequence[ToolSpec], shape: Shape | None, *, is_json: bool) -> None:
    if shape is not None:
        from treadle.cli.terminal.definitions import encode

        print_lines([encode(specs, shape)])
        return
    if is_json:
        print_json(*specs)
        return
    width = max((len(spec.name) for spec in specs), default=0)
    for spec in specs:
        about = spec.description.strip().partition("\n")[0]
        stdout().print(f"{clean(spec.name):<{width}}  ", style="bold", end="")
        stdout().print(f"{spec.effect:<10}  ", style="dim", end="")
        stdout().print(clean(about), soft_wrap=True)
