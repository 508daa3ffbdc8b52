"""What an oracle's solver is: a generator that yields steps and is sent their results.

A solver knows the words of the task and what its calls returned, and nothing else: what it answers follows
from what it has observed.
"""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import Struct

from treadle.core.types import Json, Message, ToolCall

MAX_STALLS = 6
"""How many rounds in a row may bring a step nothing before the solver gives up."""

_FAILURE = re.compile(
    r"\w*Error\b|not run\b|(there is )?no (such|file|tool|folder)\b|old_text (is|does|occurs) |\w+ did not finish "
    r"within |the (outcome of this call is unknown|call was not run|arguments (are|were))\b",
    re.IGNORECASE,
)
"""How a failed result begins, for transcripts of a wire format that has no `is_error`."""


class Call(Struct, frozen=True):
    """A tool call that a solver wants made, once, whatever goes wrong on the way."""

    name: str
    arguments: dict[str, Json]
    path_argument: str | None = None
    """The argument that may be misspelt without harm, if there is one."""
    look: "Call | None" = None
    """What to call to see whether this one took effect, for one that changes something."""
    is_done: Callable[[str], bool] | None = None
    """Whether the result of `look` shows that it did."""


class Step(Struct, frozen=True):
    """Calls to make side by side. Their results are sent to the solver in the same order."""

    calls: Sequence[Call]
    reasoning: str = ""
    """Why, in a sentence."""
    draft: str = ""
    """The best answer so far, should there be no further step; empty if there is none yet."""


Solver: TypeAlias = Generator[Step, list[str], str]
"""A generator that yields steps, is sent the results of each, and returns the final answer."""


@runtime_checkable
class Solvable(Protocol):
    """A task whose set can solve its tasks. `treadle.teacher.oracle_for` makes a model of it."""

    def find_solver(self, prompt: str) -> Solver | None:
        """Return a solver for the task of the set whose input is `prompt`, or `None` if there is no such task."""
        ...


class Pursuit:
    """One step, pursued over as many rounds as its calls need to succeed."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.rounds = 0
        self._stalls = 0
        self.error: str | None = None
        """The first error of the last round."""
        self._results: list[str | None] = [None] * len(step.calls)
        self._looking: set[int] = set()

    @property
    def is_over(self) -> bool:
        """Every call has succeeded, or the last try has failed."""
        return self._stalls >= MAX_STALLS or None not in self._results

    @property
    def results(self) -> list[str] | None:
        """In the order of the calls; `None` if some have not succeeded."""
        done = [result for result in self._results if result is not None]
        return done if len(done) == len(self._results) else None

    @property
    def is_looking(self) -> bool:
        """Something may or may not have taken effect, and is to be looked at."""
        return bool(self._looking)

    def wanted(self) -> list[Call]:
        """What to call in the next round."""
        return [call for _, call in self._open()]

    def _open(self) -> list[tuple[int, Call]]:
        """Calls without a success, or the looks at what came of them, by position in the step."""
        wanted = []
        for index, call in enumerate(self.step.calls):
            if self._results[index] is None:
                look = call.look if index in self._looking else None
                wanted.append((index, look or call))
        return wanted

    def observe(self, message: Message, results: Mapping[str, Message]) -> None:
        """Take in what one round's calls, whoever made them, returned."""
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
        elif call.look is not None:
            self._looking.add(index)


def is_same_call(wanted: Call, made: ToolCall) -> bool:
    """Whether `made` is the wanted call, however its arguments are spaced."""
    if wanted.name != made.name:
        return False
    try:
        return bool(made.parsed == wanted.arguments)
    except (msgspec.DecodeError, ValueError):
        return False


def is_failure(result: Message) -> bool:
    """Whether a tool message tells of an error."""
    return result.is_error or _FAILURE.match(result.content) is not None


class Habit(Struct, frozen=True):
    """How a solver goes about its work where there is a choice; fixed by the words of its task."""

    batch: int = 3
    """How many files it reads in one step."""
    is_terse: bool = False
    """Answers with the bare answer line."""
