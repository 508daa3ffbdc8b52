"""A model whose tool calls are text: they are written into its transcript, and read out of what it says.

It stands around any model that only speaks: a completions server, or a chat endpoint used as plain text. Tools are
told in the system message, results come back as text, and what the model wrote is sent back exactly as it was.
A call that cannot be read goes to the loop as it stands, so that the model is told what is wrong with it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import (
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
    render,
    render_result,
    render_tools,
)
from treadle.models.protocol import Model, Watch, identity_of
from treadle.models.wrappers.wrapper import Wrapper

KEY = "completions"
"""Under which a message keeps the text that the model wrote."""
UNREADABLE = "unreadable_call"
"""The name of a call whose name cannot be read either."""
_MAX_TOOLSETS = 64
_MAX_BAD_CALLS = 16
_EXCERPT = 200
"""Characters."""
_Write: TypeAlias = Callable[[list[Message], bool], Iterable[Message]]


class FormatModel(Wrapper):
    """Speaks for a model in a text format of tool calls. Answers in a schema are asked for in the text."""

    output_mode = OutputMode.TEXT

    def __init__(
        self,
        inner: Model,
        format: str,
        *,
        begins_in_reasoning: bool | None = False,
        merges_results: bool = True,
    ) -> None:
        """`begins_in_reasoning` says whether the prompt ends with the opener of thinking; `None`: it may.

        With `merges_results` the results of one step are one message of the user, as chat templates have it.
        Raises: `ConfigError` for an unknown format, or if `auto` cannot be told from the model's name.
        """
        super().__init__(inner)
        self.format = detect(inner.name) if format == AUTO else format
        find_format(self.format)
        self._begins_in_reasoning = begins_in_reasoning
        self._merges_results = merges_results
        self._writers: dict[int, tuple[Sequence[ToolSpec], _Write]] = {}

    @property
    def identity(self) -> str:
        """See `identity_of`."""
        return f"{identity_of(self.inner)} {self.format}"

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """See `Model.infer`."""
        messages = request.messages.derive(self._writer(request.tools))
        spoken = Request(messages, (), request.output_schema)
        if watch.on_delta is None:
            completion = await self.inner.infer(spoken, watch)
        else:
            reader = _Reader(self._parser(request), watch.on_delta)
            on_failure = reader.forget_before(watch.on_failure, lambda: self._parser(request))
            heard = Watch(reader.add, on_failure, watch.on_rate_limits)
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
        """How transcripts are written beside these tools; the same function for the same tools."""
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
    """Messages as plain text. It is given a history in parts, of which the first begins it."""

    def __init__(self, format: str, told: str, *, merges_results: bool) -> None:
        self._format = format
        self._told = told
        self._merges_results = merges_results

    def __call__(self, messages: list[Message], is_first: bool) -> Iterable[Message]:
        """The messages, written out."""
        results: list[str] = []
        if is_first and self._told and messages[0].role is not Role.SYSTEM:
            yield Message(Role.SYSTEM, self._told)
        for message in messages:
            if message.role is Role.TOOL:
                written = render_result(
                    message.content, message.name or "", self._format, call_id=message.call_id
                )
                if self._merges_results:
                    results.append(written)
                else:
                    yield Message(Role.USER, written)
                continue
            if results:
                yield Message(Role.USER, "\n".join(results))
                results = []
            yield self._write(message)
        if results:
            yield Message(Role.USER, "\n".join(results))

    def _write(self, message: Message) -> Message:
        if message.role is Role.SYSTEM and self._told:
            return Message(
                Role.SYSTEM, f"{message.content}\n\n{self._told}" if message.content else self._told
            )
        if message.role is not Role.ASSISTANT:
            return Message(message.role, message.content)
        kept = (message.opaque or {}).get(KEY)
        if isinstance(kept, dict) and isinstance(kept.get("text"), str):
            # What the model sampled, to the letter.
            return Message(Role.ASSISTANT, kept["text"])
        if not message.tool_calls and not message.reasoning:
            return Message(Role.ASSISTANT, message.content)
        return Message(Role.ASSISTANT, render(message, self._format))


def _calls_of(parsed: Parsed, *, is_cut: bool) -> list[ToolCall]:
    """Calls, good and bad, in the order in which they stand. The text of a bad one is its arguments.

    Where the answer was cut off by its limit, a call that did not end is a bad one.
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
    # What may be meant as text stays text.
    bad = [error for error in parsed.errors if not error.is_text]
    found += [
        (error.position, ToolCall("", error.name or UNREADABLE, error.raw)) for error in bad[:_MAX_BAD_CALLS]
    ]
    if more := bad[_MAX_BAD_CALLS:]:
        # A model that repeats itself is told once of the rest.
        text = f"{more[0].raw[:_EXCERPT]}: this and {len(more) - 1} more"
        found.append((more[0].position, ToolCall("", more[0].name or UNREADABLE, text)))
    return [call for _, call in sorted(found, key=lambda item: item[0])]


class _Reader:
    """Reads the text of a stream, and passes on what is certain of it."""

    def __init__(self, parser: IncrementalParser, on_delta: Callable[[Delta], None]) -> None:
        self._parser = parser
        self._on_delta = on_delta
        self._calls = 0

    def add(self, delta: Delta) -> None:
        """A piece of the model's text."""
        if isinstance(delta, TextDelta):
            self._tell(self._parser.feed(delta.text))
        else:
            self._on_delta(delta)

    @property
    def text(self) -> str:
        """All that came."""
        return self._parser.text

    def close(self) -> Parsed:
        """The text is whole."""
        parsed = self._parser.close()
        self._tell(self._parser.pieces)
        return parsed

    def forget_before(
        self,
        on_failure: "Callable[..., None] | None",
        make: Callable[[], IncrementalParser],
    ) -> "Callable[..., None] | None":
        """What a failed attempt streamed is void."""
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
