"""Properties of every format: parsing inverts rendering, and cutting a text into pieces changes nothing."""

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treadle.core.errors import FormatError
from treadle.core.types import Message, Role, ToolCall, ToolSpec
from treadle.formats import (
    FORMATS,
    ContentPiece,
    IncrementalParser,
    ParsedCall,
    ParseError,
    ReasoningPiece,
    parse,
    render,
)

QUICK = settings(max_examples=settings().max_examples * 6 // 10, suppress_health_check=[HealthCheck.too_slow])
WORDS = """
<tool_call> </tool_call> <think> </think> <function=f> </function> <parameter=a> </parameter> [TOOL_CALLS]
[ARGS] <|python_tag|> <|tool_call_begin|> <|tool_call_end|> <|channel|> <|message|> <|end|> <|call|> <arg_key>
</arg_key> <arg_value> </arg_value> </invoke> <minimax:tool_call> <tool_calls> </tool_calls> <｜tool▁call▁begin｜>
<｜tool▁sep｜> </｜DSML｜parameter> >>> <|tool_call|> ``` ` ~~~ { } [ ] " \\ ' , ; : f a "name" "arguments" f(a=1)
[f(a=1)] functions.f:0 to=functions.f commentary analysis é 1 null true <|im_end|> <|eot_id|>
"""
TAGS = (
    *WORDS.split(),
    '<invoke name="f">',
    '<｜DSML｜invoke name="f">',
    '<｜DSML｜parameter name="a" string="true">',
    '{"name": "f", "arguments": {"a": 1}}',
    ">>>all\n",
    "```json\n",
    "\n",
    "\n\n",
    " ",
    "\u2028",
)
broken = st.builds(lambda tag, at: tag[: at % len(tag)], st.sampled_from(TAGS), st.integers(1, 60))
texts = st.lists(st.sampled_from(TAGS) | broken | st.text(max_size=5), max_size=25).map("".join)
plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
nasty = plain | st.sampled_from(TAGS) | texts
keys = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False, allow_infinity=False)
    | nasty,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(nasty, inner, max_size=3),
    max_leaves=6,
)
NAMES = ("f", "get_weather", "ns.tool-x")
calls = st.builds(
    lambda name, arguments: ToolCall("", name, json.dumps(arguments, ensure_ascii=False)),
    st.sampled_from(NAMES),
    st.dictionaries(keys, values, max_size=3),
)
messages = st.builds(
    lambda content, made, reasoning: Message(Role.ASSISTANT, content, tuple(made), reasoning=reasoning),
    nasty,
    st.lists(calls, max_size=3),
    st.none() | nasty.filter(bool),
)


def schema_for(message):
    """Return tools whose parameters have the types of the arguments in the message."""
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    tools = {}
    for call in message.tool_calls:
        for key, value in json.loads(call.arguments).items():
            kind = kinds.get(type(value), "null")
            tools.setdefault(call.name, {})[key] = {"type": kind}
    return [
        ToolSpec(name, "", {"type": "object", "properties": properties}) for name, properties in tools.items()
    ]


@pytest.mark.parametrize("name", FORMATS.names())
@QUICK
@given(message=messages)
def test_what_is_rendered_is_read_again(name, message):
    tools = schema_for(message)
    try:
        text = render(message, name, tools)
    except FormatError:
        return
    back = parse(text, name, tools)
    assert back.errors == ()
    assert back.content == message.content
    assert (back.reasoning or "") == (message.reasoning or "")
    assert [(call.name, repr(call.arguments)) for call in back.tool_calls] == [
        (call.name, repr(json.loads(call.arguments))) for call in message.tool_calls
    ]
    again = [ToolCall(call.call_id or "", call.name, call.arguments_text) for call in back.tool_calls]
    read = Message(Role.ASSISTANT, back.content, tuple(again), reasoning=back.reasoning)
    assert render(read, name, tools) == text


SIMPLE = Message(
    Role.ASSISTANT,
    "I look.\nTwice.",
    (
        ToolCall(
            "", "f", '{"a": "x, \\"y\\" <b>\\n</b>", "n": 5, "ok": true, "list": [1, {"k": null}], "s": "5"}'
        ),
        ToolCall("", "get_weather", "{}"),
    ),
)


@pytest.mark.parametrize("name", FORMATS.names())
def test_every_format_carries_an_ordinary_message(name):
    tools = schema_for(SIMPLE)
    text = render(SIMPLE, name, tools)
    back = parse(text, name, tools)
    assert [call.arguments for call in back.tool_calls] == [
        json.loads(call.arguments) for call in SIMPLE.tool_calls
    ]
    assert parse(render(Message(Role.ASSISTANT, "Hello."), name), name).content == "Hello."
    if name != "functionary":
        thinking = Message(Role.ASSISTANT, "Yes.", reasoning="I think.\nSo.")
        assert parse(render(thinking, name), name).reasoning == "I think.\nSo."


def pieces_of(name, chunks, tools=None):
    parser = IncrementalParser(name, tools)
    pieces = [piece for chunk in chunks for piece in parser.feed(chunk)]
    result = parser.close()
    return pieces + parser.pieces, result


def split(text, number):
    cuts = random.Random(number)
    while text:
        size = cuts.choice((1, 1, 2, 3, 7, 20))
        yield text[:size]
        text = text[size:]


TWO_TOOLS = [
    ToolSpec("f", "", {"properties": {"a": {"type": "integer"}, "s": {"type": "string"}}}),
    ToolSpec("g", "", {"properties": {"b": {"type": "integer"}, "t": {"type": "string"}}}),
]


def one_call(name, arguments):
    return Message(Role.ASSISTANT, "", (ToolCall("", name, json.dumps(arguments)),))


@pytest.mark.parametrize("name", FORMATS.names())
def test_a_value_may_quote_whole_calls_of_its_own_format(name):
    quoted = render(one_call("g", {"b": 2, "t": "z"}), name, TWO_TOOLS)
    for text in (
        quoted,
        f"\n{quoted}\n",
        f"So:\n{quoted}\nThat is it.",
        f"So:\n{quoted}\nOr:\n{quoted}\nThat is it.",
        f"It is {quoted} here.",
    ):
        for arguments in ({"s": text}, {"a": 1, "s": text}, {"s": text, "a": 1}):
            # `render` refuses what would not be parsed again.
            said = render(one_call("f", arguments), name, TWO_TOOLS)
            assert [call.arguments for call in parse(said, name, TWO_TOOLS).tool_calls] == [arguments]


BARE = ("llama3_json", "llama3_pythonic", "xlam")
"""Formats in which nothing marks where a second call begins."""


@pytest.mark.parametrize("name", [name for name in FORMATS.names() if name not in BARE])
def test_a_call_that_breaks_off_anywhere_takes_no_other_with_it(name):
    first = render(one_call("f", {"a": 1, "s": "x y"}), name, TWO_TOOLS)
    second = render(one_call("g", {"b": 2, "t": "z"}), name, TWO_TOOLS)
    between = "\n>>>" if name == "functionary" else "\n"
    for size in range(1, len(first)):
        found = parse(f"{first[:size]}{between}{second}", name, TWO_TOOLS)
        *before, last = [(call.name, call.arguments) for call in found.tool_calls]
        assert last == ("g", {"b": 2, "t": "z"}), first[:size]
        assert all(call == "f" and {"a": 1, "s": "x y"}.items() >= given.items() for call, given in before)


def test_values_without_a_schema_are_refused_if_they_would_not_come_back():
    with pytest.raises(FormatError, match="give `tools`"):
        render(one_call("f", {"a": 1}), "glm45")


@pytest.mark.parametrize("name", FORMATS.names())
@QUICK
@given(text=texts, number=st.integers(0, 1000))
def test_however_a_text_is_cut_it_says_the_same(name, text, number):
    whole = parse(text, name)
    for chunks in (list(text), list(split(text, number)), [text]):
        pieces, result = pieces_of(name, chunks)
        assert result == whole
        assert "".join(piece.text for piece in pieces if isinstance(piece, ContentPiece)) == whole.content
        thought = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningPiece))
        assert (thought or None) == whole.reasoning
        assert [piece for piece in pieces if isinstance(piece, ParsedCall)] == list(whole.tool_calls)
        assert [piece for piece in pieces if isinstance(piece, ParseError)] == list(whole.errors)


@pytest.mark.parametrize("name", FORMATS.names())
@QUICK
@given(text=texts)
def test_no_call_is_made_up(name, text):
    found = parse(text, name)
    for call in found.tool_calls:
        assert text[call.position : call.position + len(call.raw)] == call.raw
        assert call.name in text
        assert isinstance(call.arguments, dict)
        assert json.loads(call.arguments_text) == call.arguments
    for error in found.errors:
        assert text[error.position : error.position + len(error.raw)] == error.raw
        assert error.reason
        assert error.raw


@pytest.mark.parametrize("name", FORMATS.names())
@QUICK
@given(message=messages, number=st.integers(0, 1000))
def test_a_rendered_message_cut_anywhere_says_the_same(name, message, number):
    tools = schema_for(message)
    try:
        text = render(message, name, tools)
    except FormatError:
        return
    assert pieces_of(name, list(split(text, number)), tools)[1] == parse(text, name, tools)
