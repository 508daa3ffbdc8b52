"""What a format is, and what most formats share: thinking first, then text with calls at markers."""

from collections.abc import Sequence
from typing import ClassVar

from treadle.core.types import Message
from treadle.formats.engine.calls import Wanted
from treadle.formats.engine.json_body import SPACE, after_space
from treadle.formats.engine.reader import Found, Reader, Scanner, Steps, StepsTo, TooManyErrors, wait_for_all
from treadle.formats.engine.types import ParsedCall, ToolLike, to_json, to_openai

THINK = (("<think>", "</think>"),)


class Format:
    """One text format of tool calls."""

    name: ClassVar[str]
    reasoning: ClassVar[tuple[tuple[str, str], ...]] = THINK
    """What thinking stands between."""
    may_begin_in_reasoning: ClassVar[bool] = True
    """The opener may stand in the prompt: then all before the first closer is thinking."""
    ends: ClassVar[tuple[str, ...]] = ()
    """What may stand at the very end, and says nothing."""

    def read_all(self, reader: Reader) -> Steps:
        """Read all of the text, unless too much of it is wrong."""
        try:
            yield from self.read(reader)
        except TooManyErrors as error:
            yield from wait_for_all(reader)
            reader.give_up(error.position)

    def read(self, reader: Reader) -> Steps:
        """Read all of the text. Raises: `TooManyErrors`."""
        raise NotImplementedError

    def render(self, message: Message) -> str:
        """What the model would have written. `FormatError` is for the caller, who reads it back."""
        raise NotImplementedError

    def render_tools(self, tools: Sequence[ToolLike]) -> str:
        """How tools are told to the model, in its system message."""
        lines = "\n".join(to_json(to_openai(tool)) for tool in tools)
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
            f"function signatures within <tools></tools> XML tags:\n<tools>\n{lines}\n</tools>\n\n{self.manual}"
        )

    manual: ClassVar[str] = ""
    """How the model is to call them."""

    def render_result(self, content: str, name: str, call_id: str | None) -> str:
        """How a tool's answer is told to the model."""
        return f"<tool_response>\n{content}\n</tool_response>"


class TaggedFormat(Format):
    """A format whose calls stand at markers within the text."""

    openers: ClassVar[tuple[str, ...]]
    """Where calls begin."""
    noise: ClassVar[tuple[str, ...]] = ()
    """Closers without an opener, and the like: `take_noise` decides."""
    sections: ClassVar[tuple[str, ...]] = ()
    """Those of `noise` that stand before calls, so that what is said ends with them."""
    gap: ClassVar[int] = 1
    """Newlines between what is said and a section."""

    def __init__(self) -> None:
        tags = tuple([tag for pair in self.reasoning for tag in pair])
        self._content = Scanner((*self.openers, *self.noise, *tags, *self.ends))
        self._longest_tag = max([len(item) for item in (*self.openers, *self.sections, *tags)], default=0)
        self._closers = {close for _, close in self.reasoning}
        self._opens = dict(self.reasoning)
        self._calls = frozenset((*self.openers, *self.noise)) - {*self._opens, *self._closers, *self.ends}
        self._begins = (*self._opens, *self.openers)

    def read(self, reader: Reader) -> Steps:
        """See `Format.read`."""
        if reader.is_whole:
            is_begun = reader.text.startswith(self._begins, after_space(reader.text, 0))
        else:
            start = yield from skip_space(reader, 0)
            is_begun = False
            for what in self._begins:
                is_begun = is_begun or bool((yield from starts_with(reader, what, start)))
        if is_begun or not self.may_begin_in_reasoning or reader.begins_in_reasoning is False:
            yield from self._read_content(reader, 0)
            return
        if reader.begins_in_reasoning:
            opener = next(iter(self._opens))
            position = yield from self._read_reasoning(reader, Found(opener, -len(opener)))
            yield from self._read_content(reader, position)
            return
        # All of it may be thinking whose opener stands in the prompt: nothing is certain before the end.
        yield from wait_for_all(reader)
        position = 0
        closer = self._orphan_closer(reader.text)
        if closer is not None:
            first = 1 if reader.text.startswith("\n") else 0
            reader.add_reasoning(reader.text[first : closer.position].removesuffix("\n"))
            reader.content.skip_newlines(2)
            position = closer.position + len(closer.marker)
        yield from self._read_content(reader, position)

    def _read_thinking(self, reader: Reader) -> StepsTo:
        """Read the thinking that the text begins with, if it does; where it ends."""
        if reader.is_whole and not reader.text.startswith(tuple(self._opens), after_space(reader.text, 0)):
            return 0
        start = yield from skip_space(reader, 0)
        for opener in self._opens:
            if (yield from starts_with(reader, opener, start)):
                return (yield from self._read_reasoning(reader, Found(opener, start)))
        return 0

    def _orphan_closer(self, text: str) -> Found | None:
        """The first closer without an opener before it, which is no quoted one."""
        for opener, closer in self.reasoning:
            position = text.find(closer)
            while position != -1 and text[position - 1 : position] == "`":
                position = text.find(closer, position + 1)
            begin = text.find(opener)
            if position != -1 and (begin == -1 or begin > position):
                return Found(closer, position)
        return None

    def take(self, reader: Reader, found: Found) -> int:
        """Read what begins at an opener of a text that is whole; where it ends."""
        raise NotImplementedError

    def take_noise(self, reader: Reader, found: Found) -> int:
        """Read something of `noise`; where it ends. It says nothing, unless a format knows better."""
        return found.position + len(found.marker)

    def _read_content(self, reader: Reader, position: int) -> Steps:
        content = reader.content
        is_behind_call = False
        while True:
            plain = None
            if reader.is_whole:
                # Calls most often come one right after another.
                plain = self._content.marker_at(reader.text, position) if is_behind_call else None
                if plain is not None and plain[0] in self._calls:
                    position = plain[1]
                else:
                    plain = self._content.find_plain(reader, position)
            is_behind_call = False
            if plain is None:
                found = yield from self._content.next(reader, position, content.add)
                marker, position = found.marker, found.position
            else:
                marker, limit = plain
                if position < limit:
                    content.add(reader.text[position:limit])
                    position = limit
                found = Found(marker, position)
            if not marker:
                return
            after = position + len(marker)
            if marker in self._calls:
                # What a call says, and whether it is one, may depend on all that follows.
                if not reader.is_whole:
                    yield from wait_for_all(reader)
                if marker in self.sections:
                    content.end_piece(self.gap)
                take = self.take if marker in self.openers else self.take_noise
                # Whatever a format makes of it, the same marker is not read twice.
                position = max(take(reader, found), after)
                is_behind_call = content.is_at_start
            elif marker in self._opens:
                if content.is_at_start:
                    position = yield from self._read_reasoning(reader, found)
                else:
                    content.add(marker)
                    position = after
            elif marker in self._closers:
                # A second closer says nothing.
                position = after
                content.skip_newlines(2)
            else:
                position = yield from self._read_end(reader, found)

    def _read_end(self, reader: Reader, found: Found) -> StepsTo:
        """A token that ends the text, alone or with others; elsewhere it is text."""
        end = found.position + len(found.marker)
        at = end
        while True:
            at = yield from skip_space(reader, at)
            if at == len(reader.text):
                return at
            for item in self.ends:
                if (yield from starts_with(reader, item, at)):
                    at += len(item)
                    break
            else:
                # Nor are those behind it at the end.
                reader.content.add(reader.text[found.position : at])
                return at

    def _read_reasoning(self, reader: Reader, found: Found) -> StepsTo:
        """Thinking up to its closer. Calls in it are none; but those at the end of one that is never closed are."""
        opener = found.marker
        closer = self._opens[opener]
        start = found.position + len(opener)
        start = yield from skip_space_and(reader, start, opener)
        first = start
        while not reader.is_whole and len(reader.text) <= start:
            yield
        is_sentence = opener.endswith(":")
        if is_sentence:
            # Sentences have blanks about them, and tags have newlines.
            start = yield from skip_space(reader, start)
        elif reader.text.startswith("\n", start):
            start += 1
        emitted, at = start, start
        held = False
        while True:
            end = reader.find(closer, at)
            if end != -1:
                text = reader.text[emitted:end]
                reader.add_reasoning(text.rstrip() if is_sentence else text.removesuffix("\n"))
                if is_sentence:
                    return (yield from skip_space(reader, end + len(closer)))
                reader.content.skip_newlines(2)
                return end + len(closer)
            if reader.is_whole:
                break
            if not held:
                stop = self._first_opener(reader, emitted)
                held = stop is not None
                # A newline before the closer is not part of it.
                limit = len(reader.text) - self._longest_tag if stop is None else stop
                # Nor is white space before a call that ends it.
                more = reader.text[emitted : max(emitted, limit)].rstrip()
                reader.add_reasoning(more)
                emitted += len(more)
            at = max(start, len(reader.text) - len(closer))
            yield
        return (yield from self._end_unclosed(reader, first, emitted))

    def _first_opener(self, reader: Reader, start: int) -> int | None:
        marks = (*self.openers, *self.sections)
        found = [position for item in marks if (position := reader.text.find(item, start)) != -1]
        return min(found) if found else None

    def _end_unclosed(self, reader: Reader, start: int, emitted: int) -> StepsTo:
        """Thinking that was never closed, to the end of the text."""
        end = len(reader.text)
        calls = self._calls_at_end(reader, emitted)
        if calls is None:
            reader.add_reasoning(reader.text[emitted:end])
            for item in self.openers:
                position = reader.text.find(item, start)
                if position != -1:
                    reader.note("what may be a call stands in reasoning that is never closed", position, end)
                    break
            return end
            yield
        first, inner = calls
        said = reader.text[emitted:first].rstrip()
        while (mark := next(filter(said.endswith, self.sections), None)) is not None:
            said = said.removesuffix(mark).rstrip()
        reader.add_reasoning(said)
        for call in inner.calls:
            if call.position >= first:
                wanted = Wanted(call.name, call.arguments, call.arguments_text, call.call_id, call.is_closed)
                reader.add_call(wanted, call.position, call.position + len(call.raw))
        return end
        yield

    def _calls_at_end(self, reader: Reader, start: int) -> tuple[int, Reader] | None:
        """Whole calls after which nothing comes, and where the first begins."""
        first = self._first_opener(reader, start)
        if first is None:
            return None
        inner = Reader(reader.schemas)
        inner.text, inner.is_whole = reader.text, True
        try:
            for _ in self._read_content(inner, first):
                raise AssertionError("a text that is whole needs no more")
        except TooManyErrors:
            return None
        if not inner.calls:
            return None
        # Those that stand after the last thing that is no call.
        begin = None
        for piece in reversed(inner.pieces):
            if not isinstance(piece, ParsedCall):
                break
            begin = piece.position
        return None if begin is None else (begin, inner)


def skip_space_and(reader: Reader, position: int, what: str) -> StepsTo:
    """Skip `what`, as often as it stands there with white space before; the position after the last."""
    while True:
        after = yield from skip_space(reader, position)
        while (
            not reader.is_whole
            and len(reader.text) - after < len(what)
            and what.startswith(reader.text[after:])
        ):
            yield
        if not reader.text.startswith(what, after):
            return position
        position = after + len(what)


def skip_space(reader: Reader, position: int) -> StepsTo:
    """The next character that is no white space, or the end."""
    while True:
        match = SPACE.match(reader.text, position)
        assert match is not None
        position = match.end()
        if position < len(reader.text) or reader.is_whole:
            return position
        yield


def starts_with(reader: Reader, what: str, position: int) -> "StepsTo":
    """1 if `what` stands there, else 0."""
    while not reader.is_whole and len(reader.text) - position < len(what):
        if not what.startswith(reader.text[position:]):
            return 0
        yield
    return int(reader.text.startswith(what, position))


def resync(reader: Reader, start: int, reached: int, closers: Sequence[str], openers: Sequence[str]) -> int:
    """Where to go on after a body at `start` that cannot be read beyond `reached`.

    After the first closer behind which another call or the end stands, if it is one that was passed over as a
    string; else after the next closer, or before the next opener.
    """
    text = reader.text
    for closer in closers:
        at = reader.find(closer, start)
        while at != -1 and at < reached:
            end = at + len(closer)
            after = after_space(text, end)
            if after == len(text) or any(text.startswith(item, after) for item in openers):
                return end
            at = reader.find(closer, end)
    ends = [at + len(item) for item in closers if (at := reader.find(item, reached)) != -1]
    # What cannot be read may be the middle of an opener.
    begins = [at for item in openers if (at := reader.find(item, max(start, reached - len(item) + 1))) != -1]
    return min(min(ends, default=len(text)), min(begins, default=len(text)))
