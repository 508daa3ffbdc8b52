"""The format of gpt-oss: messages on channels, some of which are calls with a recipient."""

import re

from treadle.core.types import Message
from treadle.formats.scanner.base import Format
from treadle.formats.scanner.json_body import BadValue, NoCall, Wanted, after_space, read_arguments
from treadle.formats.scanner.markers import Reader, Scanner, Steps, wait_for_all
from treadle.formats.scanner.values import write_arguments

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_STOPS = (*_ENDS, START, CHANNEL)
_TURN = f"<|end|>{START}assistant"
_HEADER = re.compile(r"\s*+(?:assistant)?+\s*+(?:to=[^\s<]++)?+\s*+")
"""The text that may stand before the first special token, if the prompt already holds the message's `<|start|>`."""
_NAME = re.compile(r"[\w.\-]++")
_RECIPIENT = re.compile(r"to=([^\s<]++)")
_CHANNEL = re.compile(r"<\|channel\|>\s*+([a-zA-Z]++)")
_STRIPPED = re.compile(r"(?:^|assistant)\s*+commentary to=functions\.([\w.\-]++)")
_BUILT_IN = re.compile(r"python|browser(?:\..*+)?|container(?:\..*+)?")


class Harmony(Format):
    """The format `harmony`."""

    name = "harmony"
    result = f"{START}functions.{{name}} to=assistant{CHANNEL}commentary{MESSAGE}{{content}}<|end|>"
    reasoning = ()
    may_begin_in_reasoning = False

    def __init__(self) -> None:
        super().__init__()
        # Marks quoted in code are text, but the end of a message also ends code that was not closed.
        self._marks = Scanner((MESSAGE, *_STOPS), ends_open_code=True)
        self._stops = Scanner(_STOPS, ends_open_code=True)
        self._bare_stops = Scanner(_STOPS, has_code=False)

    def read(self, reader: Reader) -> Steps:
        """Read the whole text."""
        yield from wait_for_all(reader)
        text = reader.text
        if MESSAGE not in text:
            self._read_plain(reader)
            return
        position = 0
        while position < len(text):
            position = self._read_between(reader, position)
            if position == len(text):
                return
            message = reader.find(MESSAGE, position)
            if message == -1:
                self._read_rest(reader, position)
                return
            begin = self._last_header(text, position, message)
            if _RECIPIENT.search(text, position, begin):
                reader.add_error("the call is cut off", position, begin)
            position = begin
            position = self._read_message(reader, text[position:message], position, message + len(MESSAGE))
            # The next thing is an end mark or a message.
            position = self._skip_end(text, position)

    def _last_header(self, text: str, start: int, end: int) -> int:
        """Return where the header of the message at `end` begins, if headers without a message come before it."""
        begin = max(text.rfind(START, start, end), start)
        recipients = [match.start() for match in _RECIPIENT.finditer(text, begin, end)]
        if len(recipients) > 1 and text.count(CHANNEL, begin, end) > 1:
            # A header may repeat its channel or its recipient, but not both.
            begin = max(text.rfind(CHANNEL, begin, recipients[-1]), begin)
        return begin

    def _read_between(self, reader: Reader, position: int) -> int:
        """Add the text outside of messages to the content, and return where the next message begins."""
        text = reader.text
        if text.startswith((START, CHANNEL), position):
            return position
        while True:
            found = self._marks.find(reader, position)
            lead = text[position : found.position]
            is_begun = found.marker and found.marker not in _ENDS
            if is_begun and _HEADER.fullmatch(lead):
                return position
            reader.content.add(lead)
            position = self._skip_end(text, found.position)
            if is_begun or not found.marker:
                return position

    def _skip_end(self, text: str, position: int) -> int:
        for mark in _ENDS:
            if text.startswith(mark, position):
                return position + len(mark)
        return position

    def _read_plain(self, reader: Reader) -> None:
        """Read a text without messages: an answer without its special tokens, or a header that is cut off."""
        text = reader.text
        match = _STRIPPED.search(text)
        if match is not None:
            reader.content.add(text)
            reader.note("a call whose special tokens were stripped", match.start(), len(text), match[1])
            return
        self._read_rest(reader, 0)

    def _read_rest(self, reader: Reader, position: int) -> None:
        rest = reader.text[position:]
        if _RECIPIENT.search(rest) and (CHANNEL in rest or START in rest):
            reader.add_error("the call is cut off", position, len(reader.text))
        elif not rest.startswith((START, CHANNEL)):
            for mark in _ENDS:
                rest = rest.removesuffix(mark)
            reader.content.add(rest)

    def _read_message(self, reader: Reader, header: str, start: int, body: int) -> int:
        """Read one message, and return the position of its end mark."""
        text = reader.text
        channel = _CHANNEL.search(header)
        kind = channel[1] if channel is not None else "final"
        recipient = _RECIPIENT.search(header)
        if recipient is not None and not _BUILT_IN.fullmatch(recipient[1]):
            name = recipient[1].removeprefix("functions.")
            is_ours = recipient[1].startswith("functions.") or name in reader.schemas or not reader.schemas
            if is_ours and name != "assistant":
                return self._take(reader, name, start, body)
        end = self._stops.find(reader, body).position
        # Code that is not closed must not hide the next message.
        turn = reader.find(_TURN, body)
        if -1 < turn < end:
            end = turn
        said = text[body:end]
        if kind == "analysis" or (recipient is not None and kind != "final"):
            reader.add_reasoning(("\n" if reader.reasoning else "") + said)
        else:
            if not reader.content.is_at_start:
                reader.content.end_piece()
            reader.content.add(said)
        return end

    def _take(self, reader: Reader, name: str, start: int, body: int) -> int:
        text = reader.text
        at = after_space(text, body)

        def fail(reason: str, name: str | None, reached: int = body) -> int:
            end = self._bare_stops.find(reader, reached).position
            reader.add_error(reason, start, end, name)
            return end

        if not name or not _NAME.fullmatch(name):
            return fail(f"{name[:40]!r} is not a function name", None)
        if text[at : at + 1] not in ("{", '"'):
            return fail(
                "the call is cut off" if at == len(text) else "the arguments are not a JSON object", name
            )
        try:
            if text[at] == "{":
                last, arguments = reader.read_json(at, around=0)
                words = text[at:last]
            else:
                last = self._bare_stops.find(reader, body).position
                arguments, words = read_arguments(text[at:last], name)
            after = after_space(text, last)
            if after < len(text) and not text.startswith(_STOPS, after):
                raise NoCall("the call contains more than JSON", name)
        except BadValue as error:
            return fail(f"the arguments are not valid JSON: {error.reason}", name, error.position)
        except NoCall as error:
            return fail(error.reason, name)
        reader.add_call(Wanted(name, arguments, words), start, self._skip_end(text, after))
        return after

    def render(self, message: Message) -> str:
        """Return `message` as text in this format."""
        parts = []
        if message.reasoning:
            parts.append(f"{CHANNEL}analysis{MESSAGE}{message.reasoning}")
        if message.content:
            kind = "commentary" if message.tool_calls else "final"
            parts.append(f"{CHANNEL}{kind}{MESSAGE}{message.content}")
        for call in message.tool_calls:
            head = f"{CHANNEL}commentary to=functions.{call.name} <|constrain|>json{MESSAGE}"
            parts.append(f"{head}{write_arguments(call)}<|call|>")
        text = ""
        for part in parts:
            if text:
                text += ("" if text.endswith("<|call|>") else "<|end|>") + f"{START}assistant"
            text += part
        return text
