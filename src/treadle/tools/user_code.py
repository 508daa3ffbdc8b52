"""Mistakes in the code of users: rewards, checks, filters and other functions that Treadle calls.

An exception such as a `KeyError` or a `FileNotFoundError` comes again at each attempt, so it is told at once, with
its place. An exception of another kind, such as a `TimeoutError`, may be a fault of the infrastructure.
"""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from treadle.core.errors import ConfigError, ScoringError, TreadleError, UserCodeError, WorkerError
from treadle.core.texts.masking import mask_of

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
_WRONG_PATHS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""The exceptions of the operating system that say that a path in the code is wrong."""
_CANNOT_RUN = (ImportError, NameError, NotImplementedError, SyntaxError)
"""The exceptions that say that a tool's code is wrong, whatever its arguments are."""
_ODD = (AttributeError, RecursionError, TypeError)
"""The exceptions of a tool that may be about its arguments, unless all of its first calls end with them."""
_FIRST = 3
"""After so many equal failures without a success before, the code is wrong."""


def describe_error(error: BaseException) -> str:
    """Return an exception as text, with its place in the user's code and without secrets of the process."""
    return f"{type(error).__name__}: {hide_secrets(str(error))}{place_of(error)}"


def hide_secrets(text: str) -> str:
    """Return a text of the user's code without the secrets in this process's environment."""
    return mask_of(os.environ).hide(text)


def blame(error: Exception, what: str) -> ConfigError | None:
    """Return the error that says that `what` failed because the user's code or configuration is wrong, and where.

    `None` if another attempt may succeed.
    """
    if isinstance(error, ConfigError):
        kind = UserCodeError if type(error) is UserCodeError else ConfigError
        return kind(f"{what}: {error}")
    may_pass = isinstance(error, OSError) or not isinstance(error, _KINDS)
    if isinstance(error, TreadleError) or (may_pass and not isinstance(error, _WRONG_PATHS)):
        return None
    return UserCodeError(f"{what}: {describe_error(error)}; mend the code, and run the same command again")


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Raise the error of `blame` in place of an exception of the block, unless another attempt may succeed."""
    try:
        yield
    except Exception as error:
        if (wrong := blame(error, what)) is None:
            raise
        raise wrong from error


class FirstFailures:
    """The failures of code of the user that has not succeeded yet."""

    def __init__(self) -> None:
        self._worked: set[str] = set()
        self._seen: dict[tuple[str, str, str], set[object]] = {}

    def succeed(self, what: str) -> None:
        """Note that the code called `what` works."""
        self._worked.add(what)

    def blame_tool(self, name: str, error: Exception, call: object, what: str) -> ConfigError | None:
        """Return the error that says that the tool `name` has a mistake; `None` if the model can do better.

        `call` is equal for calls that must fail alike.
        """
        is_wrong = isinstance(error, _CANNOT_RUN) or (
            isinstance(error, _ODD) and self._is_repeated(name, error, call, place_of(error))
        )
        return blame(error, what) if is_wrong and not isinstance(error, TreadleError) else None

    def blame_again(self, what: str, error: Exception) -> ConfigError | None:
        """Return the error that says that `error` comes again and again from the same line of the user's code.

        `None` if it does not, or if the error is one of the infrastructure.
        """
        told = error.__cause__ if isinstance(error, ScoringError) and error.__cause__ is not None else error
        place = told.place if isinstance(told, WorkerError) else place_of(told) if is_from_user(told) else ""
        is_other = isinstance(told, TreadleError) and not isinstance(told, WorkerError)
        if not place or isinstance(told, OSError) or is_other:
            return None
        if not self._is_repeated(what, told, object(), place):
            return None
        said = str(error) if isinstance(error, TreadleError) else describe_error(error)
        at = "" if place in said else place
        return UserCodeError(
            f"{said}{at}; the first {_FIRST} attempts ended alike: mend the code, and run the same command again"
        )

    def _is_repeated(self, what: str, error: BaseException, attempt: object, place: str) -> bool:
        if what in self._worked or not place:
            return False
        seen = self._seen.setdefault((what, type(error).__name__, place), set())
        seen.add(attempt)
        return len(seen) >= _FIRST


def is_from_user(error: BaseException) -> bool:
    """Return whether an exception was raised in or below code that is not Treadle's or an installed package's."""
    return any(_is_own(frame) for frame in traceback.extract_tb(error.__traceback__))


def place_of(error: BaseException) -> str:
    """Return the deepest line of the user's code at which an exception was raised; empty if there is none."""
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
