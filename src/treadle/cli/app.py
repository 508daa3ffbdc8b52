"""The command `treadle`: which commands there are, and what any of them does when it fails.

Exit codes: 0 completed, 1 failed, 2 misuse, 3 a limit was reached, 130 interrupted.
"""

import atexit
import os
import sys
import threading
import traceback
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

COMMANDS = {
    "run": "treadle.cli.run:run",
    "chat": "treadle.cli.chat:chat",
    "runs": "treadle.cli.runs:runs",
    "show": "treadle.cli.show:show",
    "resume": "treadle.cli.resume:resume",
    "approve": "treadle.cli.approve:approve",
    "fork": "treadle.cli.fork:fork",
    "replay": "treadle.cli.replay:replay",
    "verify": "treadle.cli.verify:verify",
    "export": "treadle.cli.export:export",
    "import": "treadle.cli.import_:import_",
    "tools": "treadle.cli.tools:tools",
    "models": "treadle.cli.models:models",
    "init": "treadle.cli.init:init",
    "tasks": "treadle.cli.tasks:tasks",
    "mock": "treadle.cli.mock:mock",
    "demo": "treadle.cli.demo.command:demo",
    "doctor": "treadle.cli.doctor:doctor",
}
"""Name to `module:function`, in the order of the help. The module's `EXAMPLES` are two command lines.

What stands behind the colon may also be a `typer.Typer`: a group of commands.
"""

_SETTINGS = {"help_option_names": ["-h", "--help"]}


class Commands(TyperGroup):
    """Loads a command's module when the command is asked for."""

    commands_by_name = COMMANDS

    def list_commands(self, ctx: object) -> list[str]:
        """The names, in the order of the help."""
        return list(self.commands_by_name)

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        """The command, or `None` if there is none of this name."""
        if cmd_name not in self.commands_by_name:
            return None
        module_name, _, function = self.commands_by_name[cmd_name].partition(":")
        module = import_module(module_name)
        group = getattr(module, function)
        if isinstance(group, typer.Typer):
            command = typer.main.get_command(group)
            command.name = cmd_name
            return command
        single = typer.Typer(add_completion=False)
        examples = ["Examples:", *[f"  {line}" for line in module.EXAMPLES]]
        single.command(cmd_name, epilog="\n\n".join(examples), context_settings=_SETTINGS)(group)
        return typer.main.get_command(single)


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_SETTINGS,
    epilog="Begin with:  treadle demo\n\nThe help of each command has examples:  treadle run --help",
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from treadle import __version__

        typer.echo(f"treadle {__version__}")
        raise typer.Exit


@app.callback()
def treadle(
    is_debug: Annotated[
        bool, typer.Option("--debug", envvar="TREADLE_DEBUG", help="Show the traceback of an error.")
    ] = False,
    is_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Run tool-using LLM agents whose every run is a durable, replayable, training-ready trajectory."""
    if is_debug:
        os.environ["TREADLE_DEBUG"] = "1"


def main() -> NoReturn:
    """Run the command that the process was started with, and exit."""
    code = 1
    try:
        app(prog_name="treadle")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        code = _report(error)
    _leave(code)


def _report(error: Exception) -> int:
    """Say what went wrong, in one line if it was foreseen; the exit code."""
    from treadle.core.errors import ConfigError, RunNotFoundError, TreadleError

    if os.environ.get("TREADLE_DEBUG") or not isinstance(error, TreadleError):
        traceback.print_exception(error)
    else:
        from treadle.cli.terminal.output import print_error

        print_error(str(error))
    return 2 if isinstance(error, ConfigError | RunNotFoundError) else 1


def _leave(code: int) -> NoReturn:
    """Exit, even where a tool's thread goes on after it was cancelled, for which Python would wait."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        # Whoever read the output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if any(thread.name.startswith("treadle-tool") for thread in threading.enumerate()):
        atexit._run_exitfuncs()
        os._exit(code)
    sys.exit(code)
