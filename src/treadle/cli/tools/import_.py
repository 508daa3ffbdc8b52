"""`treadle tools import`: tool definitions, from one shape to another."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.terminal.bar import spinner
from treadle.cli.terminal.definitions import encode, print_losses
from treadle.cli.terminal.output import print_lines, print_note, write_count
from treadle.core.documents import decode_document, is_yaml_name
from treadle.core.errors import ConfigError
from treadle.core.types import ToolSpec
from treadle.export.whole import write_whole
from treadle.tools.schema.tool_definitions import Shape, parse_definitions, read_definitions

EXAMPLES = (
    "treadle tools import 'mcp:npx -y some-server' -o tools.json",
    "treadle tools import tools.yaml --format openai",
)


def import_tools(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FROM",
            help="A file of definitions in any shape, - for standard input, or a value of --tools such as "
            "mcp:https://host/mcp.",
            show_default=False,
        ),
    ],
    out: o.Out = None,
    shape: Annotated[
        Shape, typer.Option("--format", metavar="SHAPE", help="treadle, openai, mcp or deepfabric.")
    ] = Shape.TREADLE,
    is_forced: o.IsForced = False,
) -> int:
    """Read tool definitions and write them in another shape.

    The result is for a mock, a data set, or another program.
    """
    if out is not None and not is_forced and os.path.lexists(out):
        raise ConfigError(f"{str(out)!r} exists; --force replaces it")
    if out is not None and out.is_dir():
        raise ConfigError(f"{str(out)!r} is a folder; name a file in it")
    specs = _read(source)
    data = encode(specs, shape, is_yaml=out is not None and is_yaml_name(out.name))
    if out is None:
        print_lines([data])
        return ExitCode.DONE
    write_whole([data], out)
    print_note(f"{write_count(len(specs), 'tool')} written to {out}")
    return ExitCode.DONE


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
        from treadle.tools.resolve import resolve_tools

        with spinner("starting the tools"):
            return tuple([tool.spec for tool in resolve_tools([source])])
    print_losses(read.lost, "a definition has no place for")
    return read.tools
