"""The entry point of the command `treadle`, which prepares the process before anything else is imported.

It makes the standard streams usable: a closed stream is opened, so that no other file gets its number, and a
stream that is not UTF-8 gets replacements for the characters that it lacks. Until the command's function begins,
Ctrl-C ends the process at once, because an interrupted import may fail in any way, and the garbage collector does
not work, which finds nothing in what imports make and takes a sixth of their time.
"""

import codecs
import gc
import os
import sys

from treadle.cli.exit import end_at_interrupts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_PLAIN = str.maketrans("·›●○◐▶↳✓✗─", "->*o~>>+x-") | {ord("…"): "..."}
"""The replacements for the marks that commands print, on a terminal that does not have them."""


def main() -> "NoReturn":
    """Run the command that the process was started with, and exit."""
    end_at_interrupts()
    gc.disable()
    _prepare_streams()
    from treadle.cli.app import run

    run()


def _prepare_streams() -> None:
    codecs.register_error("treadle", _replace)
    # Reading from or writing to a stream that was closed fails; what is written to standard error is lost.
    for number, name, flags in (
        (0, "stdin", os.O_WRONLY),
        (1, "stdout", os.O_RDONLY),
        (2, "stderr", os.O_RDWR),
    ):
        stream: Any = getattr(sys, name)
        if stream is None:
            fd = os.open(os.devnull, flags)
            if fd != number:
                os.dup2(fd, number)
            stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        if number == 0:
            stream.reconfigure(encoding="utf-8", errors="replace")
        elif codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="treadle")


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks; see `codecs.register_error`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return "".join([char if char.isascii() else "?" for char in text]), error.end
