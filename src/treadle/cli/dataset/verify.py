"""`treadle dataset verify`: compares the rows of a dataset with its journal."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.jobs.journals import open_existing
from treadle.cli.options import shared as o
from treadle.cli.options.datasets import DatasetPath
from treadle.cli.terminal.bar import bar
from treadle.cli.terminal.output import print_error, print_json, stdout, write_count
from treadle.core.errors import ConfigError
from treadle.datagen.dataset.dataset_folder import DatasetFolder

if TYPE_CHECKING:
    from treadle.datagen.dataset.verification import Checked

EXAMPLES = (
    "treadle dataset verify dataset",
    "treadle dataset verify rows.jsonl --journal dataset/journal.db",
)


def verify(
    path: DatasetPath,
    journal: Annotated[
        str | None,
        typer.Option("--journal", "-j", metavar="PATH", help="The journal. Default: the one in FOLDER."),
    ] = None,
    is_trusted: o.IsTrusted = False,
    window: Annotated[
        int, typer.Option("--window", metavar="N", min=1, help="How many rows are verified at a time.")
    ] = 16,
    is_json: o.IsJson = False,
) -> int:
    """Make the tool calls of all rows again in fresh sandboxes, and compare the rows with the journal.

    Each row must agree with its run, and its transcript must be complete. The calls are made again with the tools
    of the run; a row that claims to be verified must have all of its calls confirmed. The rows must be those that
    the ledger counts. The exit code is 1 if anything differs.
    """
    from treadle.datagen.dataset.verification import Totals, check_ledger, verify_rows

    if journal is None:
        journal = _find_journal(path)
    totals = Totals()
    problems = list(check_ledger(path))

    async def verify_all() -> None:
        with closing(open_existing(journal)) as opened, bar("verifying", None, is_json=is_json) as advance:
            async for checked in verify_rows(path, opened, window=window, trust=is_trusted):
                totals.add(checked)
                if is_json:
                    print_json(checked)
                elif checked.problems:
                    _print(checked)
                advance(checked.row_id)

    execute(verify_all())
    for problem in problems:
        print_error(problem)
    if not is_json:
        stdout().print(str(totals), style="bold", soft_wrap=True)
    return ExitCode.FAILED if problems or totals.faulty else ExitCode.DONE


def _find_journal(path: Path) -> str:
    """Return the journal of a dataset's folder. Raises: `ConfigError` if there is none."""
    if not path.is_dir():
        raise ConfigError(
            "--journal: give the journal with the runs of the rows, because FILE has none beside it"
        )
    folder = DatasetFolder(path)
    if not folder.journal.exists() and folder.sources.exists():
        raise ConfigError(
            f"{str(path)!r} was merged, and the journals stayed with its sources; verify those, or give --journal"
        )
    return str(folder.journal)


def _print(checked: "Checked") -> None:
    print_error(
        f"row {checked.row_id} (run {checked.run_id}): {write_count(len(checked.problems), 'problem')}"
    )
    for problem in checked.problems:
        stdout().print(f"  {problem}", style="red", soft_wrap=True)
