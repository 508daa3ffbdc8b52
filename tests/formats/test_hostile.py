"""Texts that try to make a parser hang, crash or misread."""

import contextlib
import importlib
import os
import pkgutil
import re
import signal
from re import _constants as constants
from re import _parser as parser

import pytest
from tests.formats.test_properties import TAGS

from treadle import formats
from treadle.core.types import ToolSpec
from treadle.formats import FORMATS, IncrementalParser, find_format, parse
from treadle.formats.scanner.base import TaggedFormat

FULL = bool(os.environ.get("TREADLE_FULL"))


def loops(tree):
    """Yield every repetition in a regular expression that may backtrack."""
    for kind, inner in tree:
        if kind in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            if inner[1] == constants.MAXREPEAT:
                yield inner
            yield from loops(inner[2])
        elif kind is constants.POSSESSIVE_REPEAT:
            yield from loops(inner[2])
        elif kind is constants.SUBPATTERN:
            yield from loops(inner[3])
        elif kind is constants.BRANCH:
            for branch in inner[1]:
                yield from loops(branch)
        elif kind in (constants.ASSERT, constants.ASSERT_NOT):
            yield from loops(inner[1])


def test_no_regular_expression_tries_again():
    """Two adjacent repetitions that both match spaces take quadratic time on many spaces."""
    seen = 0
    for module in pkgutil.walk_packages(formats.__path__, "treadle.formats."):
        found = vars(importlib.import_module(module.name)).items()
        for name, pattern in found:
            if isinstance(pattern, re.Pattern):
                seen += 1
                tree = parser.parse(pattern.pattern, pattern.flags)
                assert not list(loops(tree)), f"{module.name}.{name}"
    assert seen > 20
    assert list(loops(parser.parse(r"\s*a")))


SWEPT = sorted(
    {word[:size] for word in TAGS for size in (1, 2, len(word) - 1, len(word)) if size}
    | {"\t", "\xa0", "a", "="}
)
"""The parts of hostile texts: marks, whole and cut off."""
SIZE, BEARABLE = 30_000, 3
"""The length of a text in characters, and the limit in seconds of CPU time, about 100 times what is needed."""


@contextlib.contextmanager
def no_longer_than(seconds, what):
    """Raise an error with `what` if the block takes longer than `seconds` of CPU time."""

    def stop(*_):
        raise AssertionError(f"it hangs: {what}")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("name", FORMATS.names())
def test_what_is_repeated_without_end_is_read_to_its_end(name):
    """Each mark is repeated many times behind each other mark. The short form has other ones for each format."""
    number = FORMATS.names().index(name)
    units, begins = (SWEPT, SWEPT) if FULL else (SWEPT[number % 3 :: 3], SWEPT[number % 4 :: 4])
    for begin in ["", *begins]:
        for unit in units:
            text = begin + unit * (SIZE // 10 // len(unit))
            with no_longer_than(BEARABLE, (name, begin, unit)):
                found = parse(text, name)
            assert all(error.raw for error in found.errors), (begin, unit)
    for begin in ("", *find_format(name).openers) if isinstance(find_format(name), TaggedFormat) else ("",):
        for unit in units:
            with no_longer_than(BEARABLE, (name, begin, unit)):
                parse(begin + unit * (SIZE // len(unit)), name)


@pytest.mark.parametrize(
    ("name", "opener"),
    [("qwen3_coder", "<function="), ("minimax", "<invoke "), ("deepseek_v32", "<｜DSML｜invoke ")],
)
def test_an_opener_that_is_cut_off_is_one_error(name, opener):
    with no_longer_than(BEARABLE, opener):
        found = parse(f"Well. {opener}aaa", name)
    assert (found.content, found.tool_calls) == ("Well. ", ())
    assert [error.raw for error in found.errors] == [f"{opener}aaa"]


@pytest.mark.parametrize(
    ("name", "head", "body", "tail"),
    [
        ("glm45", "<tool_call>f\n", "<arg_key>k{}</arg_key>\n<arg_value>1</arg_value>\n", "</tool_call>"),
        ("qwen3_coder", "<function=f>\n", "<parameter=k{}>\n1\n</parameter>\n", "</function>"),
        ("minimax", '<invoke name="f">', '<parameter name="k{}">1</parameter>', "</invoke>"),
        (
            "deepseek_v32",
            '<｜DSML｜invoke name="f">',
            '<｜DSML｜parameter name="k{}" string="true">1</｜DSML｜parameter>',
            "</｜DSML｜invoke>",
        ),
        ("llama3_pythonic", "[f(", "k{}='1',", ")]"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "1"', ',"k{}": "1"', "}}</tool_call>"),
    ],
)
def test_a_call_of_very_many_arguments_is_read_once(name, head, body, tail):
    count = 20_000
    text = head + "".join(body.format(number) for number in range(count)) + tail
    with no_longer_than(BEARABLE, name):
        (call,) = parse(text, name).tool_calls
    assert len(call.arguments) >= count
    # Texts whose ends are missing are handled too.
    for broken in (text.replace("</", "<"), text[: -len(tail)], head * 10 + text.replace("1", "\n" + head)):
        with no_longer_than(BEARABLE, name):
            parse(broken, name)


@pytest.mark.parametrize("name", FORMATS.names())
def test_runs_too_long_to_be_code_are_text_however_they_are_cut(name):
    for char in "`~":
        for size in (255, 256, 257, 511, 513, 2000):
            text = f"So:\n{char * size}\nx {char * size} y"
            whole = parse(text, name)
            for step in (1, 7, 400):
                parser = IncrementalParser(name)
                for at in range(0, len(text), step):
                    parser.feed(text[at : at + step])
                assert parser.close() == whole, (char, size, step)


@pytest.mark.parametrize("name", FORMATS.names())
def test_blanks_without_end_are_text(name):
    for text in (" " * 200_000, "\n" * 200_000 + "x", " \n\t" * 60_000 + "<function="):
        with no_longer_than(BEARABLE, name):
            assert parse(text, name).tool_calls == ()


def test_after_a_thousand_errors_nothing_is_read_and_that_is_said():
    broken, good = "<tool_call>{</tool_call>", '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    text = good + broken * 1500 + good
    found = parse(text, "hermes")
    assert [call.name for call in found.tool_calls] == ["f"]
    assert len(found.errors) == 1001
    last = found.errors[-1]
    assert "1000 errors came before" in last.reason
    assert text[last.position :] == last.raw
    assert "".join(error.raw for error in found.errors) == broken * 1500 + good
    stream = IncrementalParser("hermes")
    for at in range(0, len(text), 1000):
        stream.feed(text[at : at + 1000])
    assert stream.close() == found
    fewer = parse(good + broken * 900 + good, "hermes")
    assert (len(fewer.tool_calls), len(fewer.errors)) == (2, 900)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3_pythonic", "[f(a=VALUE)]"),
        ("llama3_pythonic", "[f(a=[VALUE])]"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": VALUE}}</tool_call>'),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>VALUE</parameter></function></tool_call>"),
        ("glm45", "<tool_call>f<arg_key>a</arg_key><arg_value>VALUE</arg_value></tool_call>"),
    ],
)
def test_a_number_that_would_be_infinite_is_an_error(name, text):
    tools = [ToolSpec("f", "", {"properties": {"a": {"type": ["number", "array"]}}})]
    for value in ("1e999", "-1e999"):
        found = parse(text.replace("VALUE", value), name, tools)
        assert found.tool_calls == ()
        assert "too large" in found.errors[0].reason
    assert parse(text.replace("VALUE", "1e300"), name, tools).errors == ()


@pytest.mark.parametrize("name", FORMATS.names())
def test_a_hundred_thousand_deep_is_an_error_or_text(name):
    for body in ("[" * 100_000, '{"a":' * 100_000):
        for text in (
            body,
            f'<tool_call>{{"name": "f", "arguments": {{"a": {body}',
            f"[TOOL_CALLS]f[ARGS]{body}",
        ):
            assert parse(text, name).tool_calls == ()
