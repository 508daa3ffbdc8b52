"""Code that benchmarks share: the server process, pinning to a core, alternating rounds, and the report."""

import asyncio
import contextlib
import gc
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import uvloop
from msgspec import Struct

from treadle import Agent, Event, Policy, tool
from treadle.journal.driven import DrivenRun
from treadle.journal.protocol import DONE


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
def server(steps: int, chunks: int = 50, dialect: str = "openai_chat", *, core: int = 1) -> Iterator[str]:
    """Start a model server on another core, and yield its base URL."""
    with serving("benchmarks.server", str(steps), str(chunks), dialect, core=core) as base_url:
        yield base_url


@contextlib.contextmanager
def serving(module: str, *arguments: str, core: int = 1) -> Iterator[str]:
    """Start a server on another core, and yield its base URL. The module must print its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > core:
        os.sched_setaffinity(process.pid, {core})
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


async def in_slices(
    sides: Mapping[str, Callable[[], Awaitable[Timing]]], rounds: int = 16
) -> dict[str, list[Timing]]:
    """Measure all sides in short slices, by turns, after a warm-up.

    A machine that speeds up or slows down does so to all sides. Every second round has the opposite order.
    """
    for side in sides.values():
        await side()
    found: dict[str, list[Timing]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
            gc.collect()
            found[name].append(await sides[name]())
    return found


def compare(ours: list[Timing], baseline: list[Timing]) -> tuple[float, str]:
    """Return the ratio of the medians by wall clock, baseline over ours, and a text with the details."""
    ours_us, theirs_us = (median(item.wall_us for item in side) for side in (ours, baseline))
    ours_cpu, theirs_cpu = (median(item.cpu_us for item in side) for side in (ours, baseline))
    return theirs_us / ours_us, (
        f"{1e6 / ours_us:,.0f} steps/s against {1e6 / theirs_us:,.0f}; by processor time "
        f"{theirs_cpu / ours_cpu:.2f} ({ours_cpu:.1f} us a step against {theirs_cpu:.1f}); {len(ours)} slices"
    )


class NoJournal:
    """A journal that keeps nothing: what is left of a step's cost is not the journal's."""

    level = "none"

    def create(self, run_id: str) -> "NoWriter":
        """See `Journal.create`."""
        return NoWriter(run_id)

    def read_blob(self, digest: str) -> bytes:
        """See `Journal.read_blob`."""
        raise LookupError(digest)


class NoWriter:
    """A writer that keeps nothing."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.driven = DrivenRun(run_id, lambda run_id, after: [])

    def append(self, bodies: object, blobs: object = None) -> None:
        """See `RunWriter.append`."""

    def sync(self) -> Awaitable[None]:
        """See `RunWriter.sync`."""
        return DONE

    def take_in(self, number: int) -> None:
        """See `RunWriter.take_in`."""

    async def release(self) -> None:
        """See `RunWriter.release`."""


def make_agent(
    base_url: str,
    journal: object,
    name: str = "openai:bench",
    *,
    has_tools: bool = True,
    hooks: Sequence[Callable[[Event], object]] = (),
    **options: Any,
) -> Agent:
    """Return an agent that uses the benchmark's server. `options` are those of `treadle.model`."""
    from treadle import model

    return Agent(
        model(name, base_url=base_url, api_key="none", **options),
        tools=[add] if has_tools else [],
        policy=Policy(max_steps=None),
        journal=journal,  # type: ignore[arg-type]
        hooks=hooks,
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
