"""A function of the user as a scorer."""

import asyncio
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle.core.errors import ConfigError
from treadle.scoring.protocol import Score, Subject
from treadle.tools.references import attribute_of, load_file, load_module


class FunctionScorer:
    """The number that a function returns for a `Subject`: a float, a bool, a `Score`, or `None`. A coroutine
    function is awaited; any other function is called in a thread."""

    def __init__(self, name: str, *, function: str | Callable[[Subject], Any]) -> None:
        """Make a scorer. `function` is a function, `package.module:function` or `file.py:function`.

        Raises: `ConfigError` if it cannot be loaded.
        """
        self.name = name
        self._function = load_function(function) if isinstance(function, str) else function

    async def score(self, subject: Subject) -> Score | None:
        """See `Scorer.score`."""
        if inspect.iscoroutinefunction(self._function):
            found = await self._function(subject)
        else:
            found = await asyncio.to_thread(self._function, subject)
        if found is None or isinstance(found, Score):
            return found
        if not isinstance(found, int | float) or not math.isfinite(found):
            raise ValueError(f"the function of the reward {self.name!r} returned {found!r}; return a number")
        return Score(float(found))


def load_function(reference: str) -> Callable[[Subject], Any]:
    """Return the function with a reference. Raises: `ConfigError`."""
    place, _, attribute = reference.rpartition(":")
    module = load_file(Path(place)) if place.endswith(".py") else load_module(place, reference)
    found = attribute_of(module, attribute, reference)
    if not callable(found):
        raise ConfigError(f"{reference!r} is {found!r:.100}; name a function that takes a Subject")
    return found  # type: ignore[no-any-return]
