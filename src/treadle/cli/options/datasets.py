"""Options and arguments of the commands for datasets."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from treadle.cli.options.complete import complete_format
from treadle.core.errors import ConfigError

DatasetPath: TypeAlias = Annotated[
    Path, typer.Argument(metavar="FOLDER|FILE", help="The folder of a dataset, or a file of rows.")
]
DatasetFolder: TypeAlias = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a dataset.")]
Formats: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        "-f",
        metavar="NAME",
        autocompletion=complete_format,
        help="A format of rows, such as trl. May be given several times.",
    ),
]


def read_shares(text: str) -> dict[str, float]:
    """Return the splits in a text such as `train=0.9,test=0.1`. Raises: `ConfigError`."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        try:
            shares[name] = float(share)
        except ValueError:
            raise ConfigError(
                f"--splits {text!r}: {part!r} is not NAME=SHARE; write for example train=0.9,test=0.1"
            ) from None
    return shares
