"""Steps per second with telemetry, relative to the same runs without it, at 64 runs in flight."""

from benchmarks.common import Figure, compare, in_slices, journal_path, make_agent, server, timed
from benchmarks.steps import STEPS, runner
from treadle import open_journal
from treadle.telemetry import JsonlTurnLog

IN_FLIGHT, RUNS = 64, 600


async def measure() -> list[Figure]:
    """Measure with a log of turns in a file, and with a hook that does nothing."""
    with server(STEPS) as base_url, journal_path() as path, open_journal(path) as journal:
        log = JsonlTurnLog(path.with_name("turns.jsonl"))
        sides = {"off": (), "log": (log,), "hook": (lambda event: None,)}
        agents = {name: make_agent(base_url, journal, hooks=hooks) for name, hooks in sides.items()}
        found = await in_slices(
            {
                name: lambda agent=agent: timed(runner(agent), RUNS, IN_FLIGHT)
                for name, agent in agents.items()
            },
            rounds=24,
        )
        log.close()
    ratio, detail = compare(found["log"], found["off"])
    hook_ratio, hook_detail = compare(found["hook"], found["off"])
    return [
        Figure("steps/s with a log of turns over those without", ratio, ">= 0.9", detail),
        Figure("steps/s with an empty hook over those without", hook_ratio, ">= 0", hook_detail),
    ]
