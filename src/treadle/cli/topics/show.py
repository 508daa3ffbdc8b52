"""`treadle topics show`: topics as a tree on the screen."""

from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import clean, print_json, print_note, stdout
from treadle.cli.topics.files import File, describe, read
from treadle.datagen.topics.topic_graph import SEPARATOR, Topic, TopicGraph

if TYPE_CHECKING:
    from rich.text import Text

EXAMPLES = (
    "treadle topics show topics.json --depth 1",
    "treadle topics show topics.json --leaves",
)


def show(
    file: File,
    depth: Annotated[
        int | None, typer.Option("--depth", metavar="N", min=0, help="The levels below the root to show.")
    ] = None,
    is_leaves: Annotated[
        bool, typer.Option("--leaves", help="Print the path of each leaf on a line.")
    ] = False,
    is_failed: Annotated[
        bool, typer.Option("--failed", help="Print the path of each failed topic with its error.")
    ] = False,
    is_json: o.IsJson = False,
) -> int:
    """Show the topics of a file as a tree.

    A cross-link is shown at the topic that it leads to.
    """
    graph = read(file)
    chosen = [
        topic
        for topic in (graph.leaves() if is_leaves else graph.failed() if is_failed else graph.walk())
        if depth is None or len(topic.path) - 1 <= depth
    ]
    if is_json:
        print_json(*chosen)
    elif is_leaves or is_failed:
        for topic in chosen:
            error = f": {topic.error}" if is_failed else ""
            stdout().print(clean(SEPARATOR.join(topic.path) + error), soft_wrap=True)
    else:
        _print_tree(graph, chosen)
    print_note(describe(graph))
    return ExitCode.DONE


def _print_tree(graph: TopicGraph, chosen: list[Topic]) -> None:
    from rich.tree import Tree

    made: dict[str, Tree] = {}
    for topic in chosen:
        label = _label(graph, topic, len(topic.children))
        parent = made[topic.parents[0]] if topic.parents else None
        made[topic.topic_id] = Tree(label) if parent is None else parent.add(label)
    stdout().print(made[graph.root_id])


def _label(graph: TopicGraph, topic: Topic, count: int) -> "Text":
    from rich.text import Text

    label = Text(clean(topic.text), style="bold" if count else "")
    if topic.error is not None:
        label.append(f"  failed: {clean(topic.error)[:100]}", style="red")
    elif topic.missing:
        label.append(f"  {topic.missing} missing", style="yellow")
    if len(topic.parents) > 1:
        others = ", ".join(clean(graph.topics[key].text) for key in topic.parents[1:])
        label.append(f"  also below {others}", style="dim")
    return label
