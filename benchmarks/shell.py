"""The cost of running a command in a sandbox, and the memory of a thousand runs with files."""

import asyncio
import json
import resource
import subprocess
import sys
import time
from statistics import median

from benchmarks.common import Figure, journal_path
from treadle import Agent, ScriptedModel, open_journal
from treadle.core.types import Message, Request, Role, ToolCall
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.context import Scope, ToolContext
from treadle.tools.shell import Shell

CALLS = 60
RUNS = 1000
FILE_BYTES = 10_000


async def measure() -> list[Figure]:
    """Measure a warm `true` through the tool `shell`, alternating with `sh -c true`."""
    (tool,) = Shell().tools()
    sandbox, scope = MemorySandbox({f"f{index}": b"x" * 1000 for index in range(20)}), Scope()

    async def through_the_tool() -> None:
        await tool.call({"command": "true"}, ToolContext("run", "call", 1, sandbox, scope=scope))

    async def bare() -> None:
        await asyncio.to_thread(subprocess.run, ["/bin/sh", "-c", "true"], check=True)

    times: dict[str, list[float]] = {"tool": [], "bare": []}
    for _ in range(CALLS):
        for name, one in (("tool", through_the_tool), ("bare", bare)):
            begun = time.perf_counter()
            await one()
            times[name].append((time.perf_counter() - begun) * 1000)
    await scope.close()
    tool_ms, bare_ms = (median(times[name][CALLS // 4 :]) for name in ("tool", "bare"))
    detail = f"{tool_ms:.1f} ms against {bare_ms:.1f}, medians of {CALLS * 3 // 4}"
    return [Figure("ms of a warm command over a bare one", tool_ms - bare_ms, "<= 15", detail)]


async def measure_memory() -> list[Figure]:
    """Measure a thousand concurrent runs, each of which changes files of its own and keeps them in snapshots."""

    def answer(request: Request) -> Message:
        steps = sum(message.role is Role.TOOL for message in request.messages)
        if steps == 5:
            return Message(Role.ASSISTANT, "done")
        arguments = json.dumps({"file_path": f"f{steps}", "content": f"{id(request)}" * 20})
        return Message(Role.ASSISTANT, tool_calls=(ToolCall("", "write_file", arguments),))

    before = _peak_mb()
    with journal_path() as path, open_journal(path) as journal:
        agent = Agent(ScriptedModel(answer, keeps_requests=False), tools=["files"], journal=journal)

        async def one(number: int) -> None:
            names = {f"f{index}": f"{number:>{FILE_BYTES}}{index}" for index in range(100_000 // FILE_BYTES)}
            assert (await agent.run("Write.", files=names)).output == "done"

        await asyncio.gather(*map(one, range(RUNS)))
    peak = _peak_mb()
    detail = f"{RUNS:,} runs of 100 kB at once, 5 changes each, all in a journal; {before:.0f} MB before"
    return [Figure("MB with a thousand sandboxes", peak, "<= 300", detail)]


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024**2 if sys.platform == "darwin" else 1024)
