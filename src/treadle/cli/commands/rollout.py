"""`treadle rollout` and `treadle rollout report`: groups of runs on tasks, for training."""

from pathlib import Path

from treadle.cli.options import common as o
from treadle.cli.options.option_groups import OptionGroup
from treadle.cli.terminal.output import bar, print_json, print_line
from treadle.core.errors import ConfigError


class RolloutOptions(OptionGroup, frozen=True, kw_only=True):
    """The options that override keys of the configuration. Each field has the name of its key."""

    tasks: list[str] | None = None
    group_size: int | None = None
    groups: int | None = None
    model: str | None = None
    command: str | None = None
    base_url: str | None = None
    renderer: str | None = None
    temperature: float | None = None
    seed: int | None = None
    window: int | None = None
    workers: str | None = None
    rewards: list[str] | None = None
    held_out: list[str] | None = None
    max_staleness: int | None = None
    deliver: str | None = None
    sinks: list[str] | None = None
    name: str | None = None
    path: Path | None = None
    journal: str | None = None


def rollout(
    config: Path | None = None,
    *,
    options: RolloutOptions,
    settings: list[str] | None = None,
    is_demo: bool = False,
    retry_failed: bool = False,
    is_dry: bool = False,
    shown: o.ViewOptions,
) -> int:
    """Run groups of agents on tasks, and hand trainers what the model sampled.

    The same command continues what was interrupted. The first Ctrl-C finishes the groups in flight, the second
    stops at once; groups that were counted are never lost or delivered twice.

    Examples:
        treadle rollout --task files --groups 100 --model vllm:Qwen/Qwen3-8B
        treadle rollout rollout.yaml --sink jsonl:groups.jsonl --set retries.attempts=6
    """
    # The modules of the work are not needed for the help.
    given = options.given_values
    if is_dry and (is_demo or retry_failed):
        raise ConfigError(f"--dry-run plans groups; leave out {'--demo' if is_demo else '--retry-failed'}")
    if is_demo:
        from treadle.cli.commands.demo import GROUPS, SIZE, run_rollout_demo

        place, groups = Path(given.get("path", "rollout-demo")), given.get("groups", GROUPS)
        return run_rollout_demo(place, groups, given.get("group_size", SIZE), is_json=shown.is_json)
    from treadle.cli.jobs import rolling
    from treadle.cli.jobs.job_command import read_changes

    changes = read_changes(given, settings or ())
    if is_dry:
        return rolling.print_dry_run(config, changes, is_json=shown.is_json)
    return rolling.run(config, changes, shown, retry_failed=retry_failed)


def report(
    folder: Path = Path("rollouts"),
    out: Path | None = None,
    renderer: str | None = None,
    journal: str | None = None,
    is_json: bool = False,
) -> None:
    """Write a report of rollouts as one HTML file: rewards, groups, lengths, tools, drift and tokens.

    It shows the groups that are delivered so far, also while others are made.

    Examples:
        treadle rollout report rollouts
        treadle rollout report rollouts -o report.html --renderer chatml
    """
    # The modules of the report are not needed for the help.
    from treadle.rollout.rollout_folder import read_stored
    from treadle.viewer.bundle import check_built
    from treadle.viewer.data_pages import make_rollouts_page, write_page

    count, decode = len(read_stored(folder).entries), None
    check_built()
    if renderer is not None:
        from treadle.renderers.registry import load_renderer

        decode = load_renderer(renderer).decode
    with bar("reading", count, is_json=is_json) as advance:
        found = make_rollouts_page(folder, decode=decode, journal=journal, on_group=advance)
    path = write_page(found, out or folder / "report.html")
    if is_json:
        print_json({"report": str(path), "groups": count})
    else:
        print_line(str(path))
