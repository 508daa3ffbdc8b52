"""The command `treadle`: its help, its exit codes, and how its errors are reported.

Exit codes: 0 completed, 1 failed, 2 misuse, 3 a limit was reached, 130 interrupted.
"""

import atexit
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from treadle.cli.table import COMMANDS, Command, Group

VARIABLE = "_TREADLE_COMPLETE"
"""The environment variable by which a shell asks for completions."""
_SETTINGS = {"help_option_names": ["-h", "--help"]}


class LazyCommand(TyperCommand):
    """A command of the table, whose module is imported when the command is run or asked for its own help."""

    def __init__(self, name: str, entry: Command | Group) -> None:
        super().__init__(name, help=entry.summary, rich_help_panel=entry.panel)
        self._entry = entry

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Load the command, and return its context."""
        assert self.name is not None
        command = _load(self.name, self._entry)
        return command.make_context(info_name, args, parent=parent, **extra)


def _load(name: str, entry: Command | Group) -> Any:
    """Return the command that an entry of the table describes."""
    if isinstance(entry, Group):
        group = typer.Typer(
            no_args_is_help=True,
            add_completion=False,
            context_settings=_SETTINGS,
            help=entry.summary,
            epilog=_write_examples(entry.examples),
        )
        group.callback()(_do_nothing)
        return _make_group(name, group, entry.commands)
    from treadle.cli.options.signature import as_command

    module_name, _, function = entry.function.partition(":")
    module = import_module(module_name)
    single = typer.Typer(add_completion=False)
    epilog = _write_examples(module.EXAMPLES)
    single.command(name, epilog=epilog, context_settings=_SETTINGS)(as_command(getattr(module, function)))
    return typer.main.get_command(single)


def _make_group(name: str, group: typer.Typer, entries: Mapping[str, Command | Group]) -> TyperGroup:
    made = typer.main.get_group(group)
    made.name = name
    made.commands = {key: LazyCommand(key, entry) for key, entry in entries.items()}
    return made


def _do_nothing() -> None:
    pass


def _write_examples(examples: Sequence[str]) -> str:
    return "\n\n".join(["Examples:", *[f"  {line}" for line in examples]])


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from treadle import __version__

        typer.echo(f"treadle {__version__}")
        raise typer.Exit


def _treadle(
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


def make_app() -> TyperGroup:
    """Return the command `treadle`."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        context_settings=_SETTINGS,
        epilog="Start with:  treadle demo\n\nThe help of each command has examples:  treadle run --help",
    )
    app.callback()(_treadle)
    return _make_group("treadle", app, COMMANDS)


def main() -> NoReturn:
    """Run the command that the process was started with, and exit."""
    code = 1
    if VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    try:
        make_app().main(prog_name="treadle")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        code = _report(error)
    _leave(code)


def _report(error: Exception) -> int:
    """Print an error, in one line if Treadle raised it on purpose, and return the exit code."""
    from treadle.core.errors import ConfigError, RunNotFoundError, TreadleError

    if os.environ.get("TREADLE_DEBUG") or not isinstance(error, TreadleError):
        traceback.print_exception(error)
    else:
        from treadle.cli.terminal.output import print_error

        print_error(str(error))
    return 2 if isinstance(error, ConfigError | RunNotFoundError) else 1


def _leave(code: int) -> NoReturn:
    """Exit without waiting for the thread of a cancelled tool, which Python would wait for."""
    # From here on Ctrl-C must not change the exit code.
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        # The reader closed the pipe; output that is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if any(thread.name.startswith("treadle-tool") for thread in threading.enumerate()):
        atexit._run_exitfuncs()
        os._exit(code)
    sys.exit(code)
