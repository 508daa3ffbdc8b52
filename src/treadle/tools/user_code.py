"""Mistakes in the code of users: rewards, checks, filters and other functions that Treadle calls.

An exception such as a `KeyError` comes again at each attempt, so it is told at once, with its place. An exception
of another kind, such as an `OSError`, may be a fault of the infrastructure.
"""

import traceback
from functools import cache
from pathlib import Path

from treadle.core.errors import ConfigError, TreadleError, UserCodeError

_KINDS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""The exceptions that say that the code is wrong, unless they are also an `OSError`."""


def blame(error: Exception, what: str) -> ConfigError | None:
    """Return the error that says that `what` failed because the user's code or configuration is wrong, and where.

    `None` if another attempt may succeed.
    """
    if isinstance(error, ConfigError):
        return (
            type(error)(f"{what}: {error}")
            if type(error) is UserCodeError
            else ConfigError(f"{what}: {error}")
        )
    if isinstance(error, TreadleError | OSError) or not isinstance(error, _KINDS):
        return None
    return UserCodeError(
        f"{what}: {type(error).__name__}: {error}{place_of(error)}; mend the code, and run the same command again"
    )


def is_from_user(error: BaseException) -> bool:
    """Return whether an exception was raised in or below code that is not Treadle's or an installed package's."""
    return any(_is_own(frame) for frame in traceback.extract_tb(error.__traceback__))


def place_of(error: BaseException) -> str:
    """Return the line of the user's code at which an exception was raised: the deepest one outside of installed
    packages. Empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame)]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _is_own(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith(_find_others())


@cache
def _find_others() -> tuple[str, ...]:
    """Return how the paths of files begin that are not the user's own."""
    import sysconfig  # takes 2 ms

    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (str(Path(__file__).parent.parent), "<", *libraries)
