"""The dialect `completions`: a prompt in, text out, as OpenAI's old endpoint and every open engine have it.

For base models, and for models whose tool calls are text. It knows no tools: `FormatModel` writes them into the
transcript, and reads calls out of the text.
Source: OpenAI API reference, completions, 2025; vLLM 0.11 and SGLang 0.5 for token ids.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.events import TextDelta
from treadle.core.log import Log
from treadle.core.types import (
    Completion,
    FinishReason,
    Json,
    Message,
    OutputMode,
    Request,
    Role,
    TokenRecord,
)
from treadle.models.dialects.completions.plain_answer import CompletionsReader
from treadle.models.dialects.openai_chat.answer import read_ids, read_usage
from treadle.models.wire.http_model import HttpModel, OnDelta, join_url
from treadle.models.wire.prompt import find_template
from treadle.models.wire.server import explain_error, find_error
from treadle.models.wire.stream import Collector

_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
_RESPONSE_FIELDS = frozenset(("id", "object", "created", "model", "choices", "usage", "error"))
_CHOICE_FIELDS = frozenset(
    ("index", "text", "finish_reason", "logprobs", "token_ids", "prompt_token_ids", "error")
)

_encode = msgspec.json.Encoder().encode


class CompletionsModel(HttpModel):
    """A model behind a completions server."""

    DIALECT = "completions"
    BASE_URL = "https://api.openai.com/v1"
    RESERVED = frozenset(("model", "prompt", "stream"))
    OPTIONS = ("template",)

    def __init__(self, model: str, *, template: str = "chatml", **options: Any) -> None:
        """`template` is one of `TEMPLATES`, by which the transcript becomes a prompt; further options as usual."""
        options.setdefault("key_variable", "OPENAI_API_KEY")
        options.setdefault("output_mode", OutputMode.TEXT)
        super().__init__(model, **options)
        found = find_template(template)
        self._endpoint = join_url(self._base_url, "/completions")
        self._template = template
        self._begin = _encode_inner(found.begin)
        self._answer = _encode_inner(found.answer)
        self._encode_message = _encoder_for(template)
        self._plain = CompletionsReader(self.settings, self._price)
        settings = self.settings
        fields = {
            "model": model,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_output_tokens,
            "seed": settings.seed,
            "stop": [*(settings.stop or ()), *found.stop] or None,
            # A number: of alternatives, of which none is wanted beside the sampled token.
            "logprobs": 0 if settings.logprobs else None,
            "return_token_ids": settings.return_token_ids,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        head = {**given, **(settings.extra or {})}
        self._heads = {
            is_stream: _encode({**head, **_STREAM} if is_stream else head)[:-1] + b',"prompt":"'
            for is_stream in (False, True)
        }

    @property
    def identity(self) -> str:
        """See `identity_of`."""
        return f"{super().identity} {self._template}"

    def _url(self, *, is_stream: bool) -> str:
        return self._endpoint

    def _key_headers(self, api_key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {api_key.strip()}"}

    def _body(self, request: Request, *, is_stream: bool) -> bytes:
        if request.tools or request.required_tool is not None:
            raise ConfigError(
                f"{self.name} completes a prompt, which has no place for tools; say in which format its tool calls "
                "are written, as model(..., format='hermes')"
            )
        pieces = request.messages.map(self._encode_message)
        schema = request.output_schema
        # Open engines decode within a schema here too.
        end = b'"}' if schema is None else b'","response_format":%b}' % _encode_schema(schema)
        return b"".join((self._heads[is_stream], self._begin, *pieces, self._answer, end))

    def prompt(self, messages: Log[Message]) -> str:
        """The prompt that would be sent."""
        found = find_template(self._template)
        return found.begin + "".join(found.write(message) for message in messages) + found.answer

    def _read_plain(self, body: bytes) -> Completion | None:
        return self._plain.read(body)

    def _read(self, raw: Json) -> Completion:
        choice = raw["choices"][0]
        text = choice["text"]
        if raw.get("error") or choice.get("error") or not isinstance(text, str):
            raise self._nonsense(raw)
        finish = choice.get("finish_reason")
        reason = _FINISH_REASONS.get(finish)
        opaque = {
            key: value for key, value in raw.items() if key not in _RESPONSE_FIELDS and value is not None
        }
        rest = {
            key: value for key, value in choice.items() if key not in _CHOICE_FIELDS and value is not None
        }
        if rest:
            opaque["choices"] = [rest]
        if reason is None:
            if finish in ("error", "abort"):
                raise self._nonsense(raw)
            reason = FinishReason.CONTENT_FILTER if finish == "content_filter" else FinishReason.STOP
            if finish not in (None, "content_filter"):
                opaque["finish_reason"] = finish
        usage = read_usage(raw["usage"]) if raw.get("usage") else None
        return Completion(
            Message(Role.ASSISTANT, text),
            reason,
            usage,
            self._cost(usage),
            raw.get("model"),
            raw.get("id"),
            self.settings,
            _read_tokens(choice, raw),
            opaque or None,
        )

    def _collector(self, on_delta: OnDelta) -> Collector:
        return _TextCollector(self, on_delta)


_STREAM = {"stream": True, "stream_options": {"include_usage": True}}


def _encode_inner(text: str) -> bytes:
    """A part of a JSON text."""
    return _encode(text)[1:-1]


@lru_cache
def _encoder_for(template: str) -> Callable[[Message], bytes]:
    """The same function for the same template, so that histories keep what it made."""
    write = find_template(template).write
    return lambda message: _encode_inner(write(message))


def _encode_schema(schema: dict[str, Json]) -> bytes:
    return _encode({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})


def _read_tokens(choice: dict[str, Json], raw: dict[str, Json]) -> TokenRecord | None:
    """Source: OpenAI's `token_logprobs`, vLLM's `token_ids` and `prompt_token_ids`."""
    told = choice.get("logprobs")
    logprobs: tuple[float, ...] | None = None
    tokens: tuple[str, ...] | None = None
    if isinstance(told, dict) and isinstance(told.get("token_logprobs"), list):
        try:
            logprobs = tuple([float(value) for value in told["token_logprobs"]])
        except (TypeError, ValueError):
            logprobs = None
        texts = told.get("tokens")
        if isinstance(texts, list) and all(isinstance(item, str) for item in texts):
            tokens = tuple(texts)
    token_ids = read_ids(choice.get("token_ids"))
    prompt = read_ids(choice.get("prompt_token_ids")) or read_ids(raw.get("prompt_token_ids"))
    record = TokenRecord(prompt, 0, token_ids, logprobs, tokens if token_ids is None else None)
    return None if record == TokenRecord() else record


class _TextCollector:
    """A streamed completion so far."""

    def __init__(self, model: CompletionsModel, on_delta: OnDelta) -> None:
        self.is_done = False
        self._server = model.server
        self._on_delta = on_delta
        self._head: dict[str, Json] = {}
        self._choice: dict[str, Json] = {}
        self._texts: list[str] = []
        self._lists: dict[str, list[Json]] = {}

    @property
    def is_complete(self) -> bool:
        return self._choice.get("finish_reason") is not None

    def end(self) -> None:
        self.is_done = True

    def add(self, event: Json) -> None:
        if (error := find_error(event)) is not None:
            raise explain_error(self._server, 200, error)
        for name, value in event.items():
            if name != "choices" and value is not None:
                self._head[name] = value
        for choice in event.get("choices") or ():
            if not choice.get("index"):
                self._add_choice(choice)

    add_whole = add

    def _add_choice(self, choice: dict[str, Json]) -> None:
        for name, value in choice.items():
            if name == "text":
                if value:
                    self._texts.append(value)
                    self._on_delta(TextDelta(value))
            elif name == "token_ids" and value is not None:
                self._lists.setdefault(name, []).extend(value)
            elif name == "logprobs" and isinstance(value, dict):
                for key in ("tokens", "token_logprobs"):
                    self._lists.setdefault(key, []).extend(value.get(key) or ())
            elif value is not None:
                self._choice[name] = value

    def raw(self) -> Json:
        choice = {**self._choice, "text": "".join(self._texts)}
        if "token_ids" in self._lists:
            choice["token_ids"] = self._lists["token_ids"]
        if "token_logprobs" in self._lists:
            choice["logprobs"] = {key: self._lists[key] for key in ("tokens", "token_logprobs")}
        return {**self._head, "choices": [choice]}
