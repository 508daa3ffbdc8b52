"""Code that benchmarks share: the server process, pinning to a core, alternating rounds, and the report."""

import asyncio
import contextlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import uvloop
from msgspec import Struct

from treadle import Agent, Policy, tool


class Figure(Struct):
    """One line of the report."""

    name: str
    value: float
    wanted: str
    """The condition on the value, such as `>= 0.5`."""
    detail: str

    @property
    def is_met(self) -> bool:
        """Whether the value meets the condition."""
        sign, limit = self.wanted.split()
        return self.value >= float(limit) if sign == ">=" else self.value <= float(limit)

    def __str__(self) -> str:
        mark = "met    " if self.is_met else "NOT MET"
        return f"{mark} {self.name}: {self.value:.3g} (wanted {self.wanted}); {self.detail}"


class Timing(NamedTuple):
    """The cost of a number of steps."""

    wall_us: float
    """The wall-clock time of a step in microseconds."""
    cpu_us: float
    """The processor time of a step in microseconds, over all threads of this process."""


def pin(core: int = 0) -> None:
    """Pin this process to one core, if the system allows it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def server(steps: int, chunks: int = 50, dialect: str = "openai_chat") -> Iterator[str]:
    """Start a model server on another core, and yield its base URL."""
    with serving("benchmarks.server", str(steps), str(chunks), dialect) as base_url:
        yield base_url


@contextlib.contextmanager
def serving(module: str, *arguments: str) -> Iterator[str]:
    """Start a server on another core, and yield its base URL. The module must print its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(process.pid, {1})
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def journal_path() -> Iterator[Path]:
    """Yield the path of a temporary journal, on a disk rather than in memory."""
    with tempfile.TemporaryDirectory(prefix="treadle-bench-", dir=".") as folder:
        yield Path(folder) / "runs.db"


@tool(effect="pure")
async def add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)


async def timed(one: Callable[[], Awaitable[int]], runs: int, in_flight: int) -> Timing:
    """Call `one` `runs` times, `in_flight` at a time, and add up the numbers of steps that it returns."""
    left, steps = runs, 0

    async def worker() -> None:
        nonlocal left, steps
        while left > 0:
            left -= 1
            done = await one()
            steps += done

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*[worker() for _ in range(in_flight)])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Timing(wall / steps * 1e6, cpu / steps * 1e6)


async def in_turn(
    ours: Callable[[], Awaitable[Timing]], baseline: Callable[[], Awaitable[Timing]], rounds: int
) -> AsyncIterator[tuple[Timing, Timing]]:
    """Measure both in alternating rounds after a warm-up, so that changes in the machine's speed affect both."""
    await ours()
    await baseline()
    for _ in range(rounds):
        yield await ours(), await baseline()


def compare(pairs: list[tuple[Timing, Timing]]) -> tuple[float, str]:
    """Return the median ratio of the baseline's wall-clock time to ours, and a text with the measured values."""
    ratio = median(theirs.wall_us / ours.wall_us for ours, theirs in pairs)
    ours_us, theirs_us = (median(pair[i].wall_us for pair in pairs) for i in (0, 1))
    cpu = median(theirs.cpu_us / ours.cpu_us for ours, theirs in pairs)
    return ratio, (
        f"{1e6 / ours_us:,.0f} steps/s against {1e6 / theirs_us:,.0f}; "
        f"{ours_us:.1f} us a step against {theirs_us:.1f}; by processor time {cpu:.2f}; {len(pairs)} rounds"
    )


def make_agent(
    base_url: str, journal: object, name: str = "openai:bench", *, has_tools: bool = True, **options: Any
) -> Agent:
    """Return an agent that uses the benchmark's server. `options` are those of `treadle.model`."""
    from treadle import model

    return Agent(
        model(name, base_url=base_url, api_key="none", **options),
        tools=[add] if has_tools else [],
        policy=Policy(max_steps=None),
        journal=journal,  # type: ignore[arg-type]
    )


def run(main: Callable[[], Awaitable[list[Figure]]]) -> list[Figure]:
    """Run a benchmark on uvloop."""
    return uvloop.run(main())  # type: ignore[arg-type]


def versions() -> str:
    """Print the figures, and the machine on which they were measured."""
    names = ("treadle", "pyreqwest", "msgspec", "uvloop", "pydantic", "jsonschema-rs")
    parts = [f"{name} {version(name)}" for name in names]
    import sqlite3

    return ", ".join(
        [
            *parts,
            f"SQLite {sqlite3.sqlite_version}",
            f"Python {platform.python_version()}",
            platform.machine(),
        ]
    )
