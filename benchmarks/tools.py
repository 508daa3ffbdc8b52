"""The cost of tool calls: Python code, an MCP server, and several calls in one step."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from benchmarks.common import Figure
from treadle import Agent, ScriptedModel, open_journal, tool
from treadle.models import call
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.context import Scope, ToolContext

ROUNDS = 11
CALLS = 30 * (ROUNDS - 1)


async def measure_python() -> list[Figure]:
    """Measure `1 + 1` in a session that has variables, and two hundred concurrent runs."""
    from treadle.tools.python import python

    scope, sandbox = Scope(), MemorySandbox()

    async def once() -> None:
        context = ToolContext("run", "call", 1, sandbox, scope=scope)
        assert (await python.call({"code": "1 + 1"}, context)).content == "2"

    await python.call({"code": "x = 1"}, ToolContext("run", "call", 1, sandbox, scope=scope))
    (milliseconds,) = await _in_turn(once)
    await scope.close()

    async def one(number: int) -> bool:
        own = ToolContext(f"run{number}", "call", 1, MemorySandbox(), scope=Scope())
        await python.call({"code": f"n = {number}"}, own)
        output = await python.call({"code": "n"}, own)
        await own.scope.close()
        return output.content == str(number)

    failures = (await asyncio.gather(*map(one, range(200)))).count(False)
    return [
        Figure("ms of a warm Python call", milliseconds, "<= 0.5", f"median of {CALLS}"),
        Figure("failures of 200 runs at once", failures, "<= 0", "two calls each"),
    ]


async def measure_mcp() -> list[Figure]:
    """Measure the same tool on the same kind of server through Treadle and through the SDK's client,
    alternating."""
    from mcp import Client, StdioServerParameters

    from treadle.tools.mcp import MCPServer

    server = str(Path(__file__).with_name("mcp_server.py"))
    context = ToolContext("run", "call", 1)
    bare_server = StdioServerParameters(command=sys.executable, args=[server])
    async with MCPServer(sys.executable, args=[server]) as ours, Client(bare_server) as client:
        (add,) = ours.tools()
        await client.list_tools()

        async def through_the_tool() -> None:
            await add.call({"a": 1, "b": 2}, context)

        async def bare() -> None:
            await client.call_tool("add", {"a": 1, "b": 2})

        tool_ms, bare_ms = await _in_turn(through_the_tool, bare)
    detail = f"{tool_ms:.2f} ms against {bare_ms:.2f}, medians of {CALLS} in rounds"
    return [Figure("MCP call over the SDK's own", tool_ms / bare_ms, "<= 1.2", detail)]


async def measure_parallel() -> list[Figure]:
    """Measure five independent tools of 100 ms in one step of a run that is kept in a file."""

    @tool(effect="pure")
    async def work(number: int) -> int:
        await asyncio.sleep(0.1)
        return number

    from benchmarks.common import journal_path

    times = []
    with journal_path() as path, open_journal(path) as journal:
        for _ in range(10):
            model = ScriptedModel([[call("work", {"number": n}) for n in range(5)], "done"])
            agent = Agent(model, tools=[work], journal=journal)
            begun = time.perf_counter()
            await agent.run("go")
            times.append((time.perf_counter() - begun) * 1000)
    return [Figure("ms of five tools of 100 ms", median(times), "<= 130", "the whole run; median of 10")]


async def _in_turn(*works: Callable[[], Awaitable[None]]) -> list[float]:
    """Return the median milliseconds of each, in alternating rounds of 30 calls; the first round is a warm-up."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS):
        for own, work in zip(times, works, strict=True):
            for _ in range(30):
                begun = time.perf_counter()
                await work()
                own.append((time.perf_counter() - begun) * 1000)
    return [median(own[30:]) for own in times]
