"""The formats whose calls are elements with values as plain text, by the grammars in `scanner/grammars.toml`."""

from treadle.formats.hermes import Hermes
from treadle.formats.scanner.base import TaggedFormat, resync
from treadle.formats.scanner.elements import find_elements, read_function
from treadle.formats.scanner.json_body import BadValue, after_space, name_of
from treadle.formats.scanner.markers import FoundMarker, Reader, after_marks

M1, M1_CLOSE = "<tool_calls>", "</tool_calls>"


class ElementFormat(TaggedFormat):
    """A format whose calls are elements."""

    def __init__(self) -> None:
        super().__init__()
        self._tags = find_elements(self.name)

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        start = found.position
        position = after_marks(reader.text, start, self.repeats)
        return read_function(self._tags, reader, start, position, self.closers, self.stops)


class Glm45(ElementFormat):
    """The format of GLM 4.5 to 4.7."""

    name = "glm45"


class DeepSeekV32(ElementFormat):
    """The format of DeepSeek V3.2 and V4."""

    name = "deepseek_v32"


class Qwen3Coder(ElementFormat):
    """The format `qwen3_coder`."""

    name = "qwen3_coder"

    def __init__(self) -> None:
        super().__init__()
        self._json = Hermes()

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        position = after_marks(reader.text, found.position, self.repeats)
        # The model may write JSON, as in the format `hermes`.
        is_json = reader.text.startswith(("{", "["), position)
        return self._json.take(reader, found) if is_json else super().take(reader, found)


class MiniMax(ElementFormat):
    """The formats of MiniMax M1 and M2."""

    name = "minimax"

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        is_m1 = found.marker == M1
        return self._take_lines(reader, found.position) if is_m1 else super().take(reader, found)

    def _take_lines(self, reader: Reader, start: int) -> int:
        """Read the calls of M1, and return the position after them. An error concerns only its own line."""
        text = reader.text
        at = after_space(text, start + len(M1))
        if text.startswith(self.openers, at):
            return at
        begin = start
        while True:
            at = after_space(text, at)
            if text.startswith(M1_CLOSE, at):
                if begin == start:
                    reader.add_error("there is no call between the tags", start, at + len(M1_CLOSE))
                return at + len(M1_CLOSE)
            if at == len(text) or (text.startswith(M1, at) and begin != start):
                if begin == start:
                    reader.add_error("the call is cut off", start, at)
                return at
            try:
                if text[at] != "{":
                    raise BadValue(f"{text[at]!r} does not begin a call", at)
                end, value = reader.read_json(at)
            except BadValue as error:
                end = self._line_end(reader, at, error.position)
                reader.add_error(f"not valid JSON: {error.reason}", begin, end, name_of(text[at:end]))
            else:
                reader.add_calls(text[at:end], value, begin, end)
            begin = at = end

    def _line_end(self, reader: Reader, at: int, reached: int) -> int:
        """Return the end of a malformed line: its newline, or the tag that closes all calls."""
        stop = resync(reader, at, reached, (), (M1_CLOSE, M1))
        newline = reader.find("\n", max(at + 1, reached))
        return stop if newline == -1 else min(stop, newline)
