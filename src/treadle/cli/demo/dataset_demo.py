"""`treadle demo`: a dataset whose generation is killed, continued and verified, all offline."""

import json
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from treadle.cli.demo.children import ModelServer, WorkerProcess
from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.terminal.output import clean, is_live, stdout, write_command, write_count, write_seconds
from treadle.core.errors import ConfigError
from treadle.core.events import InferenceCompleted
from treadle.core.types import Json
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.verification import Totals, check_ledger, verify_rows
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LABEL = 16


class DemoCounts(Struct):
    """The counts that a worker has reported so far."""

    kept: int = 0
    rejected: int = 0
    in_flight: int = 0

    def __str__(self) -> str:
        return f"{self.kept} rows · {self.rejected} rejected · {self.in_flight} in flight"


class DemoView:
    """A view that prints to standard output. A pipe gets no progress bar."""

    def __init__(self, total: int) -> None:
        self._console = stdout()
        self._begin = time.monotonic()
        self._total = total
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._told = 0

    def title(self, text: str, *lines: str) -> None:
        """Print the title and the lines below it."""
        self._console.print()
        self._console.print(text, style="bold")
        for line in lines:
            self._console.print(line, style="dim")
        self._console.print()

    def step(self, label: str, text: str, style: str = "bold cyan") -> None:
        """Print an event with its time."""
        self._console.print(f"{time.monotonic() - self._begin:6.1f} s  ", style="dim", end="")
        self._console.print(f"{label:<{LABEL}}", style=style, end="")
        self._console.print(clean(text), soft_wrap=True)

    def more(self, text: str, style: str = "") -> None:
        """Print another line about the last event."""
        self._console.print(" " * (10 + LABEL) + clean(text), style=style, soft_wrap=True)

    def section(self, text: str) -> None:
        """Print a heading."""
        self._console.print()
        self._console.print(text, style="bold")

    def result(self, label: str, text: str, *, is_good: bool | None = None) -> None:
        """Print one result, with a mark if `is_good` is given."""
        mark, style = {True: ("✓", "bold green"), False: ("✗", "bold red"), None: (" ", "")}[is_good]
        self._console.print(f"  {mark} ", style=style, end="")
        self._console.print(f"{label:<10}", style="bold", end="")
        self._console.print(clean(text), soft_wrap=True)

    def command(self, text: str, why: str) -> None:
        """Print a command to try, and what it does."""
        self._console.print(f"  {text}", style="cyan", soft_wrap=True)
        self._console.print(f"      {why}", style="dim", soft_wrap=True)

    @contextmanager
    def working(self, counts: DemoCounts) -> Iterator[None]:
        """Show a progress bar, which begins at the rows that are there."""
        self._told = counts.kept
        if is_live():
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn(" " * 9), BarColumn(bar_width=44), TextColumn("{task.description}"))
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._bar = self._progress.add_task("", total=self._total, completed=counts.kept)
            self._progress.start()
        try:
            yield
        finally:
            if self._progress is not None:
                self._progress.stop()
                self._progress = None

    def update(self, counts: DemoCounts) -> None:
        """Show the progress of a worker."""
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, completed=counts.kept, description=str(counts))
        elif counts.kept - self._told >= max(1, self._total // 4):
            self._told = counts.kept
            self.more(str(counts), "dim")


class DemoOutcome(Struct, frozen=True):
    """The results of the workers."""

    folder: DatasetFolder
    wanted: int
    before: list[bytes]
    """The rows that were there after the kill."""
    was_killed: bool
    summary: dict[str, Json]
    """The last line of the worker that finished."""
    seconds: float
    """How long both workers worked."""


def show_findings(view: DemoView, outcome: DemoOutcome) -> bool:
    """Print the results. Return whether all of them are as expected."""
    view.section("Results")
    goods = [_show_rows(view, outcome), _show_verification(view, outcome.folder)]
    if outcome.was_killed:
        goods.append(_show_survivors(view, outcome))
    with closing(open_journal(outcome.folder.journal)) as journal:
        again = count_second_answers(journal)
    view.result("paid", f"{again or 'no'} answers of a model were paid for twice", is_good=not again)
    _show_files(view, outcome.folder)
    return all(goods) and not again


def _show_rows(view: DemoView, outcome: DemoOutcome) -> bool:
    summary = outcome.summary
    kept = int(summary.get("kept", 0))
    reasons = ", ".join([f"{name} {count}" for name, count in dict(summary.get("reasons", {})).items()])
    text = f"{kept} of {outcome.wanted}"
    view.result("rows", text, is_good=kept == outcome.wanted)
    kinds = sorted(dict(summary.get("kinds", {})).items(), key=lambda item: -int(item[1]))
    view.result("kinds", " · ".join([f"{count} {name}" for name, count in kinds]))
    view.result("rejected", f"{summary.get('rejected', 0)}{f': {reasons}' if reasons else ''}")
    return kept == outcome.wanted


def _show_verification(view: DemoView, folder: DatasetFolder) -> bool:
    """Make the calls of all rows again, and print how that compares."""
    totals = Totals()
    problems = list(check_ledger(folder.path))

    async def verify_all() -> None:
        with closing(open_journal(folder.journal)) as journal:
            async for checked in verify_rows(folder.path, journal):
                totals.add(checked)

    execute(verify_all())
    is_good = not totals.faulty and not problems and totals.confirmed == totals.claimed
    view.result("verify", str(totals), is_good=is_good)
    for problem in problems[:3]:
        view.result("", problem, is_good=False)
    return is_good


def _show_survivors(view: DemoView, outcome: DemoOutcome) -> bool:
    """Print whether the rows from before the kill are all there once."""
    rows = outcome.folder.rows.read_bytes().splitlines(keepends=True)
    lost = len(set(outcome.before) - set(rows))
    doubled = len(rows) - len(set(rows))
    count = write_count(len(outcome.before), "row")
    text = f"{count} from before the kill: {lost or 'none'} lost; {doubled or 'no'} row is there twice"
    view.result("kill -9", text, is_good=not lost and not doubled)
    return not lost and not doubled


def count_second_answers(journal: Journal) -> int:
    """Return how many inferences were completed, and therefore paid for, more than once."""
    again = 0
    for info in journal.runs():
        bodies = [event.body for event in journal.read(info.run_id)]
        steps = [body.step for body in bodies if isinstance(body, InferenceCompleted)]
        again += len(steps) - len(set(steps))
    return again


def _show_files(view: DemoView, folder: DatasetFolder) -> None:
    counts: Counter[str] = Counter()
    for path in folder.path.glob("*.*.jsonl"):
        _, name, _ = path.name.split(".")
        counts[name] += path.read_bytes().count(b"\n")
    shown = " · ".join([f"{name} {write_count(count, 'row')}" for name, count in sorted(counts.items())])
    view.result("formats", f"{shown}; {folder.rows} has all of them")
    if min(counts.values(), default=0) < max(counts.values(), default=0):
        view.more(
            "a format leaves out the rows that it cannot express, such as calls that are not JSON", "dim"
        )
    view.result("report", f"{folder.report}, for a browser; the dataset card is {folder.card}")


def show_next(view: DemoView, config: Path, folder: DatasetFolder) -> None:
    """Print commands to try, which work in the current folder."""
    view.section("Try next")
    activate = Path(sys.executable).with_name("activate")
    found = shutil.which("treadle")
    if (found is None or Path(found).parent != activate.parent) and activate.exists():
        here = Path.cwd()
        shown = activate.relative_to(here) if activate.is_relative_to(here) else activate
        view.command(
            f". {shlex.quote(str(shown))}", "first, once in each shell: lets it find the command treadle"
        )
    view.command(
        write_command("dataset", "show", str(folder.path)), "one row: its messages, calls and results"
    )
    view.command(write_command("dataset", "stats", str(folder.path)), "what is in the dataset")
    view.command(
        write_command(
            "generate", str(config), model="mock:teacher", num_samples="20", out=folder.path.parent / "more"
        ),
        "another dataset from the same configuration, without a server",
    )
    view.command(
        write_command(
            "generate",
            str(config),
            model="openai:gpt-5-mini",
            out=folder.path.parent / "real",
            dry_run=True,
        ),
        "what it would take with a real model; without --dry-run it is made (needs OPENAI_API_KEY)",
    )
    view.command(
        write_command("run", task="files:csv_sum-0001", model="oracle"),
        "one run of an agent, shown while it works",
    )


TOPIC = "Office automation for small companies"
LATENCY_SECONDS, SLOW_SECONDS, SLOW_SHARE = 0.1, 0.6, 0.07
FAILURE_RATE = MISTAKE_RATE = 0.05
FORMATS = ("trl", "openai", "sharegpt")


class DemoOptions(Struct, frozen=True):
    """The options of the command."""

    rows: int
    kill_after: int | None
    """`None`: a third of the rows; 0: the worker is not killed."""
    window: int
    out: Path


def run_demo(options: DemoOptions) -> int:
    """Run the demonstration, print it, and return the exit code. Raises: `TreadleError`."""
    view = DemoView(options.rows)
    config = options.out / "dataset.yaml"
    folder = DatasetFolder(options.out / "dataset")
    _prepare(options.out, folder)
    view.title(
        f"treadle demo · {options.rows} rows of training data from a topic, killed in the middle and continued",
        "Everything is real except the models: a local server plays them over HTTP, offline and without a key.",
    )
    with ExitStack() as stack:
        url = _start_models(view, stack)
        config.write_text(_write_config(options, url, folder.path), "utf-8")
        outcome = _generate(options, config, folder, view)
    is_good = show_findings(view, outcome)
    show_next(view, config, folder)
    return ExitCode.DONE if is_good else ExitCode.FAILED


def _prepare(out: Path, folder: DatasetFolder) -> None:
    """Remove the dataset that an earlier demo left. Raises: `ConfigError`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if folder.path.exists():
            if not folder.ledger.exists():
                raise ConfigError(
                    f"--out {str(out)!r}: {str(folder.path)!r} exists and is not a dataset; choose another folder"
                )
            for path in folder.path.iterdir():
                path.unlink()
    except OSError as error:
        raise ConfigError(f"cannot write to --out {str(out)!r}: {error.strerror}") from error


def _start_models(view: DemoView, stack: ExitStack) -> str:
    """Start the server of the models, and return its base URL."""
    server = stack.enter_context(
        ModelServer(
            f"--latency={LATENCY_SECONDS}",
            f"--slow-latency={SLOW_SECONDS}",
            f"--slow-share={SLOW_SHARE}",
            f"--mistake-rate={MISTAKE_RATE}",
            f"--failure-rate={FAILURE_RATE}",
            *[f"--failure-kind={kind}" for kind in ("rate_limit", "overloaded", "dropped", "truncated")],
        )
    )
    url = server.wait_for_url()
    view.step("model server", f"process {server.pid} at {url}")
    view.more(
        f"an answer takes {LATENCY_SECONDS * 1000:g} ms, {SLOW_SHARE:.0%} of them {SLOW_SECONDS * 1000:g} ms; "
        f"{FAILURE_RATE:.0%} of the requests fail;",
        "dim",
    )
    view.more(f"{MISTAKE_RATE:.0%} of the agent's steps are mistakes, which it then corrects", "dim")
    return url


def _write_config(options: DemoOptions, url: str, path: Path) -> str:
    """Return the configuration of the dataset. JSON values are YAML too."""
    degree = max(2, min(20, round(options.rows**0.5)))
    sections: dict[str, Json] = {
        "name": "office",
        "topics": {"prompt": TOPIC, "degree": degree, "depth": 2},
        "models": {"default": {"model": "openai:teacher", "base_url": url}},
        "generation": {"num_samples": options.rows, "window": options.window},
        "tools": {"use": ["files"], "files": "tasks:files", "max_steps": 20},
        "output": {
            "path": str(path.resolve()),
            "formats": list(FORMATS),
            "splits": {"train": 0.9, "test": 0.1},
        },
    }
    lines = []
    for name, value in sections.items():
        if not isinstance(value, dict):
            lines.append(f"{name}: {value}")
            continue
        lines += [f"{name}:", *[f"  {key}: {json.dumps(item)}" for key, item in value.items()]]
    return "\n".join(lines) + "\n"


def _generate(options: DemoOptions, config: Path, folder: DatasetFolder, view: DemoView) -> DemoOutcome:
    """Start a worker, kill it, and start the same command again."""
    kill_after = max(1, options.rows // 3) if options.kill_after is None else options.kill_after
    begin = time.monotonic()
    counts = DemoCounts()
    before: list[bytes] = []
    with WorkerProcess("generate", str(config)) as worker:
        view.step("worker", f"process {worker.pid}: {write_command('generate', str(config))}")
        summary = _watch(worker, view, counts, kill_after)
        if summary is None:
            worker.kill()
        else:
            worker.finish()
    if summary is None:
        view.step("kill -9", f"process {worker.pid} is gone: {counts}", "bold red")
        before = folder.rows.read_bytes().splitlines(keepends=True)
        # A row is counted once its line is whole.
        before = [line for line in before if line.endswith(b"\n")]
        counts = DemoCounts(kept=len(before))
        with WorkerProcess("generate", str(config)) as worker:
            view.step(
                "new worker",
                f"process {worker.pid}: the same command, with {write_count(len(before), 'row')}",
            )
            summary = _watch(worker, view, counts, 0)
            worker.finish()
    seconds = time.monotonic() - begin
    view.step("done", f"{counts.kept} rows in {write_seconds(seconds)}", "bold green")
    return DemoOutcome(folder, options.rows, before, kill_after > 0 and bool(before), summary or {}, seconds)


def _watch(
    worker: WorkerProcess, view: DemoView, counts: DemoCounts, kill_after: int
) -> dict[str, Json] | None:
    """Show the progress of a worker until it ends, and return its summary; `None` after `kill_after` rows."""
    summary: dict[str, Json] = {}
    with view.working(counts):
        for event in worker.events():
            name = event["event"]
            if name == "topics_ready" and not counts.kept:
                view.step("topics", f"{event['leaves']} leaf topics, written by a model")
            elif name == "sample_begun":
                counts.in_flight += 1
            elif name == "sample_ended":
                counts.in_flight -= 1
                counts.kept += event["status"] == "kept"
                counts.rejected += event["status"] == "rejected"
            elif name == "summary":
                summary = event
            view.update(counts)
            if kill_after and counts.kept >= kill_after:
                return None
    return summary


def demo(
    rows: int = 200,
    kill_after: int | None = None,
    window: int = 32,
    out: Path = Path("demo"),
) -> int:
    """Generate training data from a topic, kill that with SIGKILL, go on and verify every row, all offline.

    A server plays the models over HTTP, slow now and then and with faults, and a worker generates the dataset, each
    in its own process. Then `treadle generate` does the same with your own models and tools.

    Examples:
        treadle demo
        treadle demo --rows 1000 --kill-after 300 --out big
    """
    return run_demo(DemoOptions(rows=rows, kill_after=kill_after, window=window, out=out))
