"""`treadle memory history`: the versions of a memory."""

from treadle.cli.exit import ExitCode
from treadle.cli.memory import shared as m
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import print_json

EXAMPLES = (
    "treadle memory history self_facts-3",
    "treadle memory history self_facts-3 --json",
)


def history(
    entry_id: m.Id,
    place: m.Place,
    is_json: o.IsJson = False,
) -> int:
    """List all versions of a memory, the first one first."""
    with place.opened() as memory:
        m.find(memory, entry_id)
        found = memory.store.history(entry_id)
    if is_json:
        print_json(*found)
        return ExitCode.DONE
    for entry in found:
        m.print_entry(entry, f" version {entry.version}")
    return ExitCode.DONE
