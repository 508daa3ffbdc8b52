"""`treadle check`: reads a whole journal and says what is damaged."""

from contextlib import closing
from typing import Annotated

import typer

from treadle.cli.jobs.journals import find_runs, open_existing
from treadle.cli.options import shared as o
from treadle.cli.terminal.bar import bar, spinner
from treadle.cli.terminal.output import (
    print_error,
    print_json,
    print_note,
    stdout,
    write_command,
    write_count,
)
from treadle.journal.check import Check, Checked

EXAMPLES = (
    "treadle check",
    "treadle check last --journal backup.db",
)


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
        _print(checked, journal)
    if not is_json:
        whole = write_count(len(run_ids) - len(found), "run")
        counts = f"{write_count(totals[0], 'event')}, {write_count(totals[1], 'content')}"
        damage = f", {write_count(len(found), 'run')} damaged" if found else ""
        stdout().print(f"{whole} whole{damage}; {counts} read", style="bold", soft_wrap=True)
    return int(bool(problems or found))


def _print(checked: Checked, journal: str | None) -> None:
    """Print what is damaged in a run, and what to do."""
    for problem in checked.problems:
        print_error(problem)
    advice = "restore a backup of the journal"
    if checked.events:
        fork = write_command("fork", checked.run_id, at=str(checked.events), journal=journal)
        advice += f", or continue from before the damage: {fork}"
    print_note(f"run {checked.run_id}: {write_count(checked.events, 'event')} can be read; {advice}")
