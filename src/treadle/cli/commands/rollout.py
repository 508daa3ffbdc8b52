"""`treadle rollout` and `treadle rollout report`: groups of runs on tasks, for training."""

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import common as o
from treadle.cli.options.agent_options import Model
from treadle.cli.options.option_groups import OptionGroup, make_parameter
from treadle.cli.terminal.output import bar, print_json, stdout
from treadle.export.groups import Group

_OPTIONS: dict[str, Any] = {
    "tasks": Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="TASKS",
            help="A task set, SET:ID, or a pattern such as 'files:csv_sum-*'; SET may be file.py:ATTRIBUTE. May be "
            "given several times.",
        ),
    ],
    "group_size": Annotated[
        int | None, typer.Option("--group-size", metavar="N", help="How many rollouts a group has.")
    ],
    "groups": Annotated[
        int | None, typer.Option("--groups", "-n", metavar="N", help="How many groups are delivered.")
    ],
    "model": Model,
    "base_url": o.BaseUrl,
    "renderer": o.Renderer,
    "temperature": Annotated[
        float | None, typer.Option("--temperature", metavar="T", help="The sampling temperature.")
    ],
    "seed": Annotated[
        int | None, typer.Option("--seed", metavar="N", help="The seed of tasks and sampling.")
    ],
    "window": Annotated[
        int | None,
        typer.Option("--window", metavar="N", help="How many rollouts are driven at the same time."),
    ],
    "workers": Annotated[
        str | None,
        typer.Option(
            "--workers", metavar="WHERE", help="Where runs are driven: here, local:N (processes), or ray."
        ),
    ],
    "rewards": Annotated[
        list[str] | None,
        typer.Option(
            "--reward",
            metavar="NAME=WEIGHT",
            help="A part of the reward: check, tool_use, or a function. May be given several times.",
        ),
    ],
    "max_staleness": Annotated[
        int | None,
        typer.Option(
            "--max-staleness",
            metavar="N",
            help="Drop a group if the weights are more versions than this ahead of its oldest token.",
        ),
    ],
    "deliver": Annotated[
        str | None,
        typer.Option(
            "--deliver", metavar="WHAT", help="group (when it is complete), or rollout (each at once)."
        ),
    ],
    "sinks": Annotated[
        list[str] | None,
        typer.Option(
            "--sink",
            metavar="SINK",
            help="Where groups go, such as jsonl:groups.jsonl. May be given several times.",
        ),
    ],
    "name": Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The beginning of the ids of the runs.")
    ],
    "path": Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="The folder of the work; the same folder continues it."
        ),
    ],
    "journal": Annotated[
        str | None,
        typer.Option(
            "--journal",
            "-j",
            envvar="TREADLE_JOURNAL",
            metavar="PATH",
            help="The journal of the runs: a file, or the address of a store. Default: runs.db in the folder.",
        ),
    ],
}
"""The options by the key of the configuration that each overrides."""


class RolloutOptions(OptionGroup, frozen=True, kw_only=True):
    """The options that override keys of the configuration."""

    given: Mapping[str, Any] = {}
    """The values that were given, by key."""

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """See `OptionGroup.parameters`."""
        return [make_parameter(name, kind, None) for name, kind in _OPTIONS.items()]

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """See `OptionGroup.from_values`."""
        given = {name: values[name] for name in _OPTIONS if values[name] not in (None, [])}
        return cls(
            given={name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
        )


def rollout(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="The configuration, in YAML or JSON.", show_default=False),
    ] = None,
    *,
    options: RolloutOptions,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Another value for a key of the configuration, such as agent.max_steps=20. May be given several "
            "times.",
        ),
    ] = None,
    is_demo: Annotated[
        bool, typer.Option("--demo", help="Show it all offline: a mock engine, rollouts, and their report.")
    ] = False,
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
    given = options.given
    if is_demo:
        from treadle.cli.demo.rollout_demo import GROUPS, SIZE, run_demo

        return run_demo(
            Path(given.get("path", "rollout-demo")),
            shown,
            given.get("groups", GROUPS),
            given.get("group_size", SIZE),
        )
    from treadle.cli.jobs import rolling

    changes = rolling.RolloutChanges(given, tuple(settings or ()))
    return rolling.run(config, changes, shown)


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of the rollouts.", show_default=False)
    ] = Path("rollouts"),
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The file to write. Default: report.html in the folder."
        ),
    ] = None,
    renderer: Annotated[
        str | None,
        typer.Option(
            "--renderer",
            metavar="NAME",
            help="The renderer that converts token ids to text: hf:FOLDER or family:NAME.",
        ),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            "--journal",
            "-j",
            envvar="TREADLE_JOURNAL",
            metavar="PATH",
            help="The address of the rollouts' journal, if it needs a password.",
        ),
    ] = None,
    is_json: o.IsJson = False,
) -> int:
    """Write a report of rollouts as one HTML file: rewards, groups, lengths, tools, drift and tokens.

    It shows the groups that are delivered so far, also while others are made.

    Examples:
        treadle rollout report rollouts
        treadle rollout report rollouts -o report.html --renderer chatml
    """
    # The modules of the report are not needed for the help.
    from treadle.rollout.rollout_folder import read_groups, read_stored
    from treadle.rollout.rollout_report import make_rollout_report
    from treadle.viewer import write_page

    stored = read_stored(folder)
    decode = None
    if renderer is not None:
        from treadle.renderers.registry import load_renderer

        decode = load_renderer(renderer).decode
    with bar("reading", len(stored.entries), is_json=is_json) as advance:

        def groups() -> Iterator[Group]:
            for group in read_groups(folder, stored, journal):
                yield group
                advance(group.group_id)

        found = make_rollout_report(
            groups(),
            name=stored.config.name,
            dropped=stored.counts.reasons,
            decode=decode,
        )
    path = write_page(found, out or folder / "report.html")
    if is_json:
        print_json({"report": str(path), "groups": len(stored.entries)})
    else:
        stdout().print(str(path), soft_wrap=True)
    return ExitCode.DONE
