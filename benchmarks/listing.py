"""The processor time of commands on a journal of 100,000 runs, with the start of their process."""

import asyncio
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.common import Figure, journal_path
from treadle import Policy, open_journal
from treadle.core import events as e
from treadle.core.types import Message, Role, StopReason

RUNS = 100_000
_ENDS = {97: StopReason.ERROR, 98: None}
"""How a run ends, by its number modulo 100: 1 % fail, 1 % are never finished, and the others are completed."""


async def measure() -> list[Figure]:
    """Measure each command in a process of its own, as in a shell."""
    figures = []
    with journal_path() as path:
        await _fill(path)
        commands = {
            "runs": ("runs",),
            "runs --status failed": ("runs", "--status", "failed"),
            "runs --status unfinished": ("runs", "--status", "unfinished"),
            "runs --status max_steps": ("runs", "--status", "max_steps"),
            "show SHORTID": ("show", "run-099998-"),
            "export SHORTID": ("export", "run-000096-", "--format", "journal"),
        }
        for name, arguments in commands.items():
            found = [_timed([sys.executable, "-m", "treadle", *arguments, "-j", str(path)]) for _ in range(5)]
            cpu, wall = (median(times) for times in zip(*found, strict=True))
            figures.append(
                Figure(f"treadle {name}, {RUNS:,} runs, s", cpu, "<= 0.5", f"{wall:.2f} s of wall time")
            )
    return figures


def _timed(command: list[str]) -> tuple[float, float]:
    """Run a command, and return the seconds of processor and of wall time that it took."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.perf_counter() - start


async def _fill(path: Path) -> None:
    with open_journal(path) as journal:

        async def write(number: int) -> None:
            writer = journal.create(f"run-{number:06}-x")
            message = Message(Role.USER, f"task {number}")
            writer.append([e.RunStarted(at=1.0, version=e.VERSION, policy=Policy())])
            writer.append([e.TurnStarted(at=2.0, turn=1, message=message)])
            reason = _ENDS.get(number % 100, StopReason.COMPLETED)
            if reason is not None:
                writer.append([e.RunFinished(at=3.0, stop_reason=reason)])
            await writer.release()
            await writer.sync()

        for start in range(0, RUNS, 1000):
            await asyncio.gather(*[write(number) for number in range(start, start + 1000)])
