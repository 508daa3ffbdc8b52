"""`Format`, the interface of a text format, and `TaggedFormat`, the base of formats that mark calls with tags."""

from collections import deque
from collections.abc import Sequence
from functools import cache
from json import JSONDecoder
from typing import Any, ClassVar

from treadle.core.texts.documents import read_data
from treadle.core.types import Json, Message, ToolCall, ToolSpec
from treadle.formats.scanner.json_body import (
    SPACE,
    BadValue,
    NoCall,
    Wanted,
    after_space,
    name_of,
    raw_fields,
    read_arguments,
)
from treadle.formats.scanner.markers import (
    FENCE,
    FoundMarker,
    Reader,
    Scanner,
    Steps,
    StepsTo,
    TooManyErrors,
    after_closer,
    after_fence,
    wait_for_all,
)
from treadle.formats.scanner.parsed import Parsed, ParsedCall, ToolSchemas, to_json, to_openai
from treadle.formats.scanner.values import write_arguments, write_call, write_parameters

MAX_DEPTH = 4
"""Calls are also found in reasoning that has no end, if at most this many levels of reasoning are nested."""
THINK = (("<think>", "</think>"),)


@cache
def find_grammar(name: str) -> dict[str, Any]:
    """Return the grammar of the format called `name`; an empty one for a format of another package."""
    grammar = read_data(__package__, "grammars").get(name, {})
    own = {key: _as_tuple(value) for key, value in grammar.items()}
    return {**find_grammar(own.pop("like")), **own} if "like" in own else own


def _as_tuple(value: Json) -> Json:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


class Format:
    """A text format of tool calls. Those of this package have their attributes in `grammars.toml`."""

    name: ClassVar[str]
    reasoning: ClassVar[tuple[tuple[str, str], ...]] = THINK
    """The pairs of tags that enclose reasoning."""
    may_begin_in_reasoning: ClassVar[bool] = True
    """True if the prompt may contain the tag that opens reasoning, which the first closing tag then ends."""
    ends: ClassVar[tuple[str, ...]] = ()
    """Tokens that may end the text and have no meaning."""
    repeats: ClassVar[tuple[str, ...]] = ()
    closers: ClassVar[tuple[str, ...]] = ()
    stops: ClassVar[tuple[str, ...]] = ()
    thought: ClassVar[str] = "<think>\n{reasoning}\n</think>\n\n"
    """The text of the reasoning."""
    call: ClassVar[str] = ""
    """The text of a call, with places for its `name`, the same `quoted`, its `id`, its `arguments` as JSON, and
    the whole of it as `json` or by its `parameters`."""
    parameter: ClassVar[str] = ""
    """The text of a parameter, with places for its `key`, its `value`, and whether this `is_text`."""
    between: ClassVar[str] = ""
    """The text between two calls."""
    around: ClassVar[tuple[str, str]] = ("", "")
    """The texts before and after all calls."""
    space: ClassVar[str] = ""
    """The text between the content and the calls."""

    def __init__(self) -> None:
        for key, value in find_grammar(self.name).items():
            setattr(self, key, value)

    def read_all(self, reader: Reader) -> Steps:
        """Read the whole text, or stop after too many errors."""
        try:
            yield from self.read(reader)
        except TooManyErrors as error:
            yield from wait_for_all(reader)
            reader.give_up(error.position)

    def read_text(self, text: str, schemas: ToolSchemas, begins_in_reasoning: bool | None = None) -> Parsed:
        """Return what `read_all` finds in a whole text."""
        reader = Reader(schemas, begins_in_reasoning=begins_in_reasoning)
        reader.text, reader.is_whole = text, True
        for _ in self.read_all(reader):
            raise AssertionError("a complete text needs no more input")
        return reader.result()

    def read(self, reader: Reader) -> Steps:
        """Read the whole text. Raises: `TooManyErrors`."""
        raise NotImplementedError

    def read_plain(self, text: str) -> Parsed | None:
        """Return what `read_all` finds in a whole text of the most frequent kind; `None` for any other text."""
        return None

    def render(self, message: Message) -> str:
        """Return `message` as text in this format. The caller checks that the text can be parsed again."""
        calls = [self.write_call(call, place) for place, call in enumerate(message.tool_calls)]
        written = f"{self.around[0]}{self.between.join(calls)}{self.around[1]}" if calls else ""
        said = f"{message.content}{self.space}" if message.content and calls else message.content
        return f"{self.think(message)}{said}{written}"

    def think(self, message: Message) -> str:
        """Return the text of the reasoning; empty if there is none."""
        return self.thought.format(reasoning=message.reasoning) if message.reasoning else ""

    def write_call(self, call: ToolCall, place: int) -> str:
        """Return the text of a call, which is the one at `place` in its message."""
        return self.call.format(
            name=call.name,
            quoted=to_json(call.name),
            id=self.id_of(call, place),
            arguments=write_arguments(call),
            json=write_call(call),
            parameters=write_parameters(call, self.parameter) if self.parameter else "",
        )

    def id_of(self, call: ToolCall, place: int) -> str:
        """Return the id that is written for the call at `place`."""
        return call.call_id

    def render_tools(self, tools: Sequence[ToolSpec]) -> str:
        """Return the text that describes `tools` in the system message."""
        lines = "\n".join(to_json(to_openai(tool)) for tool in tools)
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
            f"function signatures within <tools></tools> XML tags:\n<tools>\n{lines}\n</tools>\n\n{self.manual}"
        )

    manual: ClassVar[str] = ""
    """The part of the system message that says how to write calls."""
    result: ClassVar[str] = "<tool_response>\n{content}\n</tool_response>"
    """The text that gives a tool's result to the model, with places for its content and the tool's name."""

    def render_result(self, content: str, name: str, call_id: str | None) -> str:
        """Return the text that gives a tool's result to the model."""
        return self.result.format(content=content, name=name)


class TaggedFormat(Format):
    """A base class for formats that mark calls with tags."""

    openers: ClassVar[tuple[str, ...]]
    """The tags that begin a call."""
    noise: ClassVar[tuple[str, ...]] = ()
    """Other strings that `take_noise` handles, such as closing tags without an opening tag."""
    sections: ClassVar[tuple[str, ...]] = ()
    """The strings in `noise` that begin a group of calls. The content before them ends there."""
    gap: ClassVar[int] = 1
    """The number of newlines between the content and a group of calls."""

    def __init__(self) -> None:
        super().__init__()
        tags = tuple([tag for pair in self.reasoning for tag in pair])
        self._content = Scanner((*self.openers, *self.noise, *tags, *self.ends))
        self._longest_tag = max([len(item) for item in (*self.openers, *self.sections, *tags)], default=0)
        self._closers = {close for _, close in self.reasoning}
        self._opens = dict(self.reasoning)
        self._calls = frozenset((*self.openers, *self.noise)) - {*self._opens, *self._closers, *self.ends}
        self._begins_calls = (*self.openers, *self.sections)
        self._begins = (*self._opens, *self._begins_calls)

    def read(self, reader: Reader) -> Steps:
        """Read the whole text."""
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
            position = yield from self._read_reasoning(reader, FoundMarker(opener, -len(opener)))
            yield from self._read_content(reader, position)
            return
        # The prompt may have opened the reasoning, so nothing is certain before the end of the text.
        yield from wait_for_all(reader)
        position = 0
        closer = self._orphan_closer(reader)
        if closer is not None:
            first = 1 if reader.text.startswith("\n") else 0
            reader.add_reasoning(reader.text[first : closer.position].removesuffix("\n"))
            reader.content.skip_newlines(2)
            position = closer.position + len(closer.marker)
        yield from self._read_content(reader, position)

    def _read_thinking(self, reader: Reader) -> StepsTo:
        """Read the reasoning at the start of the text, if there is any, and return the position after it."""
        if reader.is_whole and not reader.text.startswith(tuple(self._opens), after_space(reader.text, 0)):
            return 0
        start = yield from skip_space(reader, 0)
        for opener in self._opens:
            if (yield from starts_with(reader, opener, start)):
                return (yield from self._read_reasoning(reader, FoundMarker(opener, start)))
        return 0

    def _orphan_closer(self, reader: Reader) -> FoundMarker | None:
        """Return the first closing tag without an opening tag before it that is not quoted in code or in a call."""
        text = reader.text
        first = self._first_opener(reader, 0)
        calls: deque[tuple[int, int]] | None = None
        for opener, closer in self.reasoning:
            position = text.find(closer)
            while position != -1:
                if text[position - 1 : position] != "`":
                    if first is None or first > position:
                        break
                    if calls is None:
                        inner = self._read_inner(reader, first)
                        found = () if inner is None else inner.calls
                        calls = deque([(call.position, call.position + len(call.raw)) for call in found])
                    while calls and calls[0][1] <= position:
                        calls.popleft()
                    if not calls or position < calls[0][0]:
                        break
                position = text.find(closer, position + 1)
            begin = text.find(opener)
            if position != -1 and (begin == -1 or begin > position):
                return FoundMarker(closer, position)
        return None

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` in a complete text, and return the position after it."""
        raise NotImplementedError

    def take_json(self, reader: Reader, start: int, position: int) -> int:
        """Read the calls in the JSON at `position`, whose marks begin at `start`. Return the position after it."""
        text = reader.text
        try:
            if text[position : position + 1] not in ("[", "{"):
                raise BadValue(
                    "the call is cut off" if position == len(text) else "the call contains no JSON", position
                )
            end, value = reader.read_json(position)
        except BadValue as error:
            end = resync(reader, position, error.position, self.closers, self.openers)
            reader.add_error(f"not valid JSON: {error}", start, end, name_of(text[start:end]))
            return end
        after = after_closer(text, after_closer(text, end, (FENCE,)), self.noise)
        reader.add_calls(text[position:end], value, start, after)
        return after

    def take_noise(self, reader: Reader, found: FoundMarker) -> int:
        """Read a string in `noise`, and return the position after it. By default the string is ignored."""
        return found.position + len(found.marker)

    def _read_content(self, reader: Reader, position: int) -> Steps:
        content = reader.content
        is_behind_call = False
        while True:
            plain = None
            if reader.is_whole:
                # The next call is usually directly behind the last one.
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
                found = FoundMarker(marker, position)
            if not marker:
                return
            after = position + len(marker)
            if marker in self._calls:
                # Whether this is a call, and what it contains, may depend on the rest of the text.
                if not reader.is_whole:
                    yield from wait_for_all(reader)
                if marker in self.sections:
                    content.end_piece(self.gap)
                take = self.take if marker in self.openers else self.take_noise
                # The position always moves on, so that no marker is read twice.
                position = max(take(reader, found), after)
                is_behind_call = content.is_at_start
            elif marker in self._opens:
                if content.is_at_start:
                    position = yield from self._read_reasoning(reader, found)
                else:
                    content.add(marker)
                    position = after
            elif marker in self._closers:
                # A closing tag without an opening tag is ignored.
                position = after
                content.skip_newlines(2)
            else:
                position = yield from self._read_end(reader, found)

    def _read_end(self, reader: Reader, found: FoundMarker) -> StepsTo:
        """Skip the end token at `found` if only end tokens follow; otherwise add it to the content."""
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
                # Text follows, so the tokens before it are content.
                reader.content.add(reader.text[found.position : at])
                return at

    def _read_reasoning(self, reader: Reader, found: FoundMarker) -> StepsTo:
        """Read reasoning up to its closing tag, and return the position after it. Calls within reasoning are not
        made, except calls at the end of reasoning that is never closed."""
        opener = found.marker
        closer = self._opens[opener]
        start = found.position + len(opener)
        start = yield from skip_space_and(reader, start, opener)
        first = start
        while not reader.is_whole and len(reader.text) <= start:
            yield
        is_sentence = opener.endswith(":")
        if is_sentence:
            # Sentences have spaces around them, and tags have newlines.
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
                # A newline before the closing tag is not part of the reasoning.
                limit = len(reader.text) - self._longest_tag if stop is None else stop
                # Neither is white space before a call that ends the reasoning.
                more = reader.text[emitted : max(emitted, limit)].rstrip()
                reader.add_reasoning(more)
                emitted += len(more)
            at = max(start, len(reader.text) - len(closer))
            yield
        return (yield from self._end_unclosed(reader, first, emitted))

    def _first_opener(self, reader: Reader, start: int) -> int | None:
        found = [at for item in self._begins_calls if (at := reader.text.find(item, start)) != -1]
        return min(found) if found else None

    def _end_unclosed(self, reader: Reader, start: int, emitted: int) -> StepsTo:
        """Read reasoning that is never closed, up to the end of the text."""
        end = len(reader.text)
        calls = self._calls_at_end(reader, emitted)
        if calls is None:
            reader.add_reasoning(reader.text[emitted:end])
            for item in self.openers:
                position = reader.text.find(item, start)
                if position != -1:
                    reader.note("there may be a call in reasoning that is never closed", position, end)
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
        """Return the calls that end the text, and the position of the first; `None` if the text ends with none."""
        first = self._first_opener(reader, start)
        if first is None:
            return None
        inner = self._read_inner(reader, first)
        if inner is None or not inner.calls:
            return None
        # Only the calls behind the last piece that is not a call.
        begin = None
        for piece in reversed(inner.pieces):
            if not isinstance(piece, ParsedCall):
                break
            begin = piece.position
        return None if begin is None else (begin, inner)

    def _read_inner(self, reader: Reader, start: int) -> Reader | None:
        """Return a reader that has read the text from `start` on as content; `None` if that is not possible."""
        if reader.depth >= MAX_DEPTH:
            return None
        inner = Reader(reader.schemas)
        inner.text, inner.is_whole, inner.depth = reader.text, True, reader.depth + 1
        try:
            for _ in self._read_content(inner, start):
                raise AssertionError("a text that is whole needs no more")
        except TooManyErrors:
            return None
        return inner


def skip_space_and(reader: Reader, position: int, what: str) -> StepsTo:
    """Skip repetitions of `what`, each with white space before it, and return the position after the last one."""
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
    """Skip white space, and return the position after it."""
    while True:
        # A match that is held while this waits would force a copy when the text grows.
        position = SPACE.match(reader.text, position).end()  # type: ignore[union-attr]
        if position < len(reader.text) or reader.is_whole:
            return position
        yield


def starts_with(reader: Reader, what: str, position: int) -> "StepsTo":
    """Return 1 if the text at `position` starts with `what`, otherwise 0."""
    while not reader.is_whole and len(reader.text) - position < len(what):
        if not what.startswith(reader.text[position:]):
            return 0
        yield
    return int(reader.text.startswith(what, position))


def resync(reader: Reader, start: int, reached: int, closers: Sequence[str], openers: Sequence[str]) -> int:
    """Return the position at which to continue after a call that is malformed at `reached`.

    `start` is where the call's body begins. If one of `closers` was passed over as part of a string, and
    another call or the end of the text follows it, the position is behind that closer. Otherwise it is behind
    the next closer or before the next opener, whichever comes first.
    """
    text = reader.text
    for closer in closers:
        at = reader.find(closer, start)
        while at != -1 and at < reached:
            end = at + len(closer)
            after = after_space(text, end)
            if after == len(text) or text.startswith(tuple(openers), after):
                return end
            at = reader.find(closer, end)
    ends = [at + len(item) for item in closers if (at := reader.find(item, reached)) != -1]
    # The malformed part may have ended within an opener.
    begins = [at for item in openers if (at := reader.find(item, max(start, reached - len(item) + 1))) != -1]
    return min(min(ends, default=len(text)), min(begins, default=len(text)))


def read_headed(
    reader: Reader,
    start: int,
    position: int,
    name: str,
    closers: Sequence[str],
    openers: Sequence[str],
    *,
    call_id: str | None = None,
    unwraps: bool = False,
) -> int:
    """Read the arguments of `name` at `position`, add the call, and return the position after it.

    The call begins at `start`. One of `closers` belongs to the call if it directly follows. With `unwraps`,
    if the only argument is `arguments` or `input` and it is an object, that object is used as the arguments.
    """
    text = reader.text
    at = after_space(text, position)
    has_fence = text.startswith(FENCE, at)
    at = after_fence(text, at)

    def fail(reason: str, reached: int) -> int:
        end = resync(reader, position, reached, closers, openers)
        reader.add_error(reason, start, end, name or None)
        return end

    if not name:
        return fail("the call has no function name", at)
    is_quoted = text[at : at + 1] == '"'
    try:
        if is_quoted:
            value, end = JSONDecoder().raw_decode(text, at)
            arguments, words = read_arguments(str(value), name)
        elif text[at : at + 1] == "{":
            end, arguments = reader.read_json(at, around=0)
            words = text[at:end]
        else:
            return fail(
                "the call is cut off" if at == len(text) else "the arguments are not a JSON object", at
            )
    except BadValue as error:
        return fail(f"the arguments are not valid JSON: {error.reason}", error.position)
    except NoCall as error:
        return fail(error.reason, at + 1)
    except ValueError as error:
        return fail(f"the arguments are not valid JSON: {error}", at + 1)
    if has_fence:
        end = after_closer(text, end, (FENCE,))
    after = after_closer(text, end, closers)
    if after == end and not is_quoted:
        rest = after_space(text, end)
        stop = reader.find_first(closers, rest)
        # A closer before the next call shows that the text between belongs to this call.
        if rest < len(text) and stop < len(text) and stop < reader.find_first(openers, rest):
            return fail("the call contains more than JSON", rest)
    if unwraps and len(arguments) == 1:
        inner = arguments.get("arguments", arguments.get("input"))
        if isinstance(inner, dict):
            arguments, words = inner, next(iter(raw_fields(words).values()))
    reader.add_call(Wanted(name, arguments, words, call_id), start, after)
    return after
