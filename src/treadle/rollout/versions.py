"""The versions of the weights that rollouts have seen, and how old the tokens of a group are."""

import re
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"(\d+)$")


class Versions:
    """The known versions, the oldest first.

    Versions that are numbers, or end in one, are ordered by it. Others are ordered by when they were first seen or
    announced.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known: list[str] = []
        for version in known:
            self.note(version)

    @property
    def known(self) -> Sequence[str]:
        """All versions, the oldest first."""
        return self._known

    @property
    def current(self) -> str | None:
        """The newest version; `None` if none is known."""
        return self._known[-1] if self._known else None

    def note(self, version: str) -> bool:
        """Add a version that an answer had or that the trainer announced. Return whether it is new."""
        if version in self._known:
            return False
        self._known.append(version)
        numbers = [_NUMBER.search(item) for item in self._known]
        if all(numbers):
            self._known.sort(key=lambda item: int(item[_NUMBER.search(item).start() :]))  # type: ignore[union-attr]
        return True

    def age(self, versions: Iterable[str]) -> int:
        """Return how many versions the current weights are ahead of the oldest of `versions`; 0 if there are none.

        Versions that are plain numbers are subtracted from each other. Between others, the known versions are
        counted.
        """
        found = [version for version in versions if version in self._known]
        if not found or self.current is None:
            return 0
        oldest = min(found, key=self._known.index)
        if all(item.isdecimal() for item in self._known):
            return int(self.current) - int(oldest)
        return len(self._known) - 1 - self._known.index(oldest)
