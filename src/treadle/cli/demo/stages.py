"""The stages of the demonstration."""

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path

from msgspec import Struct

from treadle.cli.demo.census import Census, take_census
from treadle.cli.demo.findings import Outcome, show_findings, show_next
from treadle.cli.demo.processes import ModelServer, WorkerProcess
from treadle.cli.demo.view import DemoView
from treadle.cli.demo.worker import Job, Order
from treadle.cli.exit import ExitCode
from treadle.cli.options.agent import AgentOptions
from treadle.cli.terminal.output import print_interrupted, write_count, write_seconds
from treadle.core.errors import ConfigError
from treadle.journal.registry import open_journal
from treadle.tasks import task_set

LATENCY_SECONDS = 0.1
TOOL_SECONDS = 0.05
MISTAKE_RATE = 0.1
TASK_SET = "files"


class DemoOptions(Struct, frozen=True, kw_only=True):
    """The options of `treadle demo`."""

    tasks: int
    kill_after: int | None
    parallel_runs: int
    agent: AgentOptions
    prompts: Path | None
    out: Path

    @property
    def is_own(self) -> bool:
        """True if the user's own model is used instead of the oracle."""
        return self.agent.model is not None or self.agent.base_url is not None


def run_demo(options: DemoOptions) -> int:
    """Run all stages and return the exit code. Raises: `ConfigError`, or `TreadleError` if a process fails."""
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
        print_interrupted("; the processes were stopped, and the journal is in " + str(journal_path))
        return ExitCode.INTERRUPTED
    return ExitCode.DONE if is_good else ExitCode.FAILED


def _choose_jobs(options: DemoOptions) -> list[Job]:
    if options.prompts is None:
        if options.agent.tools:
            raise ConfigError(
                "--tools needs --prompts FILE, with one text per line for your tools; without both, the tasks of "
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
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read --prompts {str(options.prompts)!r}: {why}") from error
    if not texts:
        raise ConfigError(f"--prompts {str(options.prompts)!r} has no text in it")
    return [Job(f"prompt-{number:04d}", text=text) for number, text in enumerate(texts[: options.tasks], 1)]


def _prepare_folder(folder: Path) -> Path:
    """Remove what an earlier demo left, and return the path of the journal."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("demo.db", "demo.db-wal", "demo.db-shm", "rows.jsonl"):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to --out {str(folder)!r}: {error.strerror}") from error
    return folder / "demo.db"


def _start_model(options: DemoOptions, view: DemoView, stack: ExitStack, count: int) -> AgentOptions:
    """Return the options of the worker's agent, and start the model's server if the oracle is used."""
    if options.is_own:
        if options.agent.model is None:
            raise ConfigError("--base-url needs --model, the name of the model on that server")
        what = "prompts" if options.prompts else f"tasks of the task set {TASK_SET}"
        view.title(f"treadle demo · {count} {what} · {options.agent.model}")
        return options.agent
    view.title(
        f"treadle demo · {write_count(count, 'run')} of tool-using agents, killed in the middle and resumed",
        "Everything is real except the model: a local server answers for it over HTTP, offline and without a key.",
    )
    server = stack.enter_context(ModelServer(LATENCY_SECONDS, MISTAKE_RATE))
    url = server.wait_for_url()
    view.step("model server", f"process {server.pid} at {url}")
    view.more(
        f"an answer takes {LATENCY_SECONDS * 1000:g} ms, a tool {TOOL_SECONDS * 1000:g} ms; one step in "
        f"{1 / MISTAKE_RATE:g} is a mistake, which the model then corrects",
        "dim",
    )
    return AgentOptions(model="openai:oracle", base_url=url)


def _work(
    options: DemoOptions, agent: AgentOptions, jobs: Sequence[Job], journal_path: Path, view: DemoView
) -> Outcome:
    """Start a worker, kill it, and start another one that finishes the work."""
    tool_seconds = 0.0 if options.is_own else TOOL_SECONDS
    order = Order(str(journal_path), agent, options.parallel_runs, tool_seconds, list(jobs))
    run_ids = [job.run_id for job in jobs]
    kill_after = max(1, len(jobs) // 3) if options.kill_after is None else options.kill_after
    begin = time.monotonic()
    with WorkerProcess(order) as worker:
        parallel = min(options.parallel_runs, len(jobs))
        view.step(
            "worker", f"process {worker.pid}: {write_count(parallel, 'run')} at a time, every step stored"
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
    view.step("kill -9", f"process {worker.pid} is gone", "bold red")
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
    view.step("done", f"all runs ended; both workers together took {write_seconds(seconds)}", "bold green")
    return Outcome(journal_path, run_ids, census, seconds)


def _watch(worker: WorkerProcess, view: DemoView, finished_before: int, kill_after: int) -> bool:
    """Show the progress of a worker. Return True once it has finished `kill_after` runs, False if it ended."""
    begin = time.monotonic()
    with view.working(finished_before):
        for report in worker.reports():
            view.update(report, finished_before + report.finished, time.monotonic() - begin)
            if kill_after and report.finished >= kill_after and report.in_flight:
                return True
    return False


def _show_census(view: DemoView, census: Census) -> None:
    view.more(
        f"{len(census.finished)} finished · {len(census.interrupted)} interrupted · {census.not_begun} not started"
    )
    view.more(
        f"{write_count(census.inferences_lost, 'request')} without an answer, "
        f"{write_count(census.calls_in_doubt, 'tool call')} in doubt: started, with unknown outcome"
    )
