"""The stages of the demonstration: a server for the models, a worker that is killed, and one that goes on."""

import json
import time
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from treadle.cli.demo.findings import Outcome, show_findings, show_next
from treadle.cli.demo.processes import ModelServer, WorkerProcess
from treadle.cli.demo.view import Counts, DemoView
from treadle.cli.exit import ExitCode
from treadle.cli.terminal.output import write_command, write_count, write_seconds
from treadle.core.errors import ConfigError
from treadle.core.types import Json
from treadle.datagen.dataset.dataset_folder import DatasetFolder

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
                    f"--out {str(out)!r}: {str(folder.path)!r} is there and no dataset; choose another folder"
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


def _generate(options: DemoOptions, config: Path, folder: DatasetFolder, view: DemoView) -> Outcome:
    """Start a worker, kill it, and start the same command again."""
    kill_after = max(1, options.rows // 3) if options.kill_after is None else options.kill_after
    begin = time.monotonic()
    counts = Counts()
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
        counts = Counts(kept=len(before))
        with WorkerProcess("generate", str(config)) as worker:
            view.step(
                "new worker",
                f"process {worker.pid}: the same command, with {write_count(len(before), 'row')}",
            )
            summary = _watch(worker, view, counts, 0)
            worker.finish()
    seconds = time.monotonic() - begin
    view.step("done", f"{counts.kept} rows in {write_seconds(seconds)}", "bold green")
    return Outcome(folder, options.rows, before, kill_after > 0 and bool(before), summary or {}, seconds)


def _watch(worker: WorkerProcess, view: DemoView, counts: Counts, kill_after: int) -> dict[str, Json] | None:
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
