"""The size of a journal, and the time, of a run that edits a growing file."""

import random
from time import perf_counter

from benchmarks.common import Figure, journal_path
from treadle import Agent, Policy, ScriptedModel, open_journal, tool
from treadle.core.events import SnapshotTaken
from treadle.core.texts.patches import load
from treadle.core.types import Message, Request, Role, ToolCall
from treadle.journal.protocol import Journal
from treadle.tools.context import ToolContext

EDITS = 3000
EDIT_BYTES = 100


@tool(effect="pure")
def append(context: ToolContext) -> str:
    """Add bytes at the end of the file."""
    return _edit(context, is_at_end=True)


@tool(effect="pure")
def insert(context: ToolContext) -> str:
    """Add bytes somewhere in the file."""
    return _edit(context, is_at_end=False)


def _edit(context: ToolContext, *, is_at_end: bool) -> str:
    assert context.sandbox is not None
    content = context.sandbox.read("log")
    chance = random.Random(len(content))
    at = len(content) if is_at_end else chance.randrange(len(content) + 1)
    context.sandbox.write("log", content[:at] + chance.randbytes(EDIT_BYTES) + content[at:])
    return "done"


async def measure() -> list[Figure]:
    """Measure edits at the end and anywhere of a file that is empty first, and edits of a file of 10 MB."""
    figures: list[Figure] = []
    for name, start, edits, limit_mb in (
        ("append", b"", EDITS, 10),
        ("insert", b"", EDITS, 10),
        ("insert", random.Random(1).randbytes(10_000_000), 30, 11),
    ):
        with journal_path() as path:
            with open_journal(path) as journal:
                seconds = await _edit_often(journal, name, start, edits)
            size_mb = sum(item.stat().st_size for item in path.parent.iterdir()) / 1e6
            with open_journal(path) as journal:
                reads = _count_reads(journal)
        whole_mb = (edits * len(start) + EDIT_BYTES * edits**2 / 2) / 1e6
        title = f"MB of journal after {edits:,} edits ({name}) of a file of {len(start) / 1e6:g} MB"
        detail = f"whole files would be {whole_mb:,.0f} MB; {seconds / edits * 1e3:.2f} ms an edit"
        figures.append(Figure(title, size_mb, f"<= {limit_mb}", detail))
        figures.append(Figure("stored contents that are read for one version, at most", *reads))
    return figures


async def _edit_often(journal: Journal, name: str, start: bytes, edits: int) -> float:
    call = ToolCall("", name, "{}")

    def answer(request: Request) -> Message:
        if len(request.messages) >= 2 * edits:
            return Message(Role.ASSISTANT, "done")
        return Message(Role.ASSISTANT, tool_calls=(call,))

    model = ScriptedModel(answer, keeps_requests=False)
    agent = Agent(model, tools=[append, insert], policy=Policy(max_steps=None), journal=journal)
    begin = perf_counter()
    run = await agent.run("Edit the file.", run_id="r", files={"log": start})
    assert run.stop_reason == "completed", run.error
    return perf_counter() - begin


def _count_reads(journal: Journal) -> tuple[int, str, str]:
    """Return how many stored contents the reading of one version takes at most."""
    most, slowest = 0, 0.0
    for event in journal.read("r"):
        if isinstance(event.body, SnapshotTaken):
            for digest in event.body.delta.changed.values():
                begin = perf_counter()
                version, _ = load(journal.read_stored, digest)
                slowest = max(slowest, perf_counter() - begin)
                most = max(most, 1 + len(version.patches))
    return most, "<= 13", f"the slowest version took {slowest * 1e3:.1f} ms"
