"""The base of all models behind a server: sending a request, and reading the answer.

A dialect is a subclass: it says where to post, how a request is written, and how an answer is read. An answer,
whole or streamed, becomes one raw object that one function reads. A dialect that is used much may decode plain
answers directly into typed structs instead.
"""

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec.structs import force_setattr as stamp
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ProviderError, RequestError, ServerError, TransportError
from treadle.core.log import Log
from treadle.core.texts.masking import hide_fields
from treadle.core.tokens.token_record import Prior
from treadle.core.types import (
    UNREADABLE_CALL,
    Artifact,
    Completion,
    FinishReason,
    Json,
    Message,
    OutputMode,
    Request,
    Role,
    Settings,
    ToolCall,
    Usage,
)
from treadle.models.protocol import Watch
from treadle.models.wire.endpoint import (
    HttpEndpoint,
    OnDelta,
    is_success,
    seed_at,
    seed_for,
    tell_rate_limits,
)
from treadle.models.wire.messages import AcceptedParts, check_part
from treadle.models.wire.openai_style import PlainReader
from treadle.models.wire.provider import Preset, Price, PricedModel, cost_of
from treadle.models.wire.server import BadCallError, UnfinishedError
from treadle.models.wire.token_records import check_choices

_MAX_PREFIXES = 1024
_MAX_BAD_CALLS = 4
"""How many unreadable calls in a row go back to the model."""
_BYTES_PER_TOKEN = 4
_SEEDING_MESSAGES = 4
"""How many messages at the end of a request its seed depends on: late steps cost no more than early ones."""

_Prefix: TypeAlias = tuple[Request, tuple[bool, ...], bytes]
"""The beginning of request bodies, with the tools, schema and flags that it was made for."""

_CALL_MARKS = (
    "<tool_call>",
    "<|tool_call",
    "[TOOL_CALLS]",
    "<function=",
    "<|python_tag|>",
    "<｜tool▁calls▁begin｜>",
)
"""What the calls of open models begin with."""


class HttpModel(HttpEndpoint, PricedModel, ABC):
    """A model behind a server. It streams if and only if the caller wants deltas."""

    DIALECT: ClassVar[str]
    PRESET: ClassVar[Preset]
    """The provider that defined the dialect."""
    READER: ClassVar[type[PlainReader] | None] = None
    """The fast reader of plain answers; `None`: `_read` reads all answers."""
    LINKS: ClassVar[str] = ""
    """The kinds of parts that may be links, which the server fetches, with spaces between them."""
    PARTS: ClassVar[AcceptedParts] = {}
    """The parts of messages that the dialect can send."""
    RESERVED: ClassVar[frozenset[str]]
    """Fields of the body that `Settings.extra` must not contain, because the dialect sets them itself."""
    OPTIONS: ClassVar[tuple[str, ...]] = ()
    """Additional keyword arguments that a user may give."""
    has_window: bool = True
    """False if the server keeps the transcript, so that the window does not limit what is sent."""
    SETTINGS: ClassVar[dict[str, str]] = {
        "temperature": "temperature",
        "top_p": "top_p",
        "max_output_tokens": "max_tokens",
        "seed": "seed",
        "stop": "stop",
        "logprobs": "logprobs",
        "return_token_ids": "return_token_ids",
    }
    """The API's names of the fields of `Settings` that it has."""

    def __init__(
        self,
        model: str,
        *,
        settings: Settings | None = None,
        price: Price | None = None,
        name: str | None = None,
        key_variable: str | None = None,
        output_mode: OutputMode | str | None = None,
        decodes_beside_tools: bool = True,
        context_tokens: int | None = None,
        server_tools: Iterable[dict[str, Json]] = (),
        **endpoint: Any,
    ) -> None:
        """Make a model; `endpoint` are the other options of `HttpEndpoint`.

        `name` is for the journal. `context_tokens` is the model's context window, as the user says it.
        `decodes_beside_tools` says whether the server accepts a schema for the answer in a request that has tools.
        `server_tools` are tools that the server runs, as the API defines them. Raises: `ConfigError` for settings
        and tools that the API does not have.
        """
        super().__init__(model, key_variable=key_variable or self.PRESET.key_variable, **endpoint)
        self.tells_window = False
        """True if the server is asked for the context window when a run begins."""
        self.name = name or f"{self.DIALECT}:{model}"
        self.settings = settings or Settings()
        self.context_tokens = context_tokens
        """The model's context window, as the user says it; `None` if it was not given."""
        self.output_mode = OutputMode(output_mode or self.PRESET.output_mode)
        self._decodes_beside_tools = decodes_beside_tools
        self._price = price
        self._server_tools = tuple(server_tools)
        asked = self.settings
        self._seed_name: bytes | None = None
        """The name of the seed in the body; `None` if none is sent."""
        self._has_tokens = bool(asked.return_token_ids or asked.logprobs or asked.extra)
        """True if answers may have token ids."""
        self._signature: str | None = None
        """The engine, for answers with token ids; empty if it is not known, `None` if it was not asked for."""
        secrets: list[str] = []
        self._told = asked if asked.extra is None else replace(asked, extra=hide_fields(asked.extra, secrets))
        """The settings as answers record them, without secrets."""
        self.server = replace(self.server, secrets=tuple(secrets))
        self._read_plain = read_nothing if self.READER is None else self.READER(self._told, price).read
        self._newest: _Prefix = (Request(Log()), (), b"")
        self._prefixes: dict[tuple[object, ...], _Prefix] = {}
        if reserved := sorted(self.RESERVED & (self.settings.extra or {}).keys()):
            raise ConfigError(f"Settings.extra must not contain {reserved}, which the request sets itself")
        check_choices(self.settings.extra)
        for setting in Settings.__struct_fields__:
            if setting not in (*self.SETTINGS, "extra", "logprobs_mode") and getattr(self.settings, setting):
                raise ConfigError(f"the dialect {self.DIALECT} has no {setting}: leave it out for {model!r}")
        if server_tools and "server_tools" not in self.OPTIONS:
            raise ConfigError(f"the dialect {self.DIALECT} has no server_tools: leave them out for {model!r}")

    @property
    def identity(self) -> str:
        """The server, the model and the settings that answers depend on; see `identity_of`."""
        asked: list[object] = [self.DIALECT, self.server.address, self.model, self.settings]
        parts = [asked, self._server_tools] if self._server_tools else [asked]
        return "".join([msgspec.json.encode(part, order="sorted").decode() for part in parts])

    def _name_settings(
        self, fields: dict[str, Json] | None = None, names: dict[str, str] | None = None
    ) -> dict[str, Json]:
        """Return `fields` of the body and the settings under the API's names, without those that are `None`.
        `names` are other names than those in `SETTINGS`."""
        all_names = self.SETTINGS | (names or {})
        named = [(name, getattr(self.settings, field)) for field, name in all_names.items() if name]
        if self.settings.seed is not None and "seed" in all_names:
            self._seed_name = msgspec.json.encode(all_names["seed"]) + b":"
        return {name: value for name, value in [*(fields or {}).items(), *named] if value is not None}

    def _seeded_body(self, request: Request, *, is_stream: bool) -> bytes:
        """Return the body with a seed that depends on the number of messages and the texts of the last ones; see
        `seed_for`. The first request of a conversation is sent with the seed of its place."""
        body, messages, name = self._body(request, is_stream=is_stream), request.messages, self._seed_name
        if name is None:
            return body
        is_first = not any(messages[at].role is Role.ASSISTANT for at in range(len(messages)))
        if is_first and not request.place:
            return body
        written, at = b"%d" % (self.settings.seed or 0), body.find(name) + len(name)
        if not body.startswith((written + b",", written + b"}"), at):
            return body  # `Settings.extra` has another one
        own = seed_at(self.settings.seed or 0, request.place)
        # Servers give calls random ids, with which a run that is made again would have other seeds.
        if not is_first:
            last = messages.after(max(0, messages.size - _SEEDING_MESSAGES))
            said = "\0".join([str(messages.size), *[item.content for item in last]])
            own = seed_for(own, said.encode(errors="replace"))
        return b"".join([body[:at], b"%d" % own, body[at + len(written) :]])

    def takes_schema(self, schema: dict[str, Json], *, has_tools: bool) -> bool:
        """Return whether the server decodes within `schema`."""
        return self._decodes_beside_tools or not has_tools

    @classmethod
    def check_part(cls, part: Artifact) -> None:
        """Check that the dialect can send `part`. Raises: `UnsupportedPartError` if it cannot."""
        check_part(part, cls.DIALECT, cls.PARTS, cls.LINKS)

    def infer(self, request: Request, watch: Watch) -> Coroutine[Any, Any, Completion]:
        """Return the server's answer; see `Model.infer`.

        If the server could not read a call, the answer has that call, so that the model is told what is wrong with
        it. An answer with token ids names the engine that sampled them.
        """
        # A coroutine around another one costs time whenever it is resumed.
        if self.weights is None and (
            not self._has_tokens or (self._signature is not None and watch.on_delta is None)
        ):
            return self._infer(request, watch)
        return self._infer_tokens(request, watch)

    async def _infer_tokens(self, request: Request, watch: Watch) -> Completion:
        """Return an answer with the version of the weights, and with the engine if it has token ids."""
        if self.weights is None:
            completion = await self._infer(request, watch)
        else:
            async with self.weights.sampling() as sampling:
                completion = await self._infer(request, watch)
            completion = sampling.sign(completion)
        if completion.tokens is None or completion.tokens.token_ids is None:
            return completion
        try:
            engine = await self.find_engine()
        except TransportError:
            return completion
        self._signature = "" if engine is None else str(engine)
        return replace(completion, engine=self._signature or None)

    async def _infer(self, request: Request, watch: Watch) -> Completion:
        try:
            if watch.on_delta is not None:
                return _find_call(await self._stream(request, watch, watch.on_delta), request)
            body = self._seeded_body(request, is_stream=False)
            answer = await self._transport.post(self._endpoint, self._headers, body)
            if watch.on_rate_limits is not None:
                tell_rate_limits(answer, watch)
            made = self._read_plain(answer.body, request.prior) if is_success(answer.status) else None
            if made is None:
                made = self.read(await self._settle(self._raw(answer), watch), answer.body)
            if self._signature and made.tokens is not None and made.tokens.token_ids is not None:
                stamp(made, "engine", self._signature)
            return made if made.message.tool_calls or not request.tools else _find_call(made, request)
        except BadCallError as error:
            return self._read_bad_call(request, error)

    def _read_bad_call(self, request: Request, error: BadCallError) -> Completion:
        """Return an answer with the call that the server could not read. Its tokens are estimated. Raises:
        `RequestError` if no tools were offered, or if the model's last answers were such calls too."""
        said = [item for item in list(request.messages)[-2 * _MAX_BAD_CALLS :] if item.tool_calls]
        bad = [item for item in said if item.tool_calls[0].name == UNREADABLE_CALL]
        if not request.tools or len(bad) >= _MAX_BAD_CALLS:
            times = f" (the {len(bad) + 1}th time in a row)" if bad else ""
            raise RequestError(f"{error}{times}", status=error.status) from None
        call = ToolCall("", UNREADABLE_CALL, error.written or error.said, {UNREADABLE_CALL: error.said})
        usage = Usage(
            len(self._body(request, is_stream=False)) // _BYTES_PER_TOKEN,
            len(call.arguments) // _BYTES_PER_TOKEN + 1,
        )
        return Completion(
            Message(Role.ASSISTANT, "", (call,)),
            FinishReason.TOOL_CALLS,
            usage,
            cost_of(usage, self._price),
            self.model,
            settings=self._told,
            opaque={"is_usage_estimated": True},
        )

    async def _stream(self, request: Request, watch: Watch, on_delta: OnDelta) -> Completion:
        body = self._seeded_body(request, is_stream=True)
        reader = self._reader(on_delta)
        raw = await self._read_streamed(body, watch, reader)
        return self.read(await self._settle(raw, watch), reader.begin)

    async def _settle(self, raw: Json, watch: Watch) -> Json:
        """Return the raw object of the answer, given what the server sent, which may still be working on it."""
        return raw

    def read(self, raw: Json, body: bytes | None = None) -> Completion:
        """Return the completion for the raw object of a whole answer; `body` is how it came, for error messages.

        Raises: `ProviderError` if it contains an error, `ServerError` if it cannot be read.
        """
        try:
            if raw.get("error"):
                raise self._nonsense(raw, body)
            completion = self._read(raw)
            _check_types(completion.message)
            stamp(completion, "settings", self._told)
            if completion.cost_usd is None:
                stamp(completion, "cost_usd", cost_of(completion.usage, self._price))
            return completion
        except ProviderError:
            raise
        except UnfinishedError as error:
            raise ServerError(
                f"{self.server.origin} did not give a whole answer, because {error}: "
                f"{self.server.excerpt(body or msgspec.json.encode(raw))}",
                status=200,
            ) from None
        except (TypeError, LookupError, AttributeError, ValueError):
            raise self._nonsense(raw, body) from None

    @abstractmethod
    def _body(self, request: Request, *, is_stream: bool) -> bytes:
        """Return the request body. `Log.map` and `Log.scan` keep the encoded messages, so none is encoded again."""

    def _prefix(self, request: Request, *flags: bool) -> bytes:
        """Return the body up to the first message, which depends on tools, schema and settings alone."""
        raise NotImplementedError

    def _kept_prefix(self, request: Request, *flags: bool) -> bytes:
        kept, known, prefix = self._newest
        if (
            known == flags
            and prefix
            and kept.tools is request.tools
            and kept.output_schema is request.output_schema
            and kept.required_tool == request.required_tool
        ):
            return prefix
        key = (id(request.tools), id(request.output_schema), request.required_tool, *flags)
        entry = self._prefixes.get(key)
        if entry is None:
            if len(self._prefixes) >= _MAX_PREFIXES:
                self._prefixes.clear()
            # The entry keeps the tools and the schema alive, so that their ids stay theirs.
            kept = Request(Log(), request.tools, request.output_schema, request.required_tool)
            entry = self._prefixes[key] = (kept, flags, self._prefix(request, *flags))
        self._newest = entry
        return entry[2]

    @abstractmethod
    def _read(self, raw: Json) -> Completion:
        """Return the completion without its settings, and without a cost that the server does not report. `read`
        turns `LookupError`, `TypeError`, `AttributeError` and `ValueError` into a `ServerError`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, base_url={self.server.origin!r})"


def _find_call(completion: Completion, request: Request) -> Completion:
    """Return the completion with its text as a call that cannot be read, if it is one. Engines whose parser cannot
    read a call return it as the text of an answer that seems to be final. Source: vLLM 0.32,
    `Hermes2ProToolParser.extract_tool_calls`."""
    said = completion.message
    is_call = completion.finish_reason is FinishReason.STOP and said.content.lstrip().startswith(_CALL_MARKS)
    if not is_call or said.tool_calls or not request.tools:
        return completion
    told = {UNREADABLE_CALL: "the server's parser of calls could not read it"}
    message = replace(
        said, content="", tool_calls=(ToolCall("", UNREADABLE_CALL, said.content.strip(), told),)
    )
    return replace(completion, message=message, finish_reason=FinishReason.TOOL_CALLS)


def read_nothing(_body: bytes, _prior: Prior | None = None) -> Completion | None:
    """Return `None`: without a fast reader, no answer is plain."""
    return None


def _check_types(message: Message) -> None:
    """Check the types that decoding into untyped values does not check. Raises: `TypeError`."""
    texts = [message.content, message.reasoning or ""]
    for call in message.tool_calls:
        texts += (call.call_id, call.name, call.arguments)
    if {*map(type, texts)} != {str}:
        raise TypeError("a value that must be a string is not a string")
