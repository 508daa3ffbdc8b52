"""A server of Ollama's own API."""

import json

import msgspec
from tests.models.strict import rules

from treadle.core.types import FinishReason, Message, Role, ToolCall, Usage
from treadle.models import OllamaModel

MODEL = OllamaModel
CONTENT_TYPE = "application/x-ndjson"
USAGE = Usage(12, 7)


def answer(message, finish=None, usage=USAGE):
    said = {"role": "assistant", "content": message.content}
    if message.reasoning:
        said["thinking"] = message.reasoning
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "id": call.call_id,
                "function": {
                    "index": index,
                    "name": call.name,
                    "arguments": msgspec.Raw((call.arguments or "{}").encode()),
                },
            }
            for index, call in enumerate(message.tool_calls)
        ]
    body = {
        "model": "m-1",
        "created_at": "2026-01-01T00:00:00Z",
        "message": said,
        "done": True,
        "done_reason": "length" if finish is FinishReason.LENGTH else "stop",
        "total_duration": 5_000_000,
    }
    if usage is not None:
        body |= {"prompt_eval_count": usage.input_tokens, "eval_count": usage.output_tokens}
    return body


def pieces(text, size=5):
    return [text[at : at + size] for at in range(0, len(text), size)]


def events(raw):
    head = {"model": raw["model"], "created_at": raw["created_at"], "done": False}
    said = raw["message"]
    parts = [{"content": "", "thinking": piece} for piece in pieces(said.get("thinking", ""))]
    parts += [{"content": piece} for piece in pieces(said["content"])]
    parts += [{"content": "", "tool_calls": [call]} for call in said.get("tool_calls", ())]
    chunks = [{**head, "message": {"role": "assistant", **part}} for part in parts]
    chunks.append({**raw, "message": {"role": "assistant", "content": ""}})
    return [msgspec.json.encode(chunk) + b"\n" for chunk in chunks]


def error(status, text):
    return {"error": text}


def messages(body):
    return [
        Message(
            Role(raw["role"]),
            raw["content"],
            tuple(
                ToolCall(
                    call.get("id", ""), call["function"]["name"], json.dumps(call["function"]["arguments"])
                )
                for call in raw.get("tool_calls", ())
            ),
            raw.get("tool_call_id"),
        )
        for raw in body["messages"]
    ]


def tools(body):
    return [
        (item["function"]["name"], item["function"]["description"], item["function"]["parameters"])
        for item in body.get("tools", ())
    ]


async def ask_vendor(base_url, question, *, is_streamed):
    """Return what the vendor's own client reads from the response: text, calls, reasoning, tokens in and out."""
    from ollama import AsyncClient

    client = AsyncClient(host=base_url)
    asked = {"model": "m", "messages": [{"role": "user", "content": question}]}
    if is_streamed:
        chunks = [chunk async for chunk in await client.chat(**asked, stream=True)]
    else:
        chunks = [await client.chat(**asked)]
    calls = [call.function for chunk in chunks for call in chunk.message.tool_calls or ()]
    return (
        "".join(chunk.message.content or "" for chunk in chunks),
        [(call.name, call.arguments) for call in calls],
        "".join(chunk.message.thinking or "" for chunk in chunks),
        chunks[-1].prompt_eval_count,
        chunks[-1].eval_count,
    )


def check(body):
    """Check a request as the vendor's server does."""
    rules.check_ollama(body)


def unfinished(raw):
    """Return answers that are not whole, although they are JSON, by what is wrong with them."""
    message = raw["message"]
    return {
        "not done": {**raw, "done": False},
        "nothing, not done": {**raw, "done": False, "message": {**message, "content": ""}},
        "the model was loaded": {**raw, "done_reason": "load", "message": {**message, "content": ""}},
        "the model was unloaded": {**raw, "done_reason": "unload", "message": {**message, "content": ""}},
        "a call is null": {**raw, "message": {**message, "tool_calls": [None]}},
        "a call has no name": {
            **raw,
            "message": {**message, "tool_calls": [{"function": {"index": 1}}]},
        },
        "content is a number": {**raw, "message": {**message, "content": 7}},
    }


def without_reason(raw):
    """Return `raw` as a server sends it that has not finished."""
    return {**raw, "done": False}


def at_once(raw):
    """Return the events of a server that sends all of `raw` at once, without the mark that ends a stream."""
    return [msgspec.json.encode(raw) + b"\n"]


def types():
    """Return the vendor's types of a whole answer and of an event."""
    from ollama._types import ChatResponse

    return ChatResponse, ChatResponse
