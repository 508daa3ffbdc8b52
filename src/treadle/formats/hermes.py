"""The format of Hermes 2 to 4, Qwen 2.5 and 3, QwQ and Granite 4: one JSON object in each `<tool_call>`."""

from treadle.core.texts.json_text import is_deep
from treadle.core.types import Json
from treadle.formats.scanner.base import TaggedFormat, resync
from treadle.formats.scanner.elements import find_elements, read_function
from treadle.formats.scanner.json_body import AROUND, BadValue, NoCall, after_space, name_of, scan, to_call
from treadle.formats.scanner.markers import FENCE, FoundMarker, Reader, after_fence, after_marks
from treadle.formats.scanner.parsed import Parsed, ParsedCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes(TaggedFormat):
    """The format `hermes`."""

    name = "hermes"

    def read_plain(self, text: str) -> Parsed | None:
        """See `Format.read_plain`. A plain text has no markup, or no other than that of one call at its end."""
        # All markers begin with one of these two.
        start, brace = text.find("<"), text.find("{")
        if start == -1:
            return Parsed(content=text) if brace == -1 else None
        if not text.startswith(OPEN, start) or not text.endswith(CLOSE) or text.count("<") != 2:
            return None
        begin = after_space(text, start + len(OPEN))
        # Code may quote a call.
        if brace != begin or text.find("`", 0, start) != -1 or text.find("~", 0, start) != -1:
            return None
        read = scan(text, begin, AROUND)
        if read is None or after_space(text, read[0]) != len(text) - len(CLOSE):
            return None
        try:
            wanted = to_call(read[1], text[begin : read[0]])
        except NoCall:
            return None
        if is_deep(wanted.text):
            return None
        said = text[:start].removesuffix("\n")
        call = ParsedCall(wanted.name, wanted.arguments, text[start:], wanted.text, wanted.call_id, start)
        return Parsed(content=said if said.strip() else "", tool_calls=(call,))

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        position = after_marks(text, start + len(OPEN), self.openers)
        if text.startswith("<function=", position):
            return read_function(find_elements("qwen3_coder"), reader, start, position, (CLOSE,), (OPEN,))
        has_fence = text.startswith(FENCE, position)
        position = after_fence(text, position)
        spans: list[tuple[int, int, Json]] = []
        at = position
        while True:
            if text[at : at + 1] not in ("{", "[") or (text[at : at + 1] == "[" and spans):
                reason = "the call contains no JSON object" if at < len(text) else "the call is cut off"
                return self._fail(reader, start, position, at, reason)
            try:
                end, value = reader.read_json(at)
            except BadValue as error:
                return self._fail(reader, start, position, error.position, f"not valid JSON: {error.reason}")
            spans.append((at, end, value))
            at = after_space(text, end)
            if has_fence:
                at = after_marks(text, at, (FENCE,))
            if text[at : at + 1] != "{":
                break
        if text.startswith(CLOSE, at):
            after = at + len(CLOSE)
        elif at == len(text) or text.startswith(OPEN, at) or (close := reader.find(CLOSE, at)) == -1:
            after = spans[-1][1] if at < len(text) else at
        elif (begin := reader.find(OPEN, at)) != -1 and begin < close:
            after = spans[-1][1]
        else:
            return self._fail(reader, start, position, at, "the call contains more than JSON")
        for number, (begin, end, value) in enumerate(spans):
            first = start if not number else begin
            last = after if number == len(spans) - 1 else end
            reader.add_calls(text[begin:end], value, first, last)
        return after

    def _fail(self, reader: Reader, start: int, position: int, reached: int, reason: str) -> int:
        end = resync(reader, position, reached, (CLOSE,), (OPEN,))
        reader.add_error(reason, start, end, name_of(reader.text[start:end]))
        return end

    def take_noise(self, reader: Reader, found: FoundMarker) -> int:
        """Read a closing tag without an opening one, which is ignored, or JSON that may be a call without tags."""
        text, start = reader.text, found.position
        if found.marker == CLOSE:
            return start + len(CLOSE)
        is_alone = reader.content.is_at_start
        try:
            end, value = reader.read_json(start) if is_alone else (-1, None)
            wanted = to_call(value, text[start:end]) if is_alone else None
        except (BadValue, NoCall):
            wanted, end = None, -1
        if wanted is not None:
            after = after_space(text, end)
            if text.startswith(CLOSE, after):
                reader.add_call(wanted, start, after + len(CLOSE))
                return after + len(CLOSE)
            if after == len(text):
                reader.content.add(text[start:end])
                reader.note("a call without its tags", start, end, wanted.name)
                return end
        reader.content.add(found.marker)
        return start + len(found.marker)
