"""Groups of options that several commands have, and values that several options take."""

from pathlib import Path
from typing import Literal, TypeAlias

from treadle.cli.options.option_groups import OptionGroup
from treadle.core.errors import ConfigError

Level: TypeAlias = Literal["process", "power"]
"""The failures that a stored event survives."""


class MountOptions(OptionGroup, frozen=True, kw_only=True):
    """The options for files from the disk."""

    path: Path | None = None
    """The folder or file; `None` if none was given."""
    is_whole: bool = False
    """True if nothing is left out."""

    def __post_init__(self) -> None:
        if self.is_whole and self.path is None:
            raise ConfigError("--mount-all goes with --mount DIR")


class ViewOptions(OptionGroup, frozen=True, kw_only=True):
    """The options about the output while a run is driven."""

    is_json: bool = False
    """True if each event is printed as a line of JSON."""
    is_quiet: bool = False
    """True if only the answer is printed."""

    def __post_init__(self) -> None:
        if self.is_json and self.is_quiet:
            raise ConfigError("give --json or --quiet, not both")


def read_shares(text: str) -> dict[str, float]:
    """Return the splits in a text such as `train=0.9,test=0.1`. Raises: `ConfigError`."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        if name in shares:
            raise ConfigError(f"--splits {text!r}: {name!r} occurs twice; delete one")
        try:
            shares[name] = float(share)
        except ValueError:
            raise ConfigError(
                f"--splits {text!r}: {part!r} is not NAME=SHARE; write for example train=0.9,test=0.1"
            ) from None
    return shares
