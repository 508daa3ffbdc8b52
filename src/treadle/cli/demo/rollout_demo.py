"""`treadle rollout --demo`: rollouts over a mock engine that are killed, continued and reported on, all offline."""

import shutil
import time
from importlib.util import find_spec
from pathlib import Path

from treadle.cli.demo.children import ModelServer, WorkerProcess
from treadle.cli.jobs.rolling import drive
from treadle.cli.options import common as o
from treadle.cli.terminal.output import (
    bar,
    print_json,
    print_note,
    screen,
    write_command,
    write_count,
    write_seconds,
)
from treadle.core.errors import ConfigError
from treadle.rollout.rollout_config import load_config
from treadle.rollout.rollout_folder import RolloutFolder, Stored, read_groups, read_stored
from treadle.rollout.rollout_report import make_rollout_report
from treadle.viewer import write_page

GROUPS, SIZE = 24, 8
"""How many groups of how many rollouts the demonstration makes, unless options say otherwise."""
_CONFIG = """\
# Groups of rollouts over the mock engine of `treadle rollout --demo`. All keys: docs/rollout.md
name: demo
seed: 1
model: {{model: "vllm:oracle:0.4", base_url: "{url}"{renderer}}}
tasks: ["files:csv_sum-*", "files:log_errors-*", "files:todo_count-*"]
groups: {groups}
group_size: {size}
window: 48
no_variance: mark
sinks: ["jsonl:{out}/rows.jsonl"]
path: "{out}/rollouts"
"""


def run_demo(out: Path, shown: o.ViewOptions, groups: int = GROUPS, size: int = SIZE) -> int:
    """Run the demonstration in the folder `out`, print it, and return the exit code. Raises: `TreadleError`."""
    begin = time.monotonic()
    config = _prepare(out)
    tokenizer = (out / "tokenizer").absolute()
    options = (
        "--engine=vllm",
        f"--latency={min(0.1, groups / 240)}",
        "--latency-tail=1.7",
        f"--tokenizer-folder={tokenizer}",
    )
    # Without the extra `train`, the server makes the ids of prompts, so that some answers begin branches.
    has_train = find_spec("tokenizers") is not None and find_spec("jinja2") is not None
    renderer = f', renderer: "hf:{tokenizer}"' if has_train else ""
    with ModelServer(*options) as server:
        url = server.wait_for_url()
        config.write_text(_CONFIG.format(url=url, out=out, groups=groups, size=size, renderer=renderer))
        _say(f"1. A mock of vLLM at {url} samples ids with real probabilities. The tasks: {config}")
        _say(
            f"2. A process makes {groups} groups of {size} rollouts; it is killed after {groups // 3} groups:"
        )
        _run_and_kill(config, groups // 3, is_json=shown.is_json)
        _say("3. The same command goes on, without sampling anything twice:")
        code = drive(load_config(config), write_command("rollout", str(config)), shown)
    folder = RolloutFolder(out / "rollouts")
    stored = read_stored(folder.path)
    found = make_rollout_report(read_groups(folder.path, stored), name="demo", dropped=stored.counts.reasons)
    report = write_page(found, out / "report.html")
    sampled, exact = _check(folder, stored)
    lines = sum(1 for _ in (out / "rows.jsonl").open("rb"))
    _say(
        f"4. {write_count(sampled, 'sampled token')} with the engine's ids and logprobs, each delivered once, in "
        f"{exact:,} token-exact branches of {groups * size:,} rollouts: {out / 'rows.jsonl'} ({lines:,} rows)"
    )
    _say(f"5. The report: {report}   ({write_seconds(time.monotonic() - begin)} in all)")
    _say("Now with your own model: treadle rollout --task files --model vllm:NAME --base-url URL")
    if shown.is_json:
        print_json({"event": "demo", "report": str(report), "sampled_tokens": sampled, "rows": lines})
    return code


def _say(text: str) -> None:
    print_note(text)


def _prepare(out: Path) -> Path:
    """Remove what an earlier demo left, and return the place of the configuration. Raises: `ConfigError`."""
    config = out / "rollout.yaml"
    if out.exists() and not config.exists() and any(out.iterdir()):
        raise ConfigError(f"--out {str(out)!r} has files that are not of a demo; choose another folder")
    try:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"cannot write to --out {str(out)!r}: {error.strerror}") from error
    return config


def _run_and_kill(config: Path, wanted: int, *, is_json: bool) -> None:
    """Make rollouts in another process, and kill it after `wanted` groups."""
    with (
        bar("rolling out", wanted, is_json=is_json) as advance,
        WorkerProcess("rollout", str(config)) as process,
    ):
        done = 0
        for notice in process.events():
            if notice["event"] == "group_ended":
                done += 1
                advance(notice["task"])
            if done == wanted:
                process.kill()
                break
    screen().print(f"killed process {process.pid} with SIGKILL", style="yellow")


def _check(folder: RolloutFolder, stored: Stored) -> tuple[int, int]:
    """Return the number of sampled tokens and of the branches that have them.

    Reading a group checks that every token that the engine sampled is there once.
    """
    branches = [
        branch
        for group in read_groups(folder.path, stored)
        for rollout in group.rollouts
        for branch in rollout.trajectories
        if branch.grade == "token_exact"
    ]
    return sum([branch.sampled_tokens for branch in branches]), len(branches)
