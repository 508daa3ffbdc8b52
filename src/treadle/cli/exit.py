"""The end of the command `treadle`: its exit codes, and what Ctrl-C does before its function begins."""

import os
import signal
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of commands. A command for several runs returns the gravest of their codes."""

    DONE = 0
    FAILED = 1
    MISUSE = 2
    LIMIT = 3
    WAITING = 4
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "failed",
    ExitCode.MISUSE: "misuse",
    ExitCode.LIMIT: "a run reached a limit",
    ExitCode.WAITING: "a run waits for an answer or an approval",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.PIPE_CLOSED: "the output was closed",
}
"""The meanings of the exit codes, for the help."""

_GRAVEST_FIRST = (
    ExitCode.INTERRUPTED,
    ExitCode.FAILED,
    ExitCode.MISUSE,
    ExitCode.WAITING,
    ExitCode.LIMIT,
)


def join_codes(codes: Iterable[int]) -> ExitCode:
    """Return the gravest of the exit codes of several runs."""
    found = set(codes)
    return next((code for code in _GRAVEST_FIRST if code in found), ExitCode.DONE)


def end_at_interrupts() -> None:
    """Let Ctrl-C end the process at once from now on, because an interrupted import may fail in any way."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)


def _end_at_once(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(ExitCode.INTERRUPTED)


def allow_interrupts() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` from now on, instead of ending the process at once."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
