"""`treadle init`."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = (
    "treadle init",
    "treadle init conf/treadle.toml",
)


def init(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to write it.", show_default=True)
    ] = Path("treadle.toml"),
    is_forced: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
) -> None:
    """Write a commented treadle.toml: named models and fallbacks; and its schema for editors beside it."""
    from treadle.cli.init_config import write_config

    write_config(path, is_forced=is_forced)
