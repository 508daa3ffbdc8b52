"""The base of all engines: one request, whole or streamed, and the ids of an answer whose connection broke."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from treadle.core.errors import (
    ConfigError,
    ContextOverflowError,
    ProviderError,
    RequestError,
    ServerError,
    TransportError,
)
from treadle.core.texts.documents import UNREADABLE
from treadle.core.tokens.routed_experts import RoutedExperts
from treadle.core.types import FinishReason, Json, Settings
from treadle.models.protocol import Watch
from treadle.models.tokens.protocol import Generated, PromptIds
from treadle.models.tokens.weights import AbortedError, Sampling
from treadle.models.wire.body_reader import StreamCollector
from treadle.models.wire.endpoint import HttpEndpoint, is_success, join_url, seed_for, tell_rate_limits
from treadle.models.wire.served import read_form
from treadle.models.wire.server import Server, find_error
from treadle.models.wire.token_records import make_record, read_versions

_FINISHES = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    # vLLM ends an answer that repeats itself, so the model did not end it.
    "repetition": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "abort": None,
}
"""Finish reasons of engines. `None`: the answer was aborted."""


class HttpTokenEngine(HttpEndpoint):
    """An endpoint of an engine that takes and returns token ids."""

    ANSWER: ClassVar[Any]
    """The type of a whole answer; fields that it does not have are ignored."""
    PROMPT: ClassVar[str]
    """The field of the body with the ids of the prompt."""
    ROOT_PATH: ClassVar[str | None] = None
    """The path below the server's root, if the endpoint is not one of OpenAI's API."""
    TOP_LEVEL: ClassVar[frozenset[str]] = frozenset()
    """The fields of `Settings.extra` that go at the top level of the body, not among the sampling parameters."""

    def __init__(
        self, model: str, *, name: str | None = None, context_tokens: int | None = None, **options: Any
    ) -> None:
        """Make an engine; `options` are those of `HttpEndpoint`.

        `name` is for the journal. `context_tokens` is the context window, which otherwise the server is asked for.
        """
        super().__init__(model, **options)
        if self.ROOT_PATH is not None:
            self._endpoint = self._stream_endpoint = join_url(self.root, self.ROOT_PATH)
        self.name = name or model
        self.context_tokens = context_tokens
        self._decode_plain = msgspec.json.Decoder(self.ANSWER).decode
        self._info: str | None = None
        """The engine and its version, for the journal."""
        self._head: tuple[object, bytes] = (None, b"")
        """The beginning of the newest request body, up to the prompt, and what it was made of."""

    async def generate(
        self, prompt_ids: Sequence[int], settings: Settings, stop_token_ids: Sequence[int], watch: Watch
    ) -> Generated:
        """Return what the engine samples after `prompt_ids`; see `TokenEngine.generate`."""
        limit = settings.max_output_tokens
        if limit is None:
            limit = await self._find_limit(len(prompt_ids))
        if self._info is None and (info := await self.find_engine()) is not None:
            self._info = str(info)
        tell = watch.on_token_ids
        prompt = PromptIds.of(prompt_ids)
        if settings.seed is not None:
            settings = replace(settings, seed=seed_for(settings.seed, prompt.packed))
        body = self._write(prompt, settings, stop_token_ids, limit, is_stream=tell is not None)
        sampling = None
        if self.weights is not None:
            tells = self._engine is not None and self._engine.tells_versions
            sampling = self.weights.sampling(tells_versions=tells)
        if tell is None:
            made = await self._post(body, prompt, watch, sampling)
        else:
            made = await self._stream(body, prompt, watch, sampling)
        if sampling is not None and made.weight_version is None:
            made = replace(made, weight_version=sampling.version)
        return made if self._info is None or made.engine is not None else replace(made, engine=self._info)

    async def _post(
        self, body: bytes, prompt: PromptIds, watch: Watch, sampling: Sampling | None
    ) -> Generated:
        try:
            if sampling is None:
                answer = await self._transport.post(self._endpoint, self._headers, body)
            else:
                async with sampling:
                    answer = await self._transport.post(self._endpoint, self._headers, body)
        except AbortedError:
            return Generated(token_ids=b"", finish=None)
        if watch.on_rate_limits is not None:
            tell_rate_limits(answer, watch)
        plain = self._read_body(answer.body, prompt) if is_success(answer.status) else None
        return plain or self._read_raw(self._raw(answer), prompt, answer.body)

    async def _find_limit(self, prompt: int) -> int:
        """Return how many tokens may be sampled. The engines' own limits are low, and not those of the model.
        Raises: `ContextOverflowError` if the prompt leaves no room, `ConfigError` if no limit is known."""
        if self.context_tokens is None:
            self.context_tokens = await self.find_context_tokens()
        if self.context_tokens is None:
            raise ConfigError(
                f"{self.server.origin} does not say how many tokens the context of {self.model!r} holds; give "
                "max_output_tokens or context_tokens"
            )
        if prompt >= self.context_tokens:
            raise ContextOverflowError(
                f"the prompt has {prompt:,} tokens, and the context of {self.model!r} holds {self.context_tokens:,}"
            )
        return self.context_tokens - prompt

    async def _stream(
        self, body: bytes, prompt: PromptIds, watch: Watch, sampling: Sampling | None
    ) -> Generated:
        # Engines stream ids and not deltas.
        reader = self._reader(lambda _: None)
        collector = reader.collector
        assert isinstance(collector, TokenCollector)
        collector.hear(watch)
        try:
            async with sampling or nullcontext():
                raw = await self._read_streamed(body, watch, reader)
                return self._read_raw(raw, prompt, reader.begin)
        except AbortedError:
            pass
        except TransportError:
            if not collector.token_ids:
                raise
        made = self._read_raw(collector.cut(), prompt, reader.begin)
        if sampling is not None and sampling.is_changed and not made.versions:
            # The end of the stream would have said which weights sampled which ids.
            made = replace(made, weight_version=None)
        return made

    def _read_body(self, body: bytes, prompt: PromptIds) -> Generated | None:
        """Return the answer by the typed decoder; `None` if it has to be read again to find what is wrong."""
        try:
            return self._read(self._decode(body, prompt), prompt)
        except (*UNREADABLE, msgspec.MsgspecError, LookupError, ValueError, TypeError):
            return None

    def _decode(self, body: bytes, prompt: PromptIds) -> Any:
        return self._decode_plain(body)

    def _read_raw(self, raw: Json, prompt: PromptIds, body: bytes) -> Generated:
        """Return the answer of a decoded object. Raises: `ProviderError` if it is an error or cannot be read."""
        try:
            if find_error(raw) is not None:
                raise self._nonsense(raw, body)
            return self._read(msgspec.convert(raw, self.ANSWER), prompt)
        except ProviderError:
            raise
        except (msgspec.MsgspecError, LookupError, ValueError, TypeError) as error:
            raise ServerError(
                f"the answer of {self.server.origin} cannot be read as token ids, because {error}: "
                f"{self.server.excerpt(body)}",
                status=200,
            ) from None

    def _write(
        self,
        prompt: PromptIds,
        settings: Settings,
        stop_token_ids: Sequence[int],
        limit: int,
        *,
        is_stream: bool,
    ) -> bytes:
        """Return the request body. All but the prompt is encoded only if it differs from the request before."""
        key = (settings, tuple(stop_token_ids), limit, is_stream)
        if self._head[0] != key:
            fields = self._fields(settings, stop_token_ids, limit, is_stream=is_stream)
            head = msgspec.json.encode(fields)[:-1] + f',"{self.PROMPT}":['.encode()
            self._head = (key, head)
        return b"".join([self._head[1], prompt.text, b"]}"])

    @abstractmethod
    def _fields(
        self, settings: Settings, stop_token_ids: Sequence[int], limit: int, *, is_stream: bool
    ) -> dict[str, Json]:
        """Return the request body without the prompt. `limit` is how many tokens may be sampled."""

    @abstractmethod
    def _read(self, answer: Any, prompt: PromptIds) -> Generated:
        """Return what an `ANSWER` to a prompt says, by `make_generated`. Raises: `ValueError`, `LookupError` or
        `TypeError` if it makes no sense."""

    def _split(self, extra: dict[str, Json] | None) -> tuple[dict[str, Json], dict[str, Json]]:
        """Return the additional fields of the body, and the additional sampling parameters."""
        given = extra or {}
        if (form := given.get("response_format")) is not None:
            given = {**given, **self._constrain(read_form(form))}
            del given["response_format"]
        return (
            {key: value for key, value in given.items() if key in self.TOP_LEVEL},
            {key: value for key, value in given.items() if key not in self.TOP_LEVEL},
        )

    def _constrain(self, schema: dict[str, Json] | None) -> dict[str, Json]:
        """Return the sampling parameters by which the engine decodes within a JSON Schema (`None`: any text)."""
        raise NotImplementedError


def write_sampling(settings: Settings, stop_token_ids: Sequence[int], **own: Json) -> dict[str, Json]:
    """Return the sampling parameters with common names, and an engine's own. `None` is left out."""
    fields: dict[str, Json] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop": settings.stop,
        "stop_token_ids": list(stop_token_ids) or None,
        **own,
    }
    return {name: value for name, value in fields.items() if value is not None}


def make_generated(
    ids: Sequence[int] | None,
    logprobs: Sequence[float | None] | None,
    finish: str | None,
    *,
    prompt: tuple[PromptIds, int | None],
    counted: int | None,
    spans: Json = None,
    seen: Sequence[int] | None = None,
    experts: RoutedExperts | None = None,
    **more: Any,
) -> Generated:
    """Return an engine's answer, with further fields of `Generated`.

    `finish` is the engine's own finish reason, and `counted` the number of tokens that it says it sampled. `prompt`
    is what was sent, and the number of ids that the engine counted; `seen` are the ids that it returned as the
    prompt. `spans` says which weights sampled which ids. `experts` are left out if they are not those of all tokens
    that were sent through the model.

    Raises: `ValueError` if ids are missing, or if the finish reason is not known; `RequestError` if the engine saw
    another prompt.
    """
    sent, count = prompt
    if count is not None and count != len(sent):
        raise RequestError(
            f"{len(sent):,} token ids were sent as the prompt, and the engine counted {count:,}"
        )
    # The ids that were sent are cut out of whole answers, which leaves an empty list.
    if seen and sent != seen:
        raise RequestError(
            f"{len(sent):,} token ids were sent as the prompt, and the engine returned other ones"
        )
    record = make_record(None, ids, logprobs, counted=counted or len(ids or ()))
    if record is None or not isinstance(record.token_ids, bytes):
        raise ValueError(
            f"it has {len(ids or ())} ids of {'all' if counted is None else counted} sampled tokens"
        )
    if finish not in _FINISHES:
        raise ValueError(f"the finish reason is {finish!r}")
    reason = _FINISHES[finish]
    if reason is not None and not record.token_ids:
        raise ValueError("it is finished and has no token ids")
    if spans:
        versions, newest = read_versions(spans, len(ids or ()))
        if newest is not None:
            more |= {"versions": versions, "weight_version": newest}
    if experts is not None and len(sent) + len(ids or ()) - experts.end in (0, 1):
        more["routed_experts"] = experts
    return Generated(token_ids=record.token_ids, logprobs=record.logprobs, finish=reason, **more)


class TokenCollector(StreamCollector):
    """A collector of a streamed answer whose events have token ids."""

    def __init__(self, on_delta: Any, server: Server) -> None:
        super().__init__(on_delta, server)
        self.token_ids: list[int] = []
        """The ids that have come so far."""
        self._tell: Callable[[Sequence[int]], None] | None = None
        self._finish: str | None = None

    @property
    def is_complete(self) -> bool:
        return self._finish is not None

    def end(self) -> None:
        self.is_done = self.is_complete

    def hear(self, watch: Watch) -> None:
        """Report new ids to `watch` as they arrive."""
        self._tell = watch.on_token_ids

    def _take_ids(self, ids: list[int]) -> None:
        self.token_ids += ids
        if ids and self._tell is not None:
            self._tell(ids)

    def cut(self) -> Json:
        """Return the raw object of an answer whose connection broke: an aborted one, with the ids that came."""
        self._finish = "abort"
        return self.raw()
