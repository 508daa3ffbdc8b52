"""Values that quote the marks of their own format: each value is exact, or the call is an error."""

import json
import os
import random
from itertools import product

import pytest

from treadle.core.errors import FormatError
from treadle.core.types import Message, Role, ToolCall, ToolSpec
from treadle.formats import FORMATS, IncrementalParser, find_format, parse

M2_CLOSE = "</minimax:tool_call>"

FULL = bool(os.environ.get("TREADLE_FULL"))
TOOLS = [
    ToolSpec(
        "f", "", {"properties": {"a": {"type": "integer"}, "s": {"type": "string"}, "t": {"type": "string"}}}
    ),
    ToolSpec("g", "", {"properties": {"x": {"type": "string"}}}),
]
DSML = "｜DSML｜"
MORE = {
    "hermes": ("<function=g>", "<parameter=x>", "</parameter>"),
    "qwen3_coder": (
        "<parameter=x>",
        "<parameter=a>",
        "<parameter=",
        "</parameter>",
        "<function=g>",
        "</function>",
    ),
    "minimax": ('<parameter name="x">', "<parameters>", "</parameter>", '<invoke name="g">', "</invoke>"),
    "deepseek_v32": (
        f'<{DSML}parameter name="x" string="true">',
        f"<{DSML}parameter",
        f"</{DSML}parameter>",
        f'<{DSML}invoke name="g">',
        f"</{DSML}invoke>",
    ),
    "glm45": ("<arg_key>x</arg_key>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "xlam": ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "```json\n"),
    "mistral": ("[ARGS]", "[CALL_ID]"),
    "harmony": ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
    "functionary": (">>>", ">>>all\n", ">>>f\n"),
    "llama3_pythonic": ("[f(a=1)]", ")]"),
}
"""Marks that are no attributes of the format's class."""
SHAPES = (
    "Use {} here",
    "{}",
    "`{}`",
    "x {}",
    "{} x",
    "a\n{}\nb",
    "a\n  {} b",
    "```\n{}\n```",
    "a {0} b {0} c",
    "see {0}\nand {0} too\n",
)


def marks_of(name):
    found = find_format(name)
    marks = {mark for kind in ("openers", "noise", "sections", "ends") for mark in getattr(found, kind, ())}
    tags = {tag for pair in (*found.reasoning, ("<think>", "</think>")) for tag in pair}
    return sorted(marks | tags | set(MORE.get(name, ())))


def arguments(value):
    yield {"s": value, "t": value}
    yield {"a": 1, "s": value}
    if FULL:
        yield from ({"s": value}, {"s": value, "a": 1}, {"s": value, "t": "plain"})


@pytest.mark.parametrize("content", ["", "I look.\nTwice."], ids=["alone", "behind content"])
@pytest.mark.parametrize("name", FORMATS.names())
def test_a_value_that_quotes_a_mark_is_exact_or_an_error(name, content):
    exact = errors = 0
    other = ToolCall("", "g", '{"x": "y"}')
    for mark in marks_of(name):
        for shape in SHAPES:
            for given in arguments(shape.format(mark)):
                call = ToolCall("", "f", json.dumps(given, ensure_ascii=False))
                try:
                    # `formats.render` would refuse what is an error here.
                    text = find_format(name).render(Message(Role.ASSISTANT, content, (call, other)))
                except FormatError:
                    continue
                found = parse(text, name, TOOLS)
                calls = [(item.name, item.arguments) for item in found.tool_calls]
                if found.errors:
                    errors += 1
                    assert all(item in (("f", given), ("g", {"x": "y"})) for item in calls), text
                else:
                    exact += 1
                    assert calls == [("f", given), ("g", {"x": "y"})], text
                    assert found.content == content, text
    assert exact > 9 * errors


@pytest.mark.parametrize("name", FORMATS.names())
def test_a_mark_quoted_in_reasoning_is_reasoning(name):
    if not find_format(name).reasoning and name != "xlam":
        pytest.skip("it has no reasoning, or reasoning in messages of their own")
    opener, closer = find_format(name).reasoning[0]
    call = ToolCall("", "g", '{"x": "y"}')
    body = find_format(name).render(Message(Role.ASSISTANT, "", (call,)))
    for mark in marks_of(name):
        if mark in (closer, opener):
            continue
        for shape in SHAPES:
            thought = f"I see. {shape.format(mark)} So."
            found = parse(f"{opener}\n{thought}\n{closer}\n\n{body}", name, TOOLS)
            assert found.reasoning == thought
            assert [item.arguments for item in found.tool_calls] == [{"x": "y"}], (mark, shape)
            assert found.errors == ()


XLAM = '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"x": "y"}}]'


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (f"```json\n{XLAM}\n```", ""),
        (f"I look.\n```json\n{XLAM}\n```", "I look."),
        (f"I look.\n\n```\n{XLAM}\n```\nThat is all.", "I look.\n\nThat is all."),
        (f"<tool_call>{XLAM}</tool_call>", ""),
        (f"I look.\n<tool_call>\n{XLAM}\n</tool_call>\nDone.", "I look.\nDone."),
        (f"I look.\n<tool_calls>{XLAM}</tool_calls>", "I look."),
        (f"I look. [TOOL_CALLS] {XLAM}", "I look. "),
        (f"[TOOL_CALLS]{XLAM} Done.", " Done."),
        (f"So:\n<tool_call>\n```json\n{XLAM}\n```\n</tool_call>", "So:"),
        (
            '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n'
            '<tool_call>{"name": "g", "arguments": {"x": "y"}}</tool_call>',
            "",
        ),
        (f"<think>Hm.</think>I look.\n```json\n{XLAM}\n```", "I look."),
    ],
)
def test_xlam_reads_marked_calls_with_text_around_them(text, content):
    found = parse(text, "xlam", TOOLS)
    assert [(item.name, item.arguments) for item in found.tool_calls] == [("f", {"a": 1}), ("g", {"x": "y"})]
    assert found.content == content
    assert found.errors == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"I look. {XLAM}", "a call with text around it"),
        (f"I look. {XLAM} Done.", "a call with text around it"),
        (f"{XLAM} Done.", "not valid JSON"),
        ('So: <tool_call>{"arguments": {}}</tool_call> x', "there is no call behind the mark"),
        ('So: ```json\n[{"name": "f", "arguments": {"a": }}]\n``` x', "not valid JSON"),
        ('[TOOL_CALLS] [{"name": "f", "arguments"', "not valid JSON"),
    ],
)
def test_xlam_says_what_it_cannot_read(text, reason):
    found = parse(text, "xlam", TOOLS)
    assert found.tool_calls == ()
    assert len(found.errors) == 1
    assert reason in found.errors[0].reason


@pytest.mark.parametrize(
    "text", ["Use `<tool_call>` for calls.", "```json\n[1, 2]\n```\nx", "a [TOOL_CALLS] b"]
)
def test_xlam_leaves_other_text_alone(text):
    found = parse(text, "xlam", TOOLS)
    assert (found.content, found.tool_calls, found.errors) == (text, (), ())


def test_calls_in_nested_reasoning_that_is_never_closed_are_no_crash():
    for name in FORMATS.names():
        for mark in marks_of(name):
            text = f"{mark}<think>x" * 1500
            parse(text, name)


CLOSERS = {
    "qwen3_coder": "</parameter>",
    "minimax": "</parameter>",
    "deepseek_v32": f"</{DSML}parameter>",
    "glm45": "</arg_value>",
}


@pytest.mark.parametrize(
    "said",
    [
        "Use `{}` here",
        "Use {} and {} too.\nThen stop.",
        "plain",
        "{}",
        "Use\n{}\nhere",
        "a\n  {}\n{}\nb",
        "Use\n{}",
    ],
)
@pytest.mark.parametrize("name", CLOSERS)
def test_a_value_that_is_closed_twice_is_an_error(name, said):
    closer, opener = CLOSERS[name], MORE[name][0]
    for given in ({"s": said.replace("{}", opener)}, {"s": said.replace("{}", opener), "t": "plain"}):
        call = ToolCall("", "f", json.dumps(given))
        once = find_format(name).render(Message(Role.ASSISTANT, "", (call,)))
        assert [item.arguments for item in parse(once, name, TOOLS).tool_calls] == [given]
        begin = once.index(closer)
        twice = f"{once[:begin].removesuffix(chr(10))}\n{closer}\n{once[begin:]}"
        found = parse(twice, name, TOOLS)
        assert found.tool_calls == ()
        assert any(word in found.errors[0].reason for word in ("is not certain", "other than a parameter"))


PLAIN = (
    '{pre}<tool_call>{a}{{"name": "f", "arguments": {args}}}{b}</tool_call>{post}',
    '{pre}<tool_call>{a}[{{"name": "f", "arguments": {args}}}]{b}</tool_call>{post}',
    '{pre}<tool_call>{a}{{"arguments": {args}, "name": "f"}}{b}</tool_call>{post}',
    '{pre}{{"name": "f", "arguments": {args}}}{post}',
    "{pre}{args}{post}",
    "{pre}{post}",
)


@pytest.mark.parametrize("shape", PLAIN)
def test_a_plain_text_is_read_as_any_other(shape):
    pres = (
        "",
        'So {"name": 1}',
        "I look.",
        "I look.\n",
        " \n",
        "\n\nI look.\n\n",
        "`<",
        "a ~b",
        "```\n",
        "x {y} ",
        "é \u2028",
    )
    spaces = (("", ""), ("\n", "\n"), (" \r\n\t", " "), ("\x0b", ""), ("\n<tool_call>\n", "\x0b"))
    values = ("{}", '{"s": "a < b"}', '{"s": 1, "s": 2}', '{"s": "`"}', '"{}"', '{"s": "\\ud800"}', "{", "[]")
    for pre, args, (a, b), post in product(pres, values, spaces, ("", "\n", " Done.", "<|im_end|>")):
        text = shape.format(pre=pre, args=args, a=a, b=b, post=post)
        for begins in (None, True) if not pre else (None,):
            slow = IncrementalParser("hermes", TOOLS, begins_in_reasoning=begins)
            slow.feed(text)
            assert parse(text, "hermes", TOOLS, begins_in_reasoning=begins) == slow.close(), text


ENDS = {
    "qwen3_coder": ("</parameter>", "</function>", "</tool_call>", "<parameter=s>"),
    "minimax": ("</parameter>", "</invoke>", M2_CLOSE, '<parameter name="s">'),
    "deepseek_v32": (
        f"</{DSML}parameter>",
        f"</{DSML}invoke>",
        f'<{DSML}parameter name="s" string="true">',
    ),
    "glm45": ("</arg_value>", "</tool_call>", "<arg_key>s</arg_key>", "<arg_value>"),
}
"""The tags with which a value may quote the end of its own call, without a call that begins again."""


@pytest.mark.parametrize("name", ENDS)
def test_a_value_that_quotes_the_end_of_its_call_is_not_cut_in_silence(name):
    draw = random.Random(name)
    exact = 0
    for _ in range(30_000 if FULL else 1_500):
        words = draw.choices([*ENDS[name], *ENDS[name], "a ", "\n", " b", "word"], k=draw.randint(1, 6))
        given = {"s": "".join(words), **({"t": "plain"} if draw.random() < 0.5 else {})}
        try:
            message = Message(Role.ASSISTANT, "", (ToolCall("", "f", json.dumps(given)),))
            text = find_format(name).render(message)
        except FormatError:
            continue
        found = parse(text, name, TOOLS)
        if not found.errors:
            assert [(item.name, item.arguments) for item in found.tool_calls] == [("f", given)], text
            exact += 1
    assert exact > 700
