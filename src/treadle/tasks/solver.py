"""Solvers: generators that yield the steps of a task and are sent the results.

A solver knows only the words of the task and the results of its calls. Its answer follows from what it
observed.
"""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from treadle.core.types import Json, Message, ToolCall

MAX_STALLS = 6
"""The number of consecutive rounds without progress after which the solver gives up a step."""

_FAILURE = re.compile(
    r"\w*Error\b\s*[:(]|not run\b|(there is )?no (such|file|tool|folder)\b|old_text (is|does|occurs) "
    r"|\w+ did not finish within |the (outcome of this call is unknown|call was not run|arguments (are|were))\b",
    re.IGNORECASE,
)
"""How a failed result begins, for transcripts in wire formats that have no `is_error`."""


class FailedResult(str):
    """The result of a call that failed, for a solver that asked for failures too."""

    __slots__ = ()


class WantedCall(Struct, frozen=True):
    """A tool call that the solver needs to have made once, even if some attempts fail."""

    name: str
    arguments: dict[str, Json]
    path_argument: str | None = None
    """The name of an argument that can safely be misspelt, or `None`."""
    look: "WantedCall | None" = None
    """A call that shows whether this call took effect, for calls that change something."""
    is_done: Callable[[str], bool] | None = None
    """A function that takes the result of `look` and says whether this call took effect."""


class Step(Struct, frozen=True):
    """A group of calls to make at the same time. The solver gets their results in the same order."""

    calls: Sequence[WantedCall]
    reasoning: str = ""
    """Why the calls are made, in one sentence."""
    draft: str = ""
    """The answer to give if no further step is possible; empty if no answer is known yet."""
    may_fail: bool = False
    """True if a failed call is not made again: the solver gets its error as a `FailedResult`."""


class Ask(Struct, frozen=True):
    """A message to the user. The solver gets the reply, or is closed if the user says nothing more."""

    text: str


Solver: TypeAlias = Generator[Step | Ask, list[str], str]
"""A generator that yields steps, is sent the results of each, and returns the final answer. For an `Ask` it is sent
the user's reply, alone in a list."""


@runtime_checkable
class Solvable(Protocol):
    """A task whose set can solve its tasks. `treadle.testbed.oracle_for` returns a model that does so."""

    def find_solver(self, prompt: str) -> Solver | None:
        """Return a solver for the task of the set whose input is `prompt`, or `None` if there is no such task."""
        ...


class Pursuit:
    """One step, repeated over as many rounds as its calls need to succeed."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.rounds = 0
        self._stalls = 0
        self.error: str | None = None
        """The first error of the last round, or `None`."""
        self._results: list[str | None] = [None] * len(step.calls)
        self._looking: set[int] = set()

    @property
    def is_over(self) -> bool:
        """True if every call has succeeded, or too many rounds brought no progress."""
        return self._stalls >= MAX_STALLS or None not in self._results

    @property
    def results(self) -> list[str] | None:
        """The results in the order of the calls, or `None` if some calls have not succeeded."""
        done = [result for result in self._results if result is not None]
        return done if len(done) == len(self._results) else None

    @property
    def is_looking(self) -> bool:
        """True if a call may or may not have taken effect and has to be checked."""
        return bool(self._looking)

    def wanted(self) -> list[WantedCall]:
        """Return the calls to make in the next round."""
        return [call for _, call in self._open()]

    def _open(self) -> list[tuple[int, WantedCall]]:
        """Return the calls that have not succeeded, or those that check them, with their positions."""
        wanted = []
        for index, call in enumerate(self.step.calls):
            if self._results[index] is None:
                look = call.look if index in self._looking else None
                wanted.append((index, look or call))
        return wanted

    def observe(self, message: Message, results: Mapping[str, Message]) -> None:
        """Process the results of one round's calls, whether or not they were the wanted ones."""
        self.rounds += 1
        self.error = None
        left = list(message.tool_calls)
        wanted = self._open()
        for index, call in wanted:
            made = next((item for item in left if is_same_call(call, item)), None)
            result = results.get(made.call_id) if made is not None else None
            if made is not None and result is not None:
                left.remove(made)
                self._take(index, result)
        self._stalls = 0 if len(self._open()) < len(wanted) else self._stalls + 1
        if self.error is None:
            answers = [results[item.call_id] for item in left if item.call_id in results]
            self.error = next((item.content for item in answers if is_failure(item)), None)

    def _take(self, index: int, result: Message) -> None:
        call = self.step.calls[index]
        is_failed = is_failure(result)
        if is_failed:
            self.error = self.error or result.content
        if index in self._looking:
            self._looking.discard(index)
            if not is_failed and call.is_done is not None and call.is_done(result.content):
                self._results[index] = ""
        elif not is_failed:
            self._results[index] = result.content
        elif self.step.may_fail:
            self._results[index] = FailedResult(result.content)
        elif call.look is not None:
            self._looking.add(index)


def is_same_call(wanted: WantedCall, made: ToolCall) -> bool:
    """Return whether `made` has the name and, apart from white space, the arguments of `wanted`."""
    return wanted.name == made.name and bool(made.parsed_or(None) == wanted.arguments)


def is_failure(result: Message) -> bool:
    """Return whether a tool message reports an error."""
    return result.is_error or _FAILURE.match(result.content) is not None


class Habit(Struct, frozen=True):
    """The working style of a solver. It is derived from the words of the task."""

    batch: int = 3
    """The number of files to read in one step."""
    is_terse: bool = False
    """True if the final answer has only the answer line."""
