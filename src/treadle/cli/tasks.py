"""`treadle tasks`: lists the task sets or the tasks of a set, or shows one task."""

from itertools import islice
from typing import Annotated

import msgspec
import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import clean, print_json, print_lines, print_note, stdout, write_count
from treadle.tasks import TASK_SETS, load_task, split_reference, task_set

EXAMPLES = (
    "treadle tasks files --limit 22",
    "treadle tasks files:csv_sum-0001",
)
FILE_LINES = 20
"""How many lines of each file of a task are shown."""


def tasks(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="SET[:ID]",
            help="A task set, or one of its tasks. Without it, the task sets are listed.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="The number of ids; 0 lists all.")
    ] = 50,
    is_json: o.IsJson = False,
) -> int:
    """List task sets and tasks, or show one task.

    A task is shown with its prompt, its tools and its files.
    """
    if name is None:
        _print_sets(is_json=is_json)
    elif split_reference(name)[1] or name.endswith(":"):
        _print_task(name, is_json=is_json)
    else:
        _print_set(name, limit or None, is_json=is_json)
    return ExitCode.DONE


def _print_sets(*, is_json: bool) -> None:
    for name in TASK_SETS.names():
        size = len(task_set(name))
        if is_json:
            print_json({"task_set": name, "tasks": size})
        else:
            stdout().print(f"{name}  {write_count(size, 'task')}", soft_wrap=True)


def _print_set(name: str, limit: int | None, *, is_json: bool) -> None:
    found = task_set(split_reference(name)[0])
    ids = (f"{name}:{task.task_id}" for task in islice(found, limit))
    print_lines(msgspec.json.encode({"task": item}) if is_json else item.encode() for item in ids)
    if limit is not None and len(found) > limit:
        print_note(f"{limit} of {len(found):,} tasks; --limit 0 shows all")


def _print_task(ref: str, *, is_json: bool) -> None:
    task = load_task(ref)
    if is_json:
        value = {
            "task": ref,
            "input": task.input,
            "instructions": task.instructions,
            "tools": list(task.tools),
            "files": {path: content.decode("utf-8", "replace") for path, content in task.files.items()},
        }
        print_json(value)
        return
    console = stdout()
    console.print(clean(ref), style="bold")
    if task.instructions:
        console.print(f"instructions: {clean(task.instructions)}", style="dim", soft_wrap=True)
    console.print(f"tools: {', '.join(task.tools)}\n", style="dim")
    console.print("› " + clean(task.input).replace("\n", "\n  "), style="cyan", soft_wrap=True)
    for path, content in sorted(task.files.items()):
        console.print(f"\n{clean(path)}", style="bold", end="")
        console.print(f"  {write_count(len(content), 'byte')}", style="dim")
        lines = clean(content.decode("utf-8", "replace")).rstrip("\n").split("\n")
        for line in lines[:FILE_LINES]:
            console.print(f"  {line}", soft_wrap=True)
        if len(lines) > FILE_LINES:
            console.print(f"  … {len(lines) - FILE_LINES:,} more lines", style="dim italic")
