"""`treadle tools`: what tools there are, one call of one, their definitions, and serving them."""

import typer

from treadle.cli.app import Commands

EXAMPLES = (
    "treadle tools list --tools python",
    'treadle tools call python \'{"code": "2 ** 64"}\' --tools python',
)
_WHERE = {
    "list": "treadle.cli.tools_list:list_tools",
    "call": "treadle.cli.tools_call:call",
    "import": "treadle.cli.tools_import:import_",
    "serve": "treadle.cli.tools_serve:serve",
}


class ToolCommands(Commands):
    """The commands below `treadle tools`."""

    commands_by_name = _WHERE


tools = typer.Typer(
    cls=ToolCommands,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Show tools, call one, save their definitions, or serve them to other programs.",
    epilog="\n\n".join(["Examples:", *[f"  {line}" for line in EXAMPLES]]),
)


@tools.callback()
def _tools() -> None:
    """Show tools, call one, save their definitions, or serve them to other programs."""
