"""What `treadle verify` does."""

from collections.abc import Sequence

import msgspec

from treadle.cli.import_runs import import_file
from treadle.cli.terminal.execute import execute
from treadle.cli.terminal.output import clean, print_lines, stdout, write_count
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal
from treadle.trajectory.verify import Verification, verify_run


def read_file(path: str) -> tuple[Journal, list[str]]:
    """A journal in memory with the runs of an exported file, and their ids."""
    journal = MemoryJournal()
    return journal, import_file(journal, path)


def verify_runs(
    journal: Journal, run_ids: Sequence[str], tools: Sequence[str] | None, *, is_json: bool
) -> int:
    """Verify all and print what came of each; 0 if nothing differs."""
    found: list[Verification] = []

    async def verify_all() -> None:
        for run_id in run_ids:
            verification = await verify_run(journal, run_id, tools or None)
            found.append(verification)
            _print(verification, is_json=is_json)

    execute(verify_all())
    differing = sum(bool(item.differences) for item in found)
    if not is_json and len(found) > 1:
        calls, matched = sum(item.calls for item in found), sum(item.matched for item in found)
        stdout().print(
            f"{write_count(len(found), 'run')}: {matched:,} of {write_count(calls, 'call')} gave the same again, "
            f"{sum(item.skipped for item in found):,} skipped",
            style="bold",
        )
    return 1 if differing else 0


def _print(verification: Verification, *, is_json: bool) -> None:
    if is_json:
        print_lines([msgspec.json.encode(verification)])
        return
    console = stdout()
    is_same = not verification.differences
    skipped = f", {verification.skipped:,} skipped" if verification.skipped else ""
    console.print("same    " if is_same else "differs ", style="green" if is_same else "bold red", end="")
    console.print(
        f"{clean(verification.run_id)}  {verification.matched:,} of "
        f"{write_count(verification.calls, 'call')}{skipped}",
        style="dim",
        soft_wrap=True,
    )
    for skip in verification.skips:
        console.print(f"  not made again: {clean(skip)}", style="yellow", soft_wrap=True)
    for difference in verification.differences:
        console.print(f"  {clean(str(difference))}", style="red", soft_wrap=True)
