"""The distribution of a number."""

from collections import Counter

from msgspec import Struct, field


class Spread(Struct):
    """The distribution of a number as counts of its values."""

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, value: int) -> None:
        """Count one value."""
        self.counts[value] += 1

    @property
    def rows(self) -> int:
        """How many values there are."""
        return self.counts.total()

    @property
    def total(self) -> int:
        """The sum of the values."""
        return sum(value * count for value, count in self.counts.items())

    @property
    def mean(self) -> float:
        """The mean of the values; 0 if there are none."""
        return self.total / self.rows if self.rows else 0.0

    def quantile(self, share: float) -> int:
        """Return the smallest value that at least this share of the values does not exceed; 0 if there are none."""
        wanted = share * self.rows
        passed = 0
        for value in sorted(self.counts):
            passed += self.counts[value]
            if passed >= wanted:
                return value
        return 0
