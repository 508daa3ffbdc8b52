"""`treadle tasks`: what there is to do."""

from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle tasks files --limit 22",
    "treadle tasks files:csv_sum-0001",
)


def tasks(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="SET[:ID]", help="A task set, or one of its tasks. Nothing: the sets.", show_default=False
        ),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="The first N ids; 0 is all.")] = 50,
    is_json: o.IsJson = False,
) -> None:
    """List the tasks of a task set, or show one: its prompt and files."""
    from treadle.cli.task_list import print_set, print_sets, print_task

    if name is None:
        print_sets(is_json=is_json)
    elif ":" in name:
        print_task(name, is_json=is_json)
    else:
        print_set(name, limit or None, is_json=is_json)
