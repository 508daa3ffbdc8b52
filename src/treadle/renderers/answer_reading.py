"""The reading of answers, shared by all renderers for whose calls Treadle has a text format."""

from collections.abc import Sequence

from msgspec.structs import replace

from treadle.core.errors import FormatError, UnsupportedPartError
from treadle.core.parts import describe
from treadle.core.types import FinishReason, Json, Message, Role, ToolCall, ToolSpec
from treadle.formats import IncrementalParser, find_format, parse
from treadle.formats.scanner.values import arguments_of
from treadle.formats.text_transcript import TranscriptWriter, calls_of, with_text
from treadle.renderers.tokenizer import Tokenizer


class AnswerReader:
    """The part of a renderer that reads answers with its tokenizer. See `Renderer`."""

    def __init__(
        self, tokenizer: Tokenizer, format: str | None, stop_token_ids: Sequence[int], prefill: str = ""
    ) -> None:
        """Make a reader. Without a text format, the subclass reads the answers itself.

        `prefill` is the text of the prompt after the mark that begins the answer: with an opening tag of thinking
        in it, answers begin in the middle of the reasoning.
        """
        self.tokenizer = tokenizer
        self.format = format
        self.stop_token_ids = tuple(dict.fromkeys(stop_token_ids))
        self._tags = () if format is None else find_format(format).reasoning
        self.begins_in_reasoning = self._find_open(prefill) is not None
        """True if the prompt ends with the tag that opens reasoning."""

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(token_ids)

    def parser(self, tools: Sequence[ToolSpec]) -> IncrementalParser | None:
        if self.format is None:
            return None
        return IncrementalParser(self.format, tools, begins_in_reasoning=self.begins_in_reasoning)

    def read(
        self,
        token_ids: Sequence[int],
        tools: Sequence[ToolSpec],
        *,
        finish: FinishReason,
        stop: Sequence[str] = (),
    ) -> Message:
        return self._read_text(self.text_of(token_ids, stop), tools, is_cut=finish is FinishReason.LENGTH)

    def _read_text(self, text: str, tools: Sequence[ToolSpec], *, is_cut: bool) -> Message:
        assert self.format is not None
        parsed = parse(text, self.format, tools, begins_in_reasoning=self.begins_in_reasoning)
        calls = calls_of(parsed, is_cut=is_cut)
        return Message(Role.ASSISTANT, parsed.content, tuple(calls), reasoning=parsed.reasoning)

    def text_of(self, token_ids: Sequence[int], stop: Sequence[str] = ()) -> str:
        """Return the text of an answer, without the token that ended it, up to the first of the texts `stop`."""
        is_ended = len(token_ids) and token_ids[-1] in self.stop_token_ids
        return cut_at(self.decode(token_ids[:-1] if is_ended else token_ids), stop)

    def close(self, prior: Sequence[int]) -> str:
        """Return the text that closes the reasoning in which an answer was cut off; empty for other answers."""
        begin = next((at for at in range(len(prior) - 1, -1, -1) if prior[at] in self.stop_token_ids), -1)
        closer = self._find_open(self.decode(prior[begin + 1 :]))
        return "" if closer is None else f"\n{closer}\n\n"

    def _find_open(self, text: str) -> str | None:
        """Return the tag that closes the reasoning in which `text` ends; `None` if it does not end in one."""
        return next(
            (closer for opener, closer in self._tags if text.rfind(opener) > text.rfind(closer)),
            None,
        )


def cut_at(text: str, stop: Sequence[str]) -> str:
    """Return `text` up to the first of the texts `stop`."""
    ends = [at for item in stop if item and (at := text.find(item)) != -1]
    return text[: min(ends)] if ends else text


def check_parts(messages: Sequence[Message], name: str) -> None:
    """Check that messages have no parts. Raises: `UnsupportedPartError`."""
    for message in messages:
        for part in message.parts:
            raise UnsupportedPartError(
                f"the renderer {name!r} cannot render {describe(part)}: a token engine is sent ids of text; leave "
                "the part out, or use the model without a renderer"
            )


def keep_text(message: Message, text: str, writer: TranscriptWriter) -> Message:
    """Return a message that was read from `text`; it keeps the text if `writer` would write a different text."""
    return message if writer.can_write(message, text) else replace(message, opaque=with_text(message, text))


def to_wire(message: Message, *, has_text_arguments: bool = False) -> dict[str, Json]:
    """Return a message as chat templates expect it.

    The arguments of a call are an object. They are their text if they are not an object, or if
    `has_text_arguments` is true.
    """
    wire: dict[str, Json] = {"role": message.role.value, "content": message.content}
    if message.role is Role.TOOL:
        return wire | {"tool_call_id": message.call_id or "", "name": message.name or ""}
    if message.reasoning:
        wire["reasoning_content"] = message.reasoning
    if message.tool_calls:
        wire["tool_calls"] = [
            {
                "type": "function",
                "id": call.call_id,
                "function": {
                    "name": call.name,
                    "arguments": call.arguments if has_text_arguments else _read(call),
                },
            }
            for call in message.tool_calls
        ]
    return wire


def _read(call: ToolCall) -> Json:
    try:
        return arguments_of(call)
    except FormatError:
        return call.arguments
