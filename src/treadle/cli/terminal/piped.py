"""The text that is piped into a command."""

import os
import select
import stat
import sys

from treadle.cli.terminal.output import print_note
from treadle.core.errors import ConfigError

_PATIENCE_SECONDS = 2.0
"""The time after which a note says that the command waits for its standard input."""


def read_stdin(*, is_needed: bool = False) -> str:
    """Return the text of standard input, without white space at its ends.

    Unless `is_needed`, only a pipe, a file or a socket is read, and the text is empty otherwise.
    Raises: `ConfigError` if it is not UTF-8.
    """
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
    except (AttributeError, OSError, ValueError):  # closed
        return ""
    if not is_needed and not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return ""
    if os.name == "posix" and not select.select([descriptor], [], [], _PATIENCE_SECONDS)[0]:
        print_note("reading standard input; if there is nothing to read, add </dev/null to the command")
    try:
        return sys.stdin.buffer.read().decode().strip()
    except OSError as error:
        raise ConfigError(f"cannot read standard input: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"standard input is not text in UTF-8 ({error}); send other files with --attach FILE"
        ) from error
