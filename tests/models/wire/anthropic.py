"""A server of the Messages API."""

import json

import msgspec
from tests.models.strict import rules

from treadle.core.types import FinishReason, Message, Role, ToolCall, Usage
from treadle.models import AnthropicModel

MODEL = AnthropicModel
CONTENT_TYPE = "text/event-stream"
USAGE = Usage(12, 7, 4, 2)
REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTENT_FILTER: "refusal",
}


def answer(message, finish=None, usage=USAGE):
    content = []
    if message.reasoning:
        content.append({"type": "thinking", "thinking": message.reasoning, "signature": "c2lnbmVk"})
    if message.content:
        content.append({"type": "text", "text": message.content})
    content += [
        {
            "type": "tool_use",
            "id": call.call_id,
            "name": call.name,
            "input": msgspec.Raw((call.arguments or "{}").encode()),
        }
        for call in message.tool_calls
    ]
    plain = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
    body = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m-1",
        "content": content,
        "stop_reason": REASONS[finish or plain],
        "stop_sequence": None,
    }
    if usage is not None:
        body["usage"] = {
            "input_tokens": usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens,
            "cache_read_input_tokens": usage.cached_input_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        }
    return body


def pieces(text, size=5):
    return [text[at : at + size] for at in range(0, len(text), size)]


def events(raw):
    start = {**raw, "content": [], "stop_reason": None}
    if "usage" in raw:
        start["usage"] = {**raw["usage"], "output_tokens": 1}
    found = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(raw["content"]):
        kind = block["type"]
        if kind == "text":
            empty = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
            deltas += [{"type": "citations_delta", "citation": item} for item in block.get("citations", ())]
        elif kind == "thinking":
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif kind in ("tool_use", "server_tool_use"):
            empty = {**block, "input": {}}
            text = (
                bytes(block["input"]).decode()
                if isinstance(block["input"], msgspec.Raw)
                else json.dumps(block["input"])
            )
            text = "" if text == "{}" else text
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces(text)]]
        else:
            empty, deltas = block, []
        found.append({"type": "content_block_start", "index": index, "content_block": empty})
        found += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        found.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": raw["stop_reason"], "stop_sequence": raw["stop_sequence"]}
    last = {"type": "message_delta", "delta": delta}
    if "usage" in raw:
        last["usage"] = {"output_tokens": raw["usage"]["output_tokens"]}
    found += [last, {"type": "message_stop"}]
    return [b"event: %s\ndata: %s\n\n" % (item["type"].encode(), json.dumps(item).encode()) for item in found]


def error(status, text):
    return {"type": "error", "error": {"type": "some_error", "message": text}, "request_id": "req_1"}


def messages(body):
    found = []
    if "system" in body:
        found.append(Message(Role.SYSTEM, "".join(block["text"] for block in body["system"])))
    for raw in body["messages"]:
        role = Role(raw["role"])
        if role is Role.ASSISTANT:
            calls = [block for block in raw["content"] if block["type"] == "tool_use"]
            text = "".join(block["text"] for block in raw["content"] if block["type"] == "text")
            found.append(
                Message(
                    role,
                    text,
                    tuple(ToolCall(call["id"], call["name"], json.dumps(call["input"])) for call in calls),
                )
            )
            continue
        for block in raw["content"]:
            if block["type"] == "tool_result":
                found.append(Message(Role.TOOL, block.get("content", ""), call_id=block["tool_use_id"]))
            else:
                found.append(Message(role, block["text"]))
    return found


def tools(body):
    return [
        (item["name"], item["description"], item["input_schema"])
        for item in body.get("tools", ())
        if "input_schema" in item
    ]


async def ask_vendor(base_url, question, *, is_streamed):
    """Return what the vendor's own client reads from the response: text, calls, reasoning, tokens in and out."""
    from anthropic import AsyncAnthropic

    client = AsyncAnthropic(base_url=base_url.removesuffix("/v1"), api_key="k", max_retries=0)
    asked = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": question}]}
    if is_streamed:
        async with client.messages.stream(**asked) as stream:
            found = await stream.get_final_message()
    else:
        found = await client.messages.create(**asked)
    usage = found.usage
    return (
        "".join(block.text for block in found.content if block.type == "text"),
        [(block.name, block.input) for block in found.content if block.type == "tool_use"],
        "".join(block.thinking for block in found.content if block.type == "thinking"),
        usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0),
        usage.output_tokens,
    )


def check(body):
    """Check a request as the vendor's server does."""
    rules.check_anthropic(body)


def unfinished(raw):
    """Return answers that are not whole, although they are JSON, by what is wrong with them."""
    use = {"type": "tool_use", "id": "c", "name": "look_up", "input": {"word": "a"}}
    return {
        "nothing, no reason": {**raw, "content": [], "stop_reason": None},
        "nothing, an empty reason": {**raw, "content": [], "stop_reason": ""},
        "calls are promised": {**raw, "stop_reason": "tool_use"},
        "calls are promised, but nothing came": {**raw, "content": [], "stop_reason": "tool_use"},
        "a call has no name": {**raw, "content": [{**use, "name": None}], "stop_reason": "tool_use"},
        "text is a number": {**raw, "content": [{"type": "text", "text": 7}]},
    }


def without_reason(raw):
    """Return `raw` as a server sends it that has not finished."""
    return {**raw, "stop_reason": None}


def at_once(raw):
    """Return the events of a server that sends all of `raw` at once, without the mark that ends a stream."""
    found = [{"type": "message_start", "message": {**raw, "content": [], "stop_reason": None}}]
    found += [
        {"type": "content_block_start", "index": index, "content_block": block}
        for index, block in enumerate(raw["content"])
    ]
    found.append({"type": "message_delta", "delta": {"stop_reason": raw["stop_reason"]}})
    return [b"data: %s\n\n" % json.dumps(item).encode() for item in [*found, {"type": "message_stop"}]]


def types():
    """Return the vendor's types of a whole answer and of an event."""
    from anthropic.types import Message, RawMessageStreamEvent

    return Message, RawMessageStreamEvent
