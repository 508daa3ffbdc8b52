"""A model whose tool calls are text: they are written into its transcript, and parsed out of its answers.

It wraps any model that handles only text: a completions server, or a chat endpoint used as plain text. Tools are
described in the system message, results are sent as text, and the model's own text is sent back unchanged. A call
that cannot be parsed is passed to the loop unchanged, so that the model is told what is wrong with it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import (
    UNREADABLE_CALL,
    Completion,
    FinishReason,
    Message,
    OutputMode,
    Request,
    Role,
    ToolCall,
    ToolSpec,
)
from treadle.formats import (
    AUTO,
    ContentPiece,
    IncrementalParser,
    Parsed,
    ParsedCall,
    ParseError,
    Piece,
    ReasoningPiece,
    detect,
    find_format,
    parse,
    quote_result,
    render,
    render_tools,
)
from treadle.models.protocol import Model, Watch, identity_of
from treadle.models.wrappers.wrapper import Wrapper

KEY = "completions"
"""The key under which a message keeps the text that the model wrote."""
_MAX_TOOLSETS = 64
_MAX_BAD_CALLS = 16
_EXCERPT = 200
"""How many characters of a text an error message quotes."""
_Write: TypeAlias = Callable[[list[Message], bool], Iterable[Message]]


class FormatModel(Wrapper):
    """A model whose tool calls are text in one format. The instructions ask for answers that fit a schema."""

    output_mode = OutputMode.TEXT

    def __init__(
        self,
        inner: Model,
        format: str,
        *,
        begins_in_reasoning: bool | None = False,
        merges_results: bool = True,
    ) -> None:
        """Make a model that speaks `format`.

        `begins_in_reasoning` says whether the prompt ends with the opening tag of thinking; `None`: unknown. With
        `merges_results` the results of one step are one user message, as in chat templates.
        Raises: `ConfigError` for an unknown format, or if `auto` finds none for the model's name.
        """
        super().__init__(inner)
        self.format = detect(inner.name) if format == AUTO else format
        find_format(self.format)
        self._begins_in_reasoning = begins_in_reasoning
        self._merges_results = merges_results
        self._writers: dict[int, tuple[Sequence[ToolSpec], _Write]] = {}

    @property
    def identity(self) -> str:
        """The server, the model and the settings that answers depend on; see `identity_of`."""
        return f"{identity_of(self.inner)} {self.format}"

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the answer with the calls parsed out of its text; see `Model.infer`."""
        messages = request.messages.derive(self._writer(request.tools))
        spoken = Request(messages, (), request.output_schema, contents=request.contents)
        if watch.on_delta is None:
            completion = await self.inner.infer(spoken, watch)
        else:
            reader = _Reader(self._parser(request), watch.on_delta)
            on_failure = reader.forget_before(watch.on_failure, lambda: self._parser(request))
            heard = Watch(
                reader.add, on_failure, watch.on_rate_limits, left_seconds=watch.left_seconds, held=watch.held
            )
            completion = await self.inner.infer(spoken, heard)
            parsed = reader.close()
            if reader.text == completion.message.content:
                return self._read(completion, parsed)
        parsed = parse(
            completion.message.content,
            self.format,
            request.tools,
            begins_in_reasoning=self._begins_in_reasoning,
        )
        return self._read(completion, parsed)

    def _parser(self, request: Request) -> IncrementalParser:
        return IncrementalParser(self.format, request.tools, begins_in_reasoning=self._begins_in_reasoning)

    def _read(self, completion: Completion, parsed: Parsed) -> Completion:
        message = completion.message
        calls = _calls_of(parsed, is_cut=completion.finish_reason is FinishReason.LENGTH)
        opaque = {**(message.opaque or {}), KEY: {"text": message.content}}
        reasoning = parsed.reasoning
        if message.reasoning:
            reasoning = f"{message.reasoning}\n{reasoning}" if reasoning else message.reasoning
        read = replace(
            message,
            content=parsed.content,
            tool_calls=(*message.tool_calls, *calls),
            reasoning=reasoning,
            opaque=opaque,
        )
        reason = completion.finish_reason
        if calls and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS
        return replace(completion, message=read, finish_reason=reason)

    def _writer(self, tools: Sequence[ToolSpec]) -> "_Write":
        """Return the writer of transcripts with these tools; the same object for the same tools."""
        known = self._writers.get(id(tools))
        if known is None:
            if len(self._writers) >= _MAX_TOOLSETS:
                self._writers.clear()
            told = render_tools(tools, self.format) if tools else ""
            # The entry keeps the tools alive, so that their id stays theirs.
            known = (tools, _Writer(self.format, told, merges_results=self._merges_results))
            self._writers[id(tools)] = known
        return known[1]


class _Writer:
    """A writer of messages as plain text; an instance is a function for `Log.derive`."""

    def __init__(self, format: str, told: str, *, merges_results: bool) -> None:
        self._format = format
        self._told = told
        self._merges_results = merges_results

    def __call__(self, messages: list[Message], is_first: bool) -> Iterable[Message]:
        """Yield the messages in the form that is sent to the model."""
        results: list[Message] = []
        if is_first and self._told and messages[0].role is not Role.SYSTEM:
            yield Message(Role.SYSTEM, self._told)
        for message in messages:
            if message.role is Role.TOOL:
                written = quote_result(
                    message.content, message.name or "", self._format, call_id=message.call_id
                )
                result = Message(Role.USER, written, parts=message.parts)
                if self._merges_results:
                    results.append(result)
                else:
                    yield result
                continue
            if results:
                yield _merge(results)
                results = []
            yield self._write(message)
        if results:
            yield _merge(results)

    def _write(self, message: Message) -> Message:
        if message.role is Role.SYSTEM and self._told:
            return Message(
                Role.SYSTEM, f"{message.content}\n\n{self._told}" if message.content else self._told
            )
        if message.role is not Role.ASSISTANT:
            return Message(message.role, message.content, parts=message.parts)
        kept = (message.opaque or {}).get(KEY)
        if isinstance(kept, dict) and isinstance(kept.get("text"), str):
            # The exact text that the model sampled.
            return Message(Role.ASSISTANT, kept["text"])
        if not message.tool_calls and not message.reasoning:
            return Message(Role.ASSISTANT, message.content)
        return Message(Role.ASSISTANT, render(message, self._format))


def _merge(results: list[Message]) -> Message:
    """Return one user message with the results of a step."""
    parts = tuple([part for result in results for part in result.parts])
    return Message(Role.USER, "\n".join([result.content for result in results]), parts=parts)


def _calls_of(parsed: Parsed, *, is_cut: bool) -> list[ToolCall]:
    """Return the calls in the order of the text, including those that cannot be parsed.

    The arguments of such a call are its text. If the answer was cut off by its limit, a call without an end
    cannot be parsed either.
    """
    calls = [
        ToolCall(
            call.call_id or "", call.name, call.raw if is_cut and not call.is_closed else call.arguments_text
        )
        for call in parsed.tool_calls
    ]
    if not parsed.errors:
        return calls
    found = [(call.position, made) for call, made in zip(parsed.tool_calls, calls, strict=True)]
    # Text that only looks like a wrong call stays text.
    bad = [error for error in parsed.errors if not error.is_text]
    found += [
        (error.position, ToolCall("", error.name or UNREADABLE_CALL, error.raw))
        for error in bad[:_MAX_BAD_CALLS]
    ]
    if more := bad[_MAX_BAD_CALLS:]:
        # Tell a model that repeats itself about the rest only once.
        text = f"{more[0].raw[:_EXCERPT]}: this and {len(more) - 1} more"
        found.append((more[0].position, ToolCall("", more[0].name or UNREADABLE_CALL, text)))
    return [call for _, call in sorted(found, key=lambda item: item[0])]


class _Reader:
    """A parser of a stream's text, which passes on each piece as soon as its meaning is certain."""

    def __init__(self, parser: IncrementalParser, on_delta: Callable[[Delta], None]) -> None:
        self._parser = parser
        self._on_delta = on_delta
        self._calls = 0

    def add(self, delta: Delta) -> None:
        """Add a piece of the model's answer."""
        if isinstance(delta, TextDelta):
            self._tell(self._parser.feed(delta.text))
        else:
            self._on_delta(delta)

    @property
    def text(self) -> str:
        """The whole text so far."""
        return self._parser.text

    def close(self) -> Parsed:
        """Return the result of parsing the whole text."""
        parsed = self._parser.close()
        self._tell(self._parser.pieces)
        return parsed

    def forget_before(
        self,
        on_failure: "Callable[..., None] | None",
        make: Callable[[], IncrementalParser],
    ) -> "Callable[..., None] | None":
        """Return a function that drops what a failed attempt streamed, and then calls `on_failure`."""
        if on_failure is None:
            return None

        def forget(*failure: object) -> None:
            self._parser, self._calls = make(), 0
            on_failure(*failure)

        return forget

    def _tell(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, ContentPiece):
                self._on_delta(TextDelta(piece.text))
            elif isinstance(piece, ReasoningPiece):
                self._on_delta(ReasoningDelta(piece.text))
            elif isinstance(piece, ParsedCall):
                self._on_delta(ToolCallDelta(self._calls, piece.call_id, piece.name, piece.arguments_text))
                self._calls += 1
            elif isinstance(piece, ParseError):
                self._calls += 1
