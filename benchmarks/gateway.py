"""What a recording gateway adds to the answers of a chat server: Treadle's, and LiteLLM's proxy beside it.

The floor is a bare proxy of Starlette and pyreqwest, which records nothing.

The engine, each gateway and this client are processes of their own. The paces differ in the engine's latency: at
half a second, 64 requests in flight are 128 a second, as a server of models has them; without latency, as many
requests are sent as the slowest part can answer, so that the time is that of waiting in line. An engine that takes
exactly as long for each request lets those that once came together come together for ever, so the latency also
varies by a fifth; the user's message names it to the engine, and it is taken off what is measured.
"""

import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from msgspec import Struct, field

from benchmarks.common import Figure, serving

_ROUNDS = int(os.environ.get("TREADLE_ROUNDS", "6"))
_LITELLM = os.environ.get("TREADLE_LITELLM")
"""The command `litellm` of an environment that has `litellm[proxy]`; without it, only Treadle is measured."""
_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


class Pace(Struct, frozen=True):
    """How fast requests are answered and sent."""

    latency_seconds: float
    in_flight: int
    is_varied: bool = False
    """Whether the latency varies from conversation to conversation."""

    def __str__(self) -> str:
        seconds = self.latency_seconds
        varied = f"{seconds * 0.8:g} to {seconds * 1.2:g}" if self.is_varied else f"{seconds:g}"
        return f"{varied} s of latency, {self.in_flight} in flight"


_PACES = (Pace(0.5, 64, True), Pace(0.5, 64), Pace(0.02, 1), Pace(0.0, 64))


class Side(Struct):
    """A server that is asked, and what was measured of it."""

    port: int
    path: str
    pid: int | None = None
    seconds: list[float] = field(default_factory=list)
    """The median of each slice: how much longer than the engine a whole answer took, or the first text of a
    stream."""
    slow: list[float] = field(default_factory=list)
    """What a tenth of the requests of each slice took, or more."""
    cpu_seconds: float = 0.0
    requests: int = 0
    wall_seconds: float = 0.0


async def _ask(connection: "_Connection", path: str, messages: list[Any], *, is_stream: bool) -> float:
    tools = {} if is_stream else {"tools": [_TOOL]}
    body = json.dumps({"model": "bench", "messages": messages, "stream": is_stream, **tools}).encode()
    head = f"POST {path}/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-bench\r\n"
    begin = time.perf_counter()
    text, first = await connection.ask(
        b"%bcontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (head.encode(), len(body), body),
        b"word0" if is_stream else None,
    )
    if is_stream:
        return first - begin
    seconds = time.perf_counter() - begin
    message = json.loads(text)["choices"][0]["message"]
    messages.append({name: message[name] for name in ("role", "content", "tool_calls") if message.get(name)})
    for call in message.get("tool_calls") or ():
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "3"})
    return seconds


class _Connection:
    """A connection that is kept. It reads answers with a length and in chunks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, request: bytes, mark: bytes | None) -> tuple[bytes, float]:
        """Return the body of the answer, and when its piece with `mark` came."""
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert head.split(b" ", 2)[1] == b"200", (head, await self._reader.read(1000))
        if (start := head.find(b"content-length:")) >= 0:
            length = int(head[start + 15 :].split(b"\r", 1)[0])
            return await self._reader.readexactly(length), 0.0
        pieces, first = [], 0.0
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            piece = await self._reader.readexactly(size + 2)
            if mark is not None and not first and mark in piece:
                first = time.perf_counter()
            pieces.append(piece[:-2])
        await self._reader.readexactly(2)
        return b"".join(pieces), first

    def close(self) -> None:
        self._writer.close()


async def _slice(side: Side, pace: Pace, *, is_stream: bool) -> None:
    """Ask a server, and keep the median of the times. The first requests are spread over the engine's latency."""
    found: list[float] = []
    in_flight, latency_seconds = pace.in_flight, pace.latency_seconds
    left = max(4, in_flight) if latency_seconds else max(30, 4 * in_flight)

    async def work(number: int) -> None:
        nonlocal left
        await asyncio.sleep(latency_seconds * number / in_flight)
        connection = _Connection(*await asyncio.open_connection("127.0.0.1", side.port))
        while left > 0:
            left -= 1
            named = latency_seconds * random.uniform(0.8, 1.2) if pace.is_varied else latency_seconds
            text = f"Add one and two, number {os.urandom(8).hex()}, which takes {named:.6f} s."
            told: list[Any] = [
                {"role": "system", "content": "You add numbers."},
                {"role": "user", "content": text},
            ]
            for _ in range(1 if is_stream else 3):
                seconds = await _ask(connection, side.path, told, is_stream=is_stream)
                found.append(seconds - (named / 2 if is_stream else named))
        connection.close()

    cpu, wall = _cpu_seconds(side.pid), time.perf_counter()
    await asyncio.gather(*[work(number) for number in range(in_flight)])
    side.wall_seconds += time.perf_counter() - wall
    side.cpu_seconds += _cpu_seconds(side.pid) - cpu
    side.requests += len(found)
    side.seconds.append(median(found))
    side.slow.append(quantiles(found, n=10)[-1])


def _cpu_seconds(pid: int | None) -> float:
    """Return the processor time of a process so far."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def _running(command: list[str], path: str) -> Iterator[Side]:
    """Start a gateway whose port is the last word of its command."""
    port = _free_port()
    # LiteLLM demands a key of its own, unless it is told that nobody else can reach it.
    unset = "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"
    environment = {**os.environ, "LITELLM_LOG": "ERROR", unset: "true"}
    process = subprocess.Popen([*command, str(port)], stdout=subprocess.DEVNULL, env=environment)
    try:
        for _ in range(1200):
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield Side(port, path, process.pid)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _sides(latency_seconds: float) -> Iterator[dict[str, Side]]:
    """Start the engine and the gateways in front of it."""
    with contextlib.ExitStack() as stack:
        base_url = stack.enter_context(serving("benchmarks.gateway_engine"))
        engine = int(base_url.rpartition(":")[2].removesuffix("/v1"))
        path = f"/{latency_seconds}/v1"
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="treadle-bench-", dir=".")))
        config = folder / "treadle.toml"
        url = f"http://127.0.0.1:{engine}{path}"
        config.write_text(f'[models.bench]\nmodel = "openai:bench"\nbase_url = "{url}"\napi_key_env = ""\n')
        command = [sys.executable, "-m", "treadle", "serve", "--config", str(config)]
        command += ["--journal", str(folder / "runs.db"), "--port"]
        sides = {"direct": Side(engine, path), "treadle": stack.enter_context(_running(command, "/v1"))}
        bare = [sys.executable, "-m", "benchmarks.bare_server", "proxy", url]
        sides["a bare proxy"] = stack.enter_context(_running(bare, "/v1"))
        if _LITELLM is not None:
            other = folder / "litellm.yaml"
            other.write_text(
                "model_list:\n  - model_name: bench\n    litellm_params:\n      model: openai/bench\n"
                f"      api_base: {url}\n      api_key: sk-none\n"
            )
            sides["litellm"] = stack.enter_context(
                _running([_LITELLM, "--config", str(other), "--host", "127.0.0.1", "--port"], "/v1")
            )
        yield sides


async def _measure(pace: Pace, *, is_stream: bool) -> list[Figure]:
    what = "first text of a stream" if is_stream else "whole answer"
    with _sides(pace.latency_seconds) as sides:
        for side in sides.values():
            await _slice(side, pace, is_stream=is_stream)
            side.seconds, side.slow, side.cpu_seconds, side.requests, side.wall_seconds = [], [], 0.0, 0, 0.0
        for number in range(_ROUNDS):
            for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
                await _slice(sides[name], pace, is_stream=is_stream)
    direct = sides["direct"]
    figures = []
    for name, side in sides.items():
        if name == "direct":
            continue
        added = [seconds - base for seconds, base in zip(side.seconds, direct.seconds, strict=True)]
        slow = [seconds - base for seconds, base in zip(side.slow, direct.slow, strict=True)]
        detail = (
            f"{median(side.seconds) * 1e3:.2f} ms more than the engine against {median(direct.seconds) * 1e3:.2f}; "
            f"the slowest tenth {median(slow) * 1e3:.2f} ms; {side.requests / side.wall_seconds:,.0f} requests/s; "
            f"{side.cpu_seconds / side.requests * 1e3:.2f} ms of processor time a request; "
            f"{len(added)} slices from {min(added) * 1e3:.2f} to {max(added) * 1e3:.2f} ms"
        )
        goal = "<= 1" if name == "treadle" and pace.latency_seconds else ">= 0"
        title = f"ms that {name} adds, {what}, {pace}"
        figures.append(Figure(title, median(added) * 1e3, goal, detail))
    return [*figures, _compare(sides["treadle"], sides["a bare proxy"], f"{what}, {pace}")]


def _compare(ours: Side, bare: Side, where: str) -> Figure:
    """Return how much more the gateway adds than a proxy that records nothing. Neither the engine nor the load of
    the machine is in it, because the slices of both are compared in turns."""
    more = [own - base for own, base in zip(ours.seconds, bare.seconds, strict=True)]
    cpu, floor = [side.cpu_seconds / side.requests * 1e3 for side in (ours, bare)]
    detail = f"{cpu:.2f} ms of processor time a request against {floor:.2f}; {len(more)} slices"
    return Figure(f"ms more than a bare proxy, {where}", median(more) * 1e3, ">= 0", detail)


async def measure() -> list[Figure]:
    """Measure all paces, whole and streamed."""
    figures = []
    for pace in _PACES:
        for is_stream in (False, True):
            figures += await _measure(pace, is_stream=is_stream)
            print("\n".join(map(str, figures[-4:])), file=sys.stderr, flush=True)
    return figures
