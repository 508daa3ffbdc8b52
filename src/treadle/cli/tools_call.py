"""`treadle tools call`: one call of one tool."""

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    'treadle tools call read_file \'{"file_path": "notes.md"}\' --tools files --mount .',
    'treadle tools call python \'{"code": "2 ** 64"}\' --tools python',
)


def call(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Its name.", show_default=False)],
    arguments: Annotated[
        str, typer.Argument(metavar="JSON", help="Its arguments, as one object; - reads standard input.")
    ] = "{}",
    tools: o.Tools = None,
    mount: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder that is read into the sandbox, and never written to."),
    ] = None,
    is_json: o.IsJson = False,
) -> None:
    """Call one tool in a fresh sandbox, and print its result. The exit code is 1 if that is an error."""
    from treadle.cli.terminal.output import exit_with
    from treadle.cli.tool_call import call_tool

    exit_with(call_tool(tool, arguments, tools or ["files"], mount, is_json=is_json))
