"""Steps a second of each dialect against those of `openai_chat`: whole and streamed answers, 64 runs in flight."""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from benchmarks.common import Figure, compare, in_turn, journal_path, make_agent, server, timed
from treadle import Agent, open_journal
from treadle.models.presets import DIALECTS

STEPS = 5
IN_FLIGHT = 64


async def measure() -> list[Figure]:
    """One pair of figures for each dialect."""
    return [
        await _measure(dialect, is_streamed=is_streamed)
        for dialect in DIALECTS
        if dialect != "openai_chat"
        for is_streamed in (False, True)
    ]


async def _measure(dialect: str, *, is_streamed: bool) -> Figure:
    # An answer in text is read by a format on the way.
    options = {"format": "hermes", "template": "chatml"} if dialect == "completions" else {}
    with ExitStack() as stack:
        path = stack.enter_context(journal_path())
        journal = stack.enter_context(open_journal(path))
        agent = make_agent(
            stack.enter_context(server(STEPS, dialect=dialect)), journal, f"{dialect}:bench", **options
        )
        chat = make_agent(stack.enter_context(server(STEPS)), journal)
        runs = 300 if is_streamed else 2000
        pairs = [
            pair
            async for pair in in_turn(
                lambda: timed(_runner(agent, is_streamed=is_streamed), runs, IN_FLIGHT),
                lambda: timed(_runner(chat, is_streamed=is_streamed), runs, IN_FLIGHT),
                rounds=5,
            )
        ]
    ratio, detail = compare(pairs)
    how = "streamed" if is_streamed else "whole"
    return Figure(f"steps/s of {dialect}, {how}, over openai_chat's", ratio, ">= 0.8", detail)


def _runner(agent: Agent, *, is_streamed: bool) -> Callable[[], Awaitable[int]]:
    async def one() -> int:
        run = await agent.run("Add 1 and 2.", on_event=_ignore if is_streamed else None)
        assert (run.stop_reason, run.steps) == ("completed", STEPS), (run.error, run.steps)
        return run.steps

    return one


def _ignore(_: object) -> None: ...
