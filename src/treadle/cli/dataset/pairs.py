"""`treadle dataset pairs`: preference pairs from the forks in a journal."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.journals import open_existing
from treadle.cli.options import shared as o
from treadle.cli.terminal.bar import spinner
from treadle.cli.terminal.output import print_lines, print_note, write_count
from treadle.core.errors import ExportError
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.export.preferences import find_pairs, write_pair
from treadle.export.whole import write_whole
from treadle.journal.protocol import Journal

EXAMPLES = (
    "treadle dataset pairs dataset -o pairs.jsonl",
    "treadle dataset pairs .treadle/runs.db --whole --min-gap 0.2",
)


def pairs(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER|JOURNAL",
            help="The folder of a dataset, or a journal: a file, or the address of a store.",
            show_default=False,
        ),
    ],
    out: o.Out = None,
    is_whole: Annotated[
        bool,
        typer.Option(
            "--whole", help="Make pairs of everything up to the end of the runs, and not of single steps."
        ),
    ] = False,
    min_gap: Annotated[
        float,
        typer.Option(
            "--min-gap", metavar="VALUE", min=0, help="The values of a pair differ by more than this."
        ),
    ] = 0.0,
) -> int:
    """Write preference pairs from runs that were forked from each other.

    Runs are compared up to the step where they differ. The better step is the one whose runs have the higher mean
    reward; in a dataset, a kept sample without a reward counts as 1 and a rejected one as 0.
    """
    folder = Path(source)
    is_dataset = folder.is_dir()
    values = _read_values(folder) if is_dataset else {}
    skips: Counter[str] = Counter()
    with closing(open_existing(str(DatasetFolder(folder).journal) if is_dataset else source)) as journal:
        lines = _write_lines(journal, values, is_whole, min_gap, skips)
        if out is None:
            print_lines(lines)
        else:
            with spinner("pairing"):
                count = write_whole(lines, out)
            print_note(f"{write_count(count, 'pair')} written to {str(out)!r}")
    for why, count in skips.most_common():
        print_note(f"{write_count(count, 'run')} left out: {why}")
    return ExitCode.DONE


def _write_lines(
    journal: Journal, values: dict[str, float], is_whole: bool, min_gap: float, skips: Counter[str]
) -> Iterator[bytes]:
    def on_skip(run_id: str, why: str) -> None:
        skips[why.replace(repr(run_id), "RUN")] += 1

    for pair in find_pairs(journal, values=values, is_whole=is_whole, min_gap=min_gap, on_skip=on_skip):
        try:
            yield write_pair(pair)
        except ExportError as error:
            on_skip(pair.rejected.run_id, str(error))


def _read_values(folder: Path) -> dict[str, float]:
    """Return 1 for each kept sample of a dataset that has no reward, and 0 for each rejected one, by run."""
    from treadle.datagen.dataset.entries import read_entries

    return {
        entry.row.lineage.run_id: float(not is_rejected)
        for is_rejected in (True, False)
        for entry in read_entries(folder, is_rejected=is_rejected)
        if entry.row.lineage.reward is None
    }
