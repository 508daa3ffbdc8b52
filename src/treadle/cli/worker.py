"""`treadle worker`: drives runs that wait in a queue of a journal."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import call_at_end_of_stdin, execute
from treadle.cli.jobs.journals import open_or_make
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import print_error, print_note, take_stdout, write_count
from treadle.core.masking import hide_password
from treadle.journal.protocol import DEFAULT_QUEUE
from treadle.runs.retries import RetryPolicy
from treadle.telemetry.configured import configured_hooks
from treadle.workers.protocol import WorkerOptions
from treadle.workers.queued import WorkerReport
from treadle.workers.worker import Worker

EXAMPLES = (
    "treadle worker --journal runs.db",
    "treadle worker --journal postgres://me@db.example/runs --queue nightly --window 256",
)
_REPORT_SECONDS = 0.5


def worker(
    journal: o.Journal = None,
    queue: Annotated[
        str, typer.Option("--queue", metavar="NAME", help="The queue to take runs from.")
    ] = DEFAULT_QUEUE,
    window: Annotated[
        int, typer.Option("--window", metavar="N", min=1, help="How many runs are driven at a time.")
    ] = 64,
    retries: Annotated[
        int,
        typer.Option(
            "--retries",
            metavar="N",
            min=0,
            help="How often a turn is continued that ended with a fault of the infrastructure.",
        ),
    ] = 2,
    is_json: o.IsJson = False,
    ends_with_stdin: Annotated[
        bool, typer.Option("--ends-with-stdin", hidden=True, help="Stop when standard input ends.")
    ] = False,
) -> int:
    """Drive the runs that wait in a queue of a journal, until Ctrl-C or SIGTERM.

    Workers on any number of machines can share a queue. Each builds the agents of its runs again, so the API keys,
    programs and modules that these need must be there: keys come from the environment, treadle.toml or `treadle
    models set-key`. A run that cannot be driven here stays in the queue, and the error says what is missing.

    A worker that is stopped gives its runs back at once. If it dies, the other workers resume its runs.
    """
    options = WorkerOptions(queue=queue, window=window, retries=RetryPolicy(attempts=retries + 1))

    report = take_stdout() if is_json else None

    async def work() -> None:
        with closing(open_or_make(journal, "process")) as opened:
            working = Worker(opened, options, hooks=configured_hooks(), on_problem=partial(_tell, report))
            task = asyncio.ensure_future(working.work())
            if ends_with_stdin:
                call_at_end_of_stdin(asyncio.get_running_loop(), task.cancel)
            if report is not None:
                reporting = asyncio.ensure_future(_report(working, report))
                task.add_done_callback(lambda _: reporting.cancel())
            else:
                place = hide_password(opened.address or "memory")
                print_note(f"driving runs of the queue {queue!r} in {place!r}; Ctrl-C gives them back")
            try:
                await task
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait([task])
                if not is_json:
                    print_note(f"{write_count(working.done, 'run')} driven; the others were given back")

    with contextlib.suppress(KeyboardInterrupt):
        execute(work())
    return ExitCode.DONE


def _tell(report: Callable[[WorkerReport], None] | None, run_id: str, error: Exception) -> None:
    if report is not None:
        report(WorkerReport.of(run_id, error))
    else:
        print_error(f"run {run_id} cannot be driven here: {error}")


async def _report(working: Worker, report: Callable[[WorkerReport], None]) -> None:
    """Report what the worker drives, whenever that has changed."""
    told = None
    while True:
        count = working.driven_runs.count()
        if count != told:
            told = count
            report(WorkerReport(count=count))
        await asyncio.sleep(_REPORT_SECONDS)
