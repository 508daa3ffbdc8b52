"""The demonstration, stage by stage."""

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path

from msgspec import Struct

from treadle.cli.demo.census import Census, take_census
from treadle.cli.demo.findings import show_findings, show_next
from treadle.cli.demo.processes import ModelServer, WorkerProcess
from treadle.cli.demo.view import DemoView
from treadle.cli.demo.worker import Job, Order
from treadle.cli.terminal.output import print_interrupted, write_count, write_seconds
from treadle.cli.terminal.setup import ModelOptions
from treadle.core.errors import ConfigError
from treadle.journal.registry import open_journal
from treadle.tasks import task_set

LATENCY_SECONDS = 0.1
TOOL_SECONDS = 0.05
MISTAKE_RATE = 0.1
TASK_SET = "files"


class DemoOptions(Struct, frozen=True, kw_only=True):
    """What the command line asks for."""

    tasks: int
    kill_after: int | None
    parallel_runs: int
    model: ModelOptions
    api_key: str | None
    prompts: Path | None
    out: Path

    @property
    def is_own(self) -> bool:
        """The user's own model, instead of the oracle."""
        return self.model.model is not None or self.model.base_url is not None


class Outcome(Struct, frozen=True):
    """What the workers left."""

    journal_path: Path
    run_ids: list[str]
    interrupted: Census | None
    """The runs as they were after the kill; `None` if there was none."""
    seconds: float
    """Both workers together."""


def run_demo(options: DemoOptions) -> int:
    """Run all stages; the exit code. Raises: `ConfigError`, `TreadleError` if a process fails."""
    jobs = _choose_jobs(options)
    journal_path = _prepare_folder(options.out)
    view = DemoView(len(jobs))
    try:
        with ExitStack() as stack:
            model = _start_model(options, view, stack, len(jobs))
            outcome = _work(options, model, jobs, journal_path, view)
        with closing(open_journal(journal_path)) as journal:
            is_good, example = show_findings(view, journal, outcome, options.out / "rows.jsonl")
            show_next(view, journal_path, options.out / "rows.jsonl", example)
    except KeyboardInterrupt:
        print_interrupted("; the processes are gone, and the journal is kept in " + str(journal_path))
        return 130
    return 0 if is_good else 1


def _choose_jobs(options: DemoOptions) -> list[Job]:
    if options.prompts is None:
        if options.model.tools:
            raise ConfigError(
                "--tools goes with --prompts FILE, one text a line for your tools; without both, the tasks of "
                f"the task set {TASK_SET!r} are run"
            )
        tasks = islice(task_set(TASK_SET), options.tasks)
        return [Job(task.task_id, task=f"{TASK_SET}:{task.task_id}") for task in tasks]
    if not options.is_own:
        raise ConfigError(
            "--prompts needs a model: the oracle solves only the tasks of its task set; pass --model"
        )
    try:
        texts = [line.strip() for line in options.prompts.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --prompts {str(options.prompts)!r}: {error}") from error
    if not texts:
        raise ConfigError(f"--prompts {str(options.prompts)!r} holds no text")
    return [Job(f"prompt-{number:04d}", text=text) for number, text in enumerate(texts[: options.tasks], 1)]


def _prepare_folder(folder: Path) -> Path:
    """The path of a journal that is not there yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("demo.db", "demo.db-wal", "demo.db-shm", "rows.jsonl"):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to --out {str(folder)!r}: {error}") from error
    return folder / "demo.db"


def _start_model(options: DemoOptions, view: DemoView, stack: ExitStack, count: int) -> ModelOptions:
    """The model to use; its server is started if it is not the user's own."""
    if options.is_own:
        if options.model.model is None:
            raise ConfigError("--base-url needs --model: the name that the server knows the model by")
        what = "prompts" if options.prompts else f"tasks of the task set {TASK_SET}"
        view.title(f"treadle demo · {count} {what} · {options.model.model}")
        return options.model
    view.title(
        f"treadle demo · {write_count(count, 'run')} of tool-using agents, killed in the middle and resumed",
        "All of it is real but the model: a server of its own plays it over HTTP, offline and without a key.",
    )
    server = stack.enter_context(ModelServer(LATENCY_SECONDS, MISTAKE_RATE))
    url = server.wait_for_url()
    view.step("model server", f"process {server.pid} at {url}")
    view.more(
        f"an answer takes {LATENCY_SECONDS * 1000:g} ms, a tool {TOOL_SECONDS * 1000:g} ms; one step in "
        f"{1 / MISTAKE_RATE:g} is a mistake that it then mends",
        "dim",
    )
    return ModelOptions(model="openai:oracle", base_url=url)


def _work(
    options: DemoOptions, model: ModelOptions, jobs: Sequence[Job], journal_path: Path, view: DemoView
) -> Outcome:
    """Both workers: the one that is killed, and the one that goes on."""
    tool_seconds = 0.0 if options.is_own else TOOL_SECONDS
    order = Order(str(journal_path), model, options.api_key, options.parallel_runs, tool_seconds, list(jobs))
    run_ids = [job.run_id for job in jobs]
    kill_after = max(1, len(jobs) // 3) if options.kill_after is None else options.kill_after
    begin = time.monotonic()
    with WorkerProcess(order) as worker:
        parallel = min(options.parallel_runs, len(jobs))
        view.step(
            "worker", f"process {worker.pid}: {write_count(parallel, 'run')} in flight, every step kept"
        )
        view.more(f"in {journal_path} before the next", "dim")
        is_killed = _watch(worker, view, 0, kill_after)
        if is_killed:
            worker.kill()
        else:
            worker.finish()
    seconds = time.monotonic() - begin
    if not is_killed:
        view.step("done", f"all runs ended in {write_seconds(seconds)}", "bold green")
        return Outcome(journal_path, run_ids, None, seconds)
    view.step("kill -9", f"process {worker.pid} is gone, without a word", "bold red")
    with closing(open_journal(journal_path)) as journal:
        census = take_census(journal, run_ids)
    _show_census(view, census)
    begin = time.monotonic()
    with WorkerProcess(order) as worker:
        view.step(
            "new worker", f"process {worker.pid} resumes {len(census.interrupted)}, then takes the rest"
        )
        _watch(worker, view, len(census.finished), 0)
        worker.finish()
    seconds += time.monotonic() - begin
    view.step("done", f"all runs ended; the two worked for {write_seconds(seconds)}", "bold green")
    return Outcome(journal_path, run_ids, census, seconds)


def _watch(worker: WorkerProcess, view: DemoView, finished_before: int, kill_after: int) -> bool:
    """Show how far a worker is, until it ends (False) or has finished `kill_after` runs (True)."""
    begin = time.monotonic()
    with view.working(finished_before):
        for report in worker.reports():
            view.update(report, finished_before + report.finished, time.monotonic() - begin)
            if kill_after and report.finished >= kill_after and report.in_flight:
                return True
    return False


def _show_census(view: DemoView, census: Census) -> None:
    view.more(
        f"{len(census.finished)} finished · {len(census.interrupted)} in the middle · {census.not_begun} not begun"
    )
    view.more(
        f"{write_count(census.inferences_lost, 'request')} under way, "
        f"{write_count(census.calls_in_doubt, 'tool call')} in doubt: begun, and nobody knows whether done"
    )
