"""A proxy before an engine that keeps what the engine said, as it came over the wire.

It passes on bytes and reads them by its own few lines, so that what Treadle delivers is compared with what the
engine sent and not with what Treadle read.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from treadle.testbed.engines import SampledAnswer

GENERATING = ("/v1/chat/completions", "/v1/completions", "/inference/v1/generate", "/generate")


class Recorder:
    """A running proxy. `sampled` grows by one answer for each request whose answer came from the engine."""

    def __init__(self, engine_url: str) -> None:
        parts = urlsplit(engine_url)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self.sampled: list[SampledAnswer] = []
        """The answers that the engine sent, also those whose client had gone before the end."""
        self.requests: list[tuple[str, dict[str, Any]]] = []
        """The paths and bodies of all POST requests."""
        self.under_way = 0
        """How many requests for ids are being answered."""
        self.url = ""
        self._tasks: set[asyncio.Task[object] | None] = set()

    @property
    def whole(self) -> int:
        """How many answers were sampled to their end."""
        return sum(answer.finish != "abort" for answer in self.sampled)

    async def settle(self) -> None:
        """Wait until every request for ids has been answered or given up, so that `sampled` is complete."""
        while self.under_way:
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        """Close the connections that are open."""
        tasks = [task for task in self._tasks if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the request of one connection."""
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            await self._pass(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, _, rest = head.decode("latin-1").partition("\r\n")
        lines = [line for line in rest.split("\r\n") if line and not line.lower().startswith("connection:")]
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        path = first.split(" ")[1].partition("?")[0]
        asked = json.loads(body) if body and first.startswith("POST") else {}
        if first.startswith("POST"):
            self.requests.append((path, asked))
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        up_writer.write("\r\n".join([first, *lines, "connection: close", "", ""]).encode("latin-1") + body)
        self.under_way += path in GENERATING
        came = bytearray()
        gone = asyncio.create_task(reader.read(1))
        try:
            while not gone.done():
                more = asyncio.create_task(up_reader.read(65536))
                await asyncio.wait({more, gone}, return_when=asyncio.FIRST_COMPLETED)
                piece = await more if more.done() else b""
                if not piece:
                    break
                came += piece
                with contextlib.suppress(ConnectionError):
                    writer.write(piece)
                    await writer.drain()
        finally:
            gone.cancel()
            up_writer.close()
            self.under_way -= path in GENERATING
            if path in GENERATING and (answer := read_answer(asked, bytes(came))) is not None:
                self.sampled.append(answer)


def read_answer(asked: dict[str, Any], response: bytes) -> SampledAnswer | None:
    """Return what an engine sampled for a request; `None` for an error or an answer without ids.

    A response that was cut off counts as aborted, with the ids that came.
    """
    head, _, body = response.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        return None
    if b"transfer-encoding: chunked" in head.lower():
        body = _join_chunks(body)
    events = _read_events(body) if asked.get("stream") else [_decode(body)]
    prompt = asked.get("input_ids", asked.get("token_ids", asked.get("prompt")))
    ids: list[int] = []
    logprobs: list[float] = []
    finish = "abort"
    for event in events:
        prompt = event.get("prompt_token_ids") or prompt
        for choice in event.get("choices") or ():
            prompt = choice.get("prompt_token_ids") or prompt
            pairs = (choice.get("meta_info") or {}).get("output_token_logprobs") or ()
            ids += choice.get("token_ids") or [item[1] for item in pairs]
            told = choice.get("logprobs") or {}
            logprobs += told.get("token_logprobs") or [item["logprob"] for item in told.get("content") or ()]
            finish = choice.get("finish_reason") or finish
        if meta := event.get("meta_info"):
            # Each event of SGLang has all ids so far.
            ids = event.get("output_ids") or ids
            logprobs = [item[0] for item in meta.get("output_token_logprobs") or ()] or logprobs
            finish = (meta.get("finish_reason") or {}).get("type", finish)
    if not isinstance(prompt, list) or not ids:
        return None
    name = next((event["id"] for event in events if event.get("id")), "")
    reason = finish if finish in ("length", "abort") else "stop"
    return SampledAnswer(
        request_id=name,
        model=asked.get("model", ""),
        prompt_ids=tuple(prompt),
        token_ids=tuple(ids),
        logprobs=tuple(logprobs),
        versions=((len(ids), ""),),
        finish=reason,
    )


def _join_chunks(body: bytes) -> bytes:
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        count = int(size, 16) if size.strip() else 0
        parts.append(body[:count])
        body = body[count + 2 :]
    return b"".join(parts)


def _read_events(body: bytes) -> list[dict[str, Any]]:
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ") and b"[DONE]" not in line]
    return [event for line in lines if (event := _decode(line))]


def _decode(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}  # the end of an answer that was cut off
    return value if isinstance(value, dict) else {}


@asynccontextmanager
async def record(engine_url: str) -> AsyncIterator[Recorder]:
    """Run a proxy before the engine at `engine_url` on a free port."""
    recorder = Recorder(engine_url)
    listener = await asyncio.start_server(recorder.handle, "127.0.0.1", 0)
    found: socket.socket = listener.sockets[0]
    recorder.url = f"http://127.0.0.1:{found.getsockname()[1]}/v1"
    try:
        yield recorder
    finally:
        listener.close()
        await recorder.close()
