"""`treadle check`, `backup` and `import`: a whole journal."""

from pathlib import Path

from treadle.cli.jobs.journals import find_runs, import_file, open_existing
from treadle.cli.options import common as o
from treadle.cli.terminal.output import (
    bar,
    clean,
    print_error,
    print_json,
    print_line,
    print_lines,
    print_note,
    spinner,
    write_command,
    write_count,
)
from treadle.core.errors import ConfigError
from treadle.journal.check import Check, Checked
from treadle.journal.registry import open_journal


def check(runs: list[str] | None = None, journal: str | None = None, is_json: bool = False) -> int:
    """Read a whole journal and say what is damaged.

    It reads every event, every content and the facts that `treadle runs` shows, and compares them with their
    checksums and hashes. The exit code is 0 if nothing is damaged, 1 otherwise.

    Examples:
        treadle check
        treadle check last --journal backup.db
    """
    with open_existing(journal) as opened:
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
        print_line(f"{whole} whole{damage}; {counts} read", "bold")
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


def backup(file: Path, journal: str | None = None) -> None:
    """Copy a journal to a new file, also while it is in use.

    The copy has everything that was stored when the command began. It holds no leases, so its runs can be resumed.

    Examples:
        treadle backup runs-backup.db
        treadle backup /mnt/backups/runs.db --journal .treadle/runs.db
    """
    with open_existing(journal) as opened:
        runs = opened.backup(file)
    print_note(f"{write_count(runs, 'run')} ({file.stat().st_size:,} bytes) written to {str(file)!r}")
    print_note(f"list them with: {write_command('runs', journal=str(file))}")


def slim(journal: str | None = None) -> None:
    """Compress the events in a journal's file, and give free space back.

    Jobs compress what they write. This is for files of other runs, and of an earlier Treadle. The runs may go on
    meanwhile; they wait for each step of it.

    Examples:
        treadle journal slim
        treadle journal slim --journal dataset/journal.db
    """
    from treadle.journal.sqlite.sqlite_journal import SqliteJournal

    with open_existing(journal) as opened:
        if not isinstance(opened, SqliteJournal):
            raise ConfigError(
                "only a journal in a file is compressed; PostgreSQL compresses with its own settings"
            )
        with spinner("compressing"):
            before, after = opened.slim()
    print_note(f"{before:,} bytes before, {after:,} bytes now")


def import_(file: str, journal: str | None = None, level: o.Level = "process") -> None:
    """Import the runs of an exported journal.

    The runs keep their ids, which are printed. If an import is interrupted, start it again.

    Examples:
        treadle import runs.jsonl
        zcat runs.jsonl.gz | treadle import -
    """
    with open_journal(journal, level) as opened:
        found = import_file(opened, file)
    print_lines([clean(run_id).encode() for run_id in (*found.added, *found.known)])
    if found.known:
        verb = "is" if len(found.known) == 1 else "are"
        print_note(f"{write_count(len(found.known), 'run')} of the file {verb} in the journal already")
    if found.added:
        print_note("these runs are not trusted: pass --trust to let a command start or send what they name")
