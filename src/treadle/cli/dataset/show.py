"""`treadle dataset show`: one row with its messages, calls, results and verdicts."""

from typing import Annotated

import msgspec
import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.options.datasets import DatasetPath
from treadle.cli.terminal.format import format_call
from treadle.cli.terminal.output import clean, print_json, shorten, stdout, write_cost, write_count
from treadle.core.types import Message, Role, ToolCall
from treadle.datagen.dataset.entries import Entry, find_entry

EXAMPLES = (
    "treadle dataset show dataset 3",
    "treadle dataset show dataset s000042 --rejected --full",
)
RESULT_LINES = 12
"""How many lines of a result are shown without --full."""


def show(
    path: DatasetPath,
    which: Annotated[
        str, typer.Argument(metavar="N|ID", help="The number of the row, its id, its run, or 'last'.")
    ] = "1",
    is_rejected: Annotated[bool, typer.Option("--rejected", help="Show a rejected sample.")] = False,
    is_full: Annotated[bool, typer.Option("--full", help="Shorten nothing.")] = False,
    is_json: o.IsJson = False,
) -> int:
    """Show one row of a dataset: its messages, calls, results and verdicts."""
    entry = find_entry(path, which, is_rejected=is_rejected)
    if is_json:
        raw = msgspec.to_builtins(entry.row)
        print_json({**raw, "verdicts": entry.verdicts} if entry.verdicts else raw)
    else:
        _Printer(entry, is_full=is_full).print()
    return ExitCode.DONE


class _Printer:
    """A printer of one row."""

    def __init__(self, entry: Entry, *, is_full: bool) -> None:
        self._entry = entry
        self._row = entry.row
        self._console = stdout()
        self._width = 1_000_000 if is_full else max(40, min(self._console.width, 160) - 4)
        self._result_lines = None if is_full else RESULT_LINES
        self._calls: dict[str, ToolCall] = {}
        self._simulated = set(entry.row.lineage.simulated)

    def say(self, text: str, style: str = "", end: str = "\n") -> None:
        """Print a piece of text."""
        self._console.print(text, style=style, end=end, soft_wrap=True)

    def print(self) -> None:
        """Print the row."""
        self._print_head()
        for message in self._row.messages:
            self._print_message(message)
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
                self.say("written by the built-in teacher, not by a language model", "yellow")
        if self._row.tools:
            self.say("tools: " + ", ".join([tool.name for tool in self._row.tools]), "dim")

    def _print_message(self, message: Message) -> None:
        text = clean(message.content).rstrip("\n")
        if message.role is Role.SYSTEM:
            self.say(
                "instructions: " + (text if self._result_lines is None else shorten(text, self._width)), "dim"
            )
        elif message.role is Role.USER:
            self.say("\n› " + text.replace("\n", "\n  "), "cyan")
        elif message.role is Role.TOOL:
            self._print_result(message)
        else:
            self._calls.update({call.call_id: call for call in message.tool_calls})
            self.say("")
            if message.reasoning:
                self.say(clean(message.reasoning.strip()), "dim italic")
            if text.strip():
                self.say(text)

    def _print_result(self, message: Message) -> None:
        call = self._calls.get(message.call_id or "")
        self.say("● ", "red" if message.is_error else "green", end="")
        self.say(format_call(call, self._width - 10) if call else clean(message.name or ""), "bold", end="")
        self.say("  simulated" if message.call_id in self._simulated else "", "magenta")
        lines = clean(message.content).rstrip("\n").split("\n")
        limit = self._result_lines
        shown = lines if limit is None or len(lines) <= limit + 1 else lines[:limit]
        for line in shown:
            cut = line if len(line) <= self._width else line[: self._width - 1] + "…"
            self.say(f"  {cut}", "red" if message.is_error else "dim")
        if len(shown) < len(lines):
            self.say(f"  … {len(lines) - len(shown):,} more lines", "dim italic")

    def _print_verdicts(self) -> None:
        sample = self._row.lineage.sample
        self.say("")
        for verdict in self._entry.verdicts:
            mark, style = ("✓", "green") if verdict.is_passed else ("✗", "red")
            self.say(f"{mark} {verdict.filter}{': ' + verdict.reason if verdict.reason else ''}", style)
        if sample is None:
            return
        if not self._entry.verdicts:
            for name, note in sample.filters.items():
                self.say(f"✓ {name}{': ' + note if note else ''}", "green")
        parts = [
            "verified" if sample.is_verified else "not verified",
            f"ended with {self._row.lineage.stop_reason}",
            f"{sample.input_tokens + sample.output_tokens:,} tokens",
            write_cost(sample.cost_usd),
            f"seed {sample.seed}",
        ]
        if self._simulated:
            parts.insert(1, f"{write_count(len(self._simulated), 'simulated result')}")
        self.say(" · ".join(parts), "bold")
