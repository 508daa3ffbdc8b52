"""The responses of a server of each dialect: a text with a tool call, or a text alone; complete and streamed."""

import json
import struct
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from msgspec import Struct

ARGUMENTS: dict[str, object] = {"a": 1, "b": 2}
TOKENS = 200
"""How many tokens an answer of vLLM has."""
PROMPT_TOKENS = 300
_TEXT = json.dumps(ARGUMENTS, separators=(",", ":"))


class Answer(Struct):
    """One answer: the body of the complete response, and the bodies of the events of the streamed one."""

    whole: bytes
    events: list[bytes]


class Wire(Struct):
    """A dialect's responses."""

    make: Callable[[str | None, list[str], int], Answer]
    """A function of a call's id (or `None` for no call), the text, and the number of the answer."""
    result: bytes
    """A string that occurs once for each tool result in a request, and nowhere else."""
    is_streamed: bytes = b'"stream":true'
    """A string that occurs in the head or the body of a request only if it asks for a stream."""
    is_sse: bool = True
    prompt: bytes = b""
    """The bytes before the ids of the prompt in a request, if an answer repeats them, with their bracket."""


def _encode(raw: object) -> bytes:
    return json.dumps(raw, separators=(",", ":")).encode()


def _sse(raw: dict[str, Any]) -> bytes:
    event = b"event: %b\n" % raw["type"].encode() if "type" in raw else b""
    return b"%bdata: %b\n\n" % (event, _encode(raw))


def _openai_chat(call_id: str | None, words: list[str], number: int) -> Answer:
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "bench"}
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    call = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": _TEXT}}
    message: dict[str, object] = {"role": "assistant", "content": "".join(words) or None}
    deltas: list[dict[str, object]] = [{"content": word} for word in words]
    if call_id is not None:
        message["tool_calls"] = [call]
        deltas.append({"tool_calls": [{"index": 0, **call}]})
    reason = "stop" if call_id is None else "tool_calls"
    whole = {**head, "choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage}
    head["object"] = "chat.completion.chunk"
    chunks: list[dict[str, object]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    chunks.append({**head, "choices": [], "usage": usage})
    return Answer(_encode(whole), [*[_sse(chunk) for chunk in chunks], b"data: [DONE]\n\n"])


def _anthropic(call_id: str | None, words: list[str], number: int) -> Answer:
    content: list[dict[str, Any]] = [{"type": "text", "text": "".join(words)}] if words else []
    if call_id is not None:
        content.append({"type": "tool_use", "id": call_id, "name": "add", "input": ARGUMENTS})
    reason = "end_turn" if call_id is None else "tool_use"
    usage = {
        "input_tokens": 100,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 20,
    }
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "bench"}
    whole = {**head, "content": content, "stop_reason": reason, "stop_sequence": None, "usage": usage}
    start = {**whole, "content": [], "stop_reason": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(content):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        pieces: list[dict[str, str]] = [{"type": "input_json_delta", "partial_json": _TEXT}]
        if is_text:
            pieces = [{"type": "text_delta", "text": word} for word in words]
        events += [{"type": "content_block_delta", "index": index, "delta": piece} for piece in pieces]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": reason, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 20}})
    events.append({"type": "message_stop"})
    return Answer(_encode(whole), [_sse(event) for event in events])


def _openai_responses(call_id: str | None, words: list[str], number: int) -> Answer:
    output: list[dict[str, Any]] = []
    if words:
        part = {"type": "output_text", "text": "".join(words), "annotations": []}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
        output.append({**message, "content": [part]})
    if call_id is not None:
        call = {"id": "fc_1", "type": "function_call", "call_id": call_id, "name": "add"}
        output.append({**call, "arguments": _TEXT, "status": "completed"})
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    whole = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "model": "bench",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "output": output,
        "usage": {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120, **details},
    }
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {**whole, "output": []}}]
    for index, item in enumerate(output):
        at = {"output_index": index, "item_id": item["id"]}
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        if item["type"] == "message":
            kind = "response.output_text.delta"
            events += [{"type": kind, **at, "content_index": 0, "delta": word} for word in words]
        else:
            events.append({"type": "response.function_call_arguments.delta", **at, "delta": _TEXT})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": whole})
    return Answer(_encode(whole), [_sse(event) for event in events])


def _gemini(call_id: str | None, words: list[str], number: int) -> Answer:
    call = {"functionCall": {"name": "add", "args": ARGUMENTS, "id": call_id}}
    calls: list[dict[str, Any]] = [] if call_id is None else [call]
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120}
    head = {"modelVersion": "bench", "responseId": "r"}

    def answer(parts: list[dict[str, Any]], **more: object) -> dict[str, Any]:
        content = {"role": "model", "parts": parts}
        return {"candidates": [{"content": content, "index": 0, **more}], "usageMetadata": usage, **head}

    text: list[dict[str, Any]] = [{"text": "".join(words)}] if words else []
    whole = answer([*text, *calls], finishReason="STOP")
    parts = [*[{"text": word} for word in words], *calls]
    events = [answer([part]) for part in parts[:-1]]
    events.append(answer(parts[-1:], finishReason="STOP"))
    return Answer(_encode(whole), [_sse(event) for event in events])


def _ollama(call_id: str | None, words: list[str], number: int) -> Answer:
    calls = [] if call_id is None else [{"id": call_id, "function": {"name": "add", "arguments": ARGUMENTS}}]
    head = {"model": "bench", "created_at": "2026-01-01T00:00:00Z"}
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": 100, "eval_count": 20}
    message = {"role": "assistant", "content": "".join(words), **({"tool_calls": calls} if calls else {})}
    parts: list[dict[str, object]] = [{"role": "assistant", "content": word} for word in words]
    if calls:
        parts.append({"role": "assistant", "content": "", "tool_calls": calls})
    events: list[dict[str, object]] = [{**head, "message": part, "done": False} for part in parts]
    events.append({**head, "message": {"role": "assistant", "content": ""}, **end})
    return Answer(_encode({**head, "message": message, **end}), [_encode(event) + b"\n" for event in events])


def _completions(call_id: str | None, words: list[str], number: int) -> Answer:
    call = f'<tool_call>\n{{"name": "add", "arguments": {_TEXT}}}\n</tool_call>'
    texts = [*words, *([call] if call_id is not None else [])]
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "bench"}
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    choice = {"index": 0, "text": "".join(texts), "finish_reason": "stop"}
    chunks: list[dict[str, object]] = [
        {**head, "choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in texts
    ]
    chunks.append({**head, "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
    chunks.append({**head, "choices": [], "usage": usage})
    whole = _encode({**head, "choices": [choice], "usage": usage})
    return Answer(whole, [*[_sse(chunk) for chunk in chunks], b"data: [DONE]\n\n"])


def _vllm(
    call_id: str | None, words: list[str], number: int, *, has_tokens: bool, is_text: bool = False
) -> Answer:
    """Return vLLM's answer of 200 tokens, with their ids and log probabilities or without."""
    # The final answer is numbered as if one more call came before it.
    number -= call_id is None
    random = Random(number)
    words = [random.choice((" the", " of", "ing", "\n", " test", "er", " x1")) for _ in range(TOKENS)]
    make = _completions if is_text else _openai_chat
    made = json.loads(make(call_id, words, number).whole)
    made["usage"] = {
        "prompt_tokens": PROMPT_TOKENS + number * (TOKENS + 20),
        "completion_tokens": TOKENS,
        "total_tokens": PROMPT_TOKENS + number * (TOKENS + 20) + TOKENS,
    }
    if has_tokens:
        prompt = [Random(at).randrange(150_000) for at in range(PROMPT_TOKENS)]
        for before in range(number + 1):
            # The ids of an answer are those that follow in the next prompt.
            ids = [Random(before * 1000 + at).randrange(150_000) for at in range(TOKENS)]
            if before < number:
                prompt += [*ids, *range(20)]
        logprobs = [struct.unpack("f", struct.pack("f", -3 * random.random()))[0] for _ in words]
        choice = made["choices"][0]
        choice["token_ids"] = ids
        if is_text:
            tops = [{word: logprob} for word, logprob in zip(words, logprobs, strict=True)]
            choice["logprobs"] = {
                "text_offset": list(range(TOKENS)),
                "token_logprobs": logprobs,
                "tokens": words,
                "top_logprobs": tops,
            }
            choice["prompt_token_ids"] = prompt
        else:
            content = [
                {"token": word, "logprob": logprob, "bytes": list(word.encode()), "top_logprobs": []}
                for word, logprob in zip(words, logprobs, strict=True)
            ]
            choice["logprobs"] = {"content": content}
            made["prompt_token_ids"] = prompt
        # The order of vLLM's own fields.
        for name in ("finish_reason", "stop_reason", "token_ids", "prompt_token_ids")[: 4 if is_text else 3]:
            choice[name] = choice.pop(name, None)
    return Answer(_encode(made), [])


WIRES = {
    "openai_chat": Wire(_openai_chat, b'"role":"tool"'),
    "openai_responses": Wire(_openai_responses, b'"type":"function_call_output"'),
    "anthropic": Wire(_anthropic, b'"type":"tool_result"'),
    "gemini": Wire(_gemini, b'"functionResponse"', b":streamGenerateContent"),
    "ollama": Wire(_ollama, b'"role":"tool"', is_sse=False),
    "completions": Wire(_completions, b"\\n</tool_response>"),
    "vllm_text": Wire(partial(_vllm, has_tokens=False, is_text=True), b"\\n</tool_response>"),
    "vllm_text_tokens": Wire(partial(_vllm, has_tokens=True, is_text=True), b"\\n</tool_response>"),
    "vllm": Wire(partial(_vllm, has_tokens=False), b'"role":"tool"'),
    "vllm_tokens": Wire(partial(_vllm, has_tokens=True), b'"role":"tool"'),
}
