"""`treadle check`, `backup`, `export` and `import`: a whole journal, or runs as files."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.journals import Apart, find_runs, import_file, open_existing, open_or_make
from treadle.cli.options import common as o
from treadle.cli.options.common import complete_format
from treadle.cli.terminal.output import (
    bar,
    clean,
    print_error,
    print_json,
    print_lines,
    print_note,
    spinner,
    stdout,
    write_command,
    write_count,
)
from treadle.core.errors import ConfigError, ExportError
from treadle.core.registry import did_you_mean
from treadle.export import FORMATS, export_rows, load_row
from treadle.export.exporter import wants_tokens
from treadle.export.groups import GroupBy
from treadle.export.row_files import open_writer
from treadle.export.token_exporter import TOKEN_FORMATS
from treadle.export.whole import write_whole
from treadle.journal.check import Check, Checked
from treadle.journal.jsonl import export_run
from treadle.journal.protocol import DAMAGED, Journal

if TYPE_CHECKING:
    from treadle.export.groups import ExportedTokens, Group
    from treadle.export.token_exporter import LossMask
    from treadle.journal.protocol import Journal


def check(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...", help="Check only these runs, and not the rest of the store.", show_default=False
        ),
    ] = None,
    journal: o.Journal = None,
    is_json: o.IsJson = False,
) -> int:
    """Read a whole journal and say what is damaged.

    It reads every event, every content and the facts that `treadle runs` shows, and compares them with their
    checksums and hashes. The exit code is 0 if nothing is damaged, 1 otherwise.

    Examples:
        treadle check
        treadle check last --journal backup.db
    """
    with closing(open_existing(journal)) as opened:
        checks = Check(opened)
        run_ids = find_runs(opened, runs, is_all=not runs)
        with spinner("checking the store"):
            problems = [] if runs else list(checks.check_store())
        found: list[Checked] = []
        totals = [0, 0]
        with bar("checking", len(run_ids), is_json=is_json) as advance:
            for checked in map(checks.check_run, run_ids):
                totals = [totals[0] + checked.events, totals[1] + checked.contents]
                if is_json:
                    print_json(checked)
                if checked.problems:
                    found.append(checked)
                advance(checked.run_id)
    for problem in problems:
        print_error(problem)
    for checked in found:
        _print_damage(checked, journal)
    if not is_json:
        whole = write_count(len(run_ids) - len(found), "run")
        counts = f"{write_count(totals[0], 'event')}, {write_count(totals[1], 'content')}"
        damage = f", {write_count(len(found), 'run')} damaged" if found else ""
        stdout().print(f"{whole} whole{damage}; {counts} read", style="bold", soft_wrap=True)
    return int(bool(problems or found))


def _print_damage(checked: Checked, journal: str | None) -> None:
    """Print what is damaged in a run, and what to do."""
    for problem in checked.problems:
        print_error(problem)
    advice = "restore a backup of the journal"
    if checked.events:
        fork = write_command("fork", checked.run_id, at=str(checked.events), journal=journal)
        advice += f", or continue from before the damage: {fork}"
    print_note(f"run {checked.run_id}: {write_count(checked.events, 'event')} can be read; {advice}")


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write. It must not exist.")],
    journal: o.Journal = None,
) -> int:
    """Copy a journal to a new file, also while it is in use.

    The copy has everything that was stored when the command began. It holds no leases, so its runs can be resumed.

    Examples:
        treadle backup runs-backup.db
        treadle backup /mnt/backups/runs.db --journal .treadle/runs.db
    """
    with closing(open_existing(journal)) as opened:
        runs = opened.backup(file)
    print_note(f"{write_count(runs, 'run')} ({file.stat().st_size:,} bytes) written to {str(file)!r}")
    print_note(f"list them with: {write_command('runs', journal=str(file))}")
    return 0


class TokenOptions(Struct, frozen=True):
    """The options of `treadle export` for token formats."""

    group_by: str = "group"
    mask: str = "all"
    reward: str | None = None


def export_tokens(
    journal: "Journal",
    run_ids: Sequence[str],
    format_: str,
    out: Path | None,
    options: TokenOptions,
    on_skip: Callable[[str, str], None],
    apart: Apart,
) -> bool:
    """Write the groups of runs, say whether every sampled token is in them once, and return whether there are
    any."""
    from treadle.core.errors import ExportError
    from treadle.export.groups import ExportedTokens, GroupBy, find_groups
    from treadle.export.row_files import open_group_writer
    from treadle.export.token_exporter import export_groups

    tally, count = ExportedTokens(), 0
    groups: dict[str, list[str]] = {}
    for run_id in run_ids:
        with apart.guard(run_id):
            for group_id, found in find_groups(journal, [run_id], GroupBy(options.group_by)).items():
                groups.setdefault(group_id, []).extend(found)
    made = _load(journal, groups, tally, options.reward, on_skip)
    mask = _make_mask(journal, run_ids, options.mask)
    if out is None:
        for rows in export_groups(made, format_, mask, on_skip):
            print_lines(rows.splitlines())
            count += 1
    else:
        with open_group_writer(format_, out, mask) as put:
            for group in made:
                try:
                    put(group)
                    count += 1
                except ExportError as error:
                    on_skip(group.group_id, str(error))
        print_note(f"{write_count(count, 'group')} written to {str(out)!r}")
    print_note(f"tokens: {tally.total}")
    return count > 0


def _load(
    journal: "Journal",
    groups: dict[str, list[str]],
    tally: "ExportedTokens",
    reward: str | None,
    on_skip: Callable[[str, str], None],
) -> "Iterator[Group]":
    from treadle.export.groups import load_groups
    from treadle.scoring.advantages import group_relative

    for found in load_groups(journal, groups, tally, reward=reward, advantages=group_relative):
        if isinstance(found, tuple):
            on_skip(*found)
        else:
            yield found


def _make_mask(journal: "Journal", run_ids: Sequence[str], text: str) -> "LossMask":
    from treadle.trajectory.tokens.masks import make_mask
    from treadle.trajectory.tokens.token_texts import load_decoders

    if text == "all":
        return make_mask(text)
    trusted = [run_id for run_id in run_ids if journal.is_trusted(run_id)]
    bodies = (event.body for run_id in trusted for event in journal.read(run_id))
    return make_mask(text, decode=load_decoders(bodies))


JOURNAL_FORMAT = "journal"
_IN_MEMORY_BYTES = 16 * 1024 * 1024
"""How many bytes of a run's lines are kept in memory before they go to a temporary file."""
_MAX_LISTED = 3
"""How many of the runs that are left out are listed with the reason."""


def export(
    runs: o.RunIds = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="All runs; for training rows, all finished runs.")
    ] = False,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            metavar="NAME",
            help=f"{', '.join([*FORMATS.names(), *TOKEN_FORMATS.names()])}, or journal.",
            autocompletion=complete_format,
        ),
    ] = "openai",
    out: o.Out = None,
    journal: o.Journal = None,
    group_by: Annotated[
        GroupBy, typer.Option("--group-by", help="Rows with tokens: what makes runs a group.")
    ] = GroupBy.GROUP,
    mask: Annotated[
        str,
        typer.Option(
            "--mask",
            metavar="NAME",
            help="Rows with tokens: what is trained on: all, last_turn, no_reasoning, or module:function.",
        ),
    ] = "all",
    reward: Annotated[
        str | None,
        typer.Option(
            "--reward",
            metavar="NAME",
            help="Rows with tokens: the reward. Default: the sum of all, as treadle rollout weighs them.",
        ),
    ] = None,
) -> int:
    """Export runs as rows for training, or as a journal.

    Each row is a line of JSON, or a row of a Parquet file if --out ends in .parquet. The rows of hf_trace are files
    in the folder --out. The rows of tokens, atropos, trl_grpo, trl_sft, verl, skyrl and verifiers have the token
    ids that the engine sampled, in groups. `treadle import` reads a journal.

    Examples:
        treadle export --all --format trl -o rows.jsonl
        treadle export last --format journal | gzip > run.jsonl.gz
    """
    if format_ != JOURNAL_FORMAT and format_ not in FORMATS and format_ not in TOKEN_FORMATS:
        known = [*FORMATS.names(), *TOKEN_FORMATS.names(), JOURNAL_FORMAT]
        near = did_you_mean(format_, known)
        raise ConfigError(f"there is no format {format_!r}{near or ';'} the formats are {', '.join(known)}")
    skips: list[str] = []
    apart = Apart()
    with closing(open_existing(journal)) as opened:
        run_ids = find_runs(opened, runs, is_all=is_all)
        if is_all and format_ != JOURNAL_FORMAT:
            run_ids = _keep_finished(opened, run_ids)

        def on_skip(run_id: str, why: str) -> None:
            skips.append(f"{run_id} left out: {why}")

        if format_ in TOKEN_FORMATS:
            options = TokenOptions(group_by, mask, reward)
            is_empty = not export_tokens(opened, run_ids, format_, out, options, on_skip, apart)
        else:
            _export_rows(opened, run_ids, format_, out, on_skip, apart)
            is_empty = False
    for skip in skips[:_MAX_LISTED]:
        print_note(skip)
    if len(skips) > _MAX_LISTED:
        print_note(f"and {len(skips) - _MAX_LISTED:,} more left out for such reasons")
    return ExitCode.FAILED if apart.count or (is_empty and skips) else ExitCode.DONE


def _export_rows(
    journal: Journal,
    run_ids: Sequence[str],
    format_: str,
    out: Path | None,
    on_skip: Callable[[str, str], None],
    apart: Apart,
) -> None:
    with bar("exporting", len(run_ids), is_json=out is None) as advance:
        if out is not None and format_ != JOURNAL_FORMAT:
            count = _write_rows(journal, run_ids, format_, out, on_skip, apart, advance)
        else:
            lines = write_lines(journal, run_ids, format_, on_skip, apart, advance)
            if out is None:
                print_lines(lines)
            else:
                count = write_whole(lines, out)
    if out is not None:
        print_note(
            f"{write_count(count, 'line' if format_ == JOURNAL_FORMAT else 'row')} of "
            f"{write_count(len(run_ids) - apart.count, 'run')} written to {str(out)!r}"
        )


def _keep_finished(journal: Journal, run_ids: Sequence[str]) -> list[str]:
    finished = {info.run_id for info in journal.runs() if info.status in ("finished", DAMAGED)}
    kept = [run_id for run_id in run_ids if run_id in finished]
    if len(kept) < len(run_ids):
        print_note(f"{write_count(len(run_ids) - len(kept), 'run')} left out: not finished")
    return kept


def _write_rows(
    journal: Journal,
    run_ids: Sequence[str],
    format_: str,
    out: Path,
    on_skip: Callable[[str, str], None],
    apart: Apart,
    on_done: Callable[[str], None],
) -> int:
    """Write the rows of runs to a file or folder, and return their number."""
    has_tokens = wants_tokens(FORMATS.load(format_))
    with open_writer(format_, out) as writer:
        for run_id in run_ids:
            with apart.guard(run_id):
                try:
                    writer.write(load_row(journal, run_id, with_tokens=has_tokens))
                except ExportError as error:
                    on_skip(run_id, str(error))
            on_done(run_id)
    return writer.count


def write_lines(
    journal: Journal,
    run_ids: Sequence[str],
    format_: str,
    on_skip: Callable[[str, str], None],
    apart: Apart,
    on_done: Callable[[str], None] = lambda run_id: None,
) -> Iterator[bytes]:
    """Yield the lines of an export. `on_skip` is called with each run that is left out, and the reason.

    A damaged run is left out completely. `on_done` is called with each run after its lines.
    """
    for run_id in run_ids:
        with SpooledTemporaryFile(_IN_MEMORY_BYTES) as file, apart.guard(run_id):
            if format_ == JOURNAL_FORMAT:
                file.writelines(line + b"\n" for line in export_run(journal, run_id))
            else:
                file.writelines(export_rows(journal, [run_id], format_, on_skip=on_skip))
            file.seek(0)
            yield from (line.rstrip(b"\n") for line in file)
        on_done(run_id)


def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Lines of JSON; - is standard input.")],
    journal: o.Journal = None,
    level: o.LevelOption = o.Level.PROCESS,
) -> int:
    """Import the runs of an exported journal.

    The runs keep their ids, which are printed. If an import is interrupted, start it again.

    Examples:
        treadle import runs.jsonl
        zcat runs.jsonl.gz | treadle import -
    """
    with closing(open_or_make(journal, level)) as opened:
        found = import_file(opened, file)
    print_lines([clean(run_id).encode() for run_id in (*found.added, *found.known)])
    if found.known:
        verb = "is" if len(found.known) == 1 else "are"
        print_note(f"{write_count(len(found.known), 'run')} of the file {verb} in the journal already")
    if found.added:
        print_note("these runs are not trusted: pass --trust to let a command start or send what they name")
    return ExitCode.DONE
