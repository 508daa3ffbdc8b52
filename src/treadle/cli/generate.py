"""`treadle generate`: a dataset from a configuration."""

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o

EXAMPLES = (
    "treadle generate --init > dataset.yaml && treadle generate dataset.yaml --dry-run",
    "treadle generate dataset.yaml --num-samples 500 --model openai:gpt-5-mini",
)


def generate(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG",
            help="The configuration, in YAML or JSON. A file of DeepFabric 4 is accepted too.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="The folder of the dataset, in place of output.path."
        ),
    ] = None,
    num_samples: Annotated[
        str | None,
        typer.Option(
            "--num-samples",
            "-n",
            metavar="N|auto|P%",
            help="How many rows to make: a number, one for each leaf topic (auto), or a percentage of that.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="MODEL", help="The model for all roles; mock:teacher needs no key."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="The seed of the plan.")] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers",
            metavar="WHERE",
            help="Where the runs of samples are driven: here, local:N in N worker processes, or ray[:N].",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Another value for a key of the configuration, such as generation.window=64. May be given several "
            "times.",
        ),
    ] = None,
    is_dry: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check everything and print the plan: calls, tokens, cost and time. Ask no model.",
        ),
    ] = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="Try the rejected samples again, with the reasons as feedback, before new ones.",
        ),
    ] = False,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Continue although the configuration was changed: existing rows stay, new rows follow it.",
        ),
    ] = False,
    is_schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of configurations, for editors.")
    ] = False,
    is_init: Annotated[
        bool, typer.Option("--init", help="Print a commented configuration to start from.")
    ] = False,
    *,
    shown: o.ViewOptions,
) -> int:
    """Generate training data: conversations in which an agent uses real tools, checked one by one.

    The same command continues an interrupted generation. The first Ctrl-C finishes the samples in flight, the
    second stops at once; rows that were counted are never lost.
    """
    # The modules of the generation are not needed for the help.
    from treadle.cli.jobs import generating

    if is_schema:
        from treadle.cli.terminal.output import print_schema
        from treadle.datagen.config.schema import schema

        print_schema(schema())
        return ExitCode.DONE
    if is_init:
        return generating.print_starter()
    options = {"out": out, "num_samples": num_samples, "model": model, "seed": seed, "workers": workers}
    given = {name: str(value) for name, value in options.items() if value is not None}
    changes = generating.Changes(given, tuple(settings or ()))
    if is_dry:
        return generating.print_dry_run(config, changes, is_json=shown.is_json)
    return generating.run(config, changes, shown, retry_failed=retry_failed, accept_changes=accept_changes)
