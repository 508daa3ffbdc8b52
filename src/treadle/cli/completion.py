"""`treadle completion`: the script with which a shell completes commands, options, runs and models."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.app import VARIABLE
from treadle.cli.exit import ExitCode
from treadle.cli.terminal.output import print_lines, print_note
from treadle.core.errors import ConfigError

EXAMPLES = (
    'eval "$(treadle completion bash)"',
    "treadle completion fish > ~/.config/fish/completions/treadle.fish",
)


class Shell(StrEnum):
    """A shell that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


_PLACES = {
    Shell.BASH: "~/.bashrc",
    Shell.ZSH: "~/.zshrc, after compinit",
    Shell.FISH: "~/.config/fish/config.fish",
    Shell.POWERSHELL: "$PROFILE",
}


def completion(
    shell: Annotated[
        Shell | None,
        typer.Argument(metavar="SHELL", help="The shell. Default: that of $SHELL.", show_default=False),
    ] = None,
) -> int:
    """Print the script that makes a shell complete the commands of treadle.

    Put the command of the first example into the startup file of the shell.
    """
    from typer._completion_shared import get_completion_script

    shell = shell or _find_shell()
    script = get_completion_script(prog_name="treadle", complete_var=VARIABLE, shell=shell.value)
    print_lines([script.encode()])
    if os.isatty(1):
        print_note(
            f'to use it in every {shell} shell, add to {_PLACES[shell]}: eval "$(treadle completion {shell})"'
        )
    return ExitCode.DONE


def _find_shell() -> Shell:
    name = Path(os.environ.get("SHELL", "")).name
    try:
        return Shell(name)
    except ValueError:
        raise ConfigError(
            f"the shell {name!r} of $SHELL is not one of {', '.join(Shell)}; name one"
        ) from None
