"""`treadle dataset merge`: several datasets in one, without duplicates."""

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.terminal.bar import spinner
from treadle.cli.terminal.output import print_json, stdout, write_count
from treadle.core.errors import ConfigError
from treadle.datagen.dataset.merging import merge

EXAMPLES = (
    "treadle dataset merge invoices returns --out shop",
    "treadle dataset merge dataset more.jsonl --out all",
)


def merge_datasets(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER|FILE...", help="The datasets: folders, or files of rows."),
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="The new folder.")] = None,
    is_forced: Annotated[
        bool, typer.Option("--force", help="Replace a dataset that was merged in the folder before.")
    ] = False,
    is_json: o.IsJson = False,
) -> int:
    """Merge datasets into one, without duplicate rows.

    Of several rows of the same sample, or with the same messages, the first is kept. Every row keeps its origin; an
    id that is taken is changed. Rejected samples and journals stay where they are.
    """
    if out is None:
        raise ConfigError("--out: give the new folder for the merged dataset")
    with spinner("merging"):
        merged = merge(paths, out, is_forced=is_forced)
    if is_json:
        print_json({"rows": merged.rows, "sources": merged.sources})
        return ExitCode.DONE
    console = stdout()
    for source in merged.sources:
        parts = [f"{source.kept:,} of {write_count(source.rows, 'row')}"]
        if source.same_sample:
            parts.append(f"{source.same_sample:,} left out as the same sample")
        if source.same_content:
            parts.append(f"{source.same_content:,} left out with the same messages")
        if source.renamed:
            parts.append(f"{write_count(source.renamed, 'id')} changed")
        console.print(f"{source.path}: {', '.join(parts)}", soft_wrap=True)
    console.print(f"{write_count(merged.rows, 'row')} in {str(out)!r}", style="bold", soft_wrap=True)
    return ExitCode.DONE
