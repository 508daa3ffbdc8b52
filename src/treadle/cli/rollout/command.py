"""`treadle rollout`: groups of runs on tasks, for training."""

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.options.agent import Model

EXAMPLES = (
    "treadle rollout --task files --groups 100 --model vllm:Qwen/Qwen3-8B",
    "treadle rollout rollout.yaml --sink jsonl:groups.jsonl --set retries.attempts=6",
)


def rollout(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="The configuration, in YAML or JSON.", show_default=False),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="TASKS",
            help="A task set, SET:ID, or a pattern such as 'files:csv_sum-*'; SET may be file.py:ATTRIBUTE. May be "
            "given several times.",
        ),
    ] = None,
    group_size: Annotated[
        int | None, typer.Option("--group-size", metavar="N", help="How many rollouts a group has.")
    ] = None,
    groups: Annotated[
        int | None, typer.Option("--groups", "-n", metavar="N", help="How many groups are delivered.")
    ] = None,
    model: Model = None,
    base_url: o.BaseUrl = None,
    renderer: Annotated[
        str | None,
        typer.Option(
            "--renderer",
            metavar="NAME",
            help="Send and receive token ids: chatml, hf:FOLDER or family:NAME makes them of messages.",
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", metavar="T", help="The sampling temperature.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="The seed of tasks and sampling.")
    ] = None,
    window: Annotated[
        int | None,
        typer.Option("--window", metavar="N", help="How many rollouts are driven at the same time."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine", metavar="WHERE", help="Where runs are driven: here, local:N (processes), or ray."
        ),
    ] = None,
    rewards: Annotated[
        list[str] | None,
        typer.Option(
            "--reward",
            metavar="NAME=WEIGHT",
            help="A part of the reward: check, tool_use, or a function. May be given several times.",
        ),
    ] = None,
    max_staleness: Annotated[
        int | None,
        typer.Option(
            "--max-staleness",
            metavar="N",
            help="Drop a group if the weights are more versions than this ahead of its oldest token.",
        ),
    ] = None,
    deliver: Annotated[
        str | None,
        typer.Option(
            "--deliver", metavar="WHAT", help="group (when it is complete), or rollout (each at once)."
        ),
    ] = None,
    sinks: Annotated[
        list[str] | None,
        typer.Option(
            "--sink",
            metavar="SINK",
            help="Where groups go, such as jsonl:groups.jsonl. May be given several times.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The beginning of the ids of the runs.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="The folder of the work; the same folder continues it."
        ),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            "--journal",
            "-j",
            envvar="TREADLE_JOURNAL",
            metavar="PATH",
            help="The journal of the runs: a file, or the address of a store. Default: runs.db in the folder.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Another value for a key of the configuration, such as agent.max_steps=20. May be given several "
            "times.",
        ),
    ] = None,
    is_schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of configurations, for editors.")
    ] = False,
    is_demo: Annotated[
        bool, typer.Option("--demo", help="Show it all offline: a mock engine, rollouts, and their report.")
    ] = False,
    *,
    shown: o.ViewOptions,
) -> int:
    """Run groups of agents on tasks, and hand trainers what the model sampled.

    The same command continues what was interrupted. The first Ctrl-C finishes the groups in flight, the second
    stops at once; groups that were counted are never lost or delivered twice.
    """
    # The modules of the work are not needed for the help.
    from treadle.cli.work import rolling

    if is_demo:
        from treadle.cli.rollout.demo import GROUPS, SIZE, run_demo

        return run_demo(out or Path("rollout-demo"), shown, groups or GROUPS, group_size or SIZE)
    if is_schema:
        from treadle.cli.terminal.output import print_schema
        from treadle.rollout.load import schema

        print_schema(schema())
        return ExitCode.DONE
    given = {
        "tasks": tasks,
        "group_size": group_size,
        "groups": groups,
        "model": model,
        "base_url": base_url,
        "renderer": renderer,
        "temperature": temperature,
        "seed": seed,
        "window": window,
        "engine": engine,
        "rewards": rewards,
        "max_staleness": max_staleness,
        "deliver": deliver,
        "sinks": sinks,
        "name": name,
        "path": None if out is None else str(out),
        "journal": journal,
    }
    changes = rolling.Changes(
        {key: value for key, value in given.items() if value not in (None, [])}, tuple(settings or ())
    )
    return rolling.run(config, changes, shown)
