"""A server with many followers of running runs, and what its API of responses costs beside runs in process."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import Figure
from treadle import Agent, open_journal

_FOLLOWERS = int(os.environ.get("TREADLE_FOLLOWERS", "5000"))
_RUNS = 50
_ROUNDS = int(os.environ.get("TREADLE_ROUNDS", "8"))
_TOOLS = """
import asyncio
from treadle import tool

@tool(effect="idempotent")
async def nap() -> str:
    await asyncio.sleep(0.5)
    return "rested"
"""
_CONFIG = """
[models.echo]
model = "mock:echo"

[agents.napper]
model = "echo"
tools = ["tools.py"]
"""


@contextlib.contextmanager
def _serving() -> Iterator[tuple[int, int]]:
    """Yield the port and the process id of a server."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "treadle.toml").write_text(_CONFIG)
        (Path(folder) / "tools.py").write_text(_TOOLS)
        command = [
            sys.executable,
            "-m",
            "treadle",
            "serve",
            "--config",
            "treadle.toml",
            "--journal",
            "runs.db",
        ]
        server = subprocess.Popen(
            [*command, "--port", "0", "--json"], cwd=folder, stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            yield int(url.rpartition(":")[2]), server.pid
        finally:
            server.terminate()
            server.wait(60)


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: Any = None
) -> bytes:
    """Send a request, and return the head of the answer; of a POST, its body."""
    raw = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
    told = await reader.readuntil(b"\r\n\r\n")
    assert b" 20" in told.split(b"\r\n")[0], told
    found = re.search(rb"content-length: (\d+)", told.lower())
    return told if found is None else await reader.readexactly(int(found[1]))


async def _follow(port: int, run_id: str) -> list[int]:
    """Return the numbers of the events of a run's first turn, as one follower gets them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    numbers: list[int] = []
    try:
        await _ask(reader, writer, "GET", f"/v1/runs/{run_id}/events?stream=true")
        async for line in reader:
            if line.startswith(b"id: "):
                numbers.append(int(line[4:]))
            elif line.startswith(b"event: turn_completed"):
                return numbers
    finally:
        writer.close()
    return numbers


async def measure() -> list[Figure]:
    """Let thousands of clients follow runs while they happen."""
    with _serving() as (port, pid):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # The followers connect while the runs nap.
        asked = "\nthen\n".join(["call nap {}"] * max(20, _FOLLOWERS // 40)) + "\nthen\nsay done"
        runs = [
            json.loads(await _ask(reader, writer, "POST", "/v1/runs", {"agent": "napper", "input": asked}))[
                "id"
            ]
            for _ in range(_RUNS)
        ]
        begin = time.monotonic()
        following = [
            asyncio.ensure_future(_follow(port, runs[number % _RUNS])) for number in range(_FOLLOWERS)
        ]
        most = 0
        while not all(task.done() for task in following):
            await asyncio.wait(following, timeout=0.5)
            most = max(most, _memory_of(pid))
        seen = [task.result() for task in following]
        wrong = sum(numbers != list(range(1, len(numbers) + 1)) or not numbers for numbers in seen)
        told = sum(map(len, seen))
        detail = (
            f"{_FOLLOWERS:,} followers of {_RUNS} runs, {told:,} events, {time.monotonic() - begin:.0f} s"
        )
        writer.close()
    return [
        Figure("followers with an event lost or doubled", wrong, "<= 0", detail),
        Figure("MB of a server with these followers", most / 1024, "<= 500", detail),
    ]


async def measure_responses() -> list[Figure]:
    """Compare runs through `/v1/responses` with runs in process, by the processor time of the server's process."""
    ratios = []
    with (
        _serving() as (port, pid),
        tempfile.TemporaryDirectory() as folder,
        open_journal(Path(folder) / "runs.db") as journal,
    ):
        agent = Agent("mock:echo", journal=journal)
        for _ in range(_ROUNDS):
            here = await _cpu_here(agent)
            ratios.append(here / await _cpu_there(port, pid))
    detail = f"16 in flight, one step a run, {_ROUNDS} rounds; the client is another process"
    return [Figure("runs/s through /v1/responses over Agent.run", median(ratios), ">= 0.5", detail)]


_COUNT, _IN_FLIGHT = 320, 16


async def _cpu_here(agent: Agent[Any]) -> float:
    begin = time.process_time()

    async def work() -> None:
        for _ in range(_COUNT // _IN_FLIGHT):
            await agent.run("hello")

    await asyncio.gather(*[work() for _ in range(_IN_FLIGHT)])
    return time.process_time() - begin


async def _cpu_there(port: int, pid: int) -> float:
    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(_COUNT // _IN_FLIGHT):
            await _ask(reader, writer, "POST", "/v1/responses", {"model": "echo", "input": "hello"})
        writer.close()

    begin = _cpu_of(pid)
    await asyncio.gather(*[work() for _ in range(_IN_FLIGHT)])
    return _cpu_of(pid) - begin


def _memory_of(pid: int) -> int:
    """Return the resident set of a process in kB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return 0 if found is None else int(found[1])


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
