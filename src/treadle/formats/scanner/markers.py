"""A reader that goes through a text once and does not depend on how the text was cut into pieces.

A format is a generator over a `Reader`. It yields when a decision needs more text, and continues when text
was added or the text is complete.
"""

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct

from treadle.core.texts.json_text import MAX_DEPTH, is_deep
from treadle.core.types import Json
from treadle.formats.scanner.json_body import (
    AROUND,
    BadValue,
    NoCall,
    Wanted,
    after_space,
    decode,
    end_of_json,
    raw_items,
    scan,
    to_call,
)
from treadle.formats.scanner.parsed import (
    ContentPiece,
    Parsed,
    ParsedCall,
    ParseError,
    Piece,
    ReasoningPiece,
    ToolSchemas,
)

FENCE = "```"
MAX_ERRORS = 1000
"""The number of errors after which the rest of the text is not read; the rest then counts as one more error."""

Steps: TypeAlias = Generator[None, None, None]
StepsTo: TypeAlias = Generator[None, None, int]
"""A generator that returns the position up to which the text was read."""


class TooManyErrors(Exception):  # noqa: N818
    """Raised when a text has too many errors. The text from `position` on is not read."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class Reader:
    """The text so far, and the calls, errors and other pieces in it. Positions count from the text's start."""

    def __init__(self, schemas: ToolSchemas, *, begins_in_reasoning: bool | None = None) -> None:
        self.begins_in_reasoning = begins_in_reasoning
        """True if the prompt ended with the tag that opens reasoning; `None` if this is unknown."""
        self.text = ""
        self.is_whole = False
        """True if no more text will come."""
        self.waits_for_all = False
        """True while nothing can be decided before the end of the text."""
        self.schemas = schemas
        self.pieces: list[Piece] = []
        """The pieces that were found since the caller last took them."""
        self.calls: list[ParsedCall] = []
        self.errors: list[ParseError] = []
        self.reasoning: list[str] = []
        self.content = Content(self.pieces)
        self.steps_left = 50_000
        """The number of long searches that are still allowed. At 0, quoted calls are no longer looked for."""
        self.depth = 0
        """The number of readers around this one, which reads a part of their text."""
        self._next: dict[str, tuple[int, int, int]] = {}
        """The earlier searches, by string: the start, the position found or -1, and the length of the text."""
        self.markers: dict[Scanner, tuple[int, str, int]] = {}
        """For each scanner: where its last search began, which marker it found, and where."""
        self._scans_left = 64
        """How often the fast decoder may still fail. A failure takes time in proportion to the text before it."""

    def find(self, what: str, start: int) -> int:
        """Return the position of `what` at or after `start`, or -1. Results are cached."""
        first = begin = start
        known = self._next.get(what)
        if known is not None and known[0] <= start:
            found = known[1]
            if found >= start:
                return found
            if found == -1:
                if known[2] == len(self.text):
                    return -1
                first, begin = known[0], max(start, known[2] - len(what) + 1)
        found = self.text.find(what, begin)
        self._next[what] = (first, found, len(self.text))
        return found

    def find_first(self, marks: Iterable[str], start: int) -> int:
        """Return the position of the first of `marks` at or after `start`, or the length of the text."""
        return min([at for item in marks if (at := self.find(item, start)) != -1], default=len(self.text))

    def read_json(self, start: int, around: int = AROUND) -> tuple[int, Json]:
        """Return the end of the object or array at `start`, and its value; see `end_of_json`.

        Raises: `BadValue`, at the end of the value if only decoding shows that it is invalid.
        """
        if self._scans_left:
            found = scan(self.text, start, around)
            if found is not None:
                return found
            self._scans_left -= 1
        end = end_of_json(self.text, start, around)
        try:
            return end, decode(self.text[start:end], around)
        except ValueError as error:
            raise BadValue(str(error), end) from None

    def add_call(self, wanted: Wanted, start: int, end: int) -> None:
        """Add a call whose text is between `start` and `end`; an error if its arguments are nested too deeply.
        Raises: `TooManyErrors`."""
        if is_deep(wanted.text):
            reason = f"the arguments are nested more than {MAX_DEPTH} levels deep"
            self.add_error(reason, start, end, wanted.name)
            return
        self.content.end_piece()
        raw = self.text[start:end]
        call = ParsedCall(
            wanted.name, wanted.arguments, raw, wanted.text, wanted.call_id, start, wanted.is_closed
        )
        self.calls.append(call)
        self.pieces.append(call)

    def add_error(self, reason: str, start: int, end: int, name: str | None = None) -> None:
        """Add an error for the text between `start` and `end`, which is not a call. Raises: `TooManyErrors`."""
        self.content.end_piece()
        self._add(ParseError(start, reason, self.text[start:end], name))

    def note(self, reason: str, start: int, end: int, name: str | None = None) -> None:
        """Add an error for text that looks like a call but stays text. Raises: `TooManyErrors`."""
        self._add(ParseError(start, reason, self.text[start:end], name, is_text=True))

    def _add(self, error: ParseError) -> None:
        if len(self.errors) >= MAX_ERRORS:
            raise TooManyErrors(error.position)
        self.errors.append(error)
        self.pieces.append(error)

    def give_up(self, start: int) -> None:
        """Add one error for all text from `start` on."""
        reason = f"not read, because {MAX_ERRORS} errors came before"
        error = ParseError(start, reason, self.text[start:])
        self.errors.append(error)
        self.pieces.append(error)

    def add_reasoning(self, text: str) -> None:
        if text:
            self.reasoning.append(text)
            self.pieces.append(ReasoningPiece(text))

    def result(self) -> Parsed:
        """Return everything that was found, at the end of the text."""
        text = self.content.finish(has_calls=bool(self.calls or self.errors))
        return Parsed("".join(self.reasoning) or None, text, tuple(self.calls), tuple(self.errors))

    def add_calls(self, body: str, value: Json, start: int, end: int) -> None:
        """Add the call in `body`, or the calls if it is a list, and an error for each that is not a call.

        `value` is the decoded `body`. The text of each call is between `start` and `end`.
        """
        is_list = isinstance(value, list)
        if is_list and not value:
            self.add_error("an empty list of calls", start, end)
        pairs = zip(value, raw_items(body), strict=True) if is_list else [(value, body)]
        for item, raw in pairs:
            try:
                wanted = to_call(item, raw)
            except NoCall as error:
                self.add_error(error.reason, start, end, error.name)
            else:
                self.add_call(wanted, start, end)


def after_marks(text: str, position: int, marks: tuple[str, ...]) -> int:
    """Return the position after all `marks` at `position`, which some models repeat, and the white space."""
    position = after_space(text, position)
    while (mark := next((item for item in marks if text.startswith(item, position)), "")) != "":
        position = after_space(text, position + len(mark))
    return position


def after_closer(text: str, position: int, closers: Sequence[str]) -> int:
    """Return the position after the closer that follows `position`, or `position` if none follows."""
    after = after_space(text, position)
    return next((after + len(item) for item in closers if text.startswith(item, after)), position)


def after_fence(text: str, position: int) -> int:
    """Return the position of the code in the fence that opens at `position`, or `position` if none opens there."""
    if not text.startswith(FENCE, position):
        return position
    newline = text.find("\n", position, position + 20)
    return after_space(text, newline + 1 if newline != -1 else position + len(FENCE))


def wait_for_all(reader: Reader) -> Steps:
    """Yield until the text is complete."""
    reader.waits_for_all = True
    while not reader.is_whole:
        yield
    reader.waits_for_all = False


class Content:
    """The content: the text outside calls, without the one newline on each side of a call."""

    def __init__(self, pieces: list[Piece]) -> None:
        self._pieces = pieces
        self._said: list[str] = []
        self._held: list[str] = []
        """White space at the end of the current piece, which is dropped if a call follows."""
        self._is_begun = False
        """True if the current piece contains more than white space."""
        self._is_first = True
        self._skip = 0
        """The number of newlines at the start of the current piece that are not content."""

    @property
    def is_at_start(self) -> bool:
        """True if there is no content since the beginning or the last call."""
        return not self._is_begun

    def skip_newlines(self, count: int) -> None:
        """Ignore up to `count` newlines at the start of the next piece."""
        self._skip = count

    def add(self, text: str) -> None:
        """Add text to the current piece."""
        while self._skip and not self._is_begun and not self._held and text:
            if not text.startswith("\n"):
                self._skip = 0
                break
            text = text[1:]
            self._skip -= 1
        if not text:
            return
        body = text.rstrip()
        if not body:
            self._held.append(text)
            return
        lead = "".join(self._held) if self._held else ""
        if not self._is_begun and not self._is_first:
            lead = "\n" + lead if self._said else lead
        self._is_begun = True
        self._skip = 0
        self._say(lead + body)
        self._held = [text[len(body) :]] if len(body) < len(text) else []

    def end_piece(self, gap: int = 1) -> None:
        """End the current piece, because a call follows. Remove up to `gap` newlines at its end."""
        if self._is_begun:
            held = "".join(self._held)
            for _ in range(gap):
                held = held.removesuffix("\n")
            self._say(held)
        self._held = []
        self._is_begun = False
        self._is_first = False
        self._skip = 1

    def finish(self, *, has_calls: bool) -> str:
        """Return the whole content."""
        if self._is_begun or (not has_calls and self._held):
            self._say("".join(self._held))
        self._held = []
        return "".join(self._said)

    def _say(self, text: str) -> None:
        if text:
            self._said.append(text)
            self._pieces.append(ContentPiece(text))


class Scanner:
    """A search for markers that ignores those within Markdown code."""

    def __init__(
        self, markers: tuple[str, ...], *, has_code: bool = True, ends_open_code: bool = False
    ) -> None:
        """Make a scanner for `markers`.

        With `ends_open_code`, a code block that is never closed hides no markers; without it, such a block
        hides all markers up to the end of the text.
        """
        self.markers = markers
        self._ends_open_code = ends_open_code
        words = [re.escape(item) for item in sorted(markers, key=len, reverse=True)]
        code = [r"(?:\A|(?<=\n)) {0,3}(?P<fence>`{3,}|~{3,})", "(?<!`)(?P<span>`+)"] if has_code else []
        self._pattern = re.compile("|".join([*words, *code]))
        self._words = re.compile("|".join(words))
        self._starts = frozenset(item[:size] for item in markers for size in range(1, len(item)))
        self._longest = max((len(item) for item in markers), default=1)
        self._has_code = has_code

    def next(
        self, reader: Reader, start: int, on_text: Callable[[str], None]
    ) -> Generator[None, None, "FoundMarker"]:
        """Find the next marker. `on_text` gets the text before it, code included, as soon as it is certain."""
        at = start
        while True:
            text, is_whole = reader.text, reader.is_whole
            if is_whole and (found := self.find_plain(reader, at)) is not None:
                if start < found[1]:
                    on_text(text[start : found[1]])
                return FoundMarker(*found)
            match = self._pattern.search(text, at)
            if match is None or (not is_whole and match.end() == len(text) and self._may_grow(match)):
                if match is not None and match.end() - match.start() > 2 * _LONGEST_RUN:
                    # More of a run that is too long to be code changes nothing.
                    on_text(text[start:])
                    start = at = len(text)
                end = len(text) if is_whole else max(at, self._decided(text, at))
                if end > start:
                    on_text(text[start:end])
                start = at = end
                if is_whole:
                    return FoundMarker("", start)
                # A reference held by a waiting generator would force a copy when the text grows.
                text, match = "", None
                yield
                continue
            if match.lastgroup is None:
                if match.start() > start:
                    on_text(text[start : match.start()])
                return FoundMarker(match[0], match.start())
            begin, kind, run = match.start(), match.lastgroup, match[match.lastgroup]
            if len(run) > _LONGEST_RUN:
                at = match.end()
                continue
            if not is_whole and begin > start:
                on_text(text[start:begin])
                start = begin
            text, match = "", None
            if kind == "fence":
                at = yield from self._skip_block(reader, begin, run)
            else:
                at = yield from self._skip_span(reader, begin, len(run))

    def find(self, reader: Reader, at: int) -> "FoundMarker":
        """Return the next marker in a complete text."""
        plain = self.find_plain(reader, at)
        if plain is not None:
            return FoundMarker(*plain)
        steps = self.next(reader, at, lambda _: None)
        try:
            next(steps)
        except StopIteration as stop:
            found: FoundMarker = stop.value
            return found
        raise AssertionError("a text that is whole needs no more")

    def find_plain(self, reader: Reader, at: int) -> tuple[str, int] | None:
        """Return the next marker in a complete text and its position, or `None` if there may be code before it."""
        text = reader.text
        known = reader.markers.get(self)
        if known is None or not known[0] <= at <= known[2]:
            match = self._words.search(text, at)
            known = (at, "", len(text)) if match is None else (at, match[0], match.start())
            reader.markers[self] = known
        _, marker, limit = known
        # Code before the end of the text hides nothing.
        if (
            marker
            and at < limit
            and self._has_code
            and (text.find("`", at, limit) != -1 or text.find("~", at, limit) != -1)
            and _OUTSIDE.match(text, at, limit).end() != limit  # type: ignore[union-attr]
        ):
            return None
        return marker, limit

    def marker_at(self, text: str, at: int) -> tuple[str, int] | None:
        """Return the marker behind the white space at `at` and its position, or `None`."""
        match = self._words.match(text, after_space(text, at))
        return None if match is None else (match[0], match.start())

    def _may_grow(self, match: re.Match[str]) -> bool:
        """Return whether more text could turn the match into another marker or a longer run."""
        return match.lastgroup is not None or match[0] in self._starts

    def _decided(self, text: str, start: int) -> int:
        """Return the position up to which the text cannot become part of a marker or of code."""
        size = len(text)
        end = size
        for length in range(min(self._longest - 1, size - start), 0, -1):
            if text[-length:] in self._starts:
                end = size - length
                break
        if not self._has_code:
            return end
        at = size
        if at > start and text[at - 1] in "`~":
            char = text[at - 1]
            while at > start and text[at - 1] == char and size - at <= 2 * _LONGEST_RUN:
                at -= 1
            if char == "`":
                end = min(end, at)
        line = at
        while line > start and at - line < 3 and text[line - 1] == " ":
            line -= 1
        is_line_start = line == 0 or text[line - 1] == "\n"
        return min(end, line) if is_line_start and (line < size) else end

    def _skip_span(self, reader: Reader, at: int, size: int) -> Generator[None, None, int]:
        """Return the end of inline code: as many backticks on the same line. Without them, it is no code."""
        position = at + size
        while True:
            newline = reader.find("\n", position)
            if newline == -1 and not reader.is_whole:
                # The line may be long, and the closing run close by.
                found = self._find_run(reader.text, position, len(reader.text), size)
                if found != -1 and found < len(reader.text):
                    return found
                yield
                continue
            found = self._find_run(
                reader.text, position, len(reader.text) if newline == -1 else newline, size
            )
            return at + size if found == -1 else found

    def _find_run(self, text: str, start: int, end: int, size: int) -> int:
        for match in _RUN.finditer(text, start, end):
            if match.end() - match.start() == size:
                return match.end()
        return -1

    def _skip_block(self, reader: Reader, at: int, run: str) -> Generator[None, None, int]:
        """Return the end of a fenced code block. A block that is never closed extends to the end of the text, and
        an error is noted for calls in it."""
        char, size = run[0], len(run)
        line = at
        while True:
            if self._ends_open_code:
                # Every block that is never closed would search to the end of the text.
                reader.steps_left -= 1
            newline = reader.find("\n", line)
            if newline == -1 and not reader.is_whole:
                yield
                continue
            end = len(reader.text) if newline == -1 else newline + 1
            whole = reader.text[line:end].rstrip("\r\n")
            body = whole.strip(" \t")
            if line == at:
                if char == "`" and "`" in body[size:]:
                    # The run begins inline code, not a block.
                    return (
                        yield from self._skip_span(reader, at + len(whole) - len(whole.lstrip(" ")), size)
                    )
            elif len(whole) - len(whole.lstrip(" ")) <= 3 and len(body) >= size and not body.strip(char):
                return end
            line = end
            if self._ends_open_code and (newline == -1 or reader.steps_left < 0):
                return reader.text.index(run, at) + size
            if newline == -1:
                self._note_hidden(reader, at, end)
                return end

    def _note_hidden(self, reader: Reader, at: int, end: int) -> None:
        found = [position for marker in self.markers if (position := reader.text.find(marker, at)) != -1]
        if found:
            reader.note("there may be a call in a code block that is never closed", min(found), end)


_OUTSIDE = re.compile(r"(?:[^`~]++|~(?!~~)|`[^`\n]++`(?!`))*+")
"""Text after which no code is open. Code within it is short and closed."""
_RUN = re.compile("`++")
_LONGEST_RUN = 256
"""The longest run of backticks or tildes that begins code. A longer one is text."""


class FoundMarker(Struct, frozen=True):
    """A marker and its position. An empty marker stands for the end of the text."""

    marker: str
    position: int
