"""What a server costs that does nothing else: a bare application of Starlette behind the same uvicorn.

`python -m benchmarks.bare_server KIND JOURNAL|URL [PORT]` prints its port. `answer` sends a fixed answer, `agent`
what `Agent.run` returns, kept in a journal, and `proxy` what the engine at a URL answers, through pyreqwest.
"""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from treadle import Agent, open_journal
from treadle.server.listening import listen, serve_app

_TEXT = {"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}
_FIXED = json.dumps({"object": "response", "output": [{"content": [_TEXT]}], "pad": "x" * 750}).encode()


async def _answer(request: Request) -> Response:
    json.loads(await request.body())
    return Response(_FIXED, media_type="application/json")


def _make_agent_answer(path: str) -> Callable[[Request], Awaitable[Response]]:
    agent = Agent("mock:echo", journal=open_journal(path))

    async def answer(request: Request) -> Response:
        run = await agent.run(json.loads(await request.body())["input"])
        told = {"id": run.run_id, "output": [{"content": [{**_TEXT, "text": run.output}]}], "pad": "x" * 650}
        return Response(json.dumps(told), media_type="application/json")

    return answer


def _make_proxy(url: str) -> Callable[[Request], Awaitable[Response]]:
    from pyreqwest.client import ClientBuilder

    client = ClientBuilder().build()

    async def answer(request: Request) -> Response:
        body = await request.body()
        asked = client.post(f"{url}/chat/completions").header("content-type", "application/json")
        asked = asked.body_bytes(body)
        if not json.loads(body).get("stream"):
            got = await asked.build().send()
            return Response((await got.bytes()).to_bytes(), media_type="application/json")

        async def pieces() -> AsyncIterator[bytes]:
            async with asked.streamed_read_buffer_limit(0).build_streamed() as streamed:
                while (piece := await streamed.body_reader.read_chunk()) is not None:
                    yield piece.to_bytes()

        return StreamingResponse(pieces(), media_type="text/event-stream")

    return answer


async def _serve(kind: str, where: str, port: str = "0") -> None:
    made: Any = {"answer": lambda _: _answer, "agent": _make_agent_answer, "proxy": _make_proxy}[kind](where)
    paths = ("/v1/responses", "/v1/chat/completions")
    app = Starlette(routes=[Route(path, made, methods=["POST"]) for path in paths])
    listener, url = listen("127.0.0.1", int(port))

    async def stop() -> None: ...

    await serve_app(app, listener, lambda: print(url.rpartition(":")[2], flush=True), stop, 1.0)


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
