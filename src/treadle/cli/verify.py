"""`treadle verify`: makes the tool calls of runs again and compares the results."""

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from treadle.cli.options import shared as o
from treadle.cli.terminal.execute import execute
from treadle.cli.terminal.files import import_file
from treadle.cli.terminal.journals import Apart, find_runs, open_existing
from treadle.cli.terminal.output import clean, print_error, print_lines, stdout, write_count
from treadle.core.errors import UntrustedError
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal

if TYPE_CHECKING:
    from treadle.trajectory.verify import Verification

EXAMPLES = (
    "treadle verify --all",
    "treadle verify runs.jsonl",
)


def verify(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...|FILE.jsonl", help="Run ids, or one exported journal.", show_default=False
        ),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Verify all runs of the journal.")] = False,
    tools: o.Tools = None,
    is_trusted: o.IsTrusted = False,
    journal: o.Journal = None,
    is_json: o.IsJson = False,
) -> int:
    """Make the tool calls of runs again in a fresh sandbox and compare the results.

    The tools are those of --tools, or those that the run's journal names and the built-in ones. A call of effect
    'once' is never made again.
    The exit code is 0 if every result is the same, 1 otherwise.
    """
    if runs and len(runs) == 1 and runs[0].endswith(".jsonl"):
        memory = MemoryJournal()
        return _verify(
            memory, import_file(memory, runs[0]).added, tools, is_trusted=is_trusted, is_json=is_json
        )
    with closing(open_existing(journal)) as opened:
        run_ids = find_runs(opened, runs, is_all=is_all)
        return _verify(opened, run_ids, tools, is_trusted=is_trusted, is_json=is_json)


def _verify(
    journal: Journal,
    run_ids: Sequence[str],
    tools: Sequence[str] | None,
    *,
    is_trusted: bool,
    is_json: bool,
) -> int:
    """Verify runs, print each, and return 0 if no result differs."""
    from treadle.trajectory.verify import verify_run

    found: list[Verification] = []
    refused: list[str] = []

    apart = Apart()

    async def verify_all() -> None:
        for run_id in run_ids:
            with apart.guard(run_id):
                try:
                    found.append(await verify_run(journal, run_id, tools or None, trust=is_trusted))
                except UntrustedError as error:
                    print_error(str(UntrustedError(error.run, error.demands, "pass --trust")))
                    refused.append(run_id)
                    continue
                _print(found[-1], is_json=is_json)

    execute(verify_all())
    if not is_json and len(found) > 1:
        calls, matched = sum(item.calls for item in found), sum(item.matched for item in found)
        stdout().print(
            f"{write_count(len(found), 'run')}: {matched:,} of {write_count(calls, 'call')} gave the same result, "
            f"{sum(item.skipped for item in found):,} skipped",
            style="bold",
        )
    return int(bool(refused) or apart.count > 0 or any(item.differences for item in found))


def _print(verification: "Verification", *, is_json: bool) -> None:
    if is_json:
        print_lines([msgspec.json.encode(verification)])
        return
    console = stdout()
    found, style = "same    ", "green"
    if verification.differences:
        found, style = "differs ", "bold red"
    elif not verification.matched:
        found, style = "nothing ", "yellow"
    skipped = f", {verification.skipped:,} skipped" if verification.skipped else ""
    console.print(found, style=style, end="")
    console.print(
        f"{clean(verification.run_id)}  {verification.matched:,} of "
        f"{write_count(verification.calls, 'call')}{skipped}",
        style="dim",
        soft_wrap=True,
    )
    for skip in verification.skips:
        console.print(f"  skipped: {clean(skip)}", style="yellow", soft_wrap=True)
    for difference in verification.differences:
        console.print(f"  {clean(str(difference))}", style="red", soft_wrap=True)
