"""`treadle export`: runs as rows, as groups with tokens, or as a journal."""

from collections.abc import Callable, Sequence
from pathlib import Path

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.journals import Apart, find_runs, open_existing
from treadle.cli.terminal.output import bar, print_json_lines, print_note, write_count
from treadle.core.errors import ConfigError
from treadle.export import Loss
from treadle.export.groups import GroupBy
from treadle.export.run_exporter import JOURNAL_FORMAT, RunExporter, TokenOptions, check_format
from treadle.export.token_exporter import TOKEN_FORMATS
from treadle.journal.protocol import Journal
from treadle.journal.run_info import DAMAGED
from treadle.runs.statuses import status_of

_MAX_LISTED = 3
"""How many of the runs that are left out are listed with the reason."""


def export(
    runs: list[str] | None = None,
    is_all: bool = False,
    format_: str = "openai",
    out: Path | None = None,
    journal: str | None = None,
    group_by: GroupBy = GroupBy.GROUP,
    mask: str = "all",
    reward: str | None = None,
    min_reward: float | None = None,
) -> int:
    """Export runs as rows for training, or as a journal.

    Each row is a line of JSON, or a row of a Parquet file if --out ends in .parquet. The rows of hf_trace are files
    in the folder --out. The rows of the formats from tokens to prime_rl have the token
    ids that the engine sampled, in groups. `treadle import` reads a journal.

    Examples:
        treadle export --all --format trl --min-reward 1 -o rows.jsonl
        treadle export last --format journal | gzip > run.jsonl.gz
    """
    check_format(format_)
    skips: list[str] = []
    apart = Apart()
    with open_existing(journal) as opened:
        run_ids = find_runs(opened, runs, is_all=is_all)
        if is_all and format_ != JOURNAL_FORMAT:
            run_ids = _keep_finished(opened, run_ids)
        if min_reward is not None:
            run_ids = _keep_rewarded(opened, run_ids, min_reward, format_)

        def on_skip(run_id: str, why: str) -> None:
            skips.append(f"{run_id} left out: {why.replace(f'run {run_id!r} ', 'it ', 1)}")

        exporter = RunExporter(opened, format_, on_skip, apart.guard)
        if format_ in TOKEN_FORMATS:
            is_empty = not _export_tokens(exporter, run_ids, out, TokenOptions(group_by, mask, reward))
        else:
            is_empty = not _export_rows(exporter, run_ids, out, count_left_out=lambda: apart.count)
    for skip in skips[:_MAX_LISTED]:
        print_note(skip)
    if len(skips) > _MAX_LISTED:
        print_note(f"and {len(skips) - _MAX_LISTED:,} more left out for such reasons")
    return ExitCode.FAILED if apart.count or (is_empty and skips) else ExitCode.DONE


def _export_rows(
    exporter: RunExporter, run_ids: Sequence[str], out: Path | None, *, count_left_out: Callable[[], int]
) -> bool:
    """Write rows or lines, and return whether there are any."""
    with bar("exporting", len(run_ids), is_json=out is None) as advance:
        if out is None:
            return print_json_lines(exporter.lines(run_ids, advance)) > 0
        count = exporter.write(run_ids, out, advance)
    noun = "line" if exporter.format == JOURNAL_FORMAT else "row"
    whole = write_count(len(run_ids) - count_left_out(), "run")
    if exporter.shortened:
        print_note(f"{write_count(exporter.shortened, 'row')} lost {Loss.UNTRAINED.value}")
    print_note(f"{write_count(count, noun)} of {whole} written to {str(out)!r}")
    return count > 0


def _export_tokens(
    exporter: RunExporter, run_ids: Sequence[str], out: Path | None, options: TokenOptions
) -> bool:
    """Write groups of runs, and return whether there are any."""
    exporter.write_tokens(run_ids, out, options, print_json_lines)
    if out is not None:
        print_note(f"{write_count(exporter.groups, 'group')} written to {str(out)!r}")
    print_note(f"tokens: {exporter.tally.total}")
    return exporter.groups > 0


def _keep_finished(journal: Journal, run_ids: Sequence[str]) -> list[str]:
    """Return the runs that are finished, and the sessions that wait for another turn."""
    kinds = ("finished", "open", DAMAGED)
    infos = [info for info in journal.runs() if status_of(info) in kinds]
    finished = {info.run_id for info in infos if info.turns or not info.is_session}
    kept = [run_id for run_id in run_ids if run_id in finished]
    if len(kept) < len(run_ids):
        print_note(
            f"{write_count(len(run_ids) - len(kept), 'run')} left out: not finished (see: treadle runs)"
        )
    return kept


def _keep_rewarded(journal: Journal, run_ids: Sequence[str], least: float, format: str) -> list[str]:
    """Return the runs whose check gave at least the reward `least`. Raises: `ConfigError` for a format in which a
    run is compared with the others of its group."""
    if format in TOKEN_FORMATS and "labels" not in TOKEN_FORMATS.load(format).columns:
        raise ConfigError(
            f"the format {format!r} has whole groups, in which bad runs count too; leave out --min-reward, or give "
            "a format for supervised training, such as trl or trl_sft"
        )
    rewards = {info.run_id: info.reward for info in journal.runs()}
    kept = [run_id for run_id in run_ids if (reward := rewards.get(run_id)) is not None and reward >= least]
    if len(kept) < len(run_ids):
        print_note(
            f"{write_count(len(run_ids) - len(kept), 'run')} left out: no reward of at least {least:g}"
        )
    return kept
