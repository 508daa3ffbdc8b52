"""`treadle dataset report`: one HTML file with pictures of a dataset and rows to read."""

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options.datasets import DatasetPath
from treadle.cli.terminal.bar import spinner
from treadle.cli.terminal.output import print_note, stdout

EXAMPLES = (
    "treadle dataset report dataset",
    "treadle dataset report rows.jsonl --out report.html",
)


def report(
    path: DatasetPath,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Default: report.html in FOLDER.")
    ] = None,
) -> int:
    """Write a report with pictures, as one HTML file that needs no network.

    It shows the topics, the tools and their order, lengths, kinds, rejections, tokens and cost over time, and rows
    to read and to search. All rows of a small dataset are in it, and a random sample of a large one.
    """
    from treadle.datagen.dataset.report.write import write_report

    with spinner("writing the report"):
        written = write_report(path, out)
    stdout().print(str(written), soft_wrap=True)
    print_note("open it in a browser")
    return ExitCode.DONE
