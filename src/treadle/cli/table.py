"""The commands by name, with the summaries that the help shows, from `commands.txt`.

The help of `treadle` and of its groups is made from this table and imports no command.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

VARIABLE = "_TREADLE_COMPLETE"
"""The environment variable by which a shell asks for completions."""


class CommandEntry(NamedTuple):
    """One command: its function, and its line in the help."""

    function: str
    """`module:function`. The docstring of the function has two command lines for the help. A group has none."""
    summary: str
    """The first line of the function's docstring."""
    panel: str
    """The heading under which the help lists the command."""
    commands: "Mapping[str, CommandEntry]"
    """Commands of its own, which run if their name is the first argument."""
    examples: list[str]
    """The command lines in the help of a group."""


def _read_table(text: str) -> dict[str, CommandEntry]:
    """Return the commands of `commands.txt`, whose first lines explain its form."""
    table: dict[str, CommandEntry] = {}
    below: dict[str, CommandEntry] = {}
    examples: list[str] = []
    heading = ""
    for line in text.splitlines():
        if line.startswith("["):
            heading = line.strip("[]")
        if not line or line[0] in "[#":
            continue
        if line.startswith("    > "):
            examples.append(line.removeprefix("    > "))
            continue
        name, function, summary = (part.strip() for part in line.split("|", 2))
        function = f"treadle.cli.{function}" if function else ""
        if line.startswith(" "):
            below[name] = CommandEntry(function, summary, "Commands", {}, [])
            continue
        below, examples = {}, []
        table[name] = CommandEntry(function, summary, heading, below, examples)
    return table


COMMANDS = _read_table((Path(__file__).parent / "commands.txt").read_text("utf-8"))
"""The commands, in the order of the help."""

_CALL = "it is a call in Python now; see"
MOVED = {
    "generate --engine": "it is called --workers now",
    "rollout --engine": "it is called --workers now",
    "generate --schema": "write: treadle schema generate",
    "rollout --schema": "write: treadle schema rollout",
    "models schema": "write: treadle schema config",
    "persona schema": "write: treadle schema persona",
    "dataset convert --to": "it is called --format now",
    "memory show": f"{_CALL} 'From Python' in docs/memory.md",
    "memory rollback": f"{_CALL} 'From Python' in docs/memory.md",
    "memory history": f"{_CALL} 'From Python' in docs/memory.md",
    "memory audit": f"{_CALL} 'From Python' in docs/memory.md",
    "memory embed": f"{_CALL} 'From Python' in docs/memory.md",
    "topics import": f"{_CALL} 'Files' in docs/topics.md",
    "topics prune": f"{_CALL} 'Fewer topics' in docs/topics.md",
    "topics draw": f"{_CALL} 'Pictures' in docs/topics.md. `treadle dataset report` shows the topics of a dataset",
}
"""What to do in place of commands and options that were removed or renamed."""
