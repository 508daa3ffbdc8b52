"""The functions with which all commands print: texts, numbers and progress bars."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from treadle.core.errors import ConfigError, MistakesError, TreadleError, UntrustedError
from treadle.core.registry import did_you_mean
from treadle.core.texts.masking import hide_password
from treadle.core.types import Json, Usage

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufff9-\ufffb]"
)
"""The characters that control a terminal, change the direction or the order of the text, or cannot be printed."""
_RAW_CONTROL = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]|\xef\xbf[\xb9-\xbb]"
)
"""Those that JSON may have as they are, in UTF-8."""
_TABS_AND_ENDS = re.compile(r"\s+")


@cache
def stdout() -> "Console":
    """Return standard output; without colour if NO_COLOR is set or it is not a terminal."""
    return _console(is_error=False)


@cache
def stderr() -> "Console":
    """Return standard error, for everything that is not the command's output."""
    return _console(is_error=True)


@cache
def screen() -> "Console":
    """Return the console for bars and spinners: standard error, or standard output if it is the same terminal.

    One console prints on a terminal, because lines that another one printed would be mixed up with the bar.
    """
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        return stderr()
    try:
        is_same = os.fstat(sys.stdout.fileno()).st_rdev == os.fstat(sys.stderr.fileno()).st_rdev
    except OSError:
        is_same = False
    return stdout() if is_same else stderr()


def _console(*, is_error: bool) -> "Console":
    from rich.console import Console

    class Plain(Console):
        """A console that cleans the texts that it prints, and ignores errors of standard error."""

        def print(self, *objects: Any, **options: Any) -> None:
            texts = [clean(item) if isinstance(item, str) else item for item in objects]
            with _writing(is_ignored=is_error):
                Console.print(screen() if is_error else self, *texts, **options)

        def on_broken_pipe(self) -> None:
            raise

    stream = sys.stderr if is_error else sys.stdout
    # In a pipe, lines are not wrapped, even if they are long.
    width = None if stream.isatty() else 1_000_000
    return Plain(
        stderr=is_error, width=width, markup=False, emoji=False, highlight=False, soft_wrap=width is not None
    )


@contextmanager
def _writing(*, is_ignored: bool = False) -> Iterator[None]:
    """Report an error of an output in the `with` block, or ignore it. Raises: `TreadleError`; `BrokenPipeError` if
    the reader has closed the pipe."""
    try:
        yield
    except OSError as error:
        if is_ignored:
            return
        if isinstance(error, BrokenPipeError):
            raise
        raise TreadleError(f"cannot write to standard output: {error.strerror}") from error


def is_live() -> bool:
    """Return whether standard output is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def print_line(text: "str | Text", style: str = "") -> None:
    """Print a line on standard output as a whole: it is not broken, so that it can be copied."""
    stdout().print(text, style=style, soft_wrap=True)


def print_parts(*parts: tuple[str, str]) -> None:
    """Print a line of texts with their styles at once: a bar may be shown after each print."""
    from rich.text import Text

    print_line(Text.assemble(*[(clean(text), style) for text, style in parts]))


def print_error(text: str) -> None:
    """Print an error as one line on standard error."""
    from rich.text import Text

    line = Text.assemble(("error: ", "bold red"), clean(text))
    stderr().print(line, soft_wrap=_is_kept_whole(text))


def _is_kept_whole(text: str) -> bool | None:
    """Return True if a text has a command, whose lines must not be broken, so that it can be copied; else `None`,
    and lines break between words on a terminal."""
    return True if "treadle " in text else None


def write_error(error: TreadleError) -> str:
    """Return an error in one line, or several mistakes in a line each, with advice for the command line."""
    if isinstance(error, MistakesError):
        return str(error)
    text = error.explain("pass --trust") if isinstance(error, UntrustedError) else str(error)
    return re.sub(":; ", ": ", "; ".join([line.removeprefix("- ") for line in text.splitlines()]))


def print_interrupted(text: str) -> None:
    """Print `interrupted` and `text` on standard error."""
    stderr().print(clean(f"interrupted{text}"), style="yellow", soft_wrap=True)


def print_note(text: str) -> None:
    """Print a remark on standard error."""
    stderr().print(clean(text), style="dim", soft_wrap=_is_kept_whole(text))


def print_lines(lines: Iterable[bytes]) -> int:
    """Print lines of bytes unchanged, flush them, and return their number. Each is written at once with its end,
    since the process may be killed between two writes."""
    count = 0
    flush()
    for line in lines:
        with _writing():
            sys.stdout.buffer.write(line + b"\n")
        count += 1
    flush()
    return count


def print_json(*values: Any) -> None:
    """Print each value as a line of JSON, and flush them."""
    print_json_lines(map(msgspec.json.encode, values))


def print_json_lines(lines: Iterable[bytes]) -> int:
    """Print lines of JSON, flush them, and return their number. What could control a terminal is escaped, which
    changes no value."""
    return print_lines(map(escape_controls, lines))


def escape_controls(line: bytes) -> bytes:
    """Return JSON with the characters escaped that control a terminal or the direction of text."""
    if line.isascii() and b"\x7f" not in line:
        return line
    return _RAW_CONTROL.sub(lambda found: b"\\u%04x" % ord(found[0].decode()), line)


def print_schema(schema: Json) -> None:
    """Print a JSON Schema in several lines, for people and editors."""
    print_json_lines([msgspec.json.format(msgspec.json.encode(schema), indent=2)])


def take_stdout() -> Callable[[Any], None]:
    """Return a function that prints a value as a line of JSON on standard output.

    Other output of this process and its children goes to standard error from now on.
    """
    flush()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def print_value(value: Any) -> None:
        with _writing():
            output.write(escape_controls(msgspec.json.encode(value)) + b"\n")
            output.flush()

    return print_value


def print_bytes(data: bytes) -> None:
    """Print bytes unchanged, and flush them."""
    flush()
    with _writing():
        sys.stdout.buffer.write(data)
    flush()


def write_output(data: bytes, out: Path | None) -> None:
    """Write data to a file; `None`: to standard output."""
    if out is None:
        print_bytes(data)
    else:
        from treadle.export.whole import write_whole

        write_whole([data.removesuffix(b"\n")], out)


def flush() -> None:
    with _writing():
        sys.stdout.flush()


def clean(text: str) -> str:
    """Return `text` with each control character replaced, so that it cannot control or confuse the terminal."""
    return _CONTROL.sub("�", text.replace("\r\n", "\n"))


def shorten(text: str, chars: int) -> str:
    """Return `text` as one line of at most `chars` characters."""
    # Cut first: replacing the white space of all of a long text would be slow.
    line = _TABS_AND_ENDS.sub(" ", text[: 4 * chars + 200]).strip()
    return clean(line if len(line) <= chars else line[: max(1, chars - 1)] + "…")


def write_count(count: int, noun: str) -> str:
    """Return a count with its noun: `1 step`, `2 steps`, `1,204 steps`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def write_seconds(seconds: float) -> str:
    """Return a duration: `0.42 s`, `3.1 s`, `2 min 5 s`, `3 h 20 min`."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def write_usage(usage: Usage) -> str:
    """Return the token counts of `usage` as text. Cached tokens are left out if there are none; `about` says that
    they are estimated, because a server did not report them."""
    about = "" if usage.is_reported else "about "
    return f"{about}{usage.total_tokens:,} tokens ({write_directions(usage)})"


def write_directions(usage: Usage) -> str:
    """Return the input and output tokens of `usage` as text: `3,411 in (48% cached), 38 out`."""
    share = usage.cached_input_tokens / max(1, usage.input_tokens)
    cached = f" ({share:.0%} cached)" if usage.cached_input_tokens else ""
    return f"{usage.input_tokens:,} in{cached}, {usage.output_tokens:,} out"


def write_cost(cost_usd: float | None, unknown: int = 0) -> str:
    """Return a cost in dollars, and how many more costs are unknown; `cost unknown` if none is known."""
    if cost_usd is None or (unknown and not cost_usd):
        return "cost unknown"
    from treadle.core.tally import write_usd  # it loads the events

    known = write_usd(cost_usd)
    return f"{known} + {unknown:,} unknown" if unknown else known


def print_finding(mark: str, name: str, seen: str, advice: str | None) -> None:
    """Print what was found out about one thing. `mark` is a word and its style, such as `yes|green`."""
    word, _, style = mark.partition("|")
    print_parts((f"{word:<7}  ", style), (f"{name:<16} {seen}", ""))
    if advice is not None:
        print_line(f"{'':<26}{advice}", "dim")


def find_one(known: Collection[str], text: str, noun: str, listed: str) -> str:
    """Return the one of `known` that `text` names: it, or its beginning.

    Raises: `ConfigError` that lists them as `listed`.
    """
    found = [text] if text in known else [item for item in known if item.startswith(text)]
    if len(found) == 1:
        return found[0]
    hint = "" if found else did_you_mean(text, known, cutoff=0.4)
    how_many = f"several {noun}s begin" if found else f"no {noun} begins"
    raise ConfigError(f"{how_many} with {text!r}{hint or ';'} the {listed} are: {', '.join(known)}")


OptionValue: TypeAlias = str | Path | tuple[str, ...] | Literal[True] | None


def write_command(command: str, /, *words: str, **options: OptionValue) -> str:
    """Return a command line that works when it is typed, also if a word begins with a dash.

    The value of a flag is `True`, several values repeat an option, and an option of `None` is left out. So is the
    password of a URL.
    """
    more: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        given = value if isinstance(value, tuple) else () if value is None else (str(value),)
        values = [hide_password(item) if "://" in item else item for item in given]
        more += [flag] if value is True else [word for item in values for word in (flag, item)]
    if any(word.startswith("-") for word in words):
        return shlex.join(["treadle", command, *more, "--", *words])
    return shlex.join(["treadle", command, *words, *more])


def _can_show() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Show `text` with a spinner until the end of the block."""
    if not _can_show():
        yield
        return
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    shown = Spinner("dots", Text(text, style="dim"))
    with Live(shown, console=screen(), transient=True, redirect_stdout=screen() is stdout()):
        yield


@contextmanager
def bar(text: str, total: int | None, *, is_json: bool = False) -> Iterator[Callable[[str], None]]:
    """Show a progress bar until the end of the block. The block calls the function for each of `total` items.

    The function takes a remark, such as the item's name. If `total` is `None`, it is unknown; for one item, a
    spinner is shown. Lines that the block prints appear above the bar. With `is_json` the block prints lines of
    JSON, and no bar is shown if they go to a terminal.
    """
    if not _can_show() or (is_json and sys.stdout.isatty()):
        yield lambda remark: None
        return
    if total == 1:
        with spinner(text):
            yield lambda remark: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[remark]}", style="dim", markup=False),
    )
    # What goes into a file or a pipe must not be printed above the bar.
    is_shared = screen() is stdout()
    with Progress(*columns, console=screen(), transient=True, redirect_stdout=is_shared) as progress:
        task = progress.add_task(text, total=total, remark="")
        yield lambda remark: progress.update(task, advance=1, remark=shorten(remark, 40))
