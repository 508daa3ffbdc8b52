"""What `treadle tools list` and `treadle tools import` print."""

from collections.abc import Iterable, Sequence

import msgspec

from treadle.cli.terminal.output import clean, print_lines, print_note, stdout
from treadle.core.registry import require
from treadle.core.types import ToolSpec
from treadle.tools.protocol import Tool
from treadle.tools.resolve import TOOLSETS
from treadle.tools.schema.definitions import Loss, Shape, write_definitions

MAX_NAMED = 5
"""Tools that a line about all of them names."""
_ABOUT = {
    "files": "read, write, edit and search the files of the run",
    "python": "Python code in a sandbox",
    "shell": "shell commands in a sandbox",
    "mcp": "an MCP server: mcp:'npx -y server', mcp:https://host/mcp, mcp:servers.json",
    "mock": "mocked tools of a file of definitions: mock:tools.json",
    "openapi": "the operations of an OpenAPI document: openapi:document.json",
    "spin": "a service that speaks DeepFabric's Spin protocol: spin:http://host:port",
}


def print_toolsets(*, is_json: bool) -> None:
    """The names that `--tools` takes."""
    names = TOOLSETS.names()
    if is_json:
        print_lines([msgspec.json.encode({"name": name}) for name in names])
        return
    width = max(map(len, names))
    for name in names:
        about = _ABOUT.get(name.rstrip(":"), "")
        stdout().print(f"{name:<{width}}  {about}", soft_wrap=True)
    print_note("tools of your own: file.py, file.py:name or package.module:name")


def print_tools(tools: Sequence[Tool], *, is_json: bool) -> None:
    """One tool a line."""
    specs = [tool.spec for tool in tools]
    if is_json:
        print_lines([msgspec.json.encode(spec) for spec in specs])
        return
    width = max((len(spec.name) for spec in specs), default=0)
    for spec in specs:
        about = spec.description.strip().partition("\n")[0]
        stdout().print(f"{clean(spec.name):<{width}}  ", style="bold", end="")
        stdout().print(f"{spec.effect:<10}  ", style="dim", end="")
        stdout().print(clean(about), soft_wrap=True)


def print_definitions(tools: Iterable[Tool], shape: Shape) -> None:
    """Whole definitions, as JSON."""
    print_lines([encode([tool.spec for tool in tools], shape)])


def encode(specs: Sequence[ToolSpec], shape: Shape, *, is_yaml: bool = False) -> bytes:
    """Definitions as indented JSON, or as YAML; what the shape cannot hold is told on standard error.

    Raises: `ConfigError` for YAML without PyYAML.
    """
    written, lost = write_definitions(specs, shape)
    print_losses(lost, f"the shape {shape} cannot hold")
    data = msgspec.json.encode(written)
    if not is_yaml:
        return msgspec.json.format(data, indent=2)
    text: str = require("yaml", "yaml").safe_dump(
        msgspec.json.decode(data), sort_keys=False, allow_unicode=True, width=100
    )
    return text.rstrip("\n").encode()


def print_losses(lost: Iterable[Loss], begin: str) -> None:
    """One line for each thing that was lost, with the tools that lost it."""
    tools_by_what: dict[str, list[str]] = {}
    for item in lost:
        tools_by_what.setdefault(item.what, []).append(item.tool)
    for what, tools in tools_by_what.items():
        more = f" and {len(tools) - MAX_NAMED} more" if len(tools) > MAX_NAMED else ""
        names = ", ".join(tools[:MAX_NAMED]) + more
        print_note(f"{begin} {what}: {names}" if names else f"{begin} {what}")
