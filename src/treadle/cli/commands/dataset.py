"""`treadle dataset show`, `stats`, `verify` and `report`: what a dataset contains."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.jobs.journals import open_existing
from treadle.cli.terminal.output import (
    bar,
    print_error,
    print_json,
    print_line,
    print_note,
    print_parts,
    shorten,
    spinner,
    write_cost,
    write_count,
)
from treadle.cli.terminal.printed_tables import make_table, print_table
from treadle.cli.terminal.transcripts import EventPrinter
from treadle.core.errors import ConfigError
from treadle.core.types import Role
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.dataset_stats import DatasetStats, Summary, collect, describe
from treadle.datagen.dataset.entries import RowEntry, find_entry, find_rows

if TYPE_CHECKING:
    from treadle.datagen.dataset.verification import CheckedRow


def show(
    path: Path,
    which: str = "1",
    is_rejected: bool = False,
    is_full: bool = False,
    is_json: bool = False,
) -> None:
    """Show one row of a dataset: its messages, calls, results and verdicts.

    Examples:
        treadle dataset show dataset 3
        treadle dataset show dataset s000042 --rejected --full
    """
    entry = find_entry(path, which, is_rejected=is_rejected)
    if is_json:
        raw = msgspec.to_builtins(entry.row)
        print_json({**raw, "verdicts": entry.verdicts} if entry.verdicts else raw)
    else:
        _RowPrinter(entry, is_full=is_full).print()


class _RowPrinter(EventPrinter):
    def __init__(self, entry: RowEntry, *, is_full: bool) -> None:
        super().__init__(is_full=is_full)
        self._entry = entry
        self._row = entry.row
        self._simulated = set(entry.row.lineage.simulated)

    def print(self) -> None:
        self._print_head()
        number = -1
        for message in self._row.messages:
            if message.role is Role.USER:
                self.say("")
            self.print_message(message, is_simulated=message.call_id in self._simulated)
            number += message.role is Role.ASSISTANT
            if message.role is Role.ASSISTANT and number in self._row.untrained:
                what = "these calls are" if message.tool_calls else "this answer is"
                self.say(f"({what} not trained on)", "yellow")
        self._print_verdicts()

    def _print_head(self) -> None:
        lineage, sample = self._row.lineage, self._row.lineage.sample
        self.say(
            " · ".join([f"row {self._entry.row_id}", f"run {lineage.run_id}", lineage.model or "no model"]),
            "bold",
        )
        if sample is not None:
            facts = [
                " › ".join(sample.topic),
                f"planned {sample.kind}, shows {', '.join(sample.kinds) or 'none'}" if sample.kind else "",
                sample.difficulty,
                sample.persona,
            ]
            self.say(" · ".join(filter(None, facts)), "cyan")
            if sample.goal:
                self.say(f"goal: {shorten(sample.goal, self._width)}", "dim")
            if sample.is_from_teacher:
                who = "model that lies on purpose" if sample.is_from_liar else "teacher"
                self.say(f"written by the built-in {who}, not by a language model", "yellow")
        if self._row.tools:
            self.say("tools: " + ", ".join([tool.name for tool in self._row.tools]), "dim")

    def _print_verdicts(self) -> None:
        sample = self._row.lineage.sample
        self.say("")
        for verdict in self._entry.known_verdicts:
            mark, style = ("✓", "green") if verdict.is_passed else ("✗", "red")
            self.say(f"{mark} {verdict.filter}{': ' + verdict.reason if verdict.reason else ''}", style)
        if sample is None:
            return
        if not self._entry.verdicts and self._row.weight != 1:
            self.say(f"kept with the weight {self._row.weight:g}")
        parts = [
            "verified" if sample.is_verified else "not verified",
            f"ended with {self._row.lineage.stop_reason}",
            f"{sample.input_tokens + sample.output_tokens:,} tokens",
            write_cost(sample.cost_usd),
            f"seed {sample.seed}",
        ]
        if sample.repairs:
            parts.insert(1, f"answers asked for again: {sample.repairs}")
        if self._simulated:
            parts.insert(1, f"{write_count(len(self._simulated), 'simulated result')}")
        self.say(" · ".join(parts), "bold")


_BAR_CHARS = 24
_MOST = 20
"""How many lines of a table are shown."""


def stats(path: Path, is_json: bool = False) -> None:
    """Count the contents of a dataset: rows, tools, kinds, topics, tokens, cost, duplicates and rejections.

    Examples:
        treadle dataset stats dataset
        treadle dataset stats rows.jsonl --json | jq .tools
    """
    with spinner("counting"):
        found = collect(path)
    if is_json:
        print_json(describe(found))
    else:
        _print_stats(found)


def _print_stats(found: DatasetStats) -> None:
    tokens = found.input_tokens + found.output_tokens
    print_line(
        f"{write_count(found.rows, 'row')} · {write_count(len(found.topics), 'topic')} · {tokens:,} tokens · "
        f"{_write_known(found.cost_usd, found.rows_without_cost, 'row')}",
        "bold",
    )

    def rows(number: int) -> str:
        return write_count(number, "row") if number else ""

    facts = {
        "verified": f"{found.verified:,} of {write_count(found.with_calls, 'row')} with calls",
        "with an answer that was asked for again": rows(found.repaired),
        "duplicates": f"{found.duplicates:,}",
        "repeated ids": f"{found.repeated_ids:,}" if found.repeated_ids else "",
        "simulated": f"{write_count(found.simulated, 'row')}, {write_count(found.simulated_calls, 'result')}"
        if found.simulated
        else "",
        "from the built-in teacher": rows(found.from_teacher),
        "from the model that lies on purpose": rows(found.from_liar),
        "rejected": f"{found.rejected:,}" if found.rejected else "",
        "spent on rejected samples": f"{found.rejected_input_tokens + found.rejected_output_tokens:,} tokens, "
        f"{_write_known(found.rejected_cost_usd, found.rejected_without_cost, 'sample')}"
        if found.rejected
        else "",
    }
    for name, value in facts.items():
        if value:
            print_parts((f"  {name}: ", "dim"), (value, ""))
    _print_spreads(found)
    _print_counts(
        "calls by tool",
        found.tools,
        {name: f"{count:,} failed" for name, count in found.tool_errors.items() if count},
    )
    shown = {
        name: f"planned {found.kinds_planned[name]:,}, shown in {found.kinds_met[name]:,}"
        for name in found.kinds_planned
    }
    kinds = {**dict.fromkeys(found.kinds_planned, 0), **found.kinds_shown}
    _print_counts("rows that show a kind of tool use", kinds, shown)
    _print_counts("difficulty", found.difficulties)
    _print_counts("conversation", found.conversations)
    for role, names in found.models.items():
        _print_counts(f"model: {role}", names)
    _print_counts("dataset", found.datasets if len(found.datasets) > 1 else {})
    _print_counts("ended with", found.stop_reasons)
    _print_counts(
        "rejected by",
        found.rejections,
        {
            name: shorten(reasons.most_common(1)[0][0], 70)
            for name, reasons in found.reasons.items()
            if reasons
        },
    )


def _write_known(cost_usd: float, unknown: int, noun: str) -> str:
    """Return a cost, and of how many things it is not known."""
    if unknown and not cost_usd:
        return write_cost(None)
    return write_cost(cost_usd) + (
        f" (without {write_count(unknown, noun)} of unknown cost)" if unknown else ""
    )


def _print_spreads(found: DatasetStats) -> None:
    numbers = ("mean", "least", "median", "95 %", "most", "total")
    table = make_table("a row", *numbers, numbers=numbers)
    for name, spread in (
        ("turns", found.turns),
        ("steps", found.steps),
        ("calls", found.calls),
        ("messages", found.messages),
        ("characters", found.chars),
    ):
        item = Summary.of(spread)
        values: Sequence[float] = (item.least, item.median, item.p95, item.most, item.total)
        table.add_row(name, f"{item.mean:,.1f}", *[f"{value:,}" for value in values])
    print_line("")
    print_table(table)


def _print_counts(title: str, counts: Mapping[str, int], notes: Mapping[str, str] | None = None) -> None:
    """Print a table of counts with bars, the largest first."""
    listed = sorted(((count, name) for name, count in counts.items()), key=lambda item: (-item[0], item[1]))
    if not any(count for count, _ in listed) and not notes:
        return
    print_line(f"\n{title}", "bold")
    most = max((count for count, _ in listed), default=1) or 1
    width = min(40, max((len(name) for _, name in listed), default=0))
    for count, name in listed[:_MOST]:
        full = count * _BAR_CHARS * 8 // most
        bar = "█" * (full // 8) + (" ▏▎▍▌▋▊▉"[full % 8] if full % 8 else "")
        counted, note = f"  {shorten(name, width):<{width}} {count:>8,} ", (notes or {}).get(name)
        drawn, told = (f"{bar:<{_BAR_CHARS}}", f"  {note}") if note else (bar, "")
        print_parts((counted, ""), (drawn, "cyan"), (told, "dim"))
    if len(listed) > _MOST:
        print_line(f"  and {len(listed) - _MOST:,} more", "dim italic")


def verify(
    path: Path,
    journal: str | None = None,
    is_trusted: bool = False,
    window: int = 16,
    is_json: bool = False,
) -> int:
    """Make the tool calls of all rows again in fresh sandboxes, and compare the rows with the journal.

    Each row must agree with its run, and its transcript must be complete. The calls are made again with the tools
    of the run; a row that claims to be verified must have all of its calls confirmed. The rows must be those that
    the ledger counts. The exit code is 1 if anything differs, or if a server does not answer.

    Examples:
        treadle dataset verify dataset
        treadle dataset verify rows.jsonl --journal dataset/journal.db
    """
    from treadle.datagen.dataset.verification import Totals, check_ledger, verify_rows

    if journal is None:
        journal = _find_journal(path)
    totals = Totals()
    problems = list(check_ledger(path))

    async def verify_all() -> None:
        with open_existing(journal) as opened, bar("verifying", None, is_json=is_json) as advance:
            async for checked in verify_rows(path, opened, window=window, trust=is_trusted):
                totals.add(checked)
                if is_json:
                    print_json(checked)
                elif checked.problems or checked.faults:
                    _print_row(checked)
                advance(checked.row_id)

    execute(verify_all())
    for problem in problems:
        print_error(problem)
    if not is_json:
        print_line(str(totals), "bold")
    return ExitCode.FAILED if problems or totals.faulty or totals.unreached else ExitCode.DONE


def _find_journal(path: Path) -> str:
    """Return the journal of a dataset's folder. Raises: `ConfigError` if there is none."""
    if not path.is_dir():
        find_rows(path)
        raise ConfigError(
            "give the journal with the runs of the rows, with --journal PATH: a single file of rows has none"
        )
    folder = DatasetFolder(path)
    if not folder.journal.exists() and folder.sources.exists():
        raise ConfigError(
            f"{str(path)!r} was merged, and the journals stayed with its sources; verify those, or give --journal"
        )
    return str(folder.journal)


def _print_row(checked: "CheckedRow") -> None:
    found = write_count(len(checked.problems), "problem") if checked.problems else "not verified"
    print_error(f"row {checked.row_id} (run {checked.run_id}): {found}")
    for problem in checked.problems:
        print_line(f"  {problem}", "red")
    for fault in checked.faults:
        print_line(f"  not made again: {fault}", "yellow")


def report(
    path: Path,
    out: Path | None = None,
) -> None:
    """Write a report with pictures, as one HTML file that needs no network.

    It shows the topics, the tools and their order, lengths, kinds, rejections, tokens and cost over time, and rows
    to read and to search. All rows of a small dataset are in it, and a random sample of a large one; `treadle view`
    shows all of any dataset.

    Examples:
        treadle dataset report dataset
        treadle dataset report rows.jsonl --out report.html
    """
    from treadle.datagen.dataset.dataset_view import make_dataset_view
    from treadle.viewer.bundle import check_built
    from treadle.viewer.data_pages import write_page

    find_rows(path)  # raises if there is no dataset
    check_built()
    with spinner("writing the report"):
        default = DatasetFolder(path).report if path.is_dir() else path.with_suffix(".report.html")
        written = write_page(make_dataset_view(path), out or default)
    print_line(str(written))
    print_note("open it in a browser")
