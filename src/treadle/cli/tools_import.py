"""`treadle tools import`: save the definitions of tools."""

from pathlib import Path
from typing import Annotated

import typer

from treadle.tools.schema.definitions import Shape

EXAMPLES = (
    "treadle tools import 'mcp:npx -y some-server' -o tools.json",
    "treadle tools import tools.yaml --format openai",
)


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FROM",
            help="A file of definitions in any shape, - for standard input, or what --tools takes, as "
            "mcp:https://host/mcp.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Standard output unless given.")
    ] = None,
    shape: Annotated[
        Shape, typer.Option("--format", metavar="SHAPE", help="treadle, openai, mcp or deepfabric.")
    ] = Shape.TREADLE,
    is_forced: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
) -> None:
    """Read tool definitions and write them in another shape: for a mock, a data set, or another program."""
    from treadle.cli.terminal.output import exit_with
    from treadle.cli.tool_import import import_tools

    exit_with(import_tools(source, out, shape, is_forced=is_forced))
