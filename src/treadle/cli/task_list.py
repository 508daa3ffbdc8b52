"""What `treadle tasks` does."""

from itertools import islice

import msgspec

from treadle.cli.terminal.output import clean, print_lines, print_note, stdout, write_count
from treadle.tasks import TASK_SETS, load_task, task_set

FILE_LINES = 20
"""How many lines of a task's file are shown."""


def print_sets(*, is_json: bool) -> None:
    """The names of the task sets, with their sizes."""
    for name in TASK_SETS.names():
        size = len(task_set(name))
        if is_json:
            print_lines([msgspec.json.encode({"task_set": name, "tasks": size})])
        else:
            stdout().print(f"{name}  {write_count(size, 'task')}", soft_wrap=True)


def print_set(name: str, limit: int | None, *, is_json: bool) -> None:
    """The ids of a set's tasks, in its order."""
    tasks = task_set(name)
    ids = (f"{name}:{task.task_id}" for task in islice(tasks, limit))
    print_lines([msgspec.json.encode({"task": item}) if is_json else item.encode() for item in ids])
    if limit is not None and len(tasks) > limit:
        print_note(f"{limit} of {len(tasks):,} tasks; --limit 0 shows all")


def print_task(ref: str, *, is_json: bool) -> None:
    """One task: what the model is told, and the files it works on."""
    task = load_task(ref)
    if is_json:
        value = {
            "task": ref,
            "input": task.input,
            "instructions": task.instructions,
            "tools": list(task.tools),
            "files": {path: content.decode("utf-8", "replace") for path, content in task.files.items()},
        }
        print_lines([msgspec.json.encode(value)])
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
