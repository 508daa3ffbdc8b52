"""`treadle demo` and `treadle rollout --demo`: real commands, one of which is killed and continued, all offline.

Each command is a process that ends when the demonstration ends, even if that is killed. As a program, this module
is `treadle`, ended when standard input ends: the demonstration holds the other end.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import IO

from treadle.cli.exit import ExitCode
from treadle.cli.terminal.output import clean, flush, stderr, stdout, write_command, write_count
from treadle.core.errors import ConfigError, TreadleError
from treadle.core.events import InferenceCompleted
from treadle.core.types import Json
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal

GROUPS, SIZE = 24, 8
"""How many groups of how many rollouts the demonstration makes, unless options say otherwise."""
_FAULTS = ("rate_limit", "overloaded", "dropped", "truncated")
_LOOK_SECONDS = 0.05
_MARK = ".treadle-demo"
"""The file that marks a folder of demonstrations, whose files the next one replaces."""


class Demonstration:
    """Commands of treadle that run one after the other, as a person types them, in one folder."""

    def __init__(self, title: str, *lines: str, is_json: bool = False) -> None:
        """Begin with a title and lines below it. With `is_json`, commands print lines of JSON, and only they use
        standard output."""
        self._console = stderr() if is_json else stdout()
        self._options = ("--json",) if is_json else ()
        self.say(f"\n{title}", "bold")
        for line in lines:
            self.say(line)

    def say(self, text: str, style: str = "dim") -> None:
        """Print a line."""
        self._console.print(clean(text), style=style, soft_wrap=True)

    def find(self, text: str, *, is_good: bool) -> bool:
        """Print what was found out, and return whether it is good."""
        self.say(f"{'✓' if is_good else '✗'} {text}", "green" if is_good else "bold red")
        return is_good

    def run(self, *words: str, growing: Path | None = None, lines: int = 0) -> bool:
        """Run a command. If `lines` are given, kill it with SIGKILL once the file `growing` has so many of them.

        Return whether it was killed. Raises: `TreadleError` if it fails.
        """
        self.say(f"\n$ {write_command(*words)}", "bold cyan")
        flush()
        with start(*words, *self._options) as process:
            try:
                while process.poll() is None:
                    if growing is not None and lines and count_lines(growing) >= lines:
                        process.kill()
                        process.wait()
                        self.say(
                            f"kill -9 {process.pid}: {growing} has {write_count(lines, 'line')}", "bold red"
                        )
                        return True
                    time.sleep(_LOOK_SECONDS)
            finally:
                process.kill()
                stdout().show_cursor()  # which a live view hides
        if process.returncode:
            raise TreadleError(f"process {process.pid} ended with the exit code {process.returncode}")
        return False

    def run_killed(self, *words: str, growing: Path, lines: int) -> list[bytes]:
        """Run a command that is killed once a file has so many lines, and run it again. Return the whole lines
        that were there after the kill, none if the command ended before."""
        if not self.run(*words, growing=growing, lines=lines):
            return []
        before = [line for line in growing.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        self.run(*words)
        return before

    def find_kept(self, before: list[bytes], path: Path, noun: str) -> bool:
        """Print whether the lines from before the kill, which are called `noun`, are still in a file, and each line
        once. Return whether it is so; with nothing from before a kill, it is."""
        if not before:
            return True
        now = path.read_bytes().splitlines(keepends=True)
        lost, doubled = len(set(before) - set(now)), len(now) - len(set(now))
        told = f"{write_count(len(before), noun)} from before the kill: {lost or 'none'} lost"
        return self.find(
            f"{told}, {doubled or 'none'} of all {len(now):,} there twice", is_good=not lost + doubled
        )


def start(*words: str, output: int | None = None) -> "subprocess.Popen[bytes]":
    """Start a command of treadle as a process that ends with this one, in a session of its own, so that Ctrl-C
    reaches only this process."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *words],
        stdin=subprocess.PIPE,
        stdout=output,
        start_new_session=True,
    )


class ModelServer:
    """The server that plays the models, on a free local port, until the end of `with`."""

    def __init__(self, *options: str) -> None:
        self._process = start("mock", "--port=0", "--json", *options, output=subprocess.PIPE)

    def __enter__(self) -> str:
        """Return the base URL, once the server listens. Raises: `TreadleError` if it does not start."""
        output: IO[bytes] | None = self._process.stdout
        line = b"" if output is None else output.readline()
        if not line:
            raise TreadleError("the model's server ended before it listened")
        return str(json.loads(line)["base_url"])

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def prepare(out: Path, folder: Path, config: Path) -> None:
    """Remove what an earlier demonstration left in `out`. Raises: `ConfigError` if something else is there."""
    mark = out / _MARK
    try:
        out.mkdir(parents=True, exist_ok=True)
        if (found := next((path for path in (folder, config) if path.exists()), None)) and not mark.exists():
            raise ConfigError(
                f"--out {str(out)!r}: {str(found)!r} is not of a demonstration; choose another folder"
            )
        mark.touch()
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise ConfigError(f"cannot write to --out {str(out)!r}: {error.strerror}") from error


def write_config(template: str, path: Path, values: Mapping[str, Json]) -> None:
    """Write a configuration from a template beside this file. JSON values are YAML too."""
    text = (Path(__file__).parent / template).read_text("utf-8")
    path.write_text(
        Template(text).substitute({key: json.dumps(value) for key, value in values.items()}), "utf-8"
    )


def count_lines(path: Path) -> int:
    """Return how many whole lines a file has; 0 if it does not exist."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def demo(rows: int = 200, kill_after: int | None = None, window: int = 32, out: Path = Path("demo")) -> int:
    """Generate training data from a topic, kill the process, continue, and verify every row, all offline.

    A server plays the models over HTTP, slow now and then and with faults, and a worker generates the dataset, each
    in its own process. Then `treadle generate` does the same with your own models and tools.

    Examples:
        treadle demo
        treadle demo --rows 1000 --kill-after 300 --out big
    """
    config, folder = out / "dataset.yaml", DatasetFolder(out / "dataset")
    prepare(out, folder.path, config)
    shown = Demonstration(
        f"treadle demo · {rows} rows of training data from a topic, killed in the middle and continued",
        "Everything is real except the models: a local server plays them over HTTP, offline and without a key.",
        "An answer takes 0.1 to 0.6 s; 5 % of the requests fail; 5 % of the agent's steps are mistakes.",
    )
    faults = [f"--failure-kind={kind}" for kind in _FAULTS]
    rates = ("--latency=0.1", "--slow-latency=0.6", "--slow-share=0.07")
    with ModelServer(*rates, "--mistake-rate=0.05", "--failure-rate=0.05", *faults) as url:
        values = {"rows": rows, "window": window, "degree": max(2, min(20, round(rows**0.5)))}
        write_config("demo_dataset.yaml", config, {**values, "url": url, "path": str(folder.path)})
        lines = max(1, rows // 3) if kill_after is None else kill_after
        before = shown.run_killed("generate", str(config), growing=folder.rows, lines=lines)
    shown.run("dataset", "verify", str(folder.path))
    is_good = shown.find_kept(before, folder.rows, "row")
    with open_journal(folder.journal) as journal:
        again = count_second_answers(journal)
    is_good &= shown.find(
        f"answers of a model that were paid for twice: {again or 'none'}", is_good=not again
    )
    _show_next(shown, config, folder)
    return ExitCode.DONE if is_good else ExitCode.FAILED


def count_second_answers(journal: Journal) -> int:
    """Return how many inferences were completed, and therefore paid for, more than once."""
    again = 0
    for info in journal.runs():
        bodies = [event.body for event in journal.read(info.run_id)]
        steps = [body.step for body in bodies if isinstance(body, InferenceCompleted)]
        again += len(steps) - len(set(steps))
    return again


def _show_next(shown: Demonstration, config: Path, folder: DatasetFolder) -> None:
    """Print commands to try, which work in the current folder."""
    shown.say("\nTry next", "bold")
    if shutil.which("treadle") is None:
        shown.say(f"  first, once in each shell: . {Path(sys.executable).with_name('activate')}")
    more, real = folder.path.parent / "more", folder.path.parent / "real"
    for command in (
        write_command("dataset", "show", str(folder.path)),
        write_command("dataset", "stats", str(folder.path)),
        write_command("generate", str(config), model="mock:teacher", num_samples="20", out=more),
        write_command("generate", str(config), model="openai:gpt-5-mini", out=real, dry_run=True),
        write_command("run", task="files:csv_sum-0001", model="oracle"),
    ):
        shown.say(f"  {command}", "cyan")


def run_rollout_demo(out: Path, groups: int = GROUPS, size: int = SIZE, *, is_json: bool = False) -> int:
    """Make groups of rollouts over a mock of vLLM in the folder `out`, kill that, go on and write a report.

    Raises: `TreadleError`.
    """
    from treadle.rollout.rollout_folder import RolloutFolder, read_groups, read_stored

    config, folder = out / "rollout.yaml", RolloutFolder(out / "rollouts")
    prepare(out, folder.path, config)
    shown = Demonstration(
        f"treadle rollout --demo · {groups} groups of {size} rollouts, killed in the middle and continued",
        "A mock of vLLM samples token ids with real probabilities, offline.",
        is_json=is_json,
    )
    from treadle.viewer.bundle import is_built

    tokenizer, rows = (out / "tokenizer").absolute(), folder.path / "rows.jsonl"
    # Without the extra `train`, the server makes the ids of prompts, so that some answers begin branches.
    has_train = find_spec("tokenizers") is not None and find_spec("jinja2") is not None
    latency = (f"--latency={min(0.1, groups / 240)}", "--latency-tail=1.7")
    with ModelServer("--engine=vllm", *latency, f"--tokenizer-folder={tokenizer}") as url:
        values = {"groups": groups, "size": size, "renderer": f"hf:{tokenizer}" if has_train else None}
        places = {"url": url, "sink": f"jsonl:{rows}", "path": str(folder.path)}
        write_config("demo_rollouts.yaml", config, {**values, **places})
        before = shown.run_killed("rollout", str(config), growing=folder.groups, lines=max(1, groups // 3))
    if is_built():
        shown.run("rollout", "report", str(folder.path))
    is_good = shown.find_kept(before, folder.groups, "group")
    branches = [
        branch
        for group in read_groups(folder.path, read_stored(folder.path))
        for rollout in group.rollouts
        for branch in rollout.trajectories
        if branch.grade == "token_exact"
    ]
    # Reading a group checks that every token that the engine sampled is there once.
    sampled = sum([branch.sampled_tokens for branch in branches])
    is_good &= shown.find(
        f"{write_count(sampled, 'sampled token')} with the engine's ids and logprobs, each delivered once, in "
        f"{len(branches):,} token-exact branches of {groups * size:,} rollouts",
        is_good=sampled > 0,
    )
    shown.say("Now with your own model: treadle rollout --task files --model vllm:NAME --base-url URL")
    return ExitCode.DONE if is_good else ExitCode.FAILED


def main() -> None:
    """Run `treadle` with the arguments of this process."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    from treadle.cli import main as run_treadle

    sys.argv[0] = "treadle"
    run_treadle()


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
