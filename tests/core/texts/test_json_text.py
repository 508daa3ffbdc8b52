"""The one limit of nesting for JSON that models, tools and servers write: it is the same on every stack."""

import sys

import msgspec
import pytest

from treadle import Agent, ConfigError, ToolOutput, tool
from treadle.core.prompts.foreign import let_in_tool
from treadle.core.texts.documents import decode_document, decode_or
from treadle.core.texts.json_text import MAX_DEPTH, decode_json, is_deep
from treadle.core.texts.masking import hide_fields
from treadle.core.types import Effect, StopReason, ToolCall, ToolErrorKind, ToolSpec
from treadle.journal.memory import MemoryJournal
from treadle.models import ScriptedModel, call
from treadle.models.wire.fitting import fit_arguments, without_bounds
from treadle.scoring.call_matching import ExpectedCall, MatchRules, find_call_fault
from treadle.tools.mock.fixtures import rank_fixtures, read_fixtures
from treadle.tools.schema.validation import check_spec


def nest(levels, inner="1"):
    """Return an object with a list in a list in a list."""
    return f'{{"k": {"[" * (levels - 1)}{inner}{"]" * (levels - 1)}}}'


def deeper(frames, function, *args):
    """Call a function from a stack that has so many frames more."""
    return function(*args) if not frames else deeper(frames - 1, function, *args)


@pytest.mark.parametrize("frames", [0, 200])
def test_the_limit_is_the_same_on_every_stack(frames):
    assert decode_json(nest(MAX_DEPTH))
    for read in (decode_json, lambda text: ToolCall("a", "t", text).parsed):
        assert deeper(frames, read, nest(MAX_DEPTH)) == msgspec.json.decode(nest(MAX_DEPTH))
        with pytest.raises(msgspec.DecodeError, match="nested more than 100 levels"):
            deeper(frames, read, nest(MAX_DEPTH + 1))
    for levels in (MAX_DEPTH + 1, 300, 600, 990, 100_000):
        assert deeper(frames, decode_or, nest(levels), "no") == "no"
        assert deeper(frames, fit_arguments, nest(levels)).startswith('{"INVALID_JSON":')
        with pytest.raises(ConfigError, match="nested too deeply"):
            deeper(frames, decode_document, nest(levels).encode(), "it")


@pytest.mark.parametrize("text", ["[" * 400, '"' + "[" * 400 + '"', r'["\"' + "[" * 400 + '"]', "[]" * 300])
def test_only_brackets_outside_texts_count(text):
    assert is_deep(text) is is_deep(text.encode()) is text.startswith("[[")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"rows": [' + "[1], " * 200, "truncated"),
        ('{"a\\\\": "\\"[", "b": ' + "[" * 99 + "{}" + "]" * 99 + "}", "nested more than 100 levels"),
        ("[" * 150, "nested more than 100 levels"),
        ("[{}, " * 99 + "[[]]" + "]" * 99, "nested more than 100 levels"),
        ("[" * 50 + "]" * 50 + ", " + "[" * 60, "trailing characters"),
    ],
)
def test_the_error_says_what_is_wrong_with_a_text(text, said):
    with pytest.raises(msgspec.DecodeError, match=said):
        decode_json(text)


@pytest.mark.parametrize("text", ['"\udc80"', b'"\xff"', r'"\ud800"'])
def test_what_is_not_unicode_is_not_json(text):
    with pytest.raises(msgspec.DecodeError):
        decode_json(text)
    if isinstance(text, str):
        assert ToolCall("a", "t", text).parsed_or("no") == "no"


def test_values_within_the_limit_are_walked_through_on_any_stack():
    value = decode_json(nest(MAX_DEPTH))
    schema = {"type": "object", "properties": {"k": value}}
    rules = MatchRules(ignores_order=True)
    rule = rank_fixtures(read_fixtures("t", [{"match": {"k": value["k"]}, "result": 1}], {}))[0]

    def walk():
        assert find_call_fault(ExpectedCall("t", value), "t", value, None, rules) is None
        assert rule.is_fit(value, {})
        assert hide_fields(value) == value
        assert without_bounds(schema) == schema
        assert let_in_tool(ToolSpec("t", "", value, Effect.PURE)).parameters == value

    deeper(min(200, sys.getrecursionlimit()), walk)


def test_a_tool_whose_schema_is_too_deep():
    schema = {"type": "object", "properties": msgspec.json.decode(nest(MAX_DEPTH))}
    spec = ToolSpec("t", "", schema, Effect.PURE)
    with pytest.raises(ConfigError, match="nested more than 100 levels"):
        check_spec(spec, "t")
    assert let_in_tool(spec).parameters == {"type": "object"}


async def test_a_run_with_values_that_are_too_deep_is_the_same_when_it_is_replayed():
    """Its call is an error for the model, and its result is kept as an artifact."""

    @tool(effect="pure")
    async def look(k: list) -> ToolOutput:  # type: ignore[type-arg]
        """Look."""
        return ToolOutput("seen", structured=msgspec.json.decode(nest(600)))

    steps = [[call("look", nest(400))], [call("look", {"k": []})], "done"]
    agent = Agent(ScriptedModel(steps), tools=[look], journal=MemoryJournal())
    run = await agent.run("go")
    assert run.stop_reason is StopReason.COMPLETED, run.error
    first, second = [
        event.body.result for event in run.events if event.body.__class__.__name__ == "ToolCompleted"
    ]
    assert first.error_kind is ToolErrorKind.INVALID_JSON
    assert (second.structured, second.artifacts[0].kind) == (None, "structured")
    for frames in (0, 300):
        assert deeper(frames, lambda: [event.body for event in agent.journal.read(run.run_id)])
    assert (await agent.replay(run.run_id)).is_exact
