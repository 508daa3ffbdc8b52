"""Mocked tools: which fixture answers, what a run remembers, and the answers in a file."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from treadle import Agent, ScriptedModel
from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.types import Effect, ToolSpec
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.context import Scope, ToolContext
from treadle.tools.mock.fixtures import Fixture, fill
from treadle.tools.mock.mocks import Mock, mock, mock_of
from treadle.tools.protocol import ToolOutput

SPEC = ToolSpec("f", "Does f.", {"type": "object"}, Effect.IDEMPOTENT)


class Run:
    """The calls of the tool `f` in one run."""

    def __init__(self, *fixtures: Any, spec: ToolSpec = SPEC, has_files: bool = True, **options: Any) -> None:
        (self.tool,) = Mock([spec], fixtures={"f": fixtures} if fixtures else None, **options).tools()
        self.sandbox = MemorySandbox() if has_files else None
        self.scope = Scope()

    async def __call__(self, **arguments: Any) -> ToolOutput:
        output = await self.tool.call(arguments, ToolContext("r", "c", 1, self.sandbox, scope=self.scope))
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
        {"match": {"n.dotted": 1}, "result": "dotted"},
        {"match": {"n.0.x": 1}, "result": "of a list"},
    )
    assert await run.text() == "any"
    assert await run.text(a=1) == "a"
    assert await run.text(a=1.0) == "a"
    assert await run.text(a=1, b="x,y=z") == "ab"
    assert await run.text(b="x,y=z") == "b later"
    assert await run.text(n={"inner": [1, {"k": None}]}) == "nested"
    assert await run.text(n={"inner": [1.0, {"k": None}], "more": 2}) == "nested"
    assert await run.text(n={"inner": [1, {"k": None, "l": None}]}) == "any"
    assert await run.text(**{"n.dotted": 1}) == "dotted"
    assert await run.text(n=[{"x": 1}]) == "of a list"
    assert await run.text(a=True) == "any"
    assert await run.text(a="1") == "any"


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b,c=d", 0.0, 1.0, 0.5]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=4,
)
arguments = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), values, max_size=3), max_size=6), arguments)
def test_choice_by_definition(criteria: list[dict[str, Any]], given_arguments: dict[str, Any]) -> None:
    fixtures = [Fixture(match=item, result=str(index)) for index, item in enumerate(criteria)]
    (tool,) = Mock([SPEC], fixtures={"f": fixtures}).tools()

    def canonical(value: Any) -> str:
        """Return JSON in which whole numbers are written as integers."""
        return json.dumps(json.loads(json.dumps(value), parse_float=whole), sort_keys=True)

    def whole(text: str) -> Any:
        return int(float(text)) if float(text).is_integer() else float(text)

    fitting = [
        (len(item), index)
        for index, item in enumerate(criteria)
        if all(
            key in given_arguments and canonical(value) == canonical(given_arguments[key])
            for key, value in item.items()
        )
    ]
    chosen = tool.choose(given_arguments, {})
    assert (None if chosen is None else chosen.result) == (str(max(fitting)[1]) if fitting else None)


async def test_operators_at_any_depth() -> None:
    run = Run(
        {"result": "none"},
        {"match": {"q": {"name": {"$regex": "^A"}, "n": {"$any": True}}}, "result": "deep"},
        {"match": {"q": [{"$regex": "x"}]}, "result": "in a list"},
        {"match": {"q": {"$equals": {"$regex": "^A"}}}, "result": "as it stands"},
        {"match": {"q": {"price": {"$gt": 5}}}, "result": "no operator of ours"},
        {"match": {"p": {"$any": False}, "q": 1}, "result": "p is left out"},
    )
    assert await run.text(q={"name": "Ann", "n": None}) == "deep"
    assert await run.text(q={"name": "Bea", "n": None}) == "none"
    assert await run.text(q={"name": "Ann"}) == "none"
    assert await run.text(q=["axb"]) == "in a list"
    assert await run.text(q=[5]) == "none"
    assert await run.text(q={"$regex": "^A"}) == "as it stands"
    assert await run.text(q={"price": {"$gt": 5}}) == "no operator of ours"
    assert await run.text(q=1) == "p is left out"
    assert await run.text(q=1, p=None) == "none"


@pytest.mark.parametrize("has_files", [True, False])
async def test_patterns_state_sequences_and_errors(has_files: bool) -> None:
    run = Run(
        {
            "match": {"to": {"$regex": "^a"}},
            "result": "begins with a",
            "set": {"last": "{{to}}", "n": "{{call_count}}"},
        },
        {"when": {"last": "ann"}, "result": {"again": "{{state.last}}", "n": "{{state.n}}"}},
        {"match": {"list": {"$any": True}}, "results": ["one", {"$error": "not {{list}}"}, {"three": 3}]},
        {"match": {"bad": True}, "error": "no {{name}} here"},
        has_files=has_files,
    )
    assert await run.text(to="ann") == "begins with a"
    output = await run()
    assert (output.structured, output.content) == ({"again": "ann", "n": 1}, '{"again":"ann","n":1}')
    outputs = [await run(list=[]) for _ in range(4)]
    assert [item.content for item in outputs] == ["one", "not []", '{"three":3}', '{"three":3}']
    assert [item.is_error for item in outputs] == [False, True, False, False]
    failed = await run(bad=True, name="x")
    assert (failed.is_error, failed.content) == (True, "no x here")


async def test_only_what_an_answer_depends_on_is_remembered() -> None:
    run = Run({"result": "{{a}}"})
    await run(a=1)
    assert run.sandbox is not None
    assert run.sandbox.read_state("mock") is None


async def test_what_nothing_answers_is_an_error_unless_told_otherwise() -> None:
    failed = await Run()(a=1)
    assert (failed.is_error, failed.content) == (
        True,
        'the mock of f has no fixture for the arguments {"a":1}',
    )
    echoed = await Run(default="echo")(a=1)
    assert echoed.structured["mock_result"] == "Successfully executed f"
    assert echoed.structured["input_received"] == {"a": 1}
    assert (await Run(default={"got": "{{arguments}}"})(a=1)).structured == {"got": {"a": 1}}
    counted = Run(default="{{call_count}}")
    assert [await counted.text() for _ in range(3)] == ["1", "2", "3"]
    assert await Run({"match": {"a": 2}, "result": "two"}, templates={"f": "of {{a}}"}).text(a=1) == "of 1"


def test_templates_keep_types_and_leave_what_is_unknown() -> None:
    known = {"a": {"b": [1, 2]}, "s": "x", "none": None, "d.e": 7}
    assert fill(
        {"k": ["{{a.b}}", "{{ a.b.1 }}", "<{{s}}>", "{{nope}}", "{{none}}", 5, "{{d.e}}"]}, known
    ) == {"k": [[1, 2], 2, "<x>", "{{nope}}", None, 5, 7]}
    assert fill("{{a}} and {{s}}, {{nope.x}}, {{a.c}}", known) == '{"b":[1,2]} and x, {{nope.x}}, null'
    assert fill("{{s}}{{s}}", {"s": "{{s}}"}) == "{{s}}{{s}}"


async def test_an_argument_that_is_left_out_has_its_default() -> None:
    properties = {"unit": {"default": "C"}, "day": {"type": "string"}, "state": {}}
    spec = replace(SPEC, parameters={"type": "object", "properties": properties})
    run = Run({"result": ["{{unit}}", "{{day}}", "{{state.x}}", "{{arguments.state}}"]}, spec=spec)
    assert (await run(state="s")).structured == ["C", None, None, "s"]
    assert (await run(unit="F")).structured == ["F", None, None, None]


async def test_results_keep_to_a_declared_output_schema() -> None:
    spec = replace(SPEC, output_schema={"type": "object", "properties": {"n": {"type": "integer"}}})
    run = Run({"result": {"n": "{{n}}"}}, {"match": {"t": 1}, "result": "a text"}, spec=spec)
    assert (await run(n=1)).structured == {"n": 1}
    failed = await run(n="x")
    assert (failed.is_error, failed.structured) == (True, None)
    assert (
        failed.content
        == 'the mock of f has a result that breaks its output schema: /n: "x" is not of type "integer"'
    )
    assert (await run(t=1)).structured is None
    assert (await Run(spec=spec, default="echo")()).structured is None
    with pytest.raises(ConfigError, match=r"a fixture of 'f' has a result that breaks .*: /n: \"x\""):
        Run({"results": ["fine", {"n": "x"}]}, spec=spec)


@pytest.mark.parametrize("effect", Effect)
async def test_what_a_run_remembers_is_in_its_snapshot(effect: Effect) -> None:
    fixtures = {"f": [{"results": ["first", "second", "third"]}]}
    tools = Mock([replace(SPEC, effect=effect)], fixtures=fixtures)
    journal = MemoryJournal()
    model = ScriptedModel([[call("f"), call("f")], "ok"])
    run = await Agent(model, tools=[tools], journal=journal).run("go")
    assert [item.content for item in run.messages if item.call_id] == ["first", "second"]
    done = [event.body for event in run.events if isinstance(event.body, e.ToolCompleted)]
    assert all(body.result.is_simulated for body in done)
    assert run.files == {}
    again = ScriptedModel([[call("f")], "ok"])
    forked = await Agent(again, tools=[tools], journal=journal).fork(run.run_id, text="on")
    assert forked.messages[-2].content == "third"


async def test_calls_side_by_side_are_answered_one_after_another() -> None:
    run = Run({"results": [str(index) for index in range(9)]})
    assert sorted(await asyncio.gather(*[run.text() for _ in range(9)])) == [str(index) for index in range(9)]


async def answers_of(tools: Mock, name: str, *given: dict[str, Any]) -> list[str]:
    tool = {tool.spec.name: tool for tool in tools.tools()}[name]
    return [(await tool.call(item, ToolContext("r", "c", 1))).content for item in given]


async def test_a_file_of_any_shape_with_fixtures(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    schema = {"type": "object"}
    weather = {"name": "weather", "inputSchema": schema, "fixtures": [{"match": {"a": 1}, "result": "mild"}]}
    other = {"name": "other", "inputSchema": schema, "mockResponse": {"q": "{{q}}"}}
    third = {"type": "function", "function": {"name": "third"}, "response": "said"}
    beside = {"weather": [{"match": {"city": "Oslo"}, "response": "cold"}]}
    value = {"tools": [weather, other, third, {"name": "last"}], "fixtures": beside}
    path.write_text(json.dumps({**value, "responses": {"weather": "fair"}, "default": "nothing"}))
    tools = mock(str(path))
    assert await answers_of(tools, "weather", {"city": "Oslo"}, {"a": 1}, {}) == ["cold", "mild", "fair"]
    assert await answers_of(tools, "other", {"q": 1}) == ['{"q":1}']
    assert await answers_of(tools, "third", {}) == ["said"]
    assert await answers_of(tools, "last", {}) == ["nothing"]
    mine = Mock(path, fixtures={"weather": [{"result": "mine"}]}, default="else")
    assert await answers_of(mine, "weather", {}, {"a": 1}) == ["mine", "mild"]
    assert await answers_of(mine, "last", {}) == ["else"]


async def test_definitions_of_elsewhere_echo_and_never_ask_a_model() -> None:
    tools = mock_of({"tools": [{"name": "f"}], "simulator": "openai:m"}, "the body")
    assert tools.simulator is None
    (echoed,) = await answers_of(tools, "f", {"a": 1})
    assert json.loads(echoed)["input_received"] == {"a": 1}


@pytest.mark.parametrize(
    ("fixtures", "message"),
    [
        ({"g": []}, "there are fixtures for 'g', which is not a tool of this mock; the tools are f"),
        ({"f": {"a": 1}}, "the fixtures of 'f' are {'a': 1}; they must be a list"),
        ({"f": [5]}, "fixture 1 of 'f': Expected `object`, got `int`"),
        ({"f": [{"result": 1}, {"mach": {}}]}, "fixture 2 of 'f': Object contains unknown field `mach`"),
        ({"f": [{"match": 5, "result": 1}]}, "Expected `object`, got `int` - at `$.match`"),
        ({"f": [{"match": {"a": {"$regex": "("}}, "result": 1}]}, "'(' is not a regular expression"),
        ({"f": [{"match": {"a": [{"$regex": 5}]}, "result": 1}]}, "5 is not a regular expression"),
        ({"f": [{"match": {"a": {"$any": 1}}, "result": 1}]}, "'$any' is 1; it must be true or false"),
        ({"f": [{"when": {"a": {"$regx": "x"}}, "result": 1}]}, "has '$regx'; did you mean '$regex'?"),
        (
            {"f": [{"match": {"cty": 1}, "result": 1}]},
            "'cty', which is not a parameter of the tool; did you mean",
        ),
        ({"f": [{"result": 1, "error": "x"}]}, "more than one of 'result', 'results' and 'error'"),
        ({"f": [{"match": {}}]}, "none of 'result', 'results' and 'error'"),
        ({"f": [{"result": object()}]}, "fixture 1 of 'f' contains a value that is not JSON"),
    ],
)
def test_fixtures_that_cannot_be_used(fixtures: Any, message: str) -> None:
    spec = replace(SPEC, parameters={"type": "object", "properties": {"city": {}, "a": {}}})
    with pytest.raises(ConfigError) as caught:
        Mock([spec], fixtures=fixtures)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"tools": [{"name": "f"}], "fixture": {}}, "the file has 'fixture'; did you mean 'fixtures'?"),
        (
            {"tools": [{"name": "f", "inputSchema": {}, "fixtrues": []}]},
            "'f' has 'fixtrues'; did you mean",
        ),
        (
            {"tools": [{"name": "f"}], "fixtures": [1]},
            "'fixtures' beside the tools is [1]; it must be an object",
        ),
        (
            {"tools": [{"name": "f"}], "responses": {"g": 1}},
            "there are fixtures for 'g', which is not a tool",
        ),
        ({"tools": [{"name": "f"}], "simulator": 5}, "'simulator' is 5; it must be a model's name"),
        (
            {"tools": [{"name": "f"}], "simulator": {"model": "x", "sed": 1}},
            "'simulator' has 'sed': 1; it takes",
        ),
        ({"tools": [{"name": "f"}], "simulator": "nobody:m"}, "nobody"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, value: Any, message: str) -> None:
    (tmp_path / "m.json").write_text(json.dumps(value))
    with pytest.raises(ConfigError) as caught:
        mock(str(tmp_path / "m.json"))
    assert message in str(caught.value)


def test_a_mock_without_a_file() -> None:
    with pytest.raises(ConfigError, match=r"name a file of definitions, as in mock:tools\.json"):
        mock("")
