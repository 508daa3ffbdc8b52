"""The runs that a process drives, counted by what they wait for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from treadle.loop.driver import Driver


class Count(Struct, frozen=True):
    """How many runs a process drives."""

    in_flight: int = 0
    waiting_on_model: int = 0
    """How many of them wait for an answer of a model."""
    waiting_on_tools: int = 0
    """How many of them wait for tools."""


class Watched:
    """The drivers of runs in flight."""

    def __init__(self) -> None:
        self._in_flight: dict[object, Driver | None] = {}

    def __len__(self) -> int:
        return len(self._in_flight)

    @contextmanager
    def watch(self) -> Iterator[Callable[[Driver], None]]:
        """Count a run until the context ends. The function that it returns takes the run's driver."""
        key = object()
        self._in_flight[key] = None

        def hold(driver: Driver) -> None:
            self._in_flight[key] = driver

        try:
            yield hold
        finally:
            del self._in_flight[key]

    def count(self) -> Count:
        """Return how many runs are in flight, and what they wait for."""
        states = [driver.state for driver in list(self._in_flight.values()) if driver is not None]
        on_model = sum([state.turn.asked is not None for state in states])
        on_tools = sum([state.turn.is_open and not state.turn.asked is not None for state in states])
        return Count(len(self._in_flight), on_model, on_tools)
