"""A model that simulates tools: consistent, with valid results, and with equal results for equal calls."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from treadle import Agent, ScriptedModel
from treadle.core.errors import ConfigError, ServerError
from treadle.core.types import Completion, FinishReason, Message, Request, Role, ToolSpec
from treadle.models import call
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.context import Scope, ToolContext
from treadle.tools.mock.mocks import MAX_HISTORY, Mock, MockTool
from treadle.tools.mock.simulator import Simulator
from treadle.tools.protocol import ToolOutput

PLAIN = ToolSpec("f", "Does f.", {"type": "object"})
SCHEMA = {"$defs": {"n": {"type": "integer"}}, "type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}
TYPED = ToolSpec("f", "", {"type": "object"}, output_schema={**SCHEMA, "required": ["n"]})


def start(simulator: Any, spec: ToolSpec = PLAIN, **options: Any) -> MockTool:
    return Mock([spec], simulator=simulator, **options).tools()[0]


class Run:
    """The calls of one run."""

    def __init__(self) -> None:
        self._sandbox = MemorySandbox()
        self._scope = Scope()

    async def __call__(self, tool: MockTool, **arguments: Any) -> ToolOutput:
        output = await tool.call(arguments, ToolContext("r", "c", 1, self._sandbox, scope=self._scope))
        assert output.is_simulated
        return output


def question_of(request: Request) -> Any:
    return json.loads(request.messages[1].content.partition("\n\n")[0])


async def test_an_answer_fits_the_output_schema_at_the_second_try() -> None:
    model = ScriptedModel(['{"n": "x"}', '```json\n{"n": 1}\n```', "ERROR: it is closed"])
    tool, run = start(model, TYPED), Run()
    first = await run(tool, a=1)
    assert (first.content, first.structured, first.is_error) == ('{"n":1}', {"n": 1}, False)
    assert '/n: "x" is not of type "integer"' in model.requests[1].messages[-1].content
    closed = await run(tool, a=1)
    assert (closed.is_error, closed.content) == (True, "it is closed")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("not JSON", "it is not JSON"),
        ('{"m": 1}', '"n" is a required property'),
        ("", "it is empty"),
        (
            Completion(Message(Role.ASSISTANT, '{"n": 1}'), FinishReason.LENGTH),
            "it was cut off by the output limit",
        ),
    ],
)
async def test_a_model_that_never_fits_is_given_up(answer: Any, problem: str) -> None:
    model = ScriptedModel([answer, answer])
    output = await Run()(start(model, TYPED))
    assert output.is_error
    assert output.content.startswith("the simulated f gave no answer: ")
    assert problem in output.content


async def test_a_model_that_fails_is_an_error_that_is_not_kept() -> None:
    tool = start(ScriptedModel([ServerError("it is down"), "up"]))
    failed = await Run()(tool)
    assert (failed.is_error, failed.content) == (True, "the model that simulates f failed: it is down")
    assert (await Run()(tool)).content == "up"


async def test_the_model_is_told_what_happened_before_in_the_run() -> None:
    model = ScriptedModel(lambda request: f"answer {len(question_of(request)['earlier_calls'])}")
    tool, run = start(model, fixtures={"f": [{"match": {"a": 0}, "error": "canned"}]}), Run()
    await run(tool, a=0)
    await run(tool, a=1)
    assert (await run(tool, a=1)).content == "answer 2"
    assert question_of(model.requests[-1])["earlier_calls"] == [
        {"tool": "f", "arguments": {"a": 0}, "result": "canned", "is_error": True},
        {"tool": "f", "arguments": {"a": 1}, "result": "answer 1"},
    ]
    for _ in range(MAX_HISTORY):
        await run(tool, a=1)
    assert (await run(tool, a=2)).content == f"answer {MAX_HISTORY}"


async def test_the_same_call_after_the_same_calls_gives_the_same() -> None:
    model = ScriptedModel([str(number) for number in range(9)])
    tool = start(model)
    one, other = Run(), Run()
    texts = [(await one(tool, a=1)).content, (await one(tool, a=1)).content]
    assert texts == ["0", "1"]
    assert [(await other(tool, a=1)).content for _ in range(2)] == texts
    assert (await Run()(tool, a=2)).content == "2"
    assert len(model.requests) == 3


async def test_runs_that_ask_at_once_get_the_same() -> None:
    model = ScriptedModel([str(number) for number in range(5)], delay_seconds=0.01)
    tool = start(model)
    outputs = await asyncio.gather(*[Run()(tool, a=1) for _ in range(5)])
    assert len({item.content for item in outputs}) == 1
    assert len(model.requests) == 5


async def test_another_seed_is_another_world() -> None:
    model = ScriptedModel(["one", "two", "three"])
    tools = [start(Simulator(model, seed=seed)) for seed in (1, 2)]
    assert [(await Run()(tool)).content for tool in tools] == ["one", "two"]
    assert [question_of(request)["seed"] for request in model.requests] == [1, 2]


async def test_answers_are_kept_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "kept" / "here"
    first = start(Simulator(ScriptedModel(['{"n": 1}']), cache=folder), TYPED)
    output = await Run()(first, a=1)
    again = start(Simulator(ScriptedModel([]), cache=str(folder)), TYPED)
    assert await Run()(again, a=1) == output
    (kept,) = folder.iterdir()
    kept.write_bytes(b"cut o")
    mended = start(Simulator(ScriptedModel(['{"n": 2}']), cache=folder), TYPED)
    assert (await Run()(mended, a=1)).structured == {"n": 2}
    assert json.loads(kept.read_bytes())["structured"] == {"n": 2}
    assert [item.name for item in folder.iterdir()] == [kept.name]


async def test_processes_that_share_a_folder_agree(tmp_path: Path) -> None:
    simulators = [
        Simulator(ScriptedModel([str(number)], delay_seconds=0.01), cache=tmp_path) for number in range(5)
    ]
    outputs = await asyncio.gather(*[Run()(start(item), a=1) for item in simulators])
    assert len({item.content for item in outputs}) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"the cache .* cannot be made"):
        Simulator(ScriptedModel([]), cache=tmp_path / "file")


async def test_a_simulated_world_in_a_run() -> None:
    tools = Mock([PLAIN], simulator=ScriptedModel(["it rains", "it still rains"]))
    model = ScriptedModel([[call("f", {"day": 1}), call("f", {"day": 2})], "ok"])
    run = await Agent(model, tools=[tools]).run("go")
    assert [item.content for item in run.messages if item.call_id] == ["it rains", "it still rains"]
    assert run.files == {}
