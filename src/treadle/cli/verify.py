"""`treadle verify`: makes the tool calls of runs again and compares the results."""

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.jobs.journals import Apart, find_runs, import_file, open_existing
from treadle.cli.options import shared as o
from treadle.cli.terminal.bar import bar, spinner
from treadle.cli.terminal.output import (
    clean,
    print_json,
    print_labelled,
    print_note,
    stdout,
    write_count,
)
from treadle.core.errors import ConfigError
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal
from treadle.runs.run import Run

if TYPE_CHECKING:
    from treadle.trajectory.verification import Verification

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

    The tools are those of --tools, then those that the journal names, then Treadle's own. A call with the effect
    'once' is never made again. The exit code is 0 if all compared results are the same. It is 1 if a result
    differs, if the tool of a call is missing, or if no call of a run could be compared.
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
    """Verify runs, print each, and return the exit code."""
    from treadle.trajectory.verification import verify_run

    _refuse_strange_tools(journal, run_ids, tools or ())
    found: list[Verification] = []
    apart = Apart()

    async def verify_all() -> None:
        with bar("verifying", len(run_ids), is_json=is_json) as advance:
            for run_id in run_ids:
                with apart.guard(run_id):
                    found.append(await verify_run(journal, run_id, tools or None, trust=is_trusted))
                    _print(found[-1], is_json=is_json)
                advance(run_id)

    execute(verify_all())
    if not is_json and len(found) > 1:
        calls, matched = sum(item.calls for item in found), sum(item.matched for item in found)
        stdout().print(
            f"{write_count(len(found), 'run')}: {matched:,} of {write_count(calls, 'call')} gave the same result, "
            f"{sum(item.skipped for item in found):,} skipped",
            style="bold",
        )
    missing = sum(len(item.unavailable) for item in found)
    if missing and not is_json:
        print_note(
            f"{write_count(missing, 'call')} not made again, because the tool is missing; name it with --tools"
        )
    is_good = not apart.count and all(_is_good(item) for item in found)
    return ExitCode.DONE if is_good else ExitCode.FAILED


def _is_good(found: "Verification") -> bool:
    is_checked = found.matched > 0 or found.calls == 0
    return is_checked and not found.differences and not found.unavailable


def _refuse_strange_tools(journal: Journal, run_ids: Sequence[str], tools: Sequence[str]) -> None:
    """Raise an error if no run has any of the given tools. Raises: `ConfigError`."""
    from treadle.tools.resolve import resolve_tools

    with spinner("starting the tools"):
        given = {tool.spec.name for tool in resolve_tools(tools)}
    known = (
        {spec.name for run_id in run_ids for spec in Run.load(run_id, journal).state.tools}
        if given
        else given
    )
    if given and not given & known:
        raise ConfigError(
            f"--tools: no run has a tool {' or '.join(map(repr, sorted(given)))}; the tools are: "
            f"{', '.join(sorted(known)) or 'none'}"
        )


def _print(verification: "Verification", *, is_json: bool) -> None:
    if is_json:
        print_json(verification)
        return
    console = stdout()
    found, style = "same    ", "green"
    if verification.differences:
        found, style = "differs ", "bold red"
    elif not verification.matched:
        found, style = "nothing ", "yellow"
    elif verification.skipped:
        found, style = "partly  ", "yellow"
    skipped = f", {verification.skipped:,} skipped" if verification.skipped else ""
    counts = f"{verification.matched:,} of {write_count(verification.calls, 'call')}{skipped}"
    print_labelled(console, found, style, f"{verification.run_id}  {counts}", "dim")
    for skip in verification.skips:
        console.print(f"  skipped: {clean(skip)}", style="yellow", soft_wrap=True)
    for difference in verification.differences:
        console.print(f"  {clean(str(difference))}", style="red", soft_wrap=True)
