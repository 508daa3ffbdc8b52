"""`treadle generate` and `treadle publish`: a dataset from a configuration, and its upload."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import common as o
from treadle.cli.options.common import DatasetFolder
from treadle.cli.terminal.output import print_json, print_note, spinner, stdout, write_count
from treadle.core.errors import ConfigError

if TYPE_CHECKING:
    from treadle.datagen.dataset.upload import Upload


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
    is_init: Annotated[
        bool, typer.Option("--init", help="Print a commented configuration to start from.")
    ] = False,
    *,
    shown: o.ViewOptions,
) -> int:
    """Generate training data: conversations in which an agent uses real tools, checked one by one.

    The same command continues an interrupted generation. The first Ctrl-C finishes the samples in flight, the
    second stops at once; rows that were counted are never lost.

    Examples:
        treadle generate --init > dataset.yaml && treadle generate dataset.yaml --dry-run
        treadle generate dataset.yaml --num-samples 500 --model openai:gpt-5-mini
    """
    # The modules of the generation are not needed for the help.
    from treadle.cli.jobs import generating

    if is_init:
        return generating.print_starter()
    options = {"out": out, "num_samples": num_samples, "model": model, "seed": seed, "workers": workers}
    given = {name: str(value) for name, value in options.items() if value is not None}
    changes = generating.GenerationChanges(given, tuple(settings or ()))
    if is_dry:
        return generating.print_dry_run(config, changes, is_json=shown.is_json)
    return generating.run(config, changes, shown, retry_failed=retry_failed, accept_changes=accept_changes)


def publish(
    folder: DatasetFolder,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="huggingface:OWNER/NAME or kaggle:OWNER/NAME. May be given several times. Default: the places in "
            "the dataset's configuration.",
        ),
    ] = None,
    license: Annotated[
        str | None,
        typer.Option("--license", metavar="NAME", help="The licence of the dataset, such as CC-BY-4.0."),
    ] = None,
    is_private: Annotated[
        bool | None, typer.Option("--private/--public", help="Who can see a new dataset. Default: public.")
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="A further tag. May be given several times."),
    ] = None,
    message: Annotated[
        str | None, typer.Option("--message", "-m", metavar="TEXT", help="What is new in this version.")
    ] = None,
    is_update: Annotated[
        bool, typer.Option("--update", help="Add a version to a dataset that exists.")
    ] = False,
    keeps_card: Annotated[
        bool, typer.Option("--keep-card", help="Upload README.md as it is, instead of a new card.")
    ] = False,
    has_report: Annotated[bool, typer.Option("--report", help="Upload report.html too.")] = False,
    is_dry: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be uploaded, and upload nothing.")
    ] = False,
    is_json: o.IsJson = False,
) -> int:
    """Upload a dataset to the Hugging Face Hub or to Kaggle.

    The splits, the topics and a card are uploaded, with the licence that you name. Tokens are read as the clients
    of these services do: HF_TOKEN or `hf auth login`, and KAGGLE_API_TOKEN or the files of Kaggle's client.

    Examples:
        treadle publish dataset --to huggingface:me/shop-tools --license CC-BY-4.0 --private
        treadle publish dataset --to kaggle:me/shop-tools --license CC-BY-4.0 --dry-run
    """
    from treadle.datagen.dataset.upload import (
        UploadOptions,
        UploadTarget,
        find_targets,
        prepare,
        read_or_default,
    )

    if not folder.is_dir():
        raise ConfigError(
            f"{str(folder)!r} is not the folder of a dataset; give a folder that `treadle generate` wrote"
        )
    targets = [UploadTarget.parse(text) for text in to or ()] or find_targets(read_or_default(folder))
    if not targets:
        raise ConfigError("--to: name the place to publish to, such as --to huggingface:OWNER/NAME")
    options = UploadOptions(
        license=license,
        is_private=is_private,
        tags=tuple(tags or ()),
        notes=message,
        keeps_card=keeps_card,
        has_report=has_report,
    )
    uploads = [prepare(folder, target, options) for target in targets]
    for upload in uploads:
        if is_dry:
            _describe(upload, folder, is_json=is_json)
            continue
        with spinner(f"uploading to {upload.target}"):
            address = _publish(upload, is_update=is_update)
        if is_json:
            print_json({"target": str(upload.target), "address": address, "license": upload.license})
        else:
            stdout().print(address, soft_wrap=True)
            print_note(
                f"{write_count(len(upload.files), 'file')} uploaded under the licence {upload.license}"
            )
    return ExitCode.DONE


def _publish(upload: "Upload", *, is_update: bool) -> str:
    from treadle.datagen.dataset.services import publish_on_hub, publish_on_kaggle
    from treadle.datagen.dataset.upload import Service

    if upload.target.service is Service.HUGGINGFACE:
        return publish_on_hub(upload, is_update=is_update)
    return publish_on_kaggle(upload, is_update=is_update)


def _describe(upload: "Upload", folder: Path, *, is_json: bool) -> None:
    """Print what would be uploaded."""
    if is_json:
        print_json(
            {
                "target": str(upload.target),
                "license": upload.license,
                "private": upload.is_private,
                "tags": upload.tags,
                "files": {file.name: file.size_bytes for file in upload.files},
            }
        )
        return
    console = stdout()
    kind = "private" if upload.is_private else "public"
    console.print(f"{upload.target}, {kind}, licence {upload.license}", style="bold", soft_wrap=True)
    for file in upload.files:
        console.print(f"  {file.size_bytes:>13,} bytes  {file.name}", soft_wrap=True)
    console.print(f"  {sum(file.size_bytes for file in upload.files):>13,} bytes in all", style="dim")
    print_note("nothing was uploaded")
