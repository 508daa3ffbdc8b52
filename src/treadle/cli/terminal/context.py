"""What the model saw at one step, as a table."""

import msgspec

from treadle.cli.terminal.output import clean, print_lines, shorten, stdout, write_count
from treadle.context.step_view import LeftOut, SeenMessage, view_step
from treadle.core.types import Message
from treadle.journal.protocol import Journal

_WHY = {
    "summarised": "in the summary",
    "dropped": "in no summary",
    "cut": "a line stands for the result",
    "forgotten": "its recalled memories were taken out",
}


def print_context(journal: Journal, run_id: str, step: int, *, is_full: bool, is_json: bool) -> None:
    """Print what the model saw at `step` of a run, with sizes, and what was left out and why.

    Raises: `ConfigError` if the run has no such step.
    """
    view = view_step(journal.read(run_id), step)
    if is_json:
        print_lines([msgspec.json.encode(view)])
        return
    console = stdout()
    width = 1_000_000 if is_full else max(20, min(console.width, 160) - 30)
    origin = "counted by the server" if view.is_counted else "estimated"
    head = [
        f"step {view.step}",
        clean(view.model or "no model"),
        f"{write_count(view.tokens, 'token')} ({origin})",
    ]
    if view.room is not None:
        head.append(f"room for {view.room:,}")
    if view.usage is not None and view.usage.input_tokens:
        share = view.usage.cached_input_tokens / view.usage.input_tokens
        head.append(f"{share:.0%} cached")
    console.print(" · ".join(head), style="bold")
    if view.window is not None:
        kept = f"{view.window.output_tokens:,} kept for the answer"
        console.print(f"window: {view.window.tokens:,} tokens ({view.window.source}), {kept}", style="dim")
    if view.tools:
        names = ", ".join(map(clean, view.tools))
        console.print(
            f"{view.tools_tokens:>8,}  tools      {shorten(names, width)}", style="dim", soft_wrap=True
        )
    for item in view.messages:
        text = f"{item.tokens:>8,}  {item.message.role:<9}  {_describe(item, width)}"
        console.print(text, style="cyan" if item.is_summary else "", soft_wrap=True)
    if view.left_out:
        console.print("\nleft out:", style="bold")
    for gone in view.left_out:
        console.print(
            f"{gone.tokens:>8,}  {gone.message.role:<9}  {_explain(gone, width)}", style="dim", soft_wrap=True
        )


def _describe(item: SeenMessage, width: int) -> str:
    notes = []
    if item.is_summary:
        notes.append("summary")
    if item.is_cut:
        notes.append("cut")
    if item.recalled_chars:
        notes.append(f"with {item.recalled_chars:,} characters recalled")
    if item.message.parts:
        notes.append(write_count(len(item.message.parts), "attached file"))
    mark = f"[{', '.join(notes)}] " if notes else ""
    return mark + _excerpt(item.message, width - len(mark))


def _explain(gone: LeftOut, width: int) -> str:
    mark = f"{_WHY[gone.why]}, by event {gone.seq}: "
    return mark + _excerpt(gone.message, max(10, width - len(mark)))


def _excerpt(message: Message, width: int) -> str:
    calls = " ".join([f"{call.name}({call.arguments})" for call in message.tool_calls])
    return shorten(" ".join(filter(None, [message.content, calls])), width)
