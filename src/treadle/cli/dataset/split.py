"""`treadle dataset split`: the rows by split and format, so that no topic is in two splits."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.options.datasets import DatasetPath, Formats, read_shares
from treadle.cli.terminal.bar import spinner
from treadle.cli.terminal.output import print_json, print_note, stdout, write_count
from treadle.core.errors import ConfigError

if TYPE_CHECKING:
    from treadle.datagen.dataset.splits import SplitPlan, Splits

EXAMPLES = (
    "treadle dataset split dataset --splits train=0.9,test=0.1",
    "treadle dataset split rows.jsonl --splits train=8,valid=1,test=1 --format trl --out splits",
)


def split(
    path: DatasetPath,
    splits: Annotated[
        str | None,
        typer.Option("--splits", metavar="SHARES", help="The splits with their shares: train=0.9,test=0.1."),
    ] = None,
    formats: Formats = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", help="The seed of the splits. Another seed gives other splits."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="The folder to write to. Default: FOLDER."),
    ] = None,
    is_fresh: Annotated[
        bool, typer.Option("--fresh", help="Assign all topics again, without regard to their earlier splits.")
    ] = False,
    is_json: o.IsJson = False,
) -> int:
    """Write the rows by split and format, so that no topic is in two splits.

    The shares are met as exactly as the topics allow. A topic keeps its split when rows are added later. Without
    --splits, --format and --seed, those of the dataset's configuration apply.
    """
    from treadle.datagen.dataset.splits import split_rows

    plan = _make_plan(path, splits, formats, seed)
    if out is None and not path.is_dir():
        raise ConfigError(
            "--out: give the folder to write the splits to, because the rows are in a single file"
        )
    with spinner("splitting"):
        found = split_rows(path, out or path, plan, is_fresh=is_fresh)
    if is_json:
        print_json(found)
    else:
        _print(found)
    return ExitCode.DONE


def _make_plan(path: Path, splits: str | None, formats: list[str] | None, seed: int | None) -> "SplitPlan":
    from treadle.datagen.dataset.splits import SplitPlan

    plan = SplitPlan.find(path)
    if splits is not None:
        plan = replace(plan, shares=read_shares(splits))
    if formats:
        plan = replace(plan, formats=tuple(formats))
    return plan if seed is None else replace(plan, seed=seed)


def _print(found: "Splits") -> None:
    console = stdout()
    width = max(len(item.name) for item in found.splits)
    rows = sum(item.rows for item in found.splits)
    for item in found.splits:
        console.print(f"{item.name:<{width}}  ", style="bold", end="")
        share = f"{item.rows / rows:.1%}" if rows else "0 %"
        difference = "" if item.rows == item.wanted else f", {item.wanted:,} wanted"
        console.print(
            f"{write_count(item.rows, 'row')} ({share} of {item.share:.1%}{difference}), "
            f"{write_count(item.topics, 'topic')}"
        )
    if not found.is_exact:
        print_note(
            f"the shares are not exact, because topics stay whole; the largest group of topics has "
            f"{write_count(found.largest_group, 'row')}"
        )
    if found.kept:
        print_note(
            f"{write_count(found.kept, 'topic')} kept their earlier splits; --fresh assigns them again"
        )
    for name, text in found.left_out.items():
        print_note(f"{name} lacks {text}")
    print_note("written: " + ", ".join(found.files))
