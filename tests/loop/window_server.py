"""Servers of four kinds that refuse prompts over their window, each in its own words, over real sockets."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.models.server import Received, Reply, Server

from treadle.models import OpenAIChatModel
from treadle.models.dialects.anthropic.request import AnthropicModel
from treadle.models.dialects.gemini.request import GeminiModel
from treadle.models.wire.http_model import HttpModel

KINDS = ("openai", "vllm", "anthropic", "gemini")
_BYTES_PER_TOKEN = 3.6
_TOO_LONG = {
    "openai": {
        "message": "This model's maximum context length is {window} tokens. However, your messages resulted in "
        "{size} tokens. Please reduce the length of the messages.",
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
    },
    "vllm": {
        "message": "This model's maximum context length is {window} tokens. However, your prompt contains at least "
        "{size} input tokens, which exceeds this limit even without any output tokens. Please reduce the length of "
        "the input prompt. (parameter=input_tokens, value={size})",
        "type": "BadRequestError",
        "code": 400,
    },
    "anthropic": {
        "type": "invalid_request_error",
        "message": "prompt is too long: {size} tokens > {window} maximum",
    },
    "gemini": {
        "code": 400,
        "message": "The input token count ({size}) exceeds the maximum number of tokens allowed ({window}).",
        "status": "INVALID_ARGUMENT",
    },
}


class Said(NamedTuple):
    """What the model answers."""

    text: str = ""
    calls: Sequence[tuple[str, dict[str, Any]]] = ()
    """The names and arguments of its calls."""
    reasoning: str = ""


class Prompt(NamedTuple):
    """A prompt, in one form for all kinds of servers."""

    texts: list[tuple[str, str]]
    """The role (`system`, `user`, `assistant` or `tool`) and the text of each message."""
    tools: set[str]


class WindowServer:
    """The handler of a server's requests. `talk` is the model, and `window` may be changed."""

    def __init__(self, kind: str, window: int, talk: Callable[[Prompt], Said]) -> None:
        self.kind, self.window, self._talk = kind, window, talk
        self.answered = 0

    def __call__(self, request: Received) -> Reply:
        body = request.json() if request.body else {}
        if not {"messages", "contents"} & body.keys() or "max_tokens" in request.path:
            return Reply({"error": {"message": "no such path"}}, 404)
        size = int(len(request.body) / _BYTES_PER_TOKEN)
        if size > self.window:
            told = {
                name: value.format(size=size, window=self.window) if name == "message" else value
                for name, value in _TOO_LONG[self.kind].items()
            }
            return Reply({"type": "error", "error": told}, 400)
        self.answered += 1
        said = self._talk(_READERS.get(self.kind, _read_openai)(body))
        written = len(said.text) + len(said.reasoning) + sum(len(json.dumps(call)) for call in said.calls)
        return Reply(_WRITERS.get(self.kind, _write_openai)(said, self.answered, size, 1 + written // 4))


def model_of(kind: str, server: Server) -> HttpModel:
    """Return a model of a server of this kind."""
    if kind == "anthropic":
        return AnthropicModel("m", base_url=server.origin, api_key="k")
    if kind == "gemini":
        return GeminiModel("m", base_url=server.origin, api_key="k")
    return OpenAIChatModel("m", base_url=server.base_url, api_key="k")


def _text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or [])


def _read_openai(body: Any) -> Prompt:
    texts = [(item["role"], _text_of(item.get("content"))) for item in body["messages"]]
    return Prompt(texts, {tool["function"]["name"] for tool in body.get("tools", [])})


def _read_anthropic(body: Any) -> Prompt:
    texts = [("system", _text_of(body["system"]))] if body.get("system") else []
    for item in body["messages"]:
        parts = [{"type": "text", "text": item["content"]}]
        for part in parts if isinstance(item["content"], str) else item["content"]:
            if part["type"] == "text":
                texts.append((item["role"], part["text"]))
            elif part["type"] == "tool_result":
                texts.append(("tool", _text_of(part["content"])))
    return Prompt(texts, {tool["name"] for tool in body.get("tools", [])})


def _read_gemini(body: Any) -> Prompt:
    system = body.get("systemInstruction", body.get("system_instruction"))
    texts = [("system", _text_of(system["parts"]))] if system else []
    for item in body["contents"]:
        for part in item["parts"]:
            if "functionResponse" in part:
                (told,) = part["functionResponse"]["response"].values()
                texts.append(("tool", str(told)))
            elif "text" in part:
                texts.append(("user" if item["role"] == "user" else "assistant", part["text"]))
    names = [each["name"] for tool in body.get("tools", []) for each in tool.get("functionDeclarations", [])]
    return Prompt(texts, set(names))


def _write_openai(said: Said, number: int, size: int, written: int) -> Any:
    calls = [
        {
            "id": f"c{number}_{at}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(values)},
        }
        for at, (name, values) in enumerate(said.calls)
    ]
    message = {"role": "assistant", "content": said.text or None, "tool_calls": calls or None}
    finish = "tool_calls" if calls else "stop"
    choice = {
        "index": 0,
        "message": message | {"reasoning_content": said.reasoning},
        "finish_reason": finish,
    }
    return {"choices": [choice], "usage": {"prompt_tokens": size, "completion_tokens": written}}


def _write_anthropic(said: Said, number: int, size: int, written: int) -> Any:
    thought = {"type": "thinking", "thinking": said.reasoning, "signature": "s"}
    parts = [thought] * bool(said.reasoning) + [{"type": "text", "text": said.text}] * bool(said.text)
    calls = [
        {"type": "tool_use", "id": f"c{number}_{at}", "name": name, "input": values}
        for at, (name, values) in enumerate(said.calls)
    ]
    usage = {"input_tokens": size, "output_tokens": written}
    return {
        "type": "message",
        "role": "assistant",
        "content": [*parts, *calls],
        "stop_reason": "tool_use" if calls else "end_turn",
        "usage": usage,
    }


def _write_gemini(said: Said, number: int, size: int, written: int) -> Any:
    parts: list[dict[str, Any]] = [{"text": said.reasoning, "thought": True}] * bool(said.reasoning)
    parts += [{"text": said.text}] * bool(said.text)
    parts += [{"functionCall": {"name": name, "args": values}} for name, values in said.calls]
    usage = {"promptTokenCount": size, "candidatesTokenCount": written}
    content = {"role": "model", "parts": parts}
    return {
        "candidates": [{"index": 0, "content": content, "finishReason": "STOP"}],
        "usageMetadata": usage,
    }


_READERS = {"anthropic": _read_anthropic, "gemini": _read_gemini}
_WRITERS = {"anthropic": _write_anthropic, "gemini": _write_gemini}
