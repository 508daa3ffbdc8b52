"""The dialect `completions`: a prompt in, text out. OpenAI's old endpoint and every open engine have it.

It is for base models, and for models whose tool calls are text. It has no tools: `FormatModel` writes them into
the transcript, and reads calls out of the text. Source: OpenAI API reference, completions, 2025; vLLM 0.11 and
SGLang 0.5 for token ids.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.log import Log
from treadle.core.types import Completion, Json, Message, OutputMode, Request
from treadle.models.dialects.completions.answer import CompletionsReader, read_completion
from treadle.models.dialects.completions.stream import TextCollector
from treadle.models.wire.http_model import HttpModel
from treadle.models.wire.parts import Contents, check_part, with_files
from treadle.models.wire.preset import Preset
from treadle.models.wire.prompt import find_template

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
