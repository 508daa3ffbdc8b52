"""`treadle models`: which models there are, and what one of them can do."""

import typer

from treadle.cli.app import Commands

EXAMPLES = (
    "treadle models list",
    "treadle models check vllm:Qwen/Qwen3-8B",
)
_WHERE = {
    "list": "treadle.cli.models_list:list_models",
    "check": "treadle.cli.models_check:check",
    "schema": "treadle.cli.models_schema:schema",
}


class ModelCommands(Commands):
    """The commands below `treadle models`."""

    commands_by_name = _WHERE


models = typer.Typer(
    cls=ModelCommands,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Show the models of treadle.toml and the providers, and find out what a live endpoint can do.",
    epilog="\n\n".join(["Examples:", *[f"  {line}" for line in EXAMPLES]]),
)


@models.callback()
def _models() -> None:
    """Show the models of treadle.toml and the providers, and find out what a live endpoint can do."""
