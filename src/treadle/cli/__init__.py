"""The command line. One file for each command, which is loaded when it is called."""

from treadle.cli.app import main

__all__ = ["main"]
