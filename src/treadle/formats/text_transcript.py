"""Transcripts for models that write tool calls as text: written as plain messages, and read from sampled text."""

from collections.abc import Callable, Iterable, Sequence

from treadle.core.errors import FormatError
from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.prompts.foreign import let_in, make_own
from treadle.core.types import UNREADABLE_CALL, Json, Message, Role, ToolCall, ToolSpec
from treadle.formats.parsing import IncrementalParser, find_format, quote_result, render, render_tools
from treadle.formats.scanner.parsed import ContentPiece, Parsed, ParsedCall, ParseError, Piece, ReasoningPiece

KEY = "completions"
"""The key of `Message.opaque` under which a message keeps the text that the model wrote."""
# An attribute of an enum takes longer to look up than a global name.
_TOOL, _ASSISTANT = Role.TOOL, Role.ASSISTANT
_MAX_BAD_CALLS = 16
_EXCERPT = 200
"""How many characters of a text an error message quotes."""


class TranscriptWriter:
    """A writer of messages as plain text in one format; an instance is a function for `Log.derive`. The results of
    one step are one user message, as in chat templates."""

    def __init__(self, format: str, tools: Sequence[ToolSpec]) -> None:
        self._format = format
        self._tools = tools
        self._told = render_tools(tools, format) if tools else ""

    def __call__(self, messages: Sequence[Message], is_first: bool) -> Iterable[Message]:
        """Yield the messages in the form that is sent to the model. With `is_first` they begin the transcript."""
        results: list[Message] = []
        if is_first and self._told and (not messages or messages[0].role is not Role.SYSTEM):
            yield Message(Role.SYSTEM, self._told)
        for index, message in enumerate(messages):
            if message.role is _TOOL:
                said = let_in(message).content
                written = quote_result(said, message.name or "", self._format, call_id=message.call_id)
                results.append(make_own(Role.USER, written, message.parts))
                continue
            if results:
                yield _merge(results)
                results = []
            yield self._write(message, tells=is_first and not index)
        if results:
            yield _merge(results)

    def _write(self, message: Message, *, tells: bool) -> Message:
        if tells and message.role is Role.SYSTEM and self._told:
            return Message(
                Role.SYSTEM, f"{message.content}\n\n{self._told}" if message.content else self._told
            )
        if message.role is not _ASSISTANT:
            return Message(message.role, message.content, parts=message.parts, own_chars=message.own_chars)
        return Message(_ASSISTANT, self.write_answer(message))

    def write_answer(self, message: Message) -> str:
        """Return the text of an assistant message: the exact text if the message keeps it.

        Raises: `FormatError` if the format cannot express the message.
        """
        kept = kept_text(message)
        if kept is not None:
            return kept
        if not message.tool_calls and not message.reasoning:
            return message.content
        return render(message, self._format, self._tools)

    def can_write(self, message: Message, text: str) -> bool:
        """Return whether writing `message` in the format gives exactly `text`."""
        if kept_text(message) is None and (message.tool_calls or message.reasoning):
            try:
                return find_format(self._format).render(message) == text
            except FormatError:
                return False
        return self.write_answer(message) == text


def kept_text(message: Message) -> str | None:
    """Return the exact text that the model wrote; `None` if the message does not keep it."""
    kept = (message.opaque or {}).get(KEY)
    text = kept.get("text") if isinstance(kept, dict) else None
    return text if isinstance(text, str) else None


def with_text(message: Message, text: str) -> dict[str, Json]:
    """Return `message.opaque` with the exact text that the model wrote."""
    return {**(message.opaque or {}), KEY: {"text": text}}


def _merge(results: list[Message]) -> Message:
    parts = tuple([part for result in results for part in result.parts])
    return make_own(Role.USER, "\n".join([result.content for result in results]), parts)


def calls_of(parsed: Parsed, *, is_cut: bool) -> list[ToolCall]:
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


class DeltaReader:
    """A reader of an answer's text in pieces, which passes on each piece as soon as its meaning is certain."""

    def __init__(self, parser: IncrementalParser, on_delta: Callable[[Delta], None]) -> None:
        self._parser = parser
        self._on_delta = on_delta
        self._calls = 0

    def add(self, delta: Delta) -> None:
        """Add a piece of the model's answer. Only text is parsed."""
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
