"""`treadle dataset split`, `merge`, `convert` and `pairs`: new files of rows."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.journals import open_existing
from treadle.cli.options.common import read_shares
from treadle.cli.terminal.output import (
    bar,
    print_json,
    print_json_lines,
    print_line,
    print_note,
    print_parts,
    spinner,
    write_count,
)
from treadle.core.errors import ConfigError, ExportError
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.entries import merge
from treadle.export.preferences import find_pairs, write_pair
from treadle.export.row_changes import RowOptions
from treadle.export.row_files import RowConversion, detect_format, open_writer
from treadle.export.whole import write_whole
from treadle.journal.protocol import Journal
from treadle.tasks.conversation_set import find_row_file

if TYPE_CHECKING:
    from treadle.datagen.dataset.splits import SplitPlan, Splits


def split(
    path: Path,
    splits: str | None = None,
    formats: list[str] | None = None,
    seed: int | None = None,
    out: Path | None = None,
    is_fresh: bool = False,
    is_json: bool = False,
) -> None:
    """Write the rows by split and format, so that no topic is in two splits.

    The shares are met as exactly as the topics allow. A topic keeps its split when rows are added later. Without
    --splits, --format and --seed, those of the dataset's configuration apply.

    Examples:
        treadle dataset split dataset --splits train=0.9,test=0.1
        treadle dataset split rows.jsonl --splits train=8,valid=1,test=1 --format trl --out splits
    """
    from treadle.datagen.dataset.splits import split_rows

    plan = _make_plan(path, splits, formats, seed)
    if out is None and not path.is_dir():
        raise ConfigError(
            "give the folder to write the splits to, with --out DIR: a single file of rows has no folder"
        )
    with spinner("splitting"):
        found = split_rows(path, out or path, plan, is_fresh=is_fresh)
    if is_json:
        print_json(found)
    else:
        _print_split(found)


def _make_plan(path: Path, splits: str | None, formats: list[str] | None, seed: int | None) -> "SplitPlan":
    from treadle.datagen.dataset.splits import SplitPlan

    plan = SplitPlan.find(path)
    if splits is not None:
        plan = replace(plan, shares=read_shares(splits))
    if formats:
        plan = replace(plan, formats=tuple(formats))
    return plan if seed is None else replace(plan, seed=seed)


def _print_split(found: "Splits") -> None:
    width = max(len(item.name) for item in found.splits)
    rows = sum(item.rows for item in found.splits)
    for item in found.splits:
        share = f"{item.rows / rows:.1%}" if rows else "0 %"
        difference = "" if item.rows == item.wanted else f", {item.wanted:,} wanted"
        rows_text = f"{write_count(item.rows, 'row')} ({share} of {item.share:.1%}{difference})"
        told = f"{rows_text}, {write_count(item.topics, 'topic')}"
        print_parts((f"{item.name:<{width}}  ", "bold"), (told, ""))
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


def merge_datasets(
    paths: list[Path],
    out: Path | None = None,
    is_forced: bool = False,
    is_json: bool = False,
) -> None:
    """Merge datasets into one, without duplicate rows.

    Of several rows of the same sample, or with the same messages, the first is kept. Every row keeps its origin; an
    id that is taken is changed. Rejected samples and journals stay where they are.

    Examples:
        treadle dataset merge invoices returns --out shop
        treadle dataset merge dataset more.jsonl --out all
    """
    if out is None:
        raise ConfigError("give the new folder for the merged dataset, with --out DIR")
    with spinner("merging"):
        merged = merge(paths, out, is_forced=is_forced)
    if is_json:
        print_json({"rows": merged.rows, "sources": merged.sources})
        return
    for source in merged.sources:
        parts = [f"{source.kept:,} of {write_count(source.rows, 'row')}"]
        if source.same_sample:
            parts.append(f"{source.same_sample:,} left out as the same sample")
        if source.same_content:
            parts.append(f"{source.same_content:,} left out with the same messages")
        if source.renamed:
            parts.append(f"{write_count(source.renamed, 'id')} changed")
        print_line(f"{source.path}: {', '.join(parts)}")
    print_line(f"{write_count(merged.rows, 'row')} in {str(out)!r}", "bold")


_MAX_LISTED = 3
"""How many of the rows that are left out are listed with the reason."""


def convert(
    source: Path,
    to: str,
    from_: str | None = None,
    out: Path | None = None,
    has_reasoning: bool | None = None,
    tools: str | None = None,
    splits_calls: bool = False,
    has_lineage: bool = True,
    is_json: bool = False,
) -> int:
    """Convert rows from one format to another, and say what they lose.

    A row that cannot be read or written is left out and counted, with the reason.

    Examples:
        treadle dataset convert dataset --format sharegpt -o train.jsonl
        treadle dataset convert rows.jsonl --format trl --tools used+3 --split-calls -o train.parquet
    """
    source = _find(source, out, is_json=is_json)
    found = from_ if from_ is not None else detect_format(source, advice="give --from with one of")
    options = RowOptions(tools, splits_calls, has_lineage)
    conversion = RowConversion(found, to, has_reasoning, options)
    with ExitStack() as stack:
        advance = stack.enter_context(bar("converting", None, is_json=out is None))
        if out is None:
            print_json_lines(conversion.lines(source, advance))
        else:
            writer = stack.enter_context(
                open_writer(to, out, with_reasoning=has_reasoning, with_lineage=has_lineage)
            )
            for row in conversion.rows(source, advance):
                writer.write(row)
    if is_json:
        print_json(
            {
                "from": conversion.name,
                "rows": conversion.written,
                "not_read": dict(conversion.unread),
                "lost": dict(conversion.losses),
                "left_out": conversion.refused,
            }
        )
    else:
        _print_notes(conversion, to, out)
    return ExitCode.FAILED if conversion.refused else ExitCode.DONE


def _print_notes(conversion: RowConversion, to: str, out: Path | None) -> None:
    """Print what was lost and left out."""
    for what, count in conversion.unread.most_common():
        print_note(f"{write_count(count, 'row')} lost {what}, which is not read from {conversion.name}")
    for what, count in conversion.losses.most_common():
        print_note(f"{write_count(count, 'row')} lost {what}")
    for place, why in list(conversion.refused.items())[:_MAX_LISTED]:
        print_note(f"{place} left out: {why}")
    if len(conversion.refused) > _MAX_LISTED:
        print_note(
            f"and {write_count(len(conversion.refused) - _MAX_LISTED, 'more row')} left out for such reasons"
        )
    where = "" if out is None else f", and written to {str(out)!r}"
    print_note(f"{write_count(conversion.written, 'row')} converted from {conversion.name} to {to}{where}")


def _find(source: Path, out: Path | None, *, is_json: bool) -> Path:
    """Return the file or folder to read. Raises: `ConfigError` if it does not exist, or is the one to write."""
    source = find_row_file(source)
    if out is not None and out.exists() and out.resolve() == source.resolve():
        raise ConfigError(f"--out {str(out)!r} is the file to read; name another file")
    if is_json and out is None:
        raise ConfigError("--json prints the counts on standard output; give --out for the rows")
    return source


def pairs(
    source: str,
    out: Path | None = None,
    is_whole: bool = False,
    min_gap: float = 0.0,
) -> None:
    """Write preference pairs from runs that were forked from each other.

    Runs are compared up to the step where they differ. The better step is the one whose runs have the higher mean
    reward; in a dataset, a kept sample without a reward counts as 1 and a rejected one as 0.

    Examples:
        treadle dataset pairs dataset -o pairs.jsonl
        treadle dataset pairs .treadle/runs.db --whole --min-gap 0.2
    """
    from treadle.rollout.rollout_folder import RolloutFolder, read_stored

    folder, values = Path(source), {}
    if RolloutFolder(folder).groups.exists():
        source = str(RolloutFolder(folder).find_journal(read_stored(folder)))
    elif folder.is_dir():
        source, values = str(DatasetFolder(folder).journal), _read_values(folder)
    skips: Counter[str] = Counter()
    with open_existing(source) as journal:
        lines = _write_lines(journal, values, is_whole, min_gap, skips)
        if out is None:
            count = print_json_lines(lines)
        else:
            with spinner("pairing"):
                count = write_whole(lines, out)
            print_note(f"{write_count(count, 'pair')} written to {str(out)!r}")
    if not count:
        print_note("no two runs were forked from each other, differ in a step and have values that differ")
    for why, count in skips.most_common():
        print_note(f"{write_count(count, 'run')} left out: {why}")


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
