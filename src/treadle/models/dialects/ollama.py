"""The dialect `ollama`: Ollama's own API, `/api/chat`.

Ollama also has an endpoint in OpenAI's style, but there a request cannot say how long the context is (`num_ctx`),
how long the model stays in memory (`keep_alive`) and how much it thinks. Source: Ollama API documentation and
client 0.6, 2026.
"""

import re
from typing import Any, ClassVar
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ProviderError, retold
from treadle.core.parts import base64_of
from treadle.core.types import Completion, Json, Message, Request, Role, ToolCall
from treadle.http.transport import Answer, StreamedAnswer
from treadle.models.dialects.openai_chat.answer import read_completion
from treadle.models.dialects.openai_chat.stream import ChatCollector
from treadle.models.protocol import Watch
from treadle.models.wire.endpoint import join_url, json_of
from treadle.models.wire.fitting import exact_text, fields_of, fit_name, kept_in, object_of, rest_of
from treadle.models.wire.http_model import HttpModel
from treadle.models.wire.messages import (
    AcceptedParts,
    Contents,
    join_body,
    text_of_part,
    text_or_placeholder,
    with_attached,
)
from treadle.models.wire.openai_style import encode_tool
from treadle.models.wire.provider import Preset
from treadle.models.wire.server import UnfinishedError

KEY = "ollama"
"""The key under which a message keeps data that Treadle has no field for."""
_KNOWN = fields_of(KEY)
_keep_arguments = exact_text("message", "tool_calls", "*", "function", "arguments", mark=b"tool_calls")


def as_chat(raw: Json, body: bytes) -> Json:
    """Return an answer or a chunk, decoded from `body`, in the form of a chat completion.

    The arguments of its calls are their exact text. What Treadle has no field for is under `KEY`.
    """
    _keep_arguments(raw, body)
    try:
        message: dict[str, Json] = {}
        for name, value in raw["message"].items():
            if not value or name == "role":
                continue
            if name == "content":
                message[name] = value
            elif name == "thinking":
                message["reasoning_content"] = value
            elif name == "tool_calls":
                message[name] = [_call_as_chat(call) for call in value]
            else:
                message.setdefault(KEY, {})[name] = value
        choice: dict[str, Json] = {"message": message}
        if raw.get("logprobs"):
            choice["logprobs"] = {"content": raw["logprobs"]}
        if not raw.get("done"):
            return {"choices": [choice]}
        choice["finish_reason"] = raw.get("done_reason") or "stop"
        made = {key: value for key, value in raw.items() if key not in _KNOWN["answer"]} | {
            "choices": [choice]
        }
        before, after = raw.get("prompt_eval_count"), raw.get("eval_count")
        if type(before) is int and type(after) is int:
            # A prompt that is still in the server's memory is not counted.
            made["usage"] = {"prompt_tokens": before, "completion_tokens": after}
        return made
    except (TypeError, LookupError, AttributeError):
        return raw  # Reading it will tell.


def _call_as_chat(call: dict[str, Json]) -> Json:
    function, rest = call["function"], rest_of(call, _KNOWN["call"])
    made = {"name": function["name"], "arguments": function.get("arguments") or "{}"}
    return {"id": call.get("id"), "function": made, KEY: rest or None}


class OllamaCollector(ChatCollector):
    """A collector for one streamed answer, whose last chunk is marked."""

    @property
    def is_complete(self) -> bool:
        return self.is_done

    def add(self, event: Json) -> None:
        if "choices" not in event:
            raise LookupError("an event without a message")
        super().add(event)
        self.is_done = bool(self.finish_reason)


_PORT = 11434
_NUM_CTX = re.compile(r"\bnum_ctx\s+(\d+)")

_encode = msgspec.json.Encoder().encode


class OllamaModel(HttpModel):
    """A model behind an Ollama server.

    If a prompt is longer than the context, Ollama cuts off its beginning without reporting that; set `num_ctx` to
    the length that the runs need. If it is set and a prompt filled the context, the answer has
    `prompt_may_be_cut` in `Completion.opaque`. Ollama cannot force a tool call: if a tool is required, no other
    tool is offered.
    """

    DIALECT = "ollama"
    BASE_URL = "http://localhost:11434"
    PRESET = Preset(
        dialect="ollama",
        key_variable="OLLAMA_API_KEY",
        needs_key=False,
        base_url_variable="OLLAMA_HOST",
        # If a format is set, Ollama's models do not call tools.
        decodes_beside_tools=False,
        tells_window=True,
    )
    PATH = "/api/chat"
    COLLECTOR = OllamaCollector
    HAS_LINES = True
    PARTS: ClassVar[AcceptedParts] = {"image": None}
    RESERVED = frozenset(("model", "messages", "stream", "tools"))
    OPTIONS = ("num_ctx", "think", "keep_alive")
    SETTINGS: ClassVar[dict[str, str]] = {
        "max_output_tokens": "num_predict",
        "temperature": "temperature",
        "top_p": "top_p",
        "seed": "seed",
        "stop": "stop",
        "logprobs": "logprobs",
    }

    def __init__(
        self,
        model: str,
        *,
        num_ctx: int | None = None,
        think: bool | str | None = None,
        keep_alive: float | str | None = None,
        base_url: str | None = None,
        **options: Any,
    ) -> None:
        """Make a model; `options` are those of `HttpModel`. `base_url` may also be `host` or `:port`, as
        OLLAMA_HOST.

        `num_ctx` is the context in tokens, `think` turns thinking on or off (or says how much), `keep_alive` is how
        long the server keeps the model in memory, in seconds or as `"10m"`.
        """
        super().__init__(model, base_url=None if base_url is None else read_host(base_url), **options)
        self._num_ctx = num_ctx
        self.context_tokens = num_ctx or self.context_tokens
        more = {"think": think, "keep_alive": keep_alive}
        extra = dict(self.settings.extra or {})
        sampling = self._name_settings({"num_ctx": num_ctx})
        fields: dict[str, Json] = {"model": model, "logprobs": sampling.pop("logprobs", None) or None}
        fields["options"] = (sampling | extra.pop("options", {})) or None
        self._fields = {name: value for name, value in (fields | extra | more).items() if value is not None}

    @property
    def identity(self) -> str:
        """The server, the model and the settings that answers depend on; see `identity_of`."""
        return super().identity + _encode(self._fields).decode()

    async def find_context_tokens(self) -> int | None:
        """Return the context in use: `num_ctx`, the context of the loaded model, or the context in the model's
        file; `None` if none of them is known. How much the model supports says nothing about what is in use."""
        if self.context_tokens is not None:
            return self.context_tokens
        running = await self._get(join_url(self._base_url, "/api/ps"))
        loaded = running.get("models") if isinstance(running, dict) else None
        names = (self.model, f"{self.model}:latest")
        for item in loaded if isinstance(loaded, list) else ():
            if (
                isinstance(item, dict)
                and item.get("name") in names
                and type(item.get("context_length")) is int
            ):
                return int(item["context_length"])
        body = _encode({"model": self.model})
        url = join_url(self._base_url, "/api/show")
        described = json_of(await self._transport.post(url, self._headers, body))
        found = _NUM_CTX.search(str(described.get("parameters"))) if isinstance(described, dict) else None
        return int(found[1]) if found is not None else None

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the server's answer; see `Model.infer`."""
        return self._mark_cut(await super().infer(request, watch))

    def _body(self, request: Request, *, is_stream: bool) -> bytes:
        return join_body(self._kept_prefix(request, is_stream), request.messages, _STEP, request.contents)

    def _prefix(self, request: Request, *flags: bool) -> bytes:
        fields = {**self._fields, "stream": flags[0]}
        required = request.required_tool
        tools = [tool for tool in request.tools if required is None or tool.name == required]
        if tools:
            fields["tools"] = [encode_tool(tool) for tool in tools]
        if request.output_schema is not None:
            fields["format"] = request.output_schema
        return _encode(fields)[:-1] + b',"messages":['

    def _shape(self, raw: Json, body: bytes) -> Json:
        return as_chat(super()._shape(raw, body), body)

    def _read(self, raw: Json) -> Completion:
        choice = raw["choices"][0]
        if choice.get("finish_reason") is None:
            raise UnfinishedError("it is not done")
        if choice["message"].get("tool_calls") and choice["finish_reason"] == "stop":
            choice["finish_reason"] = "tool_calls"
        return read_completion(raw, self._told)

    def _mark_cut(self, completion: Completion) -> Completion:
        """Return the completion, marked if the prompt may have been longer than the context."""
        usage = completion.usage
        if self._num_ctx is None or usage.total_tokens < self._num_ctx:
            return completion
        return replace(completion, opaque={**(completion.opaque or {}), "prompt_may_be_cut": True})

    def _error(self, status: int, answer: Answer | StreamedAnswer, body: bytes) -> ProviderError:
        error = super()._error(status, answer, body)
        return retold(error, f"{error}. To get it: ollama pull {self.model}") if status == 404 else error


def read_host(host: str) -> str:
    """Return the base URL for a value of OLLAMA_HOST, by the same rules as Ollama's own client."""
    host = host.strip()
    has_scheme = "://" in host
    parts = urlsplit(host if has_scheme else f"http://{host}")
    name = parts.hostname or "localhost"
    if name in ("0.0.0.0", "::"):
        name = "127.0.0.1"
    port = parts.port or (None if has_scheme else _PORT)
    where = f"[{name}]" if ":" in name else name
    where = where if port is None else f"{where}:{port}"
    userinfo, at, _ = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, f"{userinfo}{at}{where}", parts.path, parts.query, ""))


def encode_message(message: Message, contents: Contents) -> bytes:
    """Return a message as an element of `messages`."""
    fields: dict[str, Json] = {"role": message.role, "content": message.content}
    if message.role is Role.TOOL:
        # Ollama before 0.12 joins results to calls by name and order, later versions by id.
        fields |= {"tool_name": fit_name(message.name or ""), "tool_call_id": message.call_id}
    elif message.role is not Role.ASSISTANT:
        if message.parts:
            fields |= _encode_parts(message, contents)
    elif message.tool_calls:
        if message.reasoning:
            fields["thinking"] = message.reasoning
        fields["tool_calls"] = [_encode_call(call) for call in message.tool_calls]
    else:
        fields["content"] = text_or_placeholder(message.content)
    return _encode({**fields, **kept_in(message.opaque, KEY)})


def _encode_parts(message: Message, contents: Contents) -> dict[str, Json]:
    """Return the content of a message, with text files as part of it, and its images."""
    texts = [message.content] if message.content else []
    images: list[str] = []
    for part in message.parts:
        OllamaModel.check_part(part)
        if part.kind == "text":
            texts.append(text_of_part(part, contents))
        else:
            images.append(base64_of(part, contents))
    return {"content": "\n\n".join(texts), **({"images": images} if images else {})}


_STEP = with_attached(encode_message)


def _encode_call(call: ToolCall) -> Json:
    function = {"name": fit_name(call.name), "arguments": object_of(call.arguments)}
    return {**kept_in(call.opaque, KEY), "id": call.call_id, "function": function}
