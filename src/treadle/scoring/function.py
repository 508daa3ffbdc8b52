"""A function of the user as a scorer."""

import asyncio
import inspect
import math
from collections.abc import Callable
from typing import Any

from treadle.scoring.protocol import Score, Subject
from treadle.tools.toolset_parts import load_function


class FunctionScorer:
    """The number that a function returns for a `Subject`: a float, a bool, a `Score`, or `None`. A coroutine
    function is awaited; any other function is called in a thread."""

    def __init__(self, name: str, *, function: str | Callable[[Subject], Any]) -> None:
        """Make a scorer. `function` is a function, `package.module:function` or `file.py:function`.

        Raises: `ConfigError` if it cannot be loaded.
        """
        self.name = name
        self._function = load_function(function, "a Subject") if isinstance(function, str) else function

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
