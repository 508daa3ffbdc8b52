"""Calls that are written as elements: one for the function, one for each of its parameters.

Not XML: values are texts as they stand, without entities. So a value ends at the closer behind which the next
parameter or the end of the function stands, and markup within it is text.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from treadle.core.types import Json
from treadle.formats.engine.base import resync
from treadle.formats.engine.calls import NoCall, Wanted
from treadle.formats.engine.json_body import after_space
from treadle.formats.engine.reader import Reader
from treadle.formats.engine.rendering import encode
from treadle.formats.engine.types import Schemas
from treadle.formats.engine.values import read_value, types_of


class Elements(Struct, frozen=True):
    """How one family of formats writes them."""

    function: re.Pattern[str]
    """Opens a function; its group `name`."""
    function_open: str
    """What every opener of a function begins with."""
    function_close: str
    parameter: re.Pattern[str]
    """Opens a parameter; its group `key`."""
    parameter_open: str
    """What every opener of a parameter begins with."""
    parameter_close: str
    trims_newline: bool
    """One newline at each end of a value is not part of it."""
    is_typed: bool
    """Parameters say in a group `typed` whether their values are texts."""
    plain: re.Pattern[str]
    """A whole parameter with nothing unusual about it; its group `value` beside those of `parameter`."""


def make_elements(
    function: re.Pattern[str],
    function_open: str,
    function_close: str,
    parameter: re.Pattern[str],
    parameter_open: str,
    parameter_close: str,
    *,
    trims_newline: bool,
    is_typed: bool = False,
) -> Elements:
    """See `Elements`."""
    inner = f"{re.escape(parameter_open[1:])}|{re.escape(parameter_close[1:])}"
    behind = f"{re.escape(parameter_open)}|{re.escape(function_close)}"
    plain = re.compile(
        rf"[ \t\r\n]*+{parameter.pattern}(?P<value>(?:[^<]++|<(?!{inner}))*+){re.escape(parameter_close)}"
        rf"(?=[ \t\r\n]*+(?:{behind}))"
    )
    closers = (function_close, parameter, parameter_open, parameter_close)
    return Elements(function, function_open, *closers, trims_newline, is_typed, plain)


_QUOTES = frozenset("\"'")
CODER = make_elements(
    re.compile(r"<function=(?P<name>[^<>\n]++)(?:\s*+>|(?=\n|<parameter=))"),
    "<function=",
    "</function>",
    re.compile(r"<parameter=(?P<key>[^<>\n]++)(?:\s*+>|(?=\n))"),
    "<parameter=",
    "</parameter>",
    trims_newline=True,
)


def read_function(
    elements: Elements,
    reader: Reader,
    start: int,
    position: int,
    closers: Sequence[str],
    openers: Sequence[str],
) -> int:
    """Read one function at `position`, with the closer of its call behind it; where it ends.

    `start` is where its call begins.
    """
    text = reader.text
    end, wanted, reason, name = _read(elements, reader, position, openers)
    if wanted is None:
        # Not to its own opener.
        after = resync(reader, position + 1, max(end, position + 1), closers, openers)
        reader.add_error(reason, start, after, name)
        return after
    after = after_space(text, end)
    for closer in closers:
        if text.startswith(closer, after):
            end = after + len(closer)
            break
    reader.add_call(wanted, start, end)
    return end


def _read(
    elements: Elements, reader: Reader, position: int, openers: Sequence[str]
) -> tuple[int, Wanted | None, str, str | None]:
    """Where it ends, the call or `None`, why, and its name."""
    text = reader.text
    head = elements.function.match(text, position)
    if head is None:
        return position, None, "there is no name of a function", None
    name = head["name"].strip()
    if name[:1] in _QUOTES and name[-1:] == name[:1]:
        name = name[1:-1]
    arguments: dict[str, Json] = {}
    at = head.end()
    is_closed = True
    while True:
        plain = parameter = elements.plain.match(text, at)
        if parameter is None:
            at = after_space(text, at)
            if text.startswith(elements.function_close, at):
                at += len(elements.function_close)
                break
            if at == len(text):
                if not arguments:
                    return at, None, "it is cut off", name
                is_closed = False
                break
            parameter = elements.parameter.match(text, at)
        if parameter is None:
            if arguments and _ends_without_closer(reader, elements, at):
                break
            return at, None, "there is something other than a parameter in it", name
        key = parameter["key"].strip()
        if key[:1] in _QUOTES and key[-1:] == key[:1]:
            key = key[1:-1]
        if plain is not None:
            value, at = plain["value"], plain.end()
        else:
            value_end, at, is_cut = _find_end(elements, reader, parameter.end(), openers)
            if is_cut:
                return at, None, f"the value of {key!r} is cut off", name
            value = text[parameter.end() : value_end]
        if key in arguments:
            return at, None, f"the parameter {key!r} is there twice", name
        if elements.trims_newline:
            value = value.removeprefix("\n").removesuffix("\n")
        try:
            arguments[key] = _convert(elements, reader.schemas, parameter, value, name, key)
        except NoCall as error:
            # The rest is read all the same, to know where it ends.
            stop = reader.find(elements.function_close, at)
            return (stop if stop != -1 else at), None, error.reason, name
    return at, Wanted(name, arguments, encode(arguments).decode(), None, is_closed), "", name


def _convert(
    elements: Elements, schemas: Schemas, parameter: re.Match[str], value: str, name: str, key: str
) -> Json:
    if not elements.is_typed:
        return read_value(value, types_of(schemas, name, key), name, key)
    typed = parameter["typed"]
    if typed == "true":
        return value
    return read_value(value, _ANY_JSON if typed == "false" else frozenset(), name, key)


_ANY_JSON = frozenset(("array", "boolean", "integer", "null", "number", "object"))


def _ends_without_closer(reader: Reader, elements: Elements, at: int) -> bool:
    """A function that was not closed, behind which its call is, or the next begins."""
    ends = ("</tool_call>", "<tool_call>", "</minimax:tool_call>", "<invoke", "<function=")
    return reader.text.startswith(ends, at)


def _find_end(
    elements: Elements, reader: Reader, start: int, openers: Sequence[str]
) -> tuple[int, int, bool]:
    """Where a value ends, where to go on after it, and whether it was cut off.

    Openers and closers within it are paired, so that markup in a value stays there; a closer counts only if a
    parameter, or the end of the function, is behind it. Where another call begins that the value does not quote, it
    was cut off.
    """
    text = reader.text
    opener, closer = elements.parameter_open, elements.parameter_close
    depth, at = 0, start
    first_inner: int | None = None
    outer_end: int | None = None
    while True:
        reader.steps_left -= 1
        close = reader.find(closer, at)
        begin = reader.find(opener, at)
        if close == -1 or reader.steps_left < 0:
            if outer_end is not None:
                return outer_end, outer_end, True
            inner = begin if begin != -1 and _is_at_line_start(text, begin) else None
            inner = first_inner if first_inner is not None else inner
            return _unclosed(elements, reader, start, inner, openers)
        if begin != -1 and begin < close:
            if first_inner is None and _is_at_line_start(text, begin):
                first_inner = begin
                call = _next_call(reader, start, begin, openers)
                if call is not None:
                    outer_end = _end_around(elements, reader, call)
                    if outer_end is None and (call == start or _is_at_line_start(text, call)):
                        return call, call, True
            depth += 1
            at = begin + len(opener)
            continue
        after = close + len(closer)
        behind = after_space(text, after)
        is_last = behind == len(text) or text.startswith((opener, elements.function_close), behind)
        is_last = is_last or text.startswith(("</tool_call>", "</minimax:tool_call>", "</｜DSML｜"), behind)
        if (
            depth
            and is_last
            and outer_end is None
            and _closes_all(elements, reader, first_inner, close, behind)
        ):
            # One closer for two openers: the first was dropped.
            return _unclosed(elements, reader, start, first_inner, openers)
        if depth:
            depth -= 1
            at = after
        elif is_last:
            return close, after, False
        else:
            at = after


def _closes_all(elements: Elements, reader: Reader, inner: int | None, close: int, behind: int) -> bool:
    """Whether no closer is left for the outer one before the function ends."""
    if inner is None or not reader.text.startswith(elements.function_close, behind):
        return False
    nearest = reader.find(elements.parameter_close, behind)
    if nearest == -1:
        return True
    after = after_space(reader.text, behind + len(elements.function_close))
    # Behind the function's closer its call ends: what comes later is of another.
    return reader.text.startswith(("</tool_call>", "</minimax:tool_call>", "<invoke"), after) or after == len(
        reader.text
    )


def _unclosed(
    elements: Elements, reader: Reader, start: int, inner: int | None, openers: Sequence[str]
) -> tuple[int, int, bool]:
    """The end of a value whose closer is missing: the next parameter, or the end of the function."""
    text = reader.text
    stop = reader.find(elements.function_close, start)
    ends = [position for position in (inner, stop if stop != -1 else None) if position is not None]
    if not ends:
        return len(text), len(text), True
    end = min(ends)
    call = _next_call(reader, start, end, openers)
    outer_end = None if call is None else _end_around(elements, reader, call)
    if outer_end is not None:
        # Nothing tells where a value ends that quotes a call.
        return outer_end, outer_end, True
    if call is not None and (call == start or _is_at_line_start(text, call)):
        return call, call, True
    return end, end, False


def _next_call(reader: Reader, start: int, end: int, openers: Sequence[str]) -> int | None:
    """Where a call begins between two places."""
    return min([at for item in openers if -1 < (at := reader.find(item, start)) < end], default=None)


def _end_around(elements: Elements, reader: Reader, begin: int) -> int | None:
    """Where the function ends that quotes the call at `begin`; `None` if there is none: that call is meant."""
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
