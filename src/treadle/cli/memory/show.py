"""`treadle memory show`: one memory with all its data."""

from treadle.cli.exit import ExitCode
from treadle.cli.memory import shared as m
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import clean, print_json, stdout

EXAMPLES = (
    "treadle memory show self_facts-3",
    "treadle memory show episodic-17 --persona ada --user kim --json",
)


def show(
    entry_id: m.Id,
    place: m.Place,
    is_json: o.IsJson = False,
) -> int:
    """Show one memory with its reason, its strength and where it comes from."""
    with place.opened() as memory:
        entry = m.find(memory, entry_id)
        sources = memory.store.audit(entry_id)
    if is_json:
        print_json(entry)
        return ExitCode.DONE
    stdout().print(clean(entry.text), soft_wrap=True)
    told = {
        "version": entry.version,
        "written": f"{m.write_day(entry.written_at)} by {entry.author.value}",
        "epistemic": entry.epistemic,
        "reason": entry.reason,
        "confidence": entry.confidence,
        "strength": f"{entry.strength:g}",
        "said again": entry.merged or None,
        "runs": ", ".join(dict.fromkeys([item.run_id for item in sources if item.run_id])) or None,
        **entry.metadata,
    }
    for name, value in told.items():
        if value is not None:
            stdout().print(clean(f"  {name}: {value}"), style="dim", soft_wrap=True)
    return ExitCode.DONE
