"""One server for each provider that a model's name may begin with: it refuses what the real one refuses."""

import base64
import importlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace
from tests.models.strict import rules

import treadle
from treadle.core.types import FinishReason, Message, Usage
from treadle.http.transport import HttpRequest, HttpResponse, InProcessTransport
from treadle.models.protocol import Model


def _as_it_is(raw: Any, message: Message) -> Any:
    return raw


def _with_details(raw: Any, message: Message) -> Any:
    """Return an answer of OpenRouter, which has the reasoning in a field and in details."""
    said = raw["choices"][0]["message"]
    if (thoughts := said.pop("reasoning_content", None)) is not None:
        said["reasoning"] = thoughts
        said["reasoning_details"] = [
            {"type": "reasoning.text", "text": thoughts, "signature": "s", "index": 0}
        ]
    raw["usage"]["cost"] = 0.001
    return raw


def _with_reasoning(raw: Any, message: Message) -> Any:
    said = raw["choices"][0]["message"]
    if (thoughts := said.pop("reasoning_content", None)) is not None:
        said["reasoning"] = thoughts
    return raw


def _of_mistral(raw: Any, message: Message) -> Any:
    said = raw["choices"][0]["message"]
    if (thoughts := said.pop("reasoning_content", None)) is not None:
        texts = [{"type": "text", "text": said["content"]}] if said["content"] else []
        thinking = {"type": "thinking", "thinking": [{"type": "text", "text": thoughts}], "closed": True}
        said["content"] = [thinking, *texts]
    return raw


def _with_annotations(raw: Any, message: Message) -> Any:
    said = raw["choices"][0]["message"]
    said.pop("reasoning_content", None)
    said |= {"refusal": None, "annotations": []}
    return raw


def _signed(raw: Any, message: Message) -> Any:
    """Return an answer of Gemini 3, which signs its text and its first call."""
    parts = raw["candidates"][0]["content"]["parts"]
    calls = [part for part in parts if "functionCall" in part]
    for part in calls[:1] or parts[-1:]:
        part["thoughtSignature"] = base64.b64encode(b"signed").decode()
    return raw


def with_written_calls(message: Message) -> Message:
    """Return a message with its calls as text in the format of Hermes."""
    calls = [
        f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments or "{}"}}}\n</tool_call>'
        for call in message.tool_calls
    ]
    text = "\n".join(filter(None, [message.content, *calls]))
    return replace(message, content=text, tool_calls=(), reasoning=None)


@dataclass(frozen=True)
class Provider:
    """A provider: how its models are named, and what its server speaks and refuses."""

    model: str
    wire_name: str
    check: Callable[[Any], None]
    """A function that raises a `ValueError` for a request that the server refuses."""
    shape: Callable[[Any, Message], Any] = _as_it_is
    """A function that gives an answer the form of the provider, given it in that of the dialect."""
    options: dict[str, Any] = field(default_factory=dict)
    thoughts: str | None = ""
    """What stands for the reasoning of earlier calls in a request; empty: its text; `None`: the provider takes
    none."""
    writes_calls: bool = False
    """True if the model writes its calls as text, in the format of Hermes."""

    @property
    def wire(self) -> Any:
        return importlib.import_module(f"tests.models.wire.{self.wire_name}")

    def make(self, server: "StrictServer", **options: Any) -> Model:
        """Return a model of this provider, at its own address, that asks `server`."""
        given = {"api_key": "k", "transport": server.transport, "max_attempts": 1, **self.options, **options}
        return treadle.model(self.model, **given)


PROVIDERS = {
    "openai": Provider(
        "openai:gpt-5-mini", "openai_chat", rules.check_openai, _with_annotations, thoughts=None
    ),
    "openai_responses": Provider(
        "openai_responses:gpt-5-mini", "openai_responses", rules.check_responses, thoughts="Z29uZQ=="
    ),
    "anthropic": Provider(
        "anthropic:claude-sonnet-4-5", "anthropic", rules.check_anthropic, thoughts="c2lnbmVk"
    ),
    "anthropic thinking": Provider(
        "anthropic:claude-3-7-sonnet",
        "anthropic",
        rules.check_anthropic,
        options={"extra": {"thinking": {"type": "enabled", "budget_tokens": 1024}}},
        thoughts="c2lnbmVk",
    ),
    "openai_responses stored": Provider(
        "openai_responses:gpt-5-mini",
        "openai_responses",
        rules.check_stored_responses,
        options={"state": "previous_response_id"},
        thoughts=None,
    ),
    "openai_responses with a format": Provider(
        "openai_responses:base",
        "openai_responses",
        rules.check_responses,
        options={"format": "hermes"},
        thoughts=None,
        writes_calls=True,
    ),
    "anthropic with a format": Provider(
        "anthropic:claude-sonnet-4-5",
        "anthropic",
        rules.check_anthropic,
        options={"format": "hermes"},
        thoughts=None,
        writes_calls=True,
    ),
    "gemini": Provider("gemini:gemini-3-pro", "gemini", rules.check_gemini_3, _signed, thoughts="c2lnbmVk"),
    "gemini 2": Provider("gemini:gemini-2.5-flash", "gemini", rules.check_gemini, thoughts=None),
    "ollama": Provider("ollama:qwen3", "ollama", rules.check_ollama),
    "completions": Provider(
        "completions:base",
        "completions",
        rules.check_prompt,
        options={"format": "hermes"},
        thoughts=None,
        writes_calls=True,
    ),
    "openrouter": Provider("openrouter:z-ai/glm-5", "openai_chat", rules.check_openrouter, _with_details),
    "groq": Provider(
        "groq:openai/gpt-oss-120b", "openai_chat", rules.check_groq, _with_reasoning, thoughts=None
    ),
    "huggingface": Provider("huggingface:qwen/qwen3", "openai_chat", rules.check_hosted),
    "deepseek": Provider("deepseek:deepseek-v4-pro", "openai_chat", rules.check_deepseek),
    "mistral": Provider("mistral:magistral-medium", "openai_chat", rules.check_mistral, _of_mistral),
    "together": Provider("together:qwen/qwen3", "openai_chat", rules.check_hosted, _with_reasoning),
    "fireworks": Provider("fireworks:glm", "openai_chat", rules.check_hosted),
    "xai": Provider("xai:grok-4", "openai_chat", rules.check_hosted),
    "vllm": Provider("vllm:qwen3", "openai_chat", rules.check_engine, _with_reasoning),
    "sglang": Provider("sglang:qwen3", "openai_chat", rules.check_engine),
    "llama.cpp": Provider("llama.cpp:qwen3", "openai_chat", rules.check_llama_cpp),
    "lmstudio": Provider("lmstudio:qwen3", "openai_chat", rules.check_llama_cpp, _with_reasoning),
}


class StrictServer:
    """A server of one provider that gives the answers of a list, and refuses what the real one refuses."""

    def __init__(self, provider: Provider, answers: Iterable[Message | HttpResponse]) -> None:
        self._provider = provider
        self.answers = iter(answers)
        self.bodies: list[Any] = []
        self.refusals: list[str] = []
        self.usage: Usage | None = None
        """The token counts of each answer; `None`: by the sizes of request and answer."""
        self.transport = InProcessTransport(self)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        wire = self._provider.wire
        path = request.url.partition("?")[0].rstrip("/")
        if not request.body or path.endswith(("/show", "/count_tokens", "/props", "/tokenize")):
            return HttpResponse(wire.error(404, "no such path"), 404)
        body = json.loads(request.body)
        self.bodies.append(body)
        try:
            self._provider.check(body)
        except (ValueError, LookupError, TypeError) as error:
            self.refusals.append(f"{type(error).__name__}: {error}")
            return HttpResponse(wire.error(400, str(error)), 400)
        said = next(self.answers)
        said = said() if callable(said) else said
        if isinstance(said, HttpResponse):
            return said
        finish = None
        if said.name is not None:  # the reason why the answer ended
            finish, said = FinishReason(said.name), replace(said, name=None)
        usage = self.usage or Usage(len(request.body) // 4, 1 + len(said.content) // 4)
        if self._provider.writes_calls:
            said = with_written_calls(said)
        raw = self._provider.shape(wire.answer(said, finish=finish, usage=usage), said)
        raw = msgspec.json.decode(msgspec.json.encode(raw))
        if body.get("stream") or "streamGenerateContent" in request.url:
            return HttpResponse(wire.events(raw), headers={"content-type": wire.CONTENT_TYPE})
        return HttpResponse(raw, headers={"content-type": "application/json"})
