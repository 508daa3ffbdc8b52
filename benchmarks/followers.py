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
def _serving(core: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the port and the process id of a server on a core."""
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
        if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > core:
            os.sched_setaffinity(server.pid, {core})
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


class _Follower(asyncio.Protocol):
    """A client that counts the events of a run until its first turn is over."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._rest = b""
        self.events = 0
        self.fault = ""
        """How an event was lost or came twice; empty if none was."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(
            b"GET /v1/runs/%b/events?stream=true HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % self._run_id.encode()
        )

    def data_received(self, data: bytes) -> None:
        whole, _, self._rest = (self._rest + data).rpartition(b"\n\n")
        for number in _ID.findall(whole):
            self.events += 1
            if int(number) != self.events and not self.fault:
                self.fault = f"event {int(number)} came in place of {self.events}"
        if b"\nevent: turn_completed" in whole:
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.fault = self.fault or f"the connection was closed after event {self.events} ({error})"
        self._end()

    def _end(self) -> None:
        self._transport.close()
        if not self.done.done():
            self.done.set_result(None)


async def _connect(loop: asyncio.AbstractEventLoop, follower: _Follower, port: int) -> None:
    await loop.create_connection(lambda: follower, "127.0.0.1", port)


_ID = re.compile(rb"(?:^|\n)id: (\d+)\n")


async def measure() -> list[Figure]:
    """Let thousands of clients follow runs while they happen."""
    with _serving(core=1) as (port, pid):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # The followers connect while the runs nap.
        asked = "\nthen\n".join(["call nap {}"] * max(20, _FOLLOWERS // 50)) + "\nthen\nsay done"
        runs = [
            json.loads(await _ask(reader, writer, "POST", "/v1/runs", {"agent": "napper", "input": asked}))[
                "id"
            ]
            for _ in range(_RUNS)
        ]
        begin, cpu, most = time.monotonic(), _cpu_of(pid), 0
        loop = asyncio.get_running_loop()
        followers = [_Follower(runs[number % _RUNS]) for number in range(_FOLLOWERS)]
        for at in range(0, _FOLLOWERS, 100):
            await asyncio.gather(*[_connect(loop, follower, port) for follower in followers[at : at + 100]])
        connected = time.monotonic() - begin
        waiting = {follower.done for follower in followers}
        while waiting:
            _, waiting = await asyncio.wait(waiting, timeout=0.5)
            most = max(most, _memory_of(pid))
        faults = [follower.fault for follower in followers if follower.fault]
        told = sum(follower.events for follower in followers)
        detail = (
            f"{_FOLLOWERS:,} followers of {_RUNS} runs, {told:,} events, {time.monotonic() - begin:.0f} s, of "
            f"which {connected:.0f} s to connect; {(_cpu_of(pid) - cpu) / told * 1e6:.0f} µs of the "
            f"server's processor time an event and follower, connecting included{'; '.join(['', *faults[:3]])}"
        )
        writer.close()
    return [
        Figure("followers with an event lost or doubled", len(faults), "<= 0", detail),
        Figure("MB of a server with these followers", most / 1024, "<= 500", detail),
    ]


async def measure_responses() -> list[Figure]:
    """Compare runs through `/v1/responses` with runs in process, by the processor time of the server's process."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        journal = stack.enter_context(open_journal(folder / "runs.db"))
        sides = {
            "/v1/responses": stack.enter_context(_serving()),
            "a bare application": stack.enter_context(_serving_bare("answer", folder / "none")),
            "a bare application that calls Agent.run": stack.enter_context(
                _serving_bare("agent", folder / "other.db")
            ),
        }
        agent = Agent("mock:echo", journal=journal)
        costs: dict[str, list[float]] = {name: [] for name in ("Agent.run", *sides)}
        for number in range(_ROUNDS + 1):
            costs["Agent.run"].append(await _cpu_here(agent) / _COUNT * 1e6)
            for name in list(sides) if number % 2 else reversed(list(sides)):
                costs[name].append(await _cpu_there(*sides[name]) / _COUNT * 1e6)
    # The first round warms up.
    here = costs.pop("Agent.run")[1:]
    found = {
        name: median([own / cost for own, cost in zip(here, costs[name][1:], strict=True)]) for name in costs
    }
    told = ", ".join([f"{name} {median(values[1:]):.0f}" for name, values in costs.items()])
    detail = (
        f"16 in flight, one step a run, {_ROUNDS} rounds; the client is another process on the same core; µs of "
        f"processor time of the server's process for a run: {told}; Agent.run in process {median(here):.0f}"
    )
    figures = [
        Figure("runs/s through /v1/responses over Agent.run", found.pop("/v1/responses"), ">= 0.5", detail)
    ]
    # Whoever makes a run for each request pays for the run and for the request.
    found["a bare application and Agent.run"] = 1 / (1 + 1 / found.pop("a bare application"))
    return [*figures, *[Figure(f"the floor: {name}", value, ">= 0", detail) for name, value in found.items()]]


@contextlib.contextmanager
def _serving_bare(kind: str, path: Path) -> Iterator[tuple[int, int]]:
    """Yield the port and the process id of a server of `benchmarks.bare_server` on the first core."""
    command = [sys.executable, "-m", "benchmarks.bare_server", kind, str(path)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(server.pid, {0})
    try:
        assert server.stdout is not None
        yield int(server.stdout.readline()), server.pid
    finally:
        server.kill()
        server.wait()


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
    """Return the processor time of a process in seconds, from the kernel's clock of that process, which is finer
    than the ticks in `/proc`."""
    return time.clock_gettime(~pid << 3 | 2)
