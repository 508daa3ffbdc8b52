"""`treadle tools list`: the tools of toolsets."""

from typing import Annotated

import typer

from treadle.cli.terminal import options as o
from treadle.tools.schema.definitions import Shape

EXAMPLES = (
    "treadle tools list --tools files --tools python",
    "treadle tools list --tools 'mcp:npx -y some-server' --format openai",
)


def list_tools(
    tools: o.Tools = None,
    shape: Annotated[
        Shape | None,
        typer.Option(
            "--format",
            metavar="SHAPE",
            help="Whole definitions as JSON: treadle, openai, mcp or deepfabric.",
        ),
    ] = None,
    is_json: o.IsJson = False,
) -> None:
    """List tools: name, effect and the first line of what they do. Without --tools: the toolsets that are here."""
    from treadle.cli.tool_listing import print_definitions, print_tools, print_toolsets
    from treadle.core.errors import ConfigError
    from treadle.tools.resolve import resolve_tools

    if not tools and shape is not None:
        raise ConfigError(
            "--format writes the definitions of tools; name them with --tools, as --tools files"
        )
    if not tools:
        print_toolsets(is_json=is_json)
    elif shape is not None:
        print_definitions(resolve_tools(tools), shape)
    else:
        print_tools(resolve_tools(tools), is_json=is_json)
