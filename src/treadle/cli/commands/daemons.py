"""`treadle serve` and `treadle worker`: processes that work until they are stopped."""

import contextlib
import json
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.cli.terminal.output import (
    flush,
    print_error,
    print_json,
    print_line,
    print_note,
    take_stdout,
    write_count,
)
from treadle.core.errors import ConfigError
from treadle.journal.run_info import DEFAULT_QUEUE

if TYPE_CHECKING:
    from treadle.workers.queued import WorkerReport
    from treadle.workers.worker import Worker

_REPORT_SECONDS = 0.5


def serve(
    config: Path | None = None,
    model: str | None = None,
    journal: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8321,
    new_key: str | None = None,
    is_json: bool = False,
) -> None:
    """Serve agents and models over HTTP, as OpenAI's and Anthropic's APIs and others, and record what they do.

    Clients name an agent or a model of treadle.toml, or the one of --model. Every response and conversation is a
    run of the journal. A run that is under way when the server stops goes on when it starts again, and several
    servers can share a journal on PostgreSQL.

    Examples:
        treadle serve --model mock:echo
        treadle serve --config treadle.toml --journal postgres://me@db.example/runs
    """
    # What a command works with is not needed for its help.
    from treadle.cli.jobs.execute import execute
    from treadle.journal.registry import open_journal
    from treadle.server.admission.access import new_key as make_key
    from treadle.server.api_server import load_served, serve_api, settle_memory

    if new_key is not None:
        if not new_key:
            raise ConfigError("--new-key is empty; give the name of the key's owner")
        key, hashed = make_key()
        if is_json:
            print_json({"name": new_key, "key": key, "sha256": hashed})
            return
        print_note("the key, which is shown only now:")
        print_line(key)
        name = (
            new_key if re.fullmatch(r"[A-Za-z0-9_-]+", new_key) else json.dumps(new_key, ensure_ascii=False)
        )
        print_note(f'put this into treadle.toml:\n[serve.keys.{name}]\nsha256 = "{hashed}"')
        return
    served = load_served(config, model)

    def tell(url: str) -> None:
        settle_memory()
        if is_json:
            print_json({"url": url, "models": list(served.names)})
            return
        print_line(url, "bold")
        print_note(f"the models are {', '.join(served.names)}; Ctrl-C pauses what is under way")
        print_note(f"{url}/view shows the runs")
        flush()

    with open_journal(journal) as opened, contextlib.suppress(KeyboardInterrupt):
        opened.resources.add([], time.time())  # raises if nothing can be stored
        execute(serve_api(served, opened, host, port, tell, lambda fault: print_note(f"warning: {fault}")))


def worker(
    journal: str | None = None,
    queue: str = DEFAULT_QUEUE,
    window: int = 64,
    retries: int = 2,
    is_json: bool = False,
    ends_with_stdin: bool = False,
) -> None:
    """Drive the runs that wait in a queue of a journal, until Ctrl-C or SIGTERM.

    Workers on any number of machines can share a queue. Each builds the agents of its runs again, so the API keys,
    programs and modules that these need must be there: keys come from the environment, treadle.toml or `treadle
    models set-key`. A run that cannot be driven here stays in the queue, and the error says what is missing.

    A worker that is stopped gives its runs back at once. If it dies, the other workers resume its runs.

    Examples:
        treadle worker --journal runs.db
        treadle worker --journal postgres://me@db.example/runs --queue nightly --window 256
    """
    import asyncio

    from treadle.cli.jobs.execute import call_at_end_of_stdin, execute
    from treadle.core.texts.masking import hide_password
    from treadle.journal.registry import open_journal
    from treadle.runs.retries import RetryPolicy
    from treadle.telemetry.turn_log import configured_hooks
    from treadle.workers.protocol import WorkerOptions
    from treadle.workers.worker import Worker

    options = WorkerOptions(queue=queue, window=window, retries=RetryPolicy(attempts=retries + 1))
    report = take_stdout() if is_json else None

    async def work() -> None:
        with open_journal(journal) as opened:
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


def _tell(report: "Callable[[WorkerReport], None] | None", run_id: str, error: Exception) -> None:
    from treadle.workers.queued import WorkerReport

    if report is not None:
        report(WorkerReport.of(run_id, error))
    else:
        print_error(f"run {run_id} cannot be driven here: {error}")


async def _report(working: "Worker", report: "Callable[[WorkerReport], None]") -> None:
    """Report what the worker drives, whenever that has changed."""
    import asyncio

    from treadle.workers.queued import WorkerReport

    told = None
    while True:
        count = working.in_flight.status()
        if count != told:
            told = count
            report(WorkerReport(count=count))
        await asyncio.sleep(_REPORT_SECONDS)
