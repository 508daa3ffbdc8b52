"""Long work of a command, which can be continued: from its view to its exit code."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from msgspec import Struct

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute_until_stopped
from treadle.cli.options import common as o
from treadle.cli.terminal.notices import NoticeView
from treadle.cli.terminal.output import print_error, print_interrupted, print_note, write_count
from treadle.jobs.job import End

_LIMITS = {
    "max_cost_usd": "limits.max_cost_usd is reached; raise it and run the same command",
    "unknown_cost": "the cost of an answer is unknown, so that limits.max_cost_usd cannot be kept; give the "
    "model a price and use another folder, or delete this limit",
    "max_tokens": "limits.max_tokens is reached; raise it and run the same command",
    "max_seconds": "limits.max_seconds is reached; raise it and run the same command",
}
"""The texts for limits at which the work ends."""


class _Folder(Protocol):
    @property
    def path(self) -> Path: ...


class Result(Protocol):
    """The outcome of the work."""

    @property
    def end(self) -> End:
        """Why the work ended."""
        ...

    @property
    def progress(self) -> Any:
        """The last counts."""
        ...

    @property
    def folder(self) -> _Folder:
        """The folder of the work."""
        ...


N = TypeVar("N", bound=Struct)
P = TypeVar("P", bound=Struct)
R = TypeVar("R", bound=Result)


class LongWork(ABC, Generic[N, P, R]):
    """The work of a command that makes items. A subclass says what they are and how they are made."""

    PARTS: ClassVar[str]
    """What can fail, as a plural noun such as `samples`."""
    DONE: ClassVar[str]
    """What was done with the items, such as `kept`."""

    def __init__(
        self, view: NoticeView[N, P], progress: P, noun: str, again: str, shown: o.ViewOptions
    ) -> None:
        """Prepare the work. `noun` is what is made, such as `row`, and `again` the command that continues it."""
        self.shown = shown
        self._view = view
        self._progress = progress
        self._noun = noun
        self._again = again

    @abstractmethod
    def start(self, stop: asyncio.Event) -> Coroutine[Any, Any, R]:
        """Return the coroutine that does the work, with `listen` as its listener."""

    @abstractmethod
    def count(self, progress: P) -> tuple[int, int]:
        """Return how many items are done, and how many are wanted."""

    @abstractmethod
    def explain_max_items(self, result: R) -> str:
        """Return what to do if too many items were planned without success."""

    def listen(self, notice: N, progress: P) -> None:
        """Show a notice, and the counts after it."""
        self._progress = progress
        self._view.on_notice(notice, progress)

    def run(self) -> int:
        """Do the work, and return the exit code."""
        view = self._view
        try:
            result = execute_until_stopped(self.start, lambda: view.on_stop(self._progress))
        except KeyboardInterrupt:
            view.close()
            done = write_count(self.count(self._progress)[0], self._noun)
            print_interrupted(f"; {done} {self.DONE}; go on with: {self._again}")
            return ExitCode.INTERRUPTED
        except BaseException:
            view.close()
            raise
        view.finish(result.progress, {"end": result.end.reason, "folder": str(result.folder.path)})
        return self.report(result)

    def report(self, result: R) -> int:
        """Print why the work ended and what can be done now, and return the exit code."""
        reason = result.end.reason
        done, wanted = self.count(result.progress)
        missing = f"{write_count(wanted - done, self._noun)} missing"
        if reason == "stopped":
            print_interrupted(f"; go on with: {self._again}")
            return ExitCode.INTERRUPTED
        if reason == "failures":
            print_error(f"too many {self.PARTS} failed, the last one with: {result.end.error}")
            print_note(f"{missing}; go on later with: {self._again}")
            return ExitCode.FAILED
        if reason != "done":
            why = self.explain_max_items(result) if reason == "max_items" else _LIMITS[reason]
            print_error(f"{missing}: {why}")
            return ExitCode.LIMIT
        return ExitCode.DONE
