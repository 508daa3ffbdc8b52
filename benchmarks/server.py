"""A chat-completions server that costs next to nothing, so that the client is what is measured.

It knows no HTTP but what the clients here send. A request whose messages hold fewer than `steps - 1` tool
results is answered with a tool call, any other with the final answer.
"""

import asyncio
import json
import sys
from typing import cast

_USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
_HEAD = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "bench"}
_ARGUMENTS = '{"a":1,"b":2}'


def _whole(message: dict[str, object], finish_reason: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    body = json.dumps({**_HEAD, "choices": [choice], "usage": _USAGE}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def _streamed(deltas: list[dict[str, object]], finish_reason: str) -> bytes:
    head = {**_HEAD, "object": "chat.completion.chunk"}
    chunks: list[dict[str, object]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]})
    chunks.append({**head, "choices": [], "usage": _USAGE})
    events = [b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks] + [b"data: [DONE]\n\n"]
    body = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    head_bytes = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head_bytes + body + b"0\r\n\r\n"


def _call(position: int) -> dict[str, object]:
    return {
        "id": f"call_{position}",
        "type": "function",
        "function": {"name": "add", "arguments": _ARGUMENTS},
    }


def _calls_of_chunks(position: int, chunks: int) -> list[dict[str, object]]:
    """A call after text, so that every answer has `chunks` chunks."""
    text: list[dict[str, object]] = [{"content": f"word{i} "} for i in range(chunks - 1)]
    return [{"role": "assistant", **text[0]}, *text[1:], {"tool_calls": [{"index": 0, **_call(position)}]}]


class _Answers:
    def __init__(self, steps: int, chunks: int) -> None:
        self._steps = steps
        self._calls = [
            _whole({"content": None, "tool_calls": [_call(i)]}, "tool_calls") for i in range(steps)
        ]
        self._final = _whole({"content": "3"}, "stop")
        self._stream_calls = [_streamed(_calls_of_chunks(i, chunks), "tool_calls") for i in range(steps)]
        self._stream_final = _streamed([{"content": f"word{i} "} for i in range(chunks)], "stop")

    def answer(self, body: bytes) -> bytes:
        done = body.count(b'"role":"tool"')
        is_stream = b'"stream":true' in body
        if done >= self._steps - 1:
            return self._stream_final if is_stream else self._final
        return self._stream_calls[done] if is_stream else self._calls[done]


class _Connection(asyncio.Protocol):
    def __init__(self, answers: _Answers) -> None:
        self._answers = answers
        self._parts: list[bytes] = []
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return
        request = b"".join(self._parts)
        end = request.find(b"\r\n\r\n")
        if end < 0:
            return
        head = request[:end].lower()
        start = head.index(b"content-length:") + 15
        length = int(head[start:].split(b"\r", 1)[0])
        self._missing = end + 4 + length - len(request)
        if self._missing <= 0:
            self._parts.clear()
            self._missing = 0
            self._transport.write(self._answers.answer(request[end + 4 :]))


async def _serve(port: int, steps: int, chunks: int) -> None:
    loop = asyncio.get_running_loop()
    answers = _Answers(steps, chunks)
    server = await loop.create_server(lambda: _Connection(answers), "127.0.0.1", port, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """`python -m benchmarks.server STEPS CHUNKS`: prints its port and serves until it is killed."""
    import uvloop

    uvloop.run(_serve(0, int(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    main()
