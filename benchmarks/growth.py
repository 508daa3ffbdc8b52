"""The cost of a step and of its request body in a run of 200 steps or messages, relative to one of 10."""

import time
from statistics import median

from benchmarks.common import Figure, Timing, add, in_slices, journal_path, timed
from treadle import Agent, Policy, ScriptedModel, open_journal
from treadle.core.log import Log
from treadle.core.types import Message, Request, Role, ToolCall, ToolSpec
from treadle.models.config.presets import DIALECTS
from treadle.models.protocol import Model


def scripted(steps: int) -> Model:
    """A model that takes `steps` steps, and keeps nothing of the requests."""
    call = ToolCall("", "add", '{"a":1,"b":2}')

    def answer(request: Request) -> Message:
        if len(request.messages) >= 2 * steps - 1:
            return Message(Role.ASSISTANT, "3")
        return Message(Role.ASSISTANT, tool_calls=(call,))

    return ScriptedModel(answer, keeps_requests=False)


async def measure() -> list[Figure]:
    """Measure the loop and its journal without HTTP, because HTTP requests grow with every step."""
    with journal_path() as path, open_journal(path) as journal:

        async def once(steps: int) -> Timing:
            agent = Agent(scripted(steps), tools=[add], policy=Policy(max_steps=None), journal=journal)

            async def one() -> int:
                return (await agent.run("Add 1 and 2.")).steps

            return await timed(one, 20_000 // steps, 64)

        found = await in_slices({"long": lambda: once(200), "short": lambda: once(10)}, rounds=8)
    long_us, short_us = (median(item.cpu_us for item in found[name]) for name in ("long", "short"))
    ratio = long_us / short_us
    detail = f"{long_us:.1f} us of processor time a step against {short_us:.1f}"
    return [Figure("cost per step, 200 steps against 10", ratio, "<= 1.15", detail)]


SHORT, LONG = 10, 200
STEPS = 16


async def measure_bodies() -> list[Figure]:
    """Measure how long a step's request body takes at 200 messages, relative to 10, in each dialect.

    The time for copying a body of the same length is subtracted from both.
    """
    found = []
    for name in DIALECTS.names():
        for has_tools in (True, False):
            if name == "completions" and has_tools:
                continue
            costs: dict[int, list[float]] = {SHORT: [], LONG: []}
            for _ in range(150):
                for size, times in costs.items():
                    times.append(_body_us(name, size, has_tools=has_tools))
            short, long = (median(costs[size]) for size in (SHORT, LONG))
            detail = f"{long:.2f} us a step at {LONG} messages against {short:.2f}"
            what = f"cost of a body of {name}, {'with' if has_tools else 'without'} tools"
            found.append(Figure(what, long / short, "<= 1.3", detail))
    return found


def _body_us(dialect: str, messages: int, *, has_tools: bool) -> float:
    """Return the microseconds for the body of a step, whose two messages are new."""
    model = DIALECTS.load(dialect)("m")
    tools = (ToolSpec("read", "Read a file.", {"type": "object"}),) if has_tools else ()
    log = Log([Message(Role.SYSTEM, "Be brief.")])
    while len(log) < messages:
        log = log.extend(_step(len(log), has_tools=has_tools))
    model._body(Request(log, tools), is_stream=False)
    spent = 0.0
    for _ in range(STEPS):
        log = log.extend(_step(len(log), has_tools=has_tools))
        begin = time.perf_counter()
        body = model._body(Request(log, tools), is_stream=False)
        spent += time.perf_counter() - begin
        halves = body[: len(body) // 2], body[len(body) // 2 :]
        begin = time.perf_counter()
        b"".join(halves)
        spent -= time.perf_counter() - begin
    return spent / STEPS * 1e6


def _step(number: int, *, has_tools: bool) -> list[Message]:
    result = "The content of a file. " * 5
    if not has_tools:
        return [Message(Role.USER, result), Message(Role.ASSISTANT, "I see.")]
    call_id = f"call_{number}"
    call = ToolCall(call_id, "read", '{"path":"a/b.txt"}')
    return [
        Message(Role.ASSISTANT, "", (call,)),
        Message(Role.TOOL, result, call_id=call_id, name="read"),
    ]
