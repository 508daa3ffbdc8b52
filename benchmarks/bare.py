"""The baseline: a tool loop written by hand over the same HTTP client, without journal, checks or limits."""

import msgspec
from pyreqwest.client import Client

_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": _SCHEMA}}]
HEADERS = {"content-type": "application/json", "authorization": "Bearer none"}


async def run(client: Client, url: str) -> int:
    """Make one run, and return the number of its steps."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "Add 1 and 2."}]
    steps = 0
    while True:
        body = msgspec.json.encode({"model": "bench", "messages": messages, "tools": TOOLS})
        response = await client.post(url).headers(HEADERS).body_bytes(body).build().send()
        message = msgspec.json.decode(await response.bytes())["choices"][0]["message"]
        messages.append(message)
        steps += 1
        if not message.get("tool_calls"):
            return steps
        _run_calls(message["tool_calls"], messages)


async def run_streaming(client: Client, url: str) -> int:
    """Make one run with streamed answers, and return the number of its steps."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "Add 1 and 2."}]
    steps = 0
    while True:
        body = msgspec.json.encode({"model": "bench", "messages": messages, "tools": TOOLS, "stream": True})
        request = client.post(url).headers(HEADERS).body_bytes(body)
        text: list[str] = []
        calls: list[dict[str, object]] = []
        rest = b""
        async with request.streamed_read_buffer_limit(0).build_streamed() as response:
            while (chunk := await response.body_reader.read_chunk()) is not None:
                *events, rest = (rest + chunk.to_bytes()).split(b"\n\n")
                for event in events:
                    if event == b"data: [DONE]":
                        continue
                    choices = msgspec.json.decode(event[6:])["choices"]
                    delta = choices[0]["delta"] if choices else {}
                    if "content" in delta:
                        text.append(delta["content"])
                    calls += delta.get("tool_calls", ())
        steps += 1
        messages.append({"role": "assistant", "content": "".join(text), "tool_calls": calls})
        if not calls:
            return steps
        _run_calls(calls, messages)


def _run_calls(calls: list[dict[str, object]], messages: list[dict[str, object]]) -> None:
    for call in calls:
        arguments = msgspec.json.decode(call["function"]["arguments"])  # type: ignore[index]
        content = str(arguments["a"] + arguments["b"])
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
