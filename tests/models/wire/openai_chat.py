"""A server of the chat completions API."""

import json

from tests.models.strict import rules

from treadle.core.types import FinishReason, Message, Role, ToolCall, Usage
from treadle.models import OpenAIChatModel

MODEL = OpenAIChatModel
CONTENT_TYPE = "text/event-stream"
USAGE = Usage(12, 7, 4, 2)


def answer(message, finish=None, usage=USAGE):
    raw = {"role": "assistant", "content": message.content or None}
    if message.reasoning:
        raw["reasoning_content"] = message.reasoning
    if message.tool_calls:
        raw["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    plain = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "m-1",
        "choices": [{"index": 0, "message": raw, "finish_reason": finish or plain}],
    }
    if usage is not None:
        body["usage"] = {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        }
    return body


def pieces(text, size=5):
    return [text[at : at + size] for at in range(0, len(text), size)]


def events(raw):
    head = {"id": raw["id"], "object": "chat.completion.chunk", "model": raw["model"]}
    message = raw["choices"][0]["message"]
    deltas = [{"role": "assistant", "content": ""}]
    for name in ("reasoning_content", "reasoning"):
        deltas += [{name: piece} for piece in pieces(message.get(name) or "")]
    deltas += [{"reasoning_details": [item]} for item in message.get("reasoning_details", ())]
    if isinstance(content := message["content"] or "", str):
        deltas += [{"content": piece} for piece in pieces(content)]
    else:
        deltas += [{"content": [part]} for part in content]
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        first = {"index": index, **call, "function": {"name": function["name"], "arguments": ""}}
        deltas.append({"tool_calls": [first]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in pieces(function["arguments"])
        ]
    deltas += [{"images": [image]} for image in message.get("images", ())]
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    reason = raw["choices"][0]["finish_reason"]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    if "usage" in raw:
        chunks.append({**head, "choices": [], "usage": raw["usage"]})
    return [b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks] + [b"data: [DONE]\n\n"]


def error(status, text):
    return {"error": {"message": text, "type": "some_error", "code": None}}


def messages(body):
    found = []
    for raw in body["messages"]:
        calls = tuple(
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in raw.get("tool_calls", ())
        )
        found.append(Message(Role(raw["role"]), raw["content"] or "", calls, raw.get("tool_call_id")))
    return found


def tools(body):
    return [
        (item["function"]["name"], item["function"]["description"], item["function"]["parameters"])
        for item in body.get("tools", ())
    ]


async def ask_vendor(base_url, question, *, is_streamed):
    """Return what the vendor's own client reads from the response: text, calls, reasoning, tokens in and out."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=base_url, api_key="k", max_retries=0)
    asked = {"model": "m", "messages": [{"role": "user", "content": question}]}
    if is_streamed:
        options = {"include_usage": True}
        async with client.chat.completions.stream(**asked, stream_options=options) as stream:
            found = await stream.get_final_completion()
    else:
        found = await client.chat.completions.create(**asked)
    message = found.choices[0].message
    return (
        message.content or "",
        [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()],
        getattr(message, "reasoning_content", None) or "",
        found.usage.prompt_tokens,
        found.usage.completion_tokens,
    )


def check(body):
    """Check a request as the vendor's server does."""
    rules.check_engine(body)


def with_image(raw, data):
    """An answer with an image, as OpenRouter has it."""
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    raw["choices"][0]["message"]["images"] = [image]
    return raw


def unfinished(raw):
    """Return answers that are not whole, although they are JSON, by what is wrong with them."""
    (choice,) = raw["choices"]
    empty = {**choice, "message": {"role": "assistant", "content": None}}
    choices = {
        "nothing, no reason": {**empty, "finish_reason": None},
        "nothing, an empty reason": {**empty, "finish_reason": ""},
        "nothing, an unknown reason": {**empty, "finish_reason": "brand_new"},
        "calls are promised": {**choice, "finish_reason": "tool_calls"},
        "a function call is promised": {**choice, "finish_reason": "function_call"},
        "calls are promised, but nothing came": {**empty, "finish_reason": "tool_calls"},
        "the engine failed": {**choice, "finish_reason": "error"},
        "the engine gave up": {**choice, "finish_reason": "abort"},
        "the network failed": {**choice, "finish_reason": "network_error"},
        "an error in the choice": {**choice, "error": {"message": "it broke", "code": 502}},
        "content is a number": {**choice, "message": {"content": 7}},
        "content is an object": {**choice, "message": {"content": {"text": "Sunny"}}},
        "calls are a number": {**choice, "message": {"content": None, "tool_calls": 7}},
        "a call is null": {**choice, "message": {"content": None, "tool_calls": [None]}},
        "a call is text": {**choice, "message": {"content": None, "tool_calls": ["look_up"]}},
    }
    return {name: {**raw, "choices": [made]} for name, made in choices.items()}


def without_reason(raw):
    """Return `raw` as a server sends it that has not finished."""
    return {**raw, "choices": [{**raw["choices"][0], "finish_reason": None}]}


def at_once(raw):
    """Return the events of a server that sends all of `raw` at once, without the mark that ends a stream."""
    (choice,) = raw["choices"]
    rest = {key: value for key, value in choice.items() if key != "message"}
    chunk = {**raw, "choices": [{**rest, "delta": choice["message"]}]}
    return [b"data: %s\n\n" % json.dumps(chunk).encode()]


def types():
    """Return the vendor's types of a whole answer and of an event."""
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    return ChatCompletion, ChatCompletionChunk
