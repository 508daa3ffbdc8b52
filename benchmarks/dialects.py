"""Steps per second of each dialect relative to `openai_chat`: complete and streamed answers, 64 runs in flight."""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from benchmarks.common import Figure, compare, in_slices, journal_path, make_agent, server, timed
from treadle import Agent, open_journal
from treadle.models.config.presets import DIALECTS

STEPS = 5
IN_FLIGHT = 64


async def measure() -> list[Figure]:
    """Return two figures for each dialect. `completions` is measured alone, and with calls that a format
    reads from text."""
    figures = [
        await _measure(dialect, dialect, is_streamed=is_streamed)
        for dialect in DIALECTS.names()
        if dialect not in ("openai_chat", "completions")
        for is_streamed in (False, True)
    ]
    for is_streamed in (False, True):
        # This dialect has no tools, so each run has one step.
        figures.append(
            await _measure("completions", "completions", is_streamed=is_streamed, steps=1, has_tools=False)
        )
        name, options = "completions with hermes", {"format": "hermes", "template": "chatml"}
        figures.append(await _measure("completions", name, is_streamed=is_streamed, options=options))
    return figures


async def _measure(
    dialect: str,
    name: str,
    *,
    is_streamed: bool,
    steps: int = STEPS,
    has_tools: bool = True,
    options: dict[str, str] | None = None,
) -> Figure:
    with ExitStack() as stack:
        path = stack.enter_context(journal_path())
        journal = stack.enter_context(open_journal(path))
        base_url = stack.enter_context(server(steps, dialect=dialect))
        agent = make_agent(base_url, journal, f"{dialect}:bench", has_tools=has_tools, **(options or {}))
        chat = make_agent(stack.enter_context(server(steps)), journal, has_tools=has_tools)
        runs = (128 if is_streamed else 600) * STEPS // steps
        found = await in_slices(
            {
                "dialect": lambda: timed(_runner(agent, steps, is_streamed=is_streamed), runs, IN_FLIGHT),
                "chat": lambda: timed(_runner(chat, steps, is_streamed=is_streamed), runs, IN_FLIGHT),
            }
        )
    ratio, detail = compare(found["dialect"], found["chat"])
    how = "streamed" if is_streamed else "whole"
    return Figure(f"steps/s of {name}, {how}, over openai_chat's", ratio, ">= 0.8", detail)


def _runner(agent: Agent, steps: int, *, is_streamed: bool) -> Callable[[], Awaitable[int]]:
    async def one() -> int:
        run = await agent.run("Add 1 and 2.", on_event=_ignore if is_streamed else None)
        assert (run.stop_reason, run.steps) == ("completed", steps), (run.error, run.steps)
        return run.steps

    return one


def _ignore(_: object) -> None: ...
