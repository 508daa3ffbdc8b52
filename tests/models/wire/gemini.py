"""A server of the Gemini API."""

import json

import msgspec
from tests.models.strict import rules

from treadle.core.types import FinishReason, Message, Role, ToolCall, Usage
from treadle.models import GeminiModel

MODEL = GeminiModel
CONTENT_TYPE = "text/event-stream"
USAGE = Usage(12, 7, 4, 2)
REASONS = {
    FinishReason.STOP: "STOP",
    FinishReason.TOOL_CALLS: "STOP",
    FinishReason.LENGTH: "MAX_TOKENS",
    FinishReason.CONTENT_FILTER: "SAFETY",
}


def answer(message, finish=None, usage=USAGE):
    parts = []
    if message.reasoning:
        parts.append({"text": message.reasoning, "thought": True})
    if message.content:
        parts.append({"text": message.content})
    for call in message.tool_calls:
        args = msgspec.Raw((call.arguments or "{}").encode())
        part = {"functionCall": {"name": call.name, "args": args}}
        if call.call_id:
            part["functionCall"]["id"] = call.call_id
        parts.append(part)
    candidate = {
        "content": {"role": "model", "parts": parts},
        "finishReason": REASONS[finish or FinishReason.STOP],
    }
    body = {"candidates": [{**candidate, "index": 0}], "modelVersion": "m-1", "responseId": "r-1"}
    if usage is not None:
        body["usageMetadata"] = {
            "promptTokenCount": usage.input_tokens,
            "candidatesTokenCount": usage.output_tokens - usage.reasoning_tokens,
            "thoughtsTokenCount": usage.reasoning_tokens,
            "cachedContentTokenCount": usage.cached_input_tokens,
            "totalTokenCount": usage.total_tokens,
        }
    return body


def pieces(text, size=5):
    return [text[at : at + size] for at in range(0, len(text), size)]


def events(raw):
    head = {key: value for key, value in raw.items() if key not in ("candidates", "usageMetadata")}
    candidate = raw["candidates"][0]
    split = []
    for part in candidate["content"]["parts"]:
        texts = pieces(part["text"]) if "thoughtSignature" not in part and part.get("text") else []
        split += [{**part, "text": text} for text in texts] or [part]
    chunks = [{**head, "candidates": [{"content": {"role": "model", "parts": [part]}}]} for part in split]
    chunks = chunks or [{**head, "candidates": [{}]}]
    rest = {key: value for key, value in candidate.items() if key != "content"}
    # Gemini sends the finish reason together with the last part.
    chunks[-1]["candidates"][0] |= rest
    if "usageMetadata" in raw:
        chunks[0]["usageMetadata"] = {"promptTokenCount": raw["usageMetadata"]["promptTokenCount"]}
        chunks[-1]["usageMetadata"] = raw["usageMetadata"]
    return [b"data: %s\r\n\r\n" % msgspec.json.encode(chunk) for chunk in chunks]


def error(status, text):
    return {"error": {"code": status, "message": text, "status": "SOME_STATUS"}}


def messages(body):
    found = []
    if "systemInstruction" in body:
        found.append(
            Message(Role.SYSTEM, "".join(part["text"] for part in body["systemInstruction"]["parts"]))
        )
    for content in body["contents"]:
        text = "".join(part.get("text", "") for part in content["parts"])
        if content["role"] == "model":
            calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
            made = tuple(
                ToolCall(call.get("id", ""), call["name"], json.dumps(call["args"])) for call in calls
            )
            found.append(Message(Role.ASSISTANT, text, made))
            continue
        results = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        found += [
            Message(
                Role.TOOL,
                result["response"].get("output", result["response"].get("error")),
                call_id=result.get("id"),
            )
            for result in results
        ] or [Message(Role.USER, text)]
    return found


def tools(body):
    return [
        (tool["name"], tool["description"], tool["parametersJsonSchema"])
        for item in body.get("tools", ())
        for tool in item.get("functionDeclarations", ())
    ]


async def ask_vendor(base_url, question, *, is_streamed):
    """Return what the vendor's own client reads from the response: text, calls, reasoning, tokens in and out."""
    from google import genai
    from google.genai import types

    options = types.HttpOptions(base_url=base_url.removesuffix("/v1"), api_version="v1")
    client = genai.Client(api_key="k", http_options=options)
    models = client.aio.models
    if is_streamed:
        stream = await models.generate_content_stream(model="m", contents=question)
        chunks = [chunk async for chunk in stream]
    else:
        chunks = [await models.generate_content(model="m", contents=question)]
    parts = [
        part
        for chunk in chunks
        for part in (chunk.candidates[0].content.parts if chunk.candidates[0].content else None) or ()
    ]
    calls = [part.function_call for part in parts if part.function_call]
    usage = chunks[-1].usage_metadata
    return (
        "".join(part.text or "" for part in parts if not part.thought),
        [(call.name, call.args or {}) for call in calls],
        "".join(part.text or "" for part in parts if part.thought),
        usage.prompt_token_count,
        (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0),
    )


def check(body):
    """Check a request as the vendor's server does."""
    rules.check_gemini(body)


def with_image(raw, data):
    """An answer with an image."""
    part = {"inlineData": {"mimeType": "image/png", "data": data}, "thoughtSignature": "c2ln"}
    raw["candidates"][0]["content"]["parts"].append(part)
    return raw


def unfinished(raw):
    """Return answers that are not whole, although they are JSON, by what is wrong with them."""
    (candidate,) = raw["candidates"]
    candidates = {
        "nothing, no reason": {**candidate, "content": {"parts": []}, "finishReason": None},
        "nothing, an empty reason": {**candidate, "content": {"parts": []}, "finishReason": ""},
        "nothing, thrown away": {**candidate, "content": {}, "finishReason": "MALFORMED_RESPONSE"},
        "a call has no name": {**candidate, "content": {"parts": [{"functionCall": {"args": {"a": 1}}}]}},
        "a call is a number": {**candidate, "content": {"parts": [{"functionCall": 7}]}},
        "parts are a number": {**candidate, "content": {"parts": 7}},
    }
    return {name: {**raw, "candidates": [made]} for name, made in candidates.items()}


def without_reason(raw):
    """Return `raw` as a server sends it that has not finished."""
    return {**raw, "candidates": [{**raw["candidates"][0], "finishReason": None}]}


def at_once(raw):
    """Return the events of a server that sends all of `raw` at once, without the mark that ends a stream."""
    return [b"data: %s\r\n\r\n" % msgspec.json.encode(raw)]


def types():
    """Return the vendor's types of a whole answer and of an event."""
    from google.genai.types import GenerateContentResponse

    return GenerateContentResponse, GenerateContentResponse
