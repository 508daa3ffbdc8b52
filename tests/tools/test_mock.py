"""Mocked tools: which fixture answers, what a run remembers, and a model in a tool's place."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import Agent, ScriptedModel
from treadle.core import events as e
from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Effect, ToolSpec
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.sandbox.memory import MemorySandbox
from treadle.tools.mock import Fixture, Mock, fill, mock
from treadle.tools.protocol import ToolContext, ToolOutput

SPEC = ToolSpec("f", "Does f.", {"type": "object"}, Effect.IDEMPOTENT)


class Run:
    """One run's calls of the tool `f`."""

    def __init__(self, *fixtures: Any, **options: Any) -> None:
        (self.tool,) = Mock([SPEC], fixtures={"f": fixtures} if fixtures else None, **options).tools()
        self.sandbox = MemorySandbox()

    async def __call__(self, **arguments: Any) -> ToolOutput:
        output = await self.tool.call(arguments, ToolContext("r", "c", 1, self.sandbox))
        assert output.is_simulated
        return output

    async def text(self, **arguments: Any) -> str:
        return (await self(**arguments)).content


async def test_the_most_criteria_win_and_the_later_of_equals() -> None:
    run = Run(
        {"result": "any"},
        {"match": {"a": 1}, "result": "a"},
        {"match": {"a": 1, "b": "x,y=z"}, "result": "ab"},
        {"match": {"b": "x,y=z"}, "result": "b first"},
        {"match": {"b": "x,y=z"}, "result": "b later"},
        {"match": {"n.inner": [1, {"k": None}]}, "result": "nested"},
    )
    assert await run.text() == "any"
    assert await run.text(a=1) == "a"
    assert await run.text(a=1, b="x,y=z") == "ab"
    assert await run.text(b="x,y=z") == "b later"
    assert await run.text(n={"inner": [1, {"k": None}]}) == "nested"
    assert await run.text(a=True) == "any"
    assert await run.text(a="1") == "any"


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b,c=d"]),
    st.lists,
    max_leaves=3,
)
arguments = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), values, max_size=3), max_size=6), arguments)
def test_choice_by_definition(criteria: list[dict[str, Any]], given_arguments: dict[str, Any]) -> None:
    fixtures = [Fixture(match=item, result=str(index)) for index, item in enumerate(criteria)]
    (tool,) = Mock([SPEC], fixtures={"f": fixtures}).tools()

    def is_equal(one: Any, other: Any) -> bool:
        return json.dumps(one) == json.dumps(other)

    fitting = [
        (len(item), index)
        for index, item in enumerate(criteria)
        if all(
            key in given_arguments and is_equal(value, given_arguments[key]) for key, value in item.items()
        )
    ]
    chosen = tool.choose(given_arguments, {})
    assert (None if chosen is None else chosen.result) == (str(max(fitting)[1]) if fitting else None)


async def test_patterns_state_sequences_and_errors() -> None:
    run = Run(
        {
            "match": {"to": {"$regex": "^a"}},
            "result": "begins with a",
            "set": {"last": "{{to}}", "n": "{{call_count}}"},
        },
        {"when": {"last": "ann"}, "result": {"again": "{{state.last}}", "n": "{{state.n}}"}},
        {"match": {"list": {"$any": True}}, "results": ["one", "two"]},
        {"match": {"bad": True}, "error": "no {{name}} here"},
    )
    assert await run.text(to="ann") == "begins with a"
    output = await run()
    assert (output.structured, output.content) == ({"again": "ann", "n": 1}, '{"again":"ann","n":1}')
    assert [await run.text(list=[]) for _ in range(3)] == ["one", "two", "two"]
    failed = await run(bad=True, name="x")
    assert (failed.is_error, failed.content) == (True, "no x here")


async def test_what_nothing_answers_is_an_error_unless_told_otherwise() -> None:
    with pytest.raises(ToolError, match=r'the mock of f has no fixture for \{"a":1\}'):
        await Run()(a=1)
    echoed = await Run(default="echo")(a=1)
    assert echoed.structured["mock_result"] == "Successfully executed f"
    assert echoed.structured["input_received"] == {"a": 1}
    assert (await Run(default={"got": "{{arguments}}"})(a=1)).structured == {"got": {"a": 1}}


def test_templates_keep_types_and_leave_what_is_unknown() -> None:
    known = {"a": {"b": [1, 2]}, "s": "x", "none": None}
    assert fill({"k": ["{{a.b}}", "{{a.b.1}}", "<{{s}}>", "{{nope}}", "{{none}}", 5]}, known) == {
        "k": [[1, 2], 2, "<x>", "{{nope}}", None, 5]
    }
    assert fill("{{a}} and {{s}}", known) == '{"b":[1,2]} and x'


async def test_what_a_run_remembers_is_in_its_snapshot() -> None:
    tools = Mock([SPEC], fixtures={"f": [{"results": ["first", "second", "third"]}]})
    journal = MemoryJournal()
    model = ScriptedModel([[call("f")], [call("f")], "ok"])
    run = await Agent(model, tools=[tools], journal=journal).run("go")
    assert [item.content for item in run.messages if item.call_id] == ["first", "second"]
    done = [event.body for event in run.events if isinstance(event.body, e.ToolCompleted)]
    assert all(body.result.is_simulated for body in done)
    assert run.files == {}
    again = ScriptedModel([[call("f")], "ok"])
    forked = await Agent(again, tools=[tools], journal=journal).fork(run.run_id, text="on")
    assert forked.messages[-2].content == "third"


async def test_a_file_of_any_shape_with_fixtures(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    weather = {"name": "weather", "inputSchema": {"type": "object"}, "fixtures": [{"result": "mild"}]}
    other = {"name": "other", "inputSchema": {"type": "object"}, "mockResponse": {"q": "{{q}}"}}
    beside = {"weather": [{"match": {"city": "Oslo"}, "response": "cold"}]}
    path.write_text(json.dumps({"tools": [weather, other], "fixtures": beside}))
    tools = {tool.spec.name: tool for tool in mock(str(path)).tools()}
    assert (await tools["weather"].call({"city": "Oslo"}, ToolContext("r", "c", 1))).content == "cold"
    assert (await tools["weather"].call({}, ToolContext("r", "c", 1))).content == "mild"
    assert (await tools["other"].call({"q": 1}, ToolContext("r", "c", 1))).structured == {"q": 1}


@pytest.mark.parametrize(
    ("fixtures", "message"),
    [
        ({"g": []}, "there are fixtures for 'g', which is no tool of this mock"),
        ({"f": [{"mach": {}}]}, "fixture 1 of 'f': Object contains unknown field `mach`"),
        ({"f": [{"match": {"a": {"$regex": "("}}}]}, "is no regular expression"),
        ({"f": [{"result": 1, "error": "x"}]}, "more than one of result, results and error"),
    ],
)
def test_fixtures_that_cannot_be_used(fixtures: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        Mock([SPEC], fixtures=fixtures)


async def test_a_model_answers_in_the_tools_place() -> None:
    typed = ToolSpec("f", "", {"type": "object"}, output_schema={"type": "object", "required": ["n"]})
    model = ScriptedModel(
        ['{"m": 1}', "not JSON", '```json\n{"n": 1}\n```', "ERROR: it is closed", '{"n": 2}']
    )
    (tool,) = Mock([typed], simulator=model).tools()
    sandbox = MemorySandbox()
    context = ToolContext("r", "c", 1, sandbox)
    first = await tool.call({"a": 1}, context)
    assert (first.structured, first.is_simulated) == ({"n": 1}, True)
    assert len(model.requests) == 3
    assert '"n" is a required property' in model.requests[1].messages[-1].content
    closed = await tool.call({"a": 1}, context)
    assert (closed.is_error, closed.content) == (True, "it is closed")
    assert '"earlier_calls":[{"tool":"f","arguments":{"a":1},"result":"{\\"n\\": 1}"}]' in (
        model.requests[3].messages[1].content
    )
    other = await tool.call({"a": 1}, ToolContext("s", "c", 1, MemorySandbox()))
    assert other == first
    assert len(model.requests) == 4


async def test_a_model_that_never_fits_is_given_up() -> None:
    typed = ToolSpec("f", "", {"type": "object"}, output_schema={"type": "integer"})
    (tool,) = Mock([typed], simulator=ScriptedModel(["a", "b", "c"])).tools()
    with pytest.raises(ToolError, match="gave no answer that fits its output schema"):
        await tool.call({}, ToolContext("r", "c", 1))


async def test_a_models_answers_are_kept_for_other_processes(tmp_path: Path) -> None:
    for model in (ScriptedModel(["made up"]), ScriptedModel([])):
        (tool,) = Mock([SPEC], simulator=model, cache=tmp_path / "kept").tools()
        output = await tool.call({"a": 1}, ToolContext("r", "c", 1, MemorySandbox()))
        assert (output.content, output.is_simulated) == ("made up", True)
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_a_file_may_name_the_model(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps({"tools": [{"name": "f", "inputSchema": {}}], "simulator": "nobody:x"}))
    with pytest.raises(ConfigError, match="nobody"):
        mock(str(path))
