"""The cost of a step in a run of 200 steps, relative to a run of 10 steps."""

from statistics import median

from benchmarks.common import Figure, Timing, add, in_slices, journal_path, timed
from treadle import Agent, Policy, ScriptedModel, open_journal
from treadle.core.types import Message, Request, Role, ToolCall
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
