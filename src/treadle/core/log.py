"""An append-only sequence whose versions share their storage.

Invariant: a `Log` never changes; `append` returns a longer one in amortised constant time. All versions of one
history share the same list, so that keeping the state of every step copies nothing. Appending to a version that is
not the newest one (a fork) copies its items once.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, Generic, TypeVar, cast

_new = object.__new__
_BLOCK = 32
"""How many results `Log.join` keeps in one piece."""

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")
C = TypeVar("C")


class Log(Generic[T]):
    """An immutable sequence of `T` to which items can be added cheaply."""

    __slots__ = ("_items", "_memos", "size")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: list[T] = list(items)
        self.size = len(self._items)
        """The number of items. Reading it is faster than calling `len`."""
        self._memos: dict[object, Any] = {}

    def extend(self, items: Iterable[T]) -> "Log[T]":
        """Return a log with `items` added at the end; this log is unchanged."""
        new: Log[T] = Log.__new__(Log)
        if self.size == len(self._items):
            new._items, new._memos = self._items, self._memos
        else:
            new._items, new._memos = self._items[: self.size], {}
        new._items.extend(items)
        new.size = len(new._items)
        return new

    def append(self, item: T) -> "Log[T]":
        """Return a log with `item` added at the end; this log is unchanged."""
        items = self._items
        if self.size != len(items):
            return self.extend((item,))
        new: Log[T] = _new(Log)
        items.append(item)
        new._items, new._memos, new.size = items, self._memos, self.size + 1
        return new

    def map(self, function: Callable[..., R], *context: object) -> list[R]:
        """Return the list of `function(item, *context)` for every item.

        Each result is cached and shared by all versions of this log, so it must depend on the item alone.
        `context` is where `function` looks up content that the item refers to by hash.
        """
        memo = cast("list[R]", self._memos.setdefault(function, []))
        for item in self._items[len(memo) : self.size]:
            memo.append(function(item, *context))
        return memo if len(memo) == self.size else memo[: self.size]

    def scan(self, function: Callable[..., tuple[S, R]], initial: S, *context: object) -> tuple[list[R], S]:
        """Return the result of `function(state, item, *context)` for every item, and the state after the last one.

        `function` returns the next state and the item's result; for the first item the state is `initial`. As with
        `map`, both are cached and shared by all versions of this log, so they must depend on the items alone.
        """
        known: tuple[list[R], list[S]] | None = self._memos.get(function)
        if known is None:
            known = self._memos[function] = ([], [initial])
        results, states = known
        size = self.size
        if len(results) < size:
            state = states[-1]
            for item in self._items[len(results) : size]:
                state, result = function(state, item, *context)
                results.append(result)
                states.append(state)
            return results, state
        if len(results) == size:
            return results, states[-1]
        return results[:size], states[size]

    def join(
        self, function: Callable[[S, T, C], tuple[S, bytes]], initial: S, context: C
    ) -> tuple[list[bytes], S]:
        """Return pieces that together are the results of `scan`, and the state after the last item.

        There are far fewer pieces than items, so that joining them costs little more than copying their bytes.
        """
        known: _Joined[S] | None = self._memos.get((function, "join"))
        if known is None:
            known = self._memos[function, "join"] = _Joined(initial)
        states, size = known.states, self.size
        if len(states) <= size:
            rest, state = known.rest, states[-1]
            for item in self._items[len(states) - 1 : size]:
                state, result = function(state, item, context)
                states.append(state)
                rest.append(result)
            while len(rest) >= _BLOCK:
                known.fold()
            return known.blocks + rest, state
        return known.pieces(size), states[size]

    def derive(self, function: "Callable[[list[T], bool], Iterable[R]]") -> "Log[R]":
        """Return a log of the results of `function`. Its versions share their storage, like those of this log.

        `function` is called with the items added since its last call, as one list, and with whether these are the
        first items. It must be pure, and splitting the items into several lists must not change the results.
        """
        known: tuple[int, Log[R]] = self._memos.get((function, "derive"), (0, Log()))
        done, log = known
        if done > self.size:
            return Log(function(self._items[: self.size], True))
        if done < self.size:
            log = log.extend(function(self._items[done : self.size], not done))
            self._memos[function, "derive"] = (self.size, log)
        return log

    def after(self, start: int) -> list[T]:
        """Return the items from position `start` on."""
        return self._items[start : self.size]

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[T]:
        return iter(self._items[: self.size])

    def __getitem__(self, index: int) -> T:
        if not -self.size <= index < self.size:
            raise IndexError(f"index {index} is outside a log of {self.size}")
        return self._items[index if index >= 0 else self.size + index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Log) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Log({list(self)!r})"


class _Joined(Generic[S]):
    """The results of a scan: whole blocks as one piece each, and the results of the last, incomplete block."""

    __slots__ = ("_ends", "blocks", "rest", "states")

    def __init__(self, initial: S) -> None:
        self.states = [initial]
        """The states before the first item and after each item."""
        self.blocks: list[bytes] = []
        self._ends: list[list[int]] = []
        """The end of each result within its block, for each block."""
        self.rest: list[bytes] = []

    def fold(self) -> None:
        """Make a piece of the first block in `rest`."""
        block = self.rest[:_BLOCK]
        self.blocks.append(b"".join(block))
        self._ends.append(list(accumulate(map(len, block))))
        del self.rest[:_BLOCK]

    def pieces(self, size: int) -> list[bytes]:
        whole, left = divmod(size, _BLOCK)
        pieces = self.blocks[:whole]
        if whole == len(self.blocks):
            return pieces + self.rest[:left]
        if left:
            pieces.append(self.blocks[whole][: self._ends[whole][left - 1]])
        return pieces
