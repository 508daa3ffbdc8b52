"""The dialect `completions`: a prompt in, text out. OpenAI's old endpoint and every open engine have it.

It is for base models, and for models whose tool calls are text. It has no tools: `FormatModel` writes them into
the transcript, and reads calls out of the text. Source: OpenAI API reference, completions, 2025; vLLM 0.11 and
SGLang 0.5 for token ids.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.events import Delta, TextDelta
from treadle.core.log import Log
from treadle.core.types import (
    Completion,
    FinishReason,
    Json,
    Message,
    OutputMode,
    Request,
    Role,
    Settings,
    TokenRecord,
    Usage,
)
from treadle.models.wire.body_reader import StreamCollector
from treadle.models.wire.fitting import rest_of
from treadle.models.wire.http_model import HttpModel
from treadle.models.wire.messages import Contents, check_part, with_files
from treadle.models.wire.openai_style import PlainAnswer, read_reason, read_usage
from treadle.models.wire.plain import TokenAnswerReader
from treadle.models.wire.provider import Preset, Price, cost_of
from treadle.models.wire.server import Server, explain_error, find_error
from treadle.models.wire.token_records import Versions, make_record, read_versions


class PromptTemplate(Struct, frozen=True):
    """The texts around messages."""

    around: Mapping[Role, tuple[str, str]]
    """The texts before and after a message, by its role."""
    answer: str
    """The text after which the model's answer begins."""
    begin: str = ""
    stop: tuple[str, ...] = ()
    """Texts that end an answer, for engines that do not stop there by themselves."""
    marks: str = "(?!)"
    """A regular expression for what would begin or end a message. In messages that the model did not write, it is
    replaced by `instead`, so that a text cannot pass for a message."""
    instead: str = "&lt;"

    def write(self, message: Message) -> str:
        """Return the text of a message in the prompt."""
        before, after = self.around[message.role]
        content = message.content
        if message.role is not Role.ASSISTANT:
            content = re.sub(self.marks, self.instead, content)
        return f"{before}{content}{after}"


def _headed(begin: str, middle: str, end: str, tool: str = "tool") -> dict[Role, tuple[str, str]]:
    names = {role: role.value for role in Role} | {Role.TOOL: tool}
    return {role: (f"{begin}{name}{middle}", end) for role, name in names.items()}


TEMPLATES: dict[str, PromptTemplate] = {
    "chatml": PromptTemplate(
        _headed("<|im_start|>", "\n", "<|im_end|>\n"),
        "<|im_start|>assistant\n",
        stop=("<|im_end|>",),
        marks=r"<(?=\|(?:im_start|im_end|endoftext)\|>)",
    ),
    "llama3": PromptTemplate(
        _headed("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", "ipython"),
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|begin_of_text|>",
        ("<|eot_id|>",),
        r"<(?=\|(?:start_header_id|end_header_id|eot_id|eom_id|begin_of_text|end_of_text|python_tag)\|>)",
    ),
    "plain": PromptTemplate(
        {
            Role.SYSTEM: ("", "\n\n"),
            Role.USER: ("User: ", "\n\n"),
            Role.ASSISTANT: ("Assistant: ", "\n\n"),
            Role.TOOL: ("Tool: ", "\n\n"),
        },
        "Assistant:",
        stop=("\nUser:",),
        marks=r"(?m)^(?=(?:System|User|Assistant|Tool):)",
        instead=" ",
    ),
    "none": PromptTemplate(dict.fromkeys(Role, ("", "")), ""),
}
"""The templates by name. `plain` is for base models; `none` sends only the contents."""


def find_template(name: str) -> PromptTemplate:
    """Return the template called `name`. Raises: `ConfigError` for an unknown name."""
    if name not in TEMPLATES:
        raise ConfigError(f"unknown prompt template {name!r}; the templates are {', '.join(TEMPLATES)}")
    return TEMPLATES[name]


_RESPONSE_FIELDS = frozenset(("id", "object", "created", "model", "choices", "usage", "error"))
_CHOICE_FIELDS = frozenset(
    (
        "index",
        "text",
        "finish_reason",
        "logprobs",
        "token_ids",
        "prompt_token_ids",
        "weight_versions",
        "error",
    )
)


def read_completion(raw: Json, settings: Settings, price: Price | None) -> Completion:
    """Return the completion for `raw`, a whole answer or one that was joined from a stream.

    Raises: `TypeError`, `LookupError`, `AttributeError` or `ValueError` if it contains an error or cannot be read.
    """
    choice = raw["choices"][0]
    text = choice["text"]
    finish = choice.get("finish_reason")
    if raw.get("error") or choice.get("error") or not isinstance(text, str):
        raise ValueError("it contains an error")
    reason = read_reason(finish, has_calls=False, is_empty=not text)
    opaque = rest_of(raw, _RESPONSE_FIELDS)
    rest = rest_of(choice, _CHOICE_FIELDS)
    if rest:
        opaque["choices"] = [rest]
    if reason is None:
        reason = FinishReason.STOP
        if finish:
            opaque["finish_reason"] = finish
    usage = read_usage(raw["usage"]) if raw.get("usage") else None
    ids = choice.get("token_ids")
    versions, weights = read_versions(choice.get("weight_versions"), None if ids is None else len(ids))
    return Completion(
        Message(Role.ASSISTANT, text),
        reason,
        usage,
        cost_of(usage, price),
        raw.get("model"),
        raw.get("id"),
        settings,
        _read_tokens(choice, raw, usage, versions),
        opaque or None,
        weight_version=weights,
    )


def _read_tokens(
    choice: dict[str, Json], raw: dict[str, Json], usage: Usage | None, versions: Versions
) -> TokenRecord | None:
    """Return the token ids and log probabilities of an answer; `None` if there are none.

    Source: OpenAI's `token_logprobs`, vLLM's `token_ids` and `prompt_token_ids`.
    """
    told = choice.get("logprobs")
    logprobs = told.get("token_logprobs") if isinstance(told, dict) else None
    texts = told.get("tokens") if isinstance(told, dict) else None
    return make_record(
        choice.get("prompt_token_ids") or raw.get("prompt_token_ids"),
        choice.get("token_ids"),
        logprobs,
        counted=None if usage is None else usage.output_tokens,
        tokens=tuple(map(str, texts)) if isinstance(texts, list) else None,
        versions=versions,
    )


# Plain answers


class _Choice(Struct, forbid_unknown_fields=True, gc=False):
    text: str
    finish_reason: Literal["stop"]
    index: int = 0
    logprobs: None = None
    token_ids: None = None
    prompt_token_ids: None = None
    prompt_logprobs: None = None
    stop_reason: None = None


class _Answer(PlainAnswer, forbid_unknown_fields=True, gc=False, kw_only=True):
    choices: tuple[_Choice]


class _Logprobs(Struct, gc=False):
    token_logprobs: list[float | None] | None = None


class _TokenChoice(Struct, forbid_unknown_fields=True, gc=False):
    """The choice of an answer with token ids."""

    text: str
    finish_reason: Literal["stop", "length"]
    token_ids: list[int]
    index: int = 0
    logprobs: _Logprobs | None = None
    prompt_token_ids: list[int] | None = None
    weight_versions: list[dict[str, Json]] | None = None
    prompt_logprobs: None = None
    stop_reason: None = None
    routed_experts: None = None


class _TokenAnswer(PlainAnswer, forbid_unknown_fields=True, gc=False, kw_only=True):
    """An answer with token ids."""

    choices: tuple[_TokenChoice]
    prompt_token_ids: list[int] | None = None  # type: ignore[assignment]
    ec_transfer_params: None = None
    metrics: None = None


class CompletionsReader(TokenAnswerReader):
    """The reader of plain completions. If the settings ask for token ids, a plain answer may have them."""

    ANSWER = _Answer
    TOKEN_ANSWER = _TokenAnswer

    def _read(self, answer: Any) -> Completion | None:
        usage = None if answer.usage is None else answer.usage.read()
        choice = answer.choices[0]
        if not self._has_ids:
            return self._complete(choice.text, (), usage, answer.model, answer.id)
        logprobs = None if choice.logprobs is None else choice.logprobs.token_logprobs
        return self._complete_tokens(answer, Message(Role.ASSISTANT, choice.text), usage, logprobs)


class TextCollector(StreamCollector):
    """A collector for one streamed completion."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        super().__init__(on_delta, server)
        self._head: dict[str, Json] = {}
        self._choice: dict[str, Json] = {}
        self._is_odd = False
        """True if an object came that is not a chunk."""
        self._texts: list[str] = []
        self._lists: dict[str, list[Json]] = {}

    @property
    def is_complete(self) -> bool:
        return bool(self._choice.get("finish_reason"))

    def end(self) -> None:
        # Without a finish reason, an object that is not a chunk may have said what went wrong.
        self.is_done = self.is_complete or not self._is_odd

    def add(self, event: Json) -> None:
        if (error := find_error(event)) is not None:
            raise explain_error(self._server, 200, error)
        self._is_odd = self._is_odd or not ("choices" in event or "usage" in event)
        for name, value in event.items():
            if name != "choices" and value is not None:
                self._head[name] = value
        for choice in event.get("choices") or ():
            if not choice.get("index"):
                self._add_choice(choice)

    def _add_choice(self, choice: dict[str, Json]) -> None:
        for name, value in choice.items():
            if name == "text":
                if value:
                    if type(value) is not str:
                        raise TypeError("the field 'text' is not a string")
                    self._texts.append(value)
                    self._on_delta(TextDelta(value))
            elif name == "token_ids" and value is not None:
                self._lists.setdefault(name, []).extend(value)
            elif name == "logprobs" and isinstance(value, dict):
                for key in ("tokens", "token_logprobs"):
                    self._lists.setdefault(key, []).extend(value.get(key) or ())
            elif value is not None and value != "":
                self._choice[name] = value

    def raw(self) -> Json:
        choice = {**self._choice, "text": "".join(self._texts)}
        if "token_ids" in self._lists:
            choice["token_ids"] = self._lists["token_ids"]
        if "token_logprobs" in self._lists:
            choice["logprobs"] = {key: self._lists[key] for key in ("tokens", "token_logprobs")}
        return {**self._head, "choices": [choice]}


_STREAM = {"stream": True, "stream_options": {"include_usage": True}}

_encode = msgspec.json.Encoder().encode


class CompletionsModel(HttpModel):
    """A model behind a completions server."""

    DIALECT = "completions"
    BASE_URL = "https://api.openai.com/v1"
    PRESET = Preset(
        dialect="completions",
        key_variable="OPENAI_API_KEY",
        base_url_variable="OPENAI_BASE_URL",
        needs_key=False,
        output_mode=OutputMode.TEXT,
    )
    PATH = "/completions"
    READER = CompletionsReader
    COLLECTOR = TextCollector
    RESERVED = frozenset(("model", "prompt", "stream"))
    OPTIONS = ("template",)

    def __init__(self, model: str, *, template: str = "chatml", **options: Any) -> None:
        """Make a model; `options` are those of `HttpModel`.

        `template` is one of `TEMPLATES`, by which the transcript becomes a prompt.
        """
        super().__init__(model, **options)
        found = find_template(template)
        self._template = template
        self._begin = _encode_inner(found.begin)
        self._answer = _encode_inner(found.answer)
        self._write_message = _writer_for(template)
        settings = self.settings
        fields = {
            "model": model,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_output_tokens,
            "seed": settings.seed,
            "stop": [*(settings.stop or ()), *found.stop] or None,
            # The number of alternatives to the sampled token; its own log probability is always there.
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
        """The server, the model and the settings that answers depend on; see `identity_of`."""
        return f"{super().identity} {self._template}"

    def _body(self, request: Request, *, is_stream: bool) -> bytes:
        if request.tools or request.required_tool is not None:
            raise ConfigError(
                f"{self.name} completes a prompt, which has no place for tools; say in which format its tool calls "
                "are written, as model(..., format='hermes')"
            )
        pieces, _ = request.messages.join(self._write_message, None, request.contents)
        schema = request.output_schema
        # Open engines can decode within a schema at this endpoint too.
        end = b'"}' if schema is None else b'","response_format":%b}' % _encode_schema(schema)
        return b"".join([self._heads[is_stream], self._begin, *pieces, self._answer, end])

    def prompt(self, messages: Log[Message]) -> str:
        """Return the prompt that would be sent."""
        found = find_template(self._template)
        return found.begin + "".join(found.write(message) for message in messages) + found.answer

    def _read(self, raw: Json) -> Completion:
        return read_completion(raw, self.settings, self._price)


def _encode_inner(text: str) -> bytes:
    """Return `text` encoded as the inside of a JSON string."""
    return _encode(text)[1:-1]


@lru_cache
def _writer_for(template: str) -> Callable[[None, Message, Contents], tuple[None, bytes]]:
    """Return a function for `Log.join` that writes messages. It is the same function for the same template, so
    that a `Log` does not encode its messages again."""
    write = find_template(template).write

    def step(state: None, message: Message, contents: Contents) -> tuple[None, bytes]:
        for part in message.parts:
            check_part(part, CompletionsModel.DIALECT, CompletionsModel.PARTS)
        return None, _encode_inner(write(with_files(message, contents)))

    return step


def _encode_schema(schema: dict[str, Json]) -> bytes:
    return _encode({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})
