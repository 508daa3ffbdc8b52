"""The command line: one file for each command, loaded only when the command is used."""

from treadle.cli.start import main

__all__ = ["main"]
