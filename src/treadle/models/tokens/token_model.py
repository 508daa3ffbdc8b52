"""A model that is sent token ids and returns token ids: what was sampled is never tokenised again.

The prompt continues the exact ids of the previous inference if these stand for the first messages. Otherwise, the
renderer makes the prompt from all messages. An answer that the engine aborted is continued from its ids.
"""

import asyncio
from collections.abc import Callable, Sequence
from math import nan

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ProviderError, ServerError, TreadleError, UnsupportedPartError
from treadle.core.events import Delta, TextDelta
from treadle.core.parts import describe
from treadle.core.texts.masking import hide_fields
from treadle.core.tokens.packed import (
    as_packed,
    count_packed,
    list_ids,
    pack_logprobs,
    unpack_logprobs,
    view_ids,
)
from treadle.core.tokens.token_record import Prior, SamplingMask, TokenRecord
from treadle.core.types import (
    Artifact,
    Completion,
    FinishReason,
    Message,
    OutputMode,
    Request,
    Settings,
    ToolSpec,
    Usage,
)
from treadle.formats.text_transcript import DeltaReader
from treadle.models.protocol import Watch, pass_on
from treadle.models.tokens.protocol import Generated, PromptIds, TokenEngine
from treadle.models.wire.endpoint import seed_at
from treadle.models.wire.messages import with_files
from treadle.models.wire.provider import Price, PricedModel, cost_of
from treadle.models.wire.token_records import KnownTexts, check_choices, join_ids
from treadle.renderers.protocol import Renderer

_MAX_IDLE = 20
"""How often in a row an engine may abort an answer without having sampled anything."""
_IDLE_SECONDS = 0.02
_MAX_IDLE_SECONDS = 1.0
_MAX_RENDERED = 64
"""How many prompts that continue no other are kept."""
_NO_CHAR = "\ufffd"
_MAX_HELD = 8
"""After this many ids a text that ends with U+FFFD is passed on: it has bytes that never become a character."""

_SAMPLE = "Read 3 files in src/main and write 42 lines of Python"
"""A text without anything that decoders may clean up, such as blanks before punctuation."""

_encode = msgspec.json.Encoder().encode


class TokenModel(PricedModel):
    """A renderer with an engine that takes and returns token ids."""

    def __init__(
        self,
        engine: TokenEngine,
        renderer: Renderer,
        *,
        settings: Settings | None = None,
        price: Price | None = None,
        context_tokens: int | None = None,
        output_mode: OutputMode | str | None = None,
    ) -> None:
        """Make a model.

        `context_tokens` is the model's context window, as the user says it. Raises: `ConfigError` for the output
        mode `native`, because decoding within a schema changes what the model samples.
        """
        self.engine = engine
        self.renderer = renderer
        self.settings = settings or Settings()
        check_choices(self.settings.extra)
        self._told = replace(self.settings, extra=hide_fields(self.settings.extra))
        """The settings as answers record them, without secrets."""
        self.context_tokens = context_tokens
        self.output_mode = OutputMode(output_mode or OutputMode.TEXT)
        if self.output_mode is OutputMode.NATIVE:
            raise ConfigError(
                "a model with a renderer does not decode within a schema; use the output mode 'text' or 'tool'"
            )
        self.tells_window = True
        """True if the server is asked for the context window when a run begins."""
        self._price = price
        self._known = KnownTexts()
        self._rendered: dict[tuple[int, bytes], tuple[Sequence[ToolSpec], PromptIds]] = {}
        """Recent prompts that continue no other, by their tools and the JSON of their messages."""

    @property
    def name(self) -> str:
        """The name of the model as its user writes it."""
        return self.engine.name

    @property
    def identity(self) -> str:
        """The engine, the renderer and the settings that answers depend on; see `identity_of`."""
        address = getattr(getattr(self.engine, "server", None), "address", "")
        asked = [self.name, address, self.renderer.fingerprint, self.settings]
        return msgspec.json.encode(asked, order="sorted").decode()

    def check_part(self, part: Artifact) -> None:
        """Check that a message can have `part`. Raises: `UnsupportedPartError` unless it is a text file."""
        if part.kind != "text" or (part.digest is None and part.data is None):
            raise UnsupportedPartError(
                f"{self.name} cannot be sent {describe(part)}: its renderer {self.renderer.name!r} makes token ids "
                "of text alone; leave the part out, or use the model without a renderer"
            )

    async def find_context_tokens(self) -> int | None:
        """Return how many tokens the model's context holds; `None` if the engine does not say.

        Raises: `TransportError`.
        """
        find = getattr(self.engine, "find_context_tokens", None)
        found = None if find is None else await find()
        return found if isinstance(found, int) else None

    async def check_vocabulary(self) -> None:
        """Check that the ids of the renderer have the same text for the engine, if the engine says it.

        Raises: `ConfigError` if a text differs; `TransportError`.
        """
        find = getattr(self.engine, "find_text", None)
        if find is None:
            return
        for ids in (self.renderer.encode(_SAMPLE), self.renderer.stop_token_ids[:1]):
            ours, theirs = self.renderer.decode(ids), await find(ids)
            # An engine may leave special tokens out, and blanks at the ends.
            if theirs is not None and theirs.strip() not in ("", ours.strip()):
                server = getattr(self.engine, "server", None)
                place = self.name if server is None else f"{self.name} at {server.origin}"
                raise ConfigError(
                    f"the renderer {self.renderer.name!r} is for another model than {place}: the ids of "
                    f"{ours!r:.60} are {theirs!r:.60} there. Give the renderer of the model's own tokenizer"
                )

    def count_tokens(self, request: Request) -> int | None:
        """Return the exact size of the prompt of `request`; `None` if it cannot be rendered."""
        try:
            return len(self._prompt(request))
        except (TreadleError, LookupError):
            return None

    def render(self, request: Request) -> list[int]:
        """Return the ids of the prompt of `request`.

        Raises: `UnsupportedPartError` for an image or another part that is not text, `ConfigError` if the chat
        template refuses the messages.
        """
        return list(self._prompt(request))

    def _prompt(self, request: Request) -> PromptIds:
        prior = request.prior
        is_ours = prior is not None and prior.tokenizer == self.renderer.fingerprint
        if prior is not None and is_ours and 0 < prior.messages <= len(request.messages):
            added = self._texts(request.messages.after(prior.messages), request)
            ids = view_ids(prior.token_ids)
            following = self.renderer.bridge(ids, added, request.tools, is_cut=prior.is_cut)
            if following is not None:
                return PromptIds.after(prior.token_ids, following, self._known)
        return self._render(self._texts(list(request.messages), request), request.tools)

    def _render(self, messages: list[Message], tools: Sequence[ToolSpec]) -> PromptIds:
        """Return the ids of messages, which are rendered once for the rollouts of a group."""
        key = (id(tools), _encode(messages))
        known = self._rendered.get(key)
        if known is None:
            while len(self._rendered) >= _MAX_RENDERED:
                del self._rendered[next(iter(self._rendered))]
            # The entry keeps the tools alive, so that their id stays theirs.
            known = self._rendered[key] = (tools, PromptIds.of(self.renderer.render(messages, tools)))
        return known[1]

    def _texts(self, messages: list[Message], request: Request) -> list[Message]:
        """Return the messages let in, with their text files as part of their content."""
        for message in messages:
            for part in message.parts:
                self.check_part(part)
        return [with_files(message, request.contents) for message in messages]

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the answer with its exact tokens; see `Model.infer`."""
        prompt = self._prompt(request)
        spoken = None if watch.on_delta is None else _Spoken(self, request.tools, watch.on_delta)
        heard = watch
        if spoken is not None:
            heard = replace(watch, on_delta=None, on_token_ids=spoken.add)
        sampled, finish = await self._sample(prompt, request.place, heard)
        packed = as_packed(sampled.token_ids)
        ids = list_ids(packed)
        message = self.renderer.read(ids, request.tools, finish=finish, stop=self.settings.stop or ())
        self._remember(prompt, packed, ids, request.prior)
        if spoken is not None:
            spoken.close(message)
        if message.tool_calls and finish is FinishReason.STOP:
            finish = FinishReason.TOOL_CALLS
        usage = Usage(len(prompt), len(ids), sampled.cached_tokens)
        return Completion(
            message,
            finish,
            usage,
            cost_of(usage, self._price),
            sampled.model,
            sampled.response_id,
            self._told,
            TokenRecord(
                prompt.packed,
                0,
                packed,
                sampled.logprobs,
                None,
                sampled.forced,
                sampled.versions,
                self.renderer.fingerprint,
                sampled.routed_experts,
                sampled.sampling_mask,
            ),
            engine=sampled.engine,
            weight_version=sampled.weight_version,
        )

    def _remember(self, prompt: PromptIds, packed: bytes, ids: list[int], prior: Prior | None) -> None:
        """Remember the JSON of the ids of a prompt and its answer, which the next prompt probably continues."""
        text = join_ids(prompt.text, ids)
        self._known.remember(prompt.packed + packed, text, b"" if prior is None else prior.token_ids)

    async def _sample(self, prompt: PromptIds, place: str, watch: Watch) -> tuple[Generated, FinishReason]:
        """Return an answer and why it ended. If the engine aborts it, it is asked to go on after what it sampled,
        also in a later attempt with the same `watch`.

        Raises: `ServerError` if it aborts again and again without sampling anything."""
        key = (self, prompt.packed)
        # What is taken here is not the beginning of another answer for the same watch.
        made: list[Generated] = watch.begun.pop(key, []) if watch.begun else []
        ids = b"".join([as_packed(piece.token_ids) for piece in made])
        if ids and watch.on_token_ids is not None:
            watch.on_token_ids(view_ids(ids))
        limit, idle = self.settings.max_output_tokens, 0
        while True:
            settings, asked = self.settings, prompt
            if place and settings.seed is not None:
                settings = replace(settings, seed=seed_at(settings.seed, place))
            if ids:
                asked = PromptIds.of([*prompt, *view_ids(ids)])
                if limit is not None:
                    settings = replace(settings, max_output_tokens=limit - count_packed(ids))
            try:
                if idle >= _MAX_IDLE:
                    raise ServerError(
                        f"{self.name} aborted an answer {idle} times in a row and sampled nothing"
                    )
                if idle:
                    await asyncio.sleep(min(_MAX_IDLE_SECONDS, _IDLE_SECONDS * 2.0 ** min(idle, 10)))
                piece = await self.engine.generate(asked, settings, self.renderer.stop_token_ids, watch)
            except ProviderError:
                if ids:
                    watch.begun[key] = made
                raise
            new = as_packed(piece.token_ids)
            # A piece without ids is no progress for those who count the pieces.
            if new or piece.finish is not None:
                made.append(piece)
            ids += new
            if piece.finish is not None:
                return _join(made, ids), piece.finish
            if new and view_ids(new)[-1] in self.renderer.stop_token_ids:
                return _join(made, ids), FinishReason.STOP
            if limit is not None and count_packed(ids) >= limit:
                return _join(made, ids), FinishReason.LENGTH
            idle = 0 if new else idle + 1

    def __repr__(self) -> str:
        return f"TokenModel({self.engine!r}, {self.renderer.name!r})"


def _join(made: list[Generated], token_ids: bytes) -> Generated:
    """Return the pieces of an answer as one. A log probability that an engine did not return is NaN."""
    last = made[-1]
    if len(made) == 1 and not isinstance(last.logprobs, tuple):
        return last
    logprobs: list[float] = []
    forced: list[int] = []
    for piece in made:
        begin, count = len(logprobs), count_packed(piece.token_ids)
        logprobs += [nan] * count if piece.logprobs is None else unpack_logprobs(piece.logprobs)
        forced += [begin + position for position in piece.forced]
    versions, newest = _find_versions(made)
    masks = [piece.sampling_mask for piece in made if piece.sampling_mask is not None and piece.token_ids]
    is_masked = len(masks) == sum([bool(piece.token_ids) for piece in made])
    return replace(
        last,
        sampling_mask=SamplingMask(
            b"".join([mask.token_ids for mask in masks]), b"".join([mask.counts for mask in masks])
        )
        if is_masked and masks
        else None,
        token_ids=token_ids,
        logprobs=pack_logprobs(logprobs) if any(piece.logprobs is not None for piece in made) else None,
        cached_tokens=made[0].cached_tokens,
        forced=tuple(forced),
        versions=versions,
        weight_version=newest,
    )


def _find_versions(made: list[Generated]) -> tuple[tuple[tuple[int, str], ...], str | None]:
    """Return which weights sampled which ids, empty if all are of one version, and the newest version. If an engine
    told the version of only some ids, the version of the answer is not known."""
    runs: list[tuple[int, str]] = []
    for piece in made:
        count = count_packed(piece.token_ids)
        for length, version in piece.versions or ((count, piece.weight_version),):
            if not length:
                continue
            if version is None:
                return (), None
            if runs and runs[-1][1] == version:
                length += runs.pop()[0]
            runs.append((length, version))
    newest = runs[-1][1] if runs else made[-1].weight_version
    return (tuple(runs) if len(runs) > 1 else ()), newest


class _Spoken:
    """An answer that is streamed: its ids are decoded and parsed as they arrive."""

    def __init__(
        self, model: TokenModel, tools: Sequence[ToolSpec], on_delta: Callable[[Delta], None]
    ) -> None:
        parser = model.renderer.parser(tools)
        self._reader = None if parser is None else DeltaReader(parser, on_delta)
        self._decode = model.renderer.decode
        self._stop_ids = frozenset(model.renderer.stop_token_ids)
        self._stop = model.settings.stop or ()
        self._held_chars = max([len(text) - 1 for text in self._stop], default=0)
        self._before: list[int] = []
        """The ids that were decoded last: some tokenizers decode an id by what stands before it."""
        self._new: list[int] = []
        self._held = ""
        self._is_over = False
        self._on_delta = on_delta

    def add(self, ids: Sequence[int]) -> None:
        if self._reader is None or self._is_over:
            return
        self._new += [number for number in ids if number not in self._stop_ids]
        text = self._decode([*self._before, *self._new])[len(self._decode(self._before)) :]
        if text.endswith(_NO_CHAR) and len(self._new) < _MAX_HELD:
            return
        self._before, self._new = self._new or self._before, []
        self._pass_on(text)

    def _pass_on(self, text: str) -> None:
        assert self._reader is not None
        self._held += text
        ends = [at for stop in self._stop if (at := self._held.find(stop)) != -1]
        self._is_over = bool(ends)
        # The end of the text may be the beginning of a text that ends the answer.
        end = min(ends) if ends else max(0, len(self._held) - self._held_chars)
        if end:
            self._reader.add(TextDelta(self._held[:end]))
            self._held = self._held[end:]

    def close(self, message: Message) -> None:
        """Pass on the rest of the answer. `message` is the whole answer."""
        if self._reader is not None:
            if not self._is_over:
                rest = self._decode([*self._before, *self._new])[len(self._decode(self._before)) :]
                self._held_chars = 0
                self._pass_on(rest)
            self._reader.close()
            return
        pass_on(message, self._on_delta)
