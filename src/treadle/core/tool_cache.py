"""What is made of the same tools again and again, such as their schemas or their hash."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

_MAX_KNOWN = 64
_Made = TypeVar("_Made")


class ToolCache(Generic[_Made]):
    """What a function makes of tools, kept for the same object."""

    def __init__(self, make: Callable[[Sequence[Any]], _Made]) -> None:
        self._make = make
        self._known: dict[int, tuple[object, _Made]] = {}

    def find(self, tools: Sequence[Any]) -> _Made:
        """Return what the function makes of `tools`."""
        known = self._known.get(id(tools))
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            # The entry keeps the tools alive, so that their id stays theirs.
            known = self._known[id(tools)] = (tools, self._make(tools))
        return known[1]
