"""The results of the demonstration, and what to try next."""

import shlex
import shutil
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from treadle.cli.demo.view import DemoView
from treadle.cli.jobs.execute import execute
from treadle.cli.terminal.output import write_command, write_count
from treadle.core.events import InferenceCompleted
from treadle.core.types import Json
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.verification import Totals, check_ledger, verify_rows
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal


class Outcome(Struct, frozen=True):
    """What the workers left."""

    folder: DatasetFolder
    wanted: int
    before: list[bytes]
    """The rows that were there after the kill."""
    was_killed: bool
    summary: dict[str, Json]
    """The last line of the worker that finished."""
    seconds: float
    """How long both workers worked."""


def show_findings(view: DemoView, outcome: Outcome) -> bool:
    """Print the results. Return whether all of them are as expected."""
    view.section("Results")
    goods = [_show_rows(view, outcome), _show_verification(view, outcome.folder)]
    if outcome.was_killed:
        goods.append(_show_survivors(view, outcome))
    with closing(open_journal(outcome.folder.journal)) as journal:
        again = count_second_answers(journal)
    view.result("paid", f"{again or 'no'} answers of a model were paid for twice", is_good=not again)
    _show_files(view, outcome.folder)
    return all(goods) and not again


def _show_rows(view: DemoView, outcome: Outcome) -> bool:
    summary = outcome.summary
    kept = int(summary.get("kept", 0))
    reasons = ", ".join([f"{name} {count}" for name, count in dict(summary.get("reasons", {})).items()])
    text = f"{kept} of {outcome.wanted}"
    view.result("rows", text, is_good=kept == outcome.wanted)
    kinds = sorted(dict(summary.get("kinds", {})).items(), key=lambda item: -int(item[1]))
    view.result("kinds", " · ".join([f"{count} {name}" for name, count in kinds]))
    view.result("rejected", f"{summary.get('rejected', 0)}{f': {reasons}' if reasons else ''}")
    return kept == outcome.wanted


def _show_verification(view: DemoView, folder: DatasetFolder) -> bool:
    """Make the calls of all rows again, and print how that compares."""
    totals = Totals()
    problems = list(check_ledger(folder.path))

    async def verify_all() -> None:
        with closing(open_journal(folder.journal)) as journal:
            async for checked in verify_rows(folder.path, journal):
                totals.add(checked)

    execute(verify_all())
    is_good = not totals.faulty and not problems and totals.confirmed == totals.claimed
    view.result("verify", str(totals), is_good=is_good)
    for problem in problems[:3]:
        view.result("", problem, is_good=False)
    return is_good


def _show_survivors(view: DemoView, outcome: Outcome) -> bool:
    """Print whether the rows from before the kill are all there once."""
    rows = outcome.folder.rows.read_bytes().splitlines(keepends=True)
    lost = len(set(outcome.before) - set(rows))
    doubled = len(rows) - len(set(rows))
    count = write_count(len(outcome.before), "row")
    text = f"{count} from before the kill: {lost or 'none'} lost; {doubled or 'no'} row is there twice"
    view.result("kill -9", text, is_good=not lost and not doubled)
    return not lost and not doubled


def count_second_answers(journal: Journal) -> int:
    """Return how many inferences were completed, and therefore paid for, more than once."""
    again = 0
    for info in journal.runs():
        bodies = [event.body for event in journal.read(info.run_id)]
        steps = [body.step for body in bodies if isinstance(body, InferenceCompleted)]
        again += len(steps) - len(set(steps))
    return again


def _show_files(view: DemoView, folder: DatasetFolder) -> None:
    counts: Counter[str] = Counter()
    for path in folder.path.glob("*.*.jsonl"):
        _, name, _ = path.name.split(".")
        counts[name] += path.read_bytes().count(b"\n")
    shown = " · ".join([f"{name} {write_count(count, 'row')}" for name, count in sorted(counts.items())])
    view.result("formats", f"{shown}; {folder.rows} has all of them")
    if min(counts.values(), default=0) < max(counts.values(), default=0):
        view.more(
            "a format leaves out the rows that it cannot express, such as calls that are not JSON", "dim"
        )
    view.result("report", f"{folder.report}, for a browser; the dataset card is {folder.card}")


def show_next(view: DemoView, config: Path, folder: DatasetFolder) -> None:
    """Print commands to try, which work in the current folder."""
    view.section("Try next")
    activate = Path(sys.executable).with_name("activate")
    found = shutil.which("treadle")
    if (found is None or Path(found).parent != activate.parent) and activate.exists():
        here = Path.cwd()
        shown = activate.relative_to(here) if activate.is_relative_to(here) else activate
        view.command(
            f". {shlex.quote(str(shown))}", "first, once in each shell: lets it find the command treadle"
        )
    view.command(
        write_command("dataset", "show", str(folder.path)), "one row: its messages, calls and results"
    )
    view.command(write_command("dataset", "stats", str(folder.path)), "what is in the dataset")
    view.command(
        write_command(
            "generate", str(config), model="mock:teacher", num_samples="20", out=folder.path.parent / "more"
        ),
        "another dataset from the same configuration, without a server",
    )
    view.command(
        write_command(
            "generate",
            str(config),
            model="openai:gpt-5-mini",
            out=folder.path.parent / "real",
            dry_run=True,
        ),
        "what it would take with a real model; without --dry-run it is made (needs OPENAI_API_KEY)",
    )
    view.command(
        write_command("run", task="files:csv_sum-0001", model="oracle"),
        "one run of an agent, shown while it works",
    )
