"""A server of the Responses API."""

import json

from tests.models.strict import rules

from treadle.core.types import FinishReason, Message, Role, ToolCall, Usage
from treadle.models import OpenAIResponsesModel

MODEL = OpenAIResponsesModel
CONTENT_TYPE = "text/event-stream"
USAGE = Usage(12, 7, 4, 2)


def answer(message, finish=None, usage=USAGE):
    output = []
    if message.reasoning:
        summary = [{"type": "summary_text", "text": message.reasoning}]
        output.append(
            {"id": "rs_1", "type": "reasoning", "summary": summary, "encrypted_content": "Z29uZQ=="}
        )
    if message.content:
        part = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
        output.append(
            {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        )
    output += [
        {
            "id": f"fc_{call.call_id}",
            "type": "function_call",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        for call in message.tool_calls
    ]
    is_cut = finish in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
    reason = {"reason": "max_output_tokens" if finish is FinishReason.LENGTH else "content_filter"}
    body = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m-1",
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": reason if is_cut else None,
        "error": None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
    if usage is not None:
        body["usage"] = {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_input_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.total_tokens,
        }
    return body


def pieces(text, size=5):
    return [text[at : at + size] for at in range(0, len(text), size)]


def _item_events(index, item):
    kind = item["type"]
    at = {"output_index": index, "item_id": item["id"]}
    if kind == "reasoning":
        yield "response.output_item.added", {"output_index": index, "item": {**item, "summary": []}}
        for number, part in enumerate(item["summary"]):
            where = {**at, "summary_index": number}
            empty = {"type": "summary_text", "text": ""}
            yield "response.reasoning_summary_part.added", {**where, "part": empty}
            for piece in pieces(part["text"]):
                yield "response.reasoning_summary_text.delta", {**where, "delta": piece}
            yield "response.reasoning_summary_text.done", {**where, "text": part["text"]}
            yield "response.reasoning_summary_part.done", {**where, "part": part}
    elif kind == "message":
        yield "response.output_item.added", {"output_index": index, "item": {**item, "content": []}}
        for number, part in enumerate(item["content"]):
            where = {**at, "content_index": number}
            field = "refusal" if part["type"] == "refusal" else "text"
            event = "response.refusal" if field == "refusal" else "response.output_text"
            yield "response.content_part.added", {**where, "part": {**part, field: ""}}
            for piece in pieces(part[field]):
                more = {} if field == "refusal" else {"logprobs": []}
                yield f"{event}.delta", {**where, "delta": piece, **more}
            yield f"{event}.done", {**where, field: part[field], "logprobs": []}
            yield "response.content_part.done", {**where, "part": part}
    elif kind == "function_call":
        yield "response.output_item.added", {"output_index": index, "item": {**item, "arguments": ""}}
        for piece in pieces(item["arguments"]):
            yield "response.function_call_arguments.delta", {**at, "delta": piece}
        done = {**at, "name": item["name"], "arguments": item["arguments"]}
        yield "response.function_call_arguments.done", done
    else:
        yield "response.output_item.added", {"output_index": index, "item": item}
        yield f"response.{kind}.in_progress", at
        yield f"response.{kind}.completed", at
    yield "response.output_item.done", {"output_index": index, "item": item}


def events(raw):
    start = {**raw, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    found = [("response.created", {"response": start}), ("response.in_progress", {"response": start})]
    for index, item in enumerate(raw["output"]):
        found += _item_events(index, item)
    found.append((f"response.{raw['status']}", {"response": raw}))
    return [
        b"event: %s\ndata: %s\n\n"
        % (kind.encode(), json.dumps({"type": kind, "sequence_number": number, **fields}).encode())
        for number, (kind, fields) in enumerate(found)
    ]


def error(status, text):
    return {"error": {"message": text, "type": "some_error", "param": None, "code": None}}


def messages(body):
    found = []
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind == "function_call_output":
            found.append(Message(Role.TOOL, item["output"], call_id=item["call_id"]))
        elif kind == "function_call":
            if not found or found[-1].role is not Role.ASSISTANT:
                found.append(Message(Role.ASSISTANT))
            last = found[-1]
            call = ToolCall(item["call_id"], item["name"], item["arguments"])
            found[-1] = Message(Role.ASSISTANT, last.content, (*last.tool_calls, call))
        elif kind == "message":
            content = item["content"]
            text = content if isinstance(content, str) else "".join(part["text"] for part in content)
            found.append(Message(Role(item["role"]), text))
    return found


def tools(body):
    return [(item["name"], item["description"], item["parameters"]) for item in body.get("tools", ())]


async def ask_vendor(base_url, question, *, is_streamed):
    """Return what the vendor's own client reads from the response: text, calls, reasoning, tokens in and out."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=base_url, api_key="k", max_retries=0)
    if is_streamed:
        async with client.responses.stream(model="m", input=question) as stream:
            found = await stream.get_final_response()
    else:
        found = await client.responses.create(model="m", input=question)
    calls = [item for item in found.output if item.type == "function_call"]
    thoughts = [part.text for item in found.output if item.type == "reasoning" for part in item.summary]
    return (
        found.output_text,
        [(call.name, json.loads(call.arguments)) for call in calls],
        "\n\n".join(thoughts),
        found.usage.input_tokens,
        found.usage.output_tokens,
    )


def check(body):
    """Check a request as the vendor's server does."""
    rules.check_responses(body)


def with_image(raw, data):
    """An answer with an image."""
    call = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "output_format": "png"}
    raw["output"].insert(0, call | {"result": data})
    return raw


def unfinished(raw):
    """Return answers that are not whole, although they are JSON, by what is wrong with them."""
    call = {"id": "fc_1", "type": "function_call", "call_id": "c", "name": "look_up", "arguments": "{}"}
    return {
        "nothing, no status": {**raw, "output": [], "status": None},
        "nothing, an empty status": {**raw, "output": [], "status": ""},
        "it goes on": {**raw, "id": None, "status": "in_progress"},
        "it waits": {**raw, "id": None, "status": "queued"},
        "it was cancelled": {**raw, "status": "cancelled"},
        "it failed": {**raw, "status": "failed", "error": {"code": "server_error", "message": "it broke"}},
        "a call has no name": {**raw, "output": [{**call, "name": None}]},
        "an item is a number": {**raw, "output": [7]},
        "output is a number": {**raw, "output": 7},
    }


def without_reason(raw):
    """Return `raw` as a server sends it that has not finished."""
    return {**raw, "id": None, "status": "in_progress"}


def at_once(raw):
    """Return the events of a server that sends all of `raw` at once, without the mark that ends a stream."""
    return [b"data: %s\n\n" % json.dumps({"type": "response.completed", "response": raw}).encode()]


def types():
    """Return the vendor's types of a whole answer and of an event."""
    from openai.types.responses import Response, ResponseStreamEvent

    return Response, ResponseStreamEvent
