"""What `treadle tools list` and `treadle tools import` print."""

from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points

import msgspec

from treadle.cli.output import clean, print_lines, print_note, stdout
from treadle.core.types import ToolSpec
from treadle.tools.definitions import write_definitions
from treadle.tools.protocol import Tool
from treadle.tools.resolve import MAKERS, TOOLSETS

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
    others = [point.name for point in entry_points(group="treadle.tools") if point.name not in TOOLSETS]
    names = [*TOOLSETS, *[f"{name}:" for name in MAKERS], *others]
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


def print_definitions(tools: Iterable[Tool], shape: str) -> None:
    """Whole definitions, as JSON."""
    print_lines([encode([tool.spec for tool in tools], shape)])


def encode(specs: Sequence[ToolSpec], shape: str) -> bytes:
    """Definitions as indented JSON; what the shape cannot hold is told on standard error."""
    written, lost = write_definitions(specs, shape)
    for line in lost:
        print_note(line)
    return msgspec.json.format(msgspec.json.encode(written), indent=2)
