"""`treadle generate` and `treadle publish`: a dataset from a configuration, and its upload."""

from pathlib import Path
from typing import TYPE_CHECKING

from treadle.cli.exit import ExitCode
from treadle.cli.options import common as o
from treadle.cli.options.agent_options import check_base_url
from treadle.cli.options.option_groups import OptionGroup
from treadle.cli.terminal.output import print_bytes, print_json, print_line, print_note, spinner, write_count
from treadle.core.errors import ConfigError
from treadle.journal.named_files import suggest_path

if TYPE_CHECKING:
    from treadle.datagen.dataset.upload import Upload


class GenerationOptions(OptionGroup, frozen=True, kw_only=True):
    """The options that override keys of the configuration."""

    out: Path | None = None
    num_samples: str | None = None
    model: str | None = None
    base_url: str | None = None
    api_key: str | None = None
    seed: int | None = None
    workers: str | None = None


def generate(
    config: Path | None = None,
    *,
    options: GenerationOptions,
    settings: list[str] | None = None,
    is_dry: bool = False,
    retry_failed: bool = False,
    accept_changes: bool = False,
    is_init: bool = False,
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
    from treadle.datagen.config.config_schema import starter

    if is_init:
        print_bytes(starter().encode())
        return ExitCode.DONE
    check_base_url(options.base_url)
    given = {name: str(value) for name, value in options.given_values.items()}
    changes = generating.read_changes(given, settings or ())
    if is_dry:
        return generating.print_dry_run(config, changes, is_json=shown.is_json)
    return generating.run(config, changes, shown, retry_failed=retry_failed, accept_changes=accept_changes)


def publish(
    folder: Path,
    to: list[str] | None = None,
    license: str | None = None,
    is_private: bool | None = None,
    tags: list[str] | None = None,
    message: str | None = None,
    is_update: bool = False,
    keeps_card: bool = False,
    has_report: bool = False,
    is_dry: bool = False,
    is_json: bool = False,
) -> None:
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
        hint = suggest_path(folder, "give a folder that `treadle generate` wrote")
        raise ConfigError(f"{str(folder)!r} is not the folder of a dataset{hint}")
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
            print_line(address)
            print_note(
                f"{write_count(len(upload.files), 'file')} uploaded under the licence {upload.license}"
            )


def _publish(upload: "Upload", *, is_update: bool) -> str:
    from treadle.datagen.dataset.upload import Service, publish_on_hub, publish_on_kaggle

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
    kind = "private" if upload.is_private else "public"
    print_line(f"{upload.target}, {kind}, licence {upload.license}", "bold")
    for file in upload.files:
        print_line(f"  {file.size_bytes:>13,} bytes  {file.name}")
    print_line(f"  {sum(file.size_bytes for file in upload.files):>13,} bytes in all", "dim")
    print_note("nothing was uploaded")
