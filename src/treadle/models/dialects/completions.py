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
from treadle.core.prompts.foreign import let_in
from treadle.core.texts.documents import read_data
from treadle.core.types import UNREPORTED, Completion, Json, Message, OutputMode, Request, Role
from treadle.models.dialects.openai_chat.answer import read_completion
from treadle.models.dialects.openai_chat.stream import ChatCollector
from treadle.models.wire.http_model import HttpModel
from treadle.models.wire.messages import Contents, with_files
from treadle.models.wire.openai_style import PlainAnswer, PlainReader
from treadle.models.wire.provider import Preset
from treadle.models.wire.token_records import cut_logprobs, has_named_ids

_compile = lru_cache(re.compile)


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
        before, after = self.around[message.role]
        content = let_in(message).content
        if message.role is not Role.ASSISTANT:
            content = _compile(self.marks).sub(self.instead, content)
        return f"{before}{content}{after}"


TEMPLATES = msgspec.convert(read_data(__package__, "templates"), dict[str, PromptTemplate])
"""The templates by name."""


def find_template(name: str) -> PromptTemplate:
    """Return the template called `name`. Raises: `ConfigError` for an unknown name."""
    if name not in TEMPLATES:
        raise ConfigError(f"unknown prompt template {name!r}; the templates are {', '.join(TEMPLATES)}")
    return TEMPLATES[name]


def as_chat(raw: Json) -> Json:
    """Return an answer or a chunk in the form of a chat completion, given as a completion.

    Source: OpenAI's `token_logprobs` and `tokens`.
    """
    try:
        for choice in raw.get("choices") or ():
            if isinstance(choice.get("text"), str):
                choice["message"] = {"content": choice.pop("text")}
            told = choice.get("logprobs")
            if isinstance(told, dict) and "content" not in told:
                values, texts = told.get("token_logprobs") or (), told.get("tokens") or None
                named = [{}] * len(values) if texts is None else [{"token": text} for text in texts]
                found = [{**name, "logprob": value} for name, value in zip(named, values, strict=True)]
                choice["logprobs"] = {"content": found}
    except (TypeError, AttributeError, ValueError):
        pass  # It makes no sense, as reading it will tell.
    return raw


# Plain answers with token ids


class _Logprobs(Struct, gc=False):
    token_logprobs: list[float | None] | None = None


class _Choice(Struct, forbid_unknown_fields=True, gc=False):
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


class _Answer(PlainAnswer, forbid_unknown_fields=True, gc=False, kw_only=True):
    choices: tuple[_Choice]
    prompt_token_ids: list[int] | None = None  # type: ignore[assignment]
    ec_transfer_params: None = None
    metrics: None = None


class CompletionsReader(PlainReader):
    """The reader of plain completions with token ids."""

    TOKEN_ANSWER = _Answer

    _logprobs: list[float | None] | None = None
    """The log probabilities that were cut out of the newest answer."""
    _has_names = False
    """True if its tokens are named by their ids, which must be compared."""

    def _shorten(self, body: bytes) -> bytes:
        body, self._logprobs = cut_logprobs(body)
        self._has_names = self._logprobs is None and has_named_ids(body, len(body))
        return body

    def _read(self, answer: Any) -> Completion | None:
        usage = UNREPORTED if answer.usage is None else answer.usage.read()
        choice = answer.choices[0]
        logprobs = self._logprobs if choice.logprobs is None else choice.logprobs.token_logprobs
        if self._has_names:
            return None
        return self._complete_tokens(answer, Message(Role.ASSISTANT, choice.text), usage, logprobs)


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
    COLLECTOR = ChatCollector
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
        head = self._name_settings({"model": model})
        if stop := [*(self.settings.stop or ()), *found.stop]:
            head["stop"] = stop
        if head.pop("logprobs", False):
            # The number of alternatives to the sampled token; its own log probability is always there.
            head["logprobs"] = 0
        head |= self.settings.extra or {}
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
        end, schema = b'"}', request.output_schema
        if schema is not None:  # open engines can decode within it at this endpoint too
            wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
            end = b'","response_format":%b}' % _encode(wanted)
        return b"".join([self._heads[is_stream], self._begin, *pieces, self._answer, end])

    def _shape(self, raw: Json, body: bytes) -> Json:
        return as_chat(super()._shape(raw, body))

    def _read(self, raw: Json) -> Completion:
        if "text" in raw["choices"][0]:
            raise TypeError("the text is not a string")
        return read_completion(raw, self._told)


def _encode_inner(text: str) -> bytes:
    """Return `text` encoded as the inside of a JSON string."""
    return _encode(text)[1:-1]


@lru_cache
def _writer_for(template: str) -> Callable[[None, Message, Contents], tuple[None, bytes]]:
    """Return the writer of messages, the same for each template, so that a `Log` encodes each message once."""
    write = find_template(template).write

    def step(state: None, message: Message, contents: Contents) -> tuple[None, bytes]:
        for part in message.parts:
            CompletionsModel.check_part(part)
        return None, _encode_inner(write(with_files(message, contents)))

    return step
