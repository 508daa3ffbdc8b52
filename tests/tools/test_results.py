"""The tool that reads results again."""

import pytest

from treadle import Agent, Policy, ScriptedModel, tool
from treadle.core.types import Effect, ToolResult
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.tools.context import ToolContext
from treadle.tools.read_again import ReadResult
from treadle.trajectory.run_verification import verify_run

WHOLE = "".join(f"{number:05}\n" for number in range(5000))


class _Context(ToolContext):
    async def find_result(self, call_id):
        return ToolResult(call_id, "read_all", WHOLE) if call_id == "c1" else None


async def read(**arguments):
    return await ReadResult().call({"call_id": "c1", **arguments}, _Context("r", "c2", 1))


async def test_results_are_read_in_pages():
    page = await read()
    assert page == f"[characters 0 to 4,000 of 30,000; go on with start=4000]\n{WHOLE[:4000]}"
    assert await read(start=29_990) == f"[characters 29,990 to 30,000 of 30,000]\n{WHOLE[29_990:]}"
    assert (await read(start=600, end=612)).endswith(f"\n{WHOLE[600:612]}")
    assert len(await read(end=1_000_000)) < 21_000


async def test_what_is_not_there_is_said():
    with pytest.raises(Exception, match="has 30,000 characters, so it ends before character 30,000"):
        await read(start=30_000)
    for end in (10, 50):
        with pytest.raises(Exception, match=f"the end {end} is not above the start 50"):
            await read(start=50, end=end)
    with pytest.raises(Exception, match="there is no result of a call 'c7'"):
        await read(call_id="c7")
    assert ReadResult().find_fault({"start": 1}) is not None
    assert ReadResult.spec.effect is Effect.PURE


async def test_a_result_that_was_cut_when_it_came_is_read_whole_and_verified():
    @tool(effect="pure", max_result_chars=100)
    async def read_all() -> str:
        """Read everything."""
        return WHOLE

    script = [
        [call("read_all", call_id="c1")],
        [call("read_result", {"call_id": "c1", "start": 12_000, "end": 12_006})],
        "done",
    ]
    journal = MemoryJournal()
    policy = Policy(context_tokens=50_000)
    run = await Agent(ScriptedModel(script), tools=[read_all], policy=policy, journal=journal).run("go")
    assert run.results[0].content != WHOLE
    assert run.results[1].content.endswith(WHOLE[12_000:12_006])
    found = await verify_run(journal, run.run_id, [read_all])
    assert (found.matched, found.skipped, found.differences) == (2, 0, ())
