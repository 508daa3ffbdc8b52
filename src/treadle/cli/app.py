"""The command `treadle`: its help, and how its errors are reported."""

import atexit
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from treadle.cli.exit import MEANINGS, ExitCode, end_at_interrupts
from treadle.cli.table import COMMANDS, MOVED, VARIABLE, CommandEntry

_MAX_KEYS = 4
"""How many keys of a configuration are suggested."""
_SETTINGS = {"help_option_names": ["-h", "--help"]}


_EPILOG = "\n\n".join(
    (
        "Start with:  treadle demo",
        "The help of each command has examples:  treadle run --help",
        f"Exit codes:  {', '.join([f'{code} {meaning}' for code, meaning in MEANINGS.items()])}.",
    )
)


class LazyCommand(TyperCommand):
    """A command of the table, whose module is imported when the command is run or asked for its own help."""

    def __init__(self, name: str, entry: CommandEntry) -> None:
        super().__init__(name, help=entry.summary, rich_help_panel=entry.panel)
        self._entry = entry

    @cached_property
    def whole(self) -> Any:
        """The command with its options, which is loaded once."""
        assert self.name is not None
        return _load(self.name, self._entry)

    @cached_property
    def own(self) -> dict[str, "LazyCommand"]:
        """The commands of a command that also runs by itself."""
        entries = self._entry.commands if self._entry.function else {}
        return {name: LazyCommand(name, entry) for name, entry in entries.items()}

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Load the command, and return its context."""
        if args and args[0] in self.own:
            return self.own[args[0]].make_context(f"{info_name} {args[0]}", args[1:], parent=parent, **extra)
        return self.whole.make_context(info_name, args, parent=parent, **extra)


class MovedCommand(TyperCommand):
    """A command that was removed. It says what to do in its place, and is not in the help."""

    def __init__(self, words: str, advice: str) -> None:
        super().__init__(words.rpartition(" ")[2], hidden=True)
        self._words, self._advice = words, advice

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Raise the error. Raises: `ConfigError`."""
        from treadle.core.errors import ConfigError

        raise ConfigError(f"`treadle {self._words}` was removed; {self._advice}")


def _load(name: str, entry: CommandEntry) -> Any:
    """Return the command that an entry of the table describes."""
    if not entry.function:
        group = typer.Typer(
            no_args_is_help=True,
            add_completion=False,
            context_settings=_SETTINGS,
            help=entry.summary,
            epilog=_write_examples(entry.examples),
        )
        group.callback()(lambda: None)
        return _make_group(name, group, entry.commands)
    from treadle.cli.options.option_groups import as_command, split_docstring

    module_name, _, name_of_function = entry.function.partition(":")
    function = getattr(import_module(module_name), name_of_function)
    epilog = _write_examples(split_docstring(function)[1])
    single = typer.Typer(add_completion=False)
    single.command(name, epilog=epilog, context_settings=_SETTINGS)(as_command(function))
    made = typer.main.get_command(single)
    _prepare_help(made)
    return made


def _prepare_help(command: Any) -> None:
    """Hide that `--help` is a truth value, and keep typer from loading pydantic to read that it was not given."""
    option = command.get_help_option(typer.Context(command, **command.context_settings))
    option.metavar, option.default = "", False


def _make_group(name: str, group: typer.Typer, entries: Mapping[str, CommandEntry]) -> TyperGroup:
    made = typer.main.get_group(group)
    made.name = name
    made.commands = {key: LazyCommand(key, entry) for key, entry in entries.items()}
    for words, advice in MOVED.items():
        if words.rpartition(" ")[0] == name:
            made.commands[words.rpartition(" ")[2]] = MovedCommand(words, advice)
    _prepare_help(made)
    return made


def _write_examples(examples: Sequence[str]) -> str:
    return "\n\n".join(["Examples:", *[f"  {line}" for line in examples]])


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from treadle import __version__

        typer.echo(f"treadle {__version__}")
        raise typer.Exit


def _treadle(
    is_debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            metavar="",
            envvar="TREADLE_DEBUG",
            help="Show the tracebacks of errors, also of those of tools.",
        ),
    ] = False,
    is_version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_show_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Run tool-using LLM agents whose every run is a durable, replayable, training-ready trajectory."""
    if is_debug:
        import logging

        os.environ["TREADLE_DEBUG"] = "1"
        logging.getLogger("treadle").setLevel(logging.DEBUG)
        if logging.lastResort is not None:  # the handler that writes to standard error
            logging.lastResort.setLevel(logging.DEBUG)


@cache
def make_app() -> TyperGroup:
    """Return the command `treadle`."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        context_settings=_SETTINGS,
        epilog=_EPILOG,
    )
    app.callback()(_treadle)
    return _make_group("treadle", app, COMMANDS)


def run() -> NoReturn:
    """Run the command that the process was started with, and exit."""
    code = ExitCode.FAILED
    if VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    try:
        _decode_arguments()
        # Without typer's own handling of errors, which prints boxes of several lines.
        code = ExitCode(make_app().main(prog_name="treadle", standalone_mode=False) or 0)
    except SystemExit as stop:
        code = ExitCode(stop.code) if isinstance(stop.code, int) else ExitCode(stop.code is not None)
        if isinstance(stop.__context__, BrokenPipeError):  # typer exits with 1
            code = ExitCode.PIPE_CLOSED
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except (Exception, BaseExceptionGroup) as error:
        end_at_interrupts()
        code = _report(error)
    _leave(code)


def _decode_arguments() -> None:
    """Decode the arguments as UTF-8, whatever the locale says. Raises: `ConfigError` for one that is not UTF-8."""
    for index, text in enumerate(sys.argv):
        try:
            sys.argv[index] = os.fsencode(text).decode()
        except UnicodeError:
            from treadle.core.errors import ConfigError

            raise ConfigError(f"the argument {text!r} is not valid UTF-8") from None


def _report(error: BaseException) -> ExitCode:
    """Print an error, in one line unless it is a defect of Treadle, and return the exit code."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, BrokenPipeError):
        return ExitCode.PIPE_CLOSED
    if type(error).__name__ == "NoArgsIsHelpError":
        return ExitCode.MISUSE  # the help was printed when the error was made
    from treadle.cli.terminal.output import print_error, write_error
    from treadle.core.errors import ConfigError, RunNotFoundError, TreadleError

    write_usage_error = getattr(error, "format_message", None)
    context = getattr(error, "ctx", None)
    if os.environ.get("TREADLE_DEBUG"):
        traceback.print_exception(error)
    elif write_usage_error is not None:
        told = " ".join(str(write_usage_error()).split()).replace("argument(s)", "argument")
        text = _name_value(told.replace("Value error, ", ""), error)
        text = _suggest(text, error, context)
        used = f"{getattr(context, 'command_path', '')} {getattr(error, 'option_name', '')}"
        if (advice := MOVED.get(used.removeprefix("treadle "))) is not None:
            text = f"{text.partition('.')[0].partition(' (')[0].partition(';')[0]}; {advice}"
        more = f" See: {context.command_path} --help" if context is not None else ""
        print_error(f"{text[:1].lower()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}{more}")
        return ExitCode.MISUSE
    elif isinstance(error, TreadleError):
        print_error(write_error(error))
    elif isinstance(error, OSError):
        where = "" if error.filename is None else f": {os.fspath(error.filename)!r}"
        print_error(f"{error.strerror or error}{where}")
    else:
        traceback.print_exception(error)
    return ExitCode.MISUSE if isinstance(error, ConfigError | RunNotFoundError) else ExitCode.FAILED


def _suggest(text: str, error: BaseException, context: Any) -> str:
    """Return the text of an error of typer about an unknown option or command with Treadle's own suggestions."""
    from treadle.core.registry import did_you_mean

    if (name := getattr(error, "option_name", None)) is not None and "No such option" in text:
        params = context.command.params
        options = ["--help", *[option for item in params for option in (*item.opts, *item.secondary_opts)]]
        hint = did_you_mean(name, options, cutoff=0.8)
        if not hint and hasattr(context.command, "commands"):
            return f"No such option: {name}; options of a command stand after its name"
        if not hint and "--set" in options:
            hint = _suggest_key(name.lstrip("-"), context.command.name)
            hint = hint or did_you_mean(
                name, options, "keys of the configuration are given with --set KEY=VALUE"
            )
        return f"No such option: {name}{hint or did_you_mean(name, options)}"
    head, found, rest = text.partition("No such command '")
    if found and not head:
        name = rest.partition("'")[0]
        return f"No such command {name!r}{did_you_mean(name, context.command.commands)}"
    return text


def _suggest_key(name: str, command: str) -> str:
    """Return the end of an error about an option that is perhaps a key of the command's configuration; empty if it
    is like none."""
    from treadle.cli.commands.setup import schema_of
    from treadle.core.texts.mistakes import Keys

    keys = Keys(lambda: schema_of(command), {})
    paths = keys.find_paths(name.replace("-", "_"))
    # A section itself takes no value.
    wanted = [f"{path}.{key}" for path in paths for key in keys.known(tuple(path.split(".")))] or paths
    told = " or ".join([f"--set {path}=VALUE" for path in wanted[:_MAX_KEYS]])
    return f"; did you mean {told}?" if told else ""


def _name_value(text: str, error: BaseException) -> str:
    """Return the text of an error of typer, with the value that pydantic calls the input."""
    find_faults = getattr(error.__cause__, "errors", None)
    if find_faults is None:
        return text
    return text.replace("Input should", f"{find_faults()[0]['input']!r} should").partition(", unable to")[0]


def _leave(code: ExitCode) -> NoReturn:
    """Exit without waiting for the thread of a cancelled tool, which Python would wait for."""
    # From here on Ctrl-C must not change the exit code.
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))
    try:
        sys.stdout.flush()
    except OSError as error:
        # Output that is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if code is ExitCode.DONE:
            code = _report(error)
    with suppress(OSError):
        sys.stderr.flush()
    if any(thread.name.startswith("treadle-tool") for thread in threading.enumerate()):
        atexit._run_exitfuncs()
        os._exit(code)
    # While the interpreter ends it gives signals back their default action, but not to those that are ignored.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)
