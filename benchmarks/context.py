"""A long session on a small context window: what is answered, remembered and paid, and how much is cached."""

import asyncio
import json
import urllib.request

from msgspec import Struct

from benchmarks.common import Figure, serving
from treadle import Agent, Policy, tool
from treadle.core import events as e
from treadle.core.types import Settings
from treadle.journal.memory import MemoryJournal
from treadle.models import OpenAIChatModel

WINDOW = 8_000
TURNS = 1_000
STEPS = 50
_SENTENCE = (
    "The river rises in the hills, runs past the old mill and the two farms, and reaches the sea by noon. "
)
_RESULT = (_SENTENCE * 21)[:2_048]


@tool(effect="pure")
async def look_up(topic: str) -> str:
    """Look a topic up in the handbook."""
    return _RESULT


class Outcome(Struct):
    """What came of a session."""

    answered: int
    """How many turns were answered."""
    remembered: int
    """How many of the last two questions, about facts told in the first and the third turn, were answered right."""
    compactions: int
    stats: dict[str, int]
    """The counters of the server."""
    is_replayed: bool
    """True if a replay makes the same decisions."""


async def live(turns: int, policy: Policy, base_url: str) -> Outcome:
    """Have a session of `turns` turns, and return what came of it."""
    settings = Settings(max_output_tokens=256)
    model = OpenAIChatModel("m", base_url=base_url, settings=settings, context_tokens=WINDOW)
    agent = Agent(
        model, instructions="You keep the handbook.", tools=[look_up], policy=policy, journal=MemoryJournal()
    )
    answered = 0
    async with agent.session() as session:
        for turn in range(1, turns - 1):
            text = f"Look up what the handbook says about rivers, please. This is question {turn}."
            if turn in (1, 3):
                text = f"The code of the {'vault is 7341' if turn == 1 else 'gate is 2296'}. {text}"
            answered += (await session.send(text)).stop_reason == "completed"
        vault = await session.send("What is the code of the vault?")
        gate = await session.send("What is the code of the gate?")
        answered += (vault.stop_reason == "completed") + (gate.stop_reason == "completed")
        events = await session.read_events()
    compactions = sum(isinstance(event.body, e.ContextCompacted) for event in events)
    replayed = await agent.replay(str(session.run_id))
    stats = await asyncio.to_thread(_stats, base_url)
    remembered = (vault.output == "7341") + (gate.output == "2296")
    return Outcome(answered, remembered, compactions, stats, replayed.is_exact)


def _stats(base_url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{base_url}/stats") as answer:
        found: dict[str, int] = json.load(answer)
    return found


async def measure() -> list[Figure]:
    """Measure a session of 1,000 turns with tool results of 2 kB on a window of 8,000 tokens."""
    with serving("benchmarks.context_server", str(WINDOW)) as base_url:
        found = await live(TURNS, Policy(), base_url)
    stats = found.stats
    total = stats["input_tokens"] + stats["summary_tokens"]
    detail = (
        f"{found.compactions} compactions, {stats['summaries']} summaries; the largest prompt has "
        f"{stats['largest']:,} tokens"
    )
    return [
        Figure("turns answered", found.answered / TURNS, ">= 1", detail),
        Figure("requests over the window", stats["refused"], "<= 0", detail),
        Figure("facts of the first turns answered right at the end", found.remembered / 2, ">= 1", detail),
        Figure("compactions in ten turns", found.compactions / TURNS * 10, "<= 1", detail),
        Figure("share of the tokens for summaries", stats["summary_tokens"] / total, "<= 0.15", detail),
        Figure("decisions that replay repeats", float(found.is_replayed), ">= 1", detail),
    ]


async def measure_cache() -> list[Figure]:
    """Measure the share of cached input tokens over 50 steps without a compaction."""
    with serving("benchmarks.context_server", "1000000") as base_url:
        model = OpenAIChatModel("m", base_url=base_url, context_tokens=1_000_000)
        agent = Agent(
            model, instructions="You keep the handbook. " * 20, tools=[look_up], journal=MemoryJournal()
        )
        async with agent.session() as session:
            for turn in range(STEPS // 2):
                await session.send(f"Look up what the handbook says about rivers, please. Question {turn}.")
        stats = await asyncio.to_thread(_stats, base_url)
    share = stats["cached_tokens"] / stats["input_tokens"]
    detail = f"{stats['cached_tokens']:,} of {stats['input_tokens']:,} tokens in {stats['answered']} steps"
    return [Figure("cached share of the input tokens", share, ">= 0.9", detail)]
