"""The cost of a call in a step of many, of a step that writes a new file, and of a large result for other runs."""

import asyncio
from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter, process_time

from benchmarks.common import Figure, journal_path
from treadle import Agent, Policy, ScriptedModel, ToolContext, open_journal, tool
from treadle.core.policy import ToolLimits
from treadle.core.types import Message, Request, Role, ToolCall
from treadle.journal.protocol import Journal

FEW, MANY = 1_000, 10_000
ROUNDS = 3
RESULT_CHARS = 25_000_000


@tool(effect="once")
async def act(x: int) -> str:
    """Act."""
    return "acted"


@tool(effect="idempotent")
async def outer(n: int, context: ToolContext) -> str:
    """Act n times in inner calls."""
    for x in range(n):
        await context.call_tool("act", {"x": x})
    return "ok"


@tool(effect="pure")
def large() -> str:
    """Return a large text."""
    return "é" * RESULT_CHARS


def _calls(count: int) -> Message:
    calls = [ToolCall("", "act", f'{{"x":{x}}}') for x in range(count)]
    return Message(Role.ASSISTANT, tool_calls=tuple(calls))


def _agent(journal: Journal, *answers: object, **options: object) -> Agent:
    model = ScriptedModel(list(answers), keeps_requests=False)  # type: ignore[arg-type]
    return Agent(model, tools=[act, outer, large], journal=journal, **options)  # type: ignore[arg-type]


async def _plain(journal: Journal, count: int, **options: object) -> str:
    return (await _agent(journal, _calls(count), "done", **options).run("go")).run_id


async def _within(journal: Journal, count: int) -> str:
    call = Message(Role.ASSISTANT, tool_calls=(ToolCall("", "outer", f'{{"n":{count}}}'),))
    return (await _agent(journal, call, "done").run("go")).run_id


async def _approved(journal: Journal, count: int) -> str:
    policy = Policy(approve={"once": "ask"})
    return await _plain(journal, count, policy=policy, approver=lambda request: request.call.name == "act")


async def _decided_later(journal: Journal, count: int) -> str:
    agent = _agent(journal, _calls(count), "done", policy=Policy(approve={"once": "ask"}))
    run = await agent.run("go")
    decisions = {call_id: index % 2 == 0 for index, call_id in enumerate(run.approvals)}
    return (await agent.resume(run.run_id, approvals=decisions)).run_id


async def _limited(journal: Journal, count: int) -> str:
    return await _plain(
        journal, count, policy=Policy(max_tool_calls=5, tool_limits={"act": ToolLimits(max_calls=3)})
    )


async def measure() -> list[Figure]:
    """Measure the processor time of a call, its replay included, in a step with many calls."""
    cases: dict[str, Callable[[Journal, int], Awaitable[str]]] = {
        "in one step": _plain,
        "that an approver allows": _approved,
        "that are decided about later": _decided_later,
        "over a limit": _limited,
        "within a call": _within,
    }
    figures = []
    for name, case in cases.items():
        costs: dict[int, list[float]] = {FEW: [], MANY: []}
        slowest = 0.0
        for count in (FEW, MANY) * ROUNDS:
            with journal_path() as path, open_journal(path) as journal:
                wall, cpu = perf_counter(), process_time()
                run_id = await case(journal, count)
                slowest = max(slowest, perf_counter() - wall)
                assert (await _agent(journal).replay(run_id)).is_exact
                costs[count].append((process_time() - cpu) / count * 1e6)
        few, many = median(costs[FEW]), median(costs[MANY])
        detail = (
            f"{many:.0f} us a call at {MANY:,} against {few:.0f}; {slowest:.2f} s at most without the replay"
        )
        figures.append(Figure(f"cost of calls {name}", many / few, "<= 1.3", detail))
    return [*figures, await _measure_files(), await _measure_stall()]


async def _measure_files() -> Figure:
    """Measure the processor time of a step that writes a new file."""
    costs: dict[int, list[float]] = {FEW: [], MANY: []}
    for steps in (FEW, MANY) * 2:

        def answer(request: Request, steps: int = steps) -> Message:
            step = len(request.messages) // 2
            if step >= steps:
                return Message(Role.ASSISTANT, "done")
            call = ToolCall("", "write_file", f'{{"file_path":"f{step}","content":"x"}}')
            return Message(Role.ASSISTANT, tool_calls=(call,))

        with journal_path() as path, open_journal(path) as journal:
            model = ScriptedModel(answer, keeps_requests=False)
            agent = Agent(model, tools=["files"], policy=Policy(max_steps=None), journal=journal)
            cpu = process_time()
            await agent.run("go")
            costs[steps].append((process_time() - cpu) / steps * 1e6)
    few, many = (median(costs[steps]) for steps in (FEW, MANY))
    detail = f"{many:.0f} us a step with {MANY:,} new files against {few:.0f} with {FEW:,}"
    return Figure("cost of a step with a new file", many / few, "<= 1.3", detail)


async def _measure_stall() -> Figure:
    """Measure for how long a large result holds up the event loop at most."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            begin = perf_counter()
            await asyncio.sleep(0.002)
            longest = max(longest, perf_counter() - begin)

    with journal_path() as path, open_journal(path) as journal:
        agent = _agent(journal, Message(Role.ASSISTANT, tool_calls=(ToolCall("", "large", "{}"),)), "done")
        watching = asyncio.ensure_future(watch())
        await agent.run("go")
        watching.cancel()
    detail = f"a result of {RESULT_CHARS:,} characters in {2 * RESULT_CHARS:,} bytes"
    return Figure("ms for which a large result holds up other runs", longest * 1e3, "<= 150", detail)
