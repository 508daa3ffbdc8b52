"""`treadle demo`: a dataset whose generation is killed, continued and verified, all offline."""

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.demo.stages import DemoOptions, run_demo

EXAMPLES = (
    "treadle demo",
    "treadle demo --rows 1000 --kill-after 300 --out big",
)


def demo(
    rows: Annotated[
        int, typer.Option("--rows", "-n", metavar="N", min=1, help="The number of rows to generate.")
    ] = 200,
    kill_after: Annotated[
        int | None,
        typer.Option(
            "--kill-after",
            metavar="N",
            min=0,
            help="Kill the worker after this many rows. Default: a third; 0 does not kill it.",
        ),
    ] = None,
    window: Annotated[
        int,
        typer.Option("--window", metavar="N", min=1, help="How many samples are made at the same time."),
    ] = 32,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="The folder of the dataset; what the last demo left is replaced.",
        ),
    ] = Path("demo"),
) -> int:
    """Generate training data from a topic, kill that with SIGKILL, go on and verify every row, all offline.

    A server plays the models over HTTP, slow now and then and with faults, and a worker generates the dataset, each
    in its own process. Then `treadle generate` does the same with your own models and tools.
    """
    return run_demo(DemoOptions(rows=rows, kill_after=kill_after, window=window, out=out))
