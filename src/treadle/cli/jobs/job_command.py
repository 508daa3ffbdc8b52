"""The work of a command on a job, which can be continued: from its view to its exit code."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute_until_stopped
from treadle.cli.options import common as o
from treadle.cli.terminal.job_view import Feed, make_job_view
from treadle.cli.terminal.output import print_error, print_interrupted, print_note, write_count
from treadle.jobs.job import JobEnd
from treadle.jobs.progress import JobNotice, JobProgress

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


class JobResult(Protocol):
    """The outcome of a job."""

    @property
    def end(self) -> JobEnd:
        """Why the job ended."""
        ...

    @property
    def progress(self) -> JobProgress:
        """The last counts."""
        ...

    @property
    def folder(self) -> _Folder:
        """The folder of the job."""
        ...


R = TypeVar("R", bound=JobResult)


class JobCommand(ABC, Generic[R]):
    """The command that works on a job. A subclass says how the job is done."""

    def __init__(
        self, name: str, progress: JobProgress, feed: Feed, again: str, shown: o.ViewOptions
    ) -> None:
        """Prepare the work on the job `name`, and show it. `again` is the command that continues it."""
        self.shown = shown
        self.again = again
        self._progress = progress
        self._view = make_job_view(name, progress, feed, is_json=shown.is_json, is_quiet=shown.is_quiet)

    @abstractmethod
    def start(self, stop: asyncio.Event) -> Coroutine[Any, Any, R]:
        """Return the coroutine that does the work, with `listen` as its listener."""

    @abstractmethod
    def explain_max_items(self, result: R) -> str:
        """Return what to do if too many items were planned without success."""

    def listen(self, notice: JobNotice, progress: JobProgress) -> None:
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
            words = self._progress.WORDS
            done = f"{write_count(self._progress.kept, words.noun)} {words.kept}"
            print_interrupted(f"; {done}; go on with: {self.again}")
            return ExitCode.INTERRUPTED
        except BaseException:
            view.close()
            raise
        view.finish(result.progress, {"end": result.end.reason, "folder": str(result.folder.path)})
        return self.report(result)

    def report(self, result: R) -> int:
        """Print why the work ended and what can be done now, and return the exit code."""
        reason, progress = result.end.reason, result.progress
        missing = f"{write_count(progress.wanted - progress.kept, progress.WORDS.noun)} missing"
        if reason == "stopped":
            print_interrupted(f"; go on with: {self.again}")
            return ExitCode.INTERRUPTED
        if reason == "failures":
            print_error(f"too many {progress.WORDS.item}s failed, the last one with: {result.end.error}")
            print_note(f"{missing}; go on later with: {self.again}")
            return ExitCode.FAILED
        if reason == "rejections":
            count = write_count(progress.rejected, f"{progress.WORDS.rejected} {progress.WORDS.item}")
            print_error(f"no {progress.WORDS.noun} yet, and {count} for one reason: {result.end.error}")
            print_note(f"{missing}; mend the cause and go on with: {self.again}")
            return ExitCode.FAILED
        if reason != "done":
            why = self.explain_max_items(result) if reason == "max_items" else _LIMITS[reason]
            print_error(f"{missing}: {why}")
            return ExitCode.LIMIT
        return ExitCode.DONE

    @property
    def says_more(self) -> bool:
        """Whether notes about the result are wanted."""
        return not self.shown.is_quiet and not self.shown.is_json
