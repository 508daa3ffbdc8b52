"""Read calls that are written as elements: one for the function and one for each parameter.

This is not XML: values are plain text without entities, and may contain markup. So a value ends at the
closing tag that is followed by the next parameter or by the end of the function.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial

import msgspec
from msgspec import Struct

from treadle.core.types import Json
from treadle.formats.scanner.base import find_grammar, resync
from treadle.formats.scanner.json_body import SPACE, NoCall, Wanted, after_space
from treadle.formats.scanner.markers import Reader, after_closer
from treadle.formats.scanner.parsed import ToolSchemas
from treadle.formats.scanner.values import encode, read_value, types_of


class Elements(Struct, dict=True):
    """The tags of one family of formats."""

    function: re.Pattern[str]
    """A pattern for a function's opening tag, with the group `name`."""
    function_open: str
    """The string that every opening tag of a function begins with."""
    function_close: str
    parameter: re.Pattern[str]
    """A pattern for a parameter's opening tag, with the group `key`. If its group `bare` matches, newlines around
    the value are not part of it."""
    parameter_open: str
    """The string that every opening tag of a parameter begins with."""
    parameter_close: str
    trims_newline: bool = False
    """True if one newline at each end of a value is not part of the value."""
    is_typed: bool = False
    """True if a parameter's tag has a group `typed` that says whether its value is a string."""
    blanks: re.Pattern[str] = SPACE
    """A pattern for the white space between tags."""

    @cached_property
    def plain(self) -> re.Pattern[str]:
        """Return the pattern for a whole parameter without markup in its value, with the group `value` and those of
        `parameter`."""
        close = re.escape(self.parameter_close)
        inner = f"{re.escape(self.parameter_open[1:])}|{close.removeprefix('<')}"
        behind = f"{re.escape(self.parameter_open)}|{re.escape(self.function_close)}"
        return re.compile(
            rf"[ \t\r\n]*+{self.parameter.pattern}(?P<value>(?:[^<]++|<(?!{inner}))*+){close}"
            rf"(?=[ \t\r\n]*+(?:{behind}))"
        )

    def after_space(self, text: str, position: int) -> int:
        """Return the position after the white space between tags."""
        return self.blanks.match(text, position).end()  # type: ignore[union-attr]


@cache
def find_elements(name: str) -> Elements:
    """Return the tags of the format called `name`."""
    return msgspec.convert(
        find_grammar(name)["elements"], Elements, dec_hook=lambda _, text: re.compile(text)
    )


_QUOTES = frozenset("\"'")


def read_function(
    elements: Elements,
    reader: Reader,
    start: int,
    position: int,
    closers: Sequence[str],
    openers: Sequence[str],
) -> int:
    """Read one function at `position`, add its call, and return the position after it.

    The call begins at `start`. One of `closers` belongs to the call if it directly follows the function.
    """
    text = reader.text
    end, wanted, reason, name = _read(elements, reader, position, openers)
    if wanted is None:
        # `position + 1` skips the opener of this call itself.
        after = resync(reader, position + 1, max(end, position + 1), closers, openers)
        reader.add_error(reason, start, after, name)
        return after
    end = after_closer(text, end, closers)
    later = _find_later_end(elements, reader, end, openers)
    if later is not None:
        after = after_closer(text, later, closers)
        reader.add_error(f"a value {_uncertain(elements.function_close)}", start, after, name)
        return after
    reader.add_call(wanted, start, end)
    return end


def _find_later_end(elements: Elements, reader: Reader, end: int, openers: Sequence[str]) -> int | None:
    """Return where a function ends once more, after its `end` and before the next call; `None` if it does not. Then
    a value quotes the end of a function, and it is not known which one is meant."""
    text, closer = reader.text, elements.function_close
    # A value may quote the end of a section too.
    stop = reader.find_first([mark for mark in openers if not mark.startswith("</")], end)
    at = reader.find(closer, end)
    while -1 < at < stop:
        if text[max(end, at - _MOST_SPACE) : at].rstrip().endswith(elements.parameter_close):
            return at + len(closer)
        at = reader.find(closer, at + len(closer))
    return None


_MOST_SPACE = 64
"""How many characters, white space and a closing tag, are read before the end of a function."""


def _read(
    elements: Elements, reader: Reader, position: int, openers: Sequence[str]
) -> tuple[int, Wanted | None, str, str | None]:
    """Return the end of a function, its call or `None`, the reason if there is no call, and the function's name."""
    text = reader.text
    head = elements.function.match(text, position)
    if head is None:
        return position, None, "the call has no function name", None
    name = _unquote(head["name"])
    arguments: dict[str, Json] = {}
    at = head.end()
    is_closed = True
    while True:
        plain = parameter = elements.plain.match(text, at)
        if parameter is None:
            at = elements.after_space(text, at)
            if text.startswith(elements.function_close, at):
                at += len(elements.function_close)
                break
            if at == len(text):
                if not arguments:
                    return at, None, "the call is cut off", name
                is_closed = False
                break
            parameter = elements.parameter.match(text, at)
        if parameter is None:
            if arguments and _ends_without_closer(reader, elements, at):
                break
            return at, None, "the call contains something other than a parameter", name
        key = _unquote(parameter["key"])
        if plain is not None:
            value, at = plain["value"], plain.end()
        else:
            may_follow = partial(_may_follow, elements, reader, (name, key), arguments)
            value_end, at, fault = _find_end(elements, reader, parameter.end(), openers, may_follow)
            if fault:
                return at, None, f"the value of {key!r} {fault}", name
            value = text[parameter.end() : value_end]
            if "bare" in parameter.groupdict() and parameter["bare"] is not None:
                value = value.strip("\n")
        if key in arguments:
            return at, None, f"the parameter {key!r} occurs twice", name
        if elements.trims_newline:
            value = value.removeprefix("\n").removesuffix("\n")
        try:
            arguments[key] = _convert(elements, reader.schemas, parameter, value, name, key)
        except NoCall as error:
            # The rest is read too, to find where the function ends.
            stop = reader.find(elements.function_close, at)
            return (stop if stop != -1 else at), None, error.reason, name
    return at, Wanted(name, arguments, encode(arguments).decode(), None, is_closed), "", name


def _may_follow(
    elements: Elements, reader: Reader, this: tuple[str, str], given: dict[str, Json], position: int
) -> bool:
    """Return whether a parameter may begin at `position`. It must be a parameter that the tool has, that is not
    `given` yet, and that is not the current one, which `this` names together with its function."""
    if not _is_at_line_start(reader.text, position):
        return False
    found = elements.parameter.match(reader.text, position)
    if found is None:
        return True
    key = _unquote(found["key"])
    known = reader.schemas.get(this[0], {}).get("properties")
    return key != this[1] and key not in given and (not known or key in known)


def _unquote(word: str) -> str:
    word = word.strip()
    return word[1:-1] if word[:1] in _QUOTES and word[-1:] == word[:1] else word


def _convert(
    elements: Elements, schemas: ToolSchemas, parameter: re.Match[str], value: str, name: str, key: str
) -> Json:
    if not elements.is_typed:
        return read_value(value, types_of(schemas, name, key), name, key)
    typed = parameter["typed"]
    if typed == "true":
        return value
    return read_value(value, _ANY_JSON if typed == "false" else frozenset(), name, key)


_ANY_JSON = frozenset(("array", "boolean", "integer", "null", "number", "object"))


def _ends_without_closer(reader: Reader, elements: Elements, at: int) -> bool:
    """Return whether a function without a closing tag ends at `at`, where its call ends or the next begins."""
    ends = ("</tool_call>", "<tool_call>", "</minimax:tool_call>", "<invoke", "<function=")
    return reader.text.startswith(ends, at)


def _find_end(
    elements: Elements,
    reader: Reader,
    start: int,
    openers: Sequence[str],
    is_parameter: Callable[[int], bool],
) -> tuple[int, int, str]:
    """Return where a value ends, where to continue, and why the end is not known, or an empty string.

    Tags within the value are paired, so that markup stays part of the value. A closing tag counts only if a
    parameter or the end of the function follows. A value in which another, unquoted call begins is cut off.
    `is_parameter` says whether a parameter may begin at a position at the start of a line; other opening tags are
    quoted. A quoted tag may have no closing tag: then the value ends at the first closing tag that counts.
    """
    text = reader.text
    opener, closer = elements.parameter_open, elements.parameter_close
    ends = (opener, elements.function_close, "</tool_call>", "</minimax:tool_call>", "</｜DSML｜", *openers)
    inner, at = list[int](), start
    """The positions of the opening tags within the value that are not paired yet."""
    first_inner: int | None = None
    outer_end: int | None = None
    quoted: int | None = None
    """The position of a closing tag that ends the value if the opening tags before it are quoted."""
    while True:
        reader.steps_left -= 1
        close = reader.find(closer, at)
        begin = reader.find(opener, at)
        if close == -1 or reader.steps_left < 0:
            if quoted is not None:
                return quoted, quoted + len(closer), ""
            if outer_end is not None:
                return outer_end, outer_end, _CUT
            if first_inner is None and begin != -1 and is_parameter(begin):
                first_inner = begin
            return _unclosed(elements, reader, start, first_inner, openers)
        if begin != -1 and begin < close:
            if first_inner is None and is_parameter(begin):
                first_inner = begin
                call = _next_call(reader, start, begin, openers)
                if call is not None and quoted is None:
                    outer_end = _end_around(elements, reader, call)
                    if outer_end is None and (call == start or _is_at_line_start(text, call)):
                        return call, call, _CUT
            inner.append(begin)
            at = begin + len(opener)
            continue
        after = close + len(closer)
        behind = elements.after_space(text, after)
        is_last = behind == len(text) or text.startswith(ends, behind)
        if inner and is_last and first_inner is None and quoted is None:
            if not _next_call(reader, start, close, openers):
                quoted = close
                next_close = reader.find(elements.parameter_close, after)
                if not -1 < next_close < reader.find_first(openers, after):
                    return close, after, ""
        elif (
            inner
            and is_last
            and outer_end is None
            and _closes_all(elements, reader, first_inner, close, behind)
        ):
            if quoted is not None:
                return quoted, quoted + len(closer), ""
            # There is one closing tag for two opening tags, so the first parameter was not closed.
            return _unclosed(elements, reader, start, first_inner, openers)
        paired = inner.pop() if inner else None
        if paired is None and is_last:
            return (close, after, "") if quoted is None else (after, after, _uncertain(opener))
        if text.startswith(closer, behind) and _is_at_line_start(text, close):
            # The value may end with a closing tag, or the model may have closed it twice.
            return behind + len(closer), behind + len(closer), _uncertain(closer)
        at = after


_CUT = "is cut off"


def _uncertain(tag: str) -> str:
    return f"contains {tag!r}, so that its end is not certain; write it in another way"


def _closes_all(elements: Elements, reader: Reader, inner: int | None, close: int, behind: int) -> bool:
    """Return whether no closing tag is left for the outer parameter before the function ends."""
    if inner is None or not reader.text.startswith(elements.function_close, behind):
        return False
    nearest = reader.find(elements.parameter_close, behind)
    if nearest == -1:
        return True
    after = after_space(reader.text, behind + len(elements.function_close))
    # The call ends here, so a later closing tag belongs to another call.
    return after == len(reader.text) or reader.text.startswith(_CALL_ENDS, after)


_CALL_ENDS = ("</tool_call>", "</minimax:tool_call>", "<invoke", "</｜DSML｜", "<｜DSML｜invoke")
"""The strings that may follow the last function of a call."""


def _unclosed(
    elements: Elements, reader: Reader, start: int, inner: int | None, openers: Sequence[str]
) -> tuple[int, int, str]:
    """Return the end of a value without a closing tag: the next parameter or the end of the function."""
    text = reader.text
    stop = reader.find(elements.function_close, start)
    ends = [position for position in (inner, stop if stop != -1 else None) if position is not None]
    if not ends:
        return len(text), len(text), _CUT
    end = min(ends)
    call = _next_call(reader, start, end, openers)
    outer_end = None if call is None else _end_around(elements, reader, call)
    if outer_end is not None:
        # It is impossible to tell where a value ends that quotes a call.
        return outer_end, outer_end, _CUT
    if call is not None and (call == start or _is_at_line_start(text, call)):
        return call, call, _CUT
    if text[max(start, end - _MOST_SPACE) : end].rstrip().endswith(elements.parameter_close):
        # The value is closed, and so are the opening tags that it quotes.
        return end, end, _uncertain(elements.parameter_open)
    return end, end, ""


def _next_call(reader: Reader, start: int, end: int, openers: Sequence[str]) -> int | None:
    """Return the position of a call that begins between `start` and `end`, or `None`."""
    at = reader.find_first(openers, start)
    return at if at < end else None


def _end_around(elements: Elements, reader: Reader, begin: int) -> int | None:
    """Return where the function ends that quotes the call at `begin`, or `None` if the call is not quoted."""
    opener, closer = elements.function_open, elements.function_close
    depth, at = 0, begin
    while reader.steps_left > 0:
        reader.steps_left -= 1
        close = reader.find(closer, at)
        if close == -1:
            return None
        inner = reader.find(opener, at)
        if -1 < inner < close:
            depth += 1
            at = inner + len(opener)
        elif depth:
            depth -= 1
            at = close + len(closer)
        else:
            return close
    return None


def _is_at_line_start(text: str, position: int) -> bool:
    line = text[max(0, position - 32) : position]
    return not line[line.rfind("\n") + 1 :].strip()
