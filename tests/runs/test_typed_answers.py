"""Typed answers: each kind of type, its validators, and the value after a resume and a load."""

import dataclasses
import json
from typing import Any, Literal, TypedDict

import msgspec
import pytest
from pydantic import BaseModel, field_validator

from treadle import Agent, Run, ScriptedModel
from treadle.core.errors import ConfigError
from treadle.core.types import OutputMode
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.models.scripted import Answer


class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def check(cls, value: int) -> int:
        if value % 2:
            raise ValueError(f"{value} is odd")
        return value


@dataclasses.dataclass
class Point:
    x: int


class Place(TypedDict):
    name: str


class Part(msgspec.Struct):
    name: str
    points: list[Point]


def agent_for(answers: list[Answer], schema: Any, mode: str = "native") -> Agent[Any]:
    model = ScriptedModel(answers)
    model.output_mode = OutputMode(mode)  # type: ignore[attr-defined]
    return Agent(model, schema=schema, journal=MemoryJournal())


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (Even, '{"number":2}', Even(number=2)),
        (Point, '{"x":1}', Point(1)),
        (Place, '{"name":"Oslo"}', {"name": "Oslo"}),
        (Part, '{"name":"a","points":[{"x":1}]}', Part("a", [Point(1)])),
        (list[Part], "[]", []),
        (list[int], "[1,2]", [1, 2]),
        (Literal["yes", "no"], '"yes"', "yes"),
        (int | str, "3", 3),
        (Even | Point, '{"x":1}', Point(1)),
        (bool, "true", True),
        ({"type": "object"}, '{"a":1}', {"a": 1}),
        (str, "plain text", "plain text"),
        (None, "plain text", "plain text"),
    ],
)
async def test_the_value_has_the_type_of_the_schema(schema: Any, text: str, value: object) -> None:
    agent = agent_for([text], schema)
    run = await agent.run("go")
    assert (run.value, type(run.value)) == (value, type(value))
    assert Run.load(run.run_id, agent.journal, schema=schema).value == value
    assert (await agent.resume(run.run_id)).value == value


@pytest.mark.parametrize("schema", [Even, Point, Place, Part])
@pytest.mark.parametrize("mode", ["native", "text", "tool"])
async def test_keys_that_a_type_ignores_are_no_fault(mode: str, schema: Any) -> None:
    """Rules out that an answer with a further key is refused again and again, although its type ignores the key."""
    whole = {
        Even: {"number": 2},
        Point: {"x": 1},
        Place: {"name": "a"},
        Part: {"name": "a", "points": [{"x": 1, "z": 2}]},
    }
    value = whole[schema] | {"why": "a further key"}
    answer: Answer = [call("final_answer", value)] if mode == "tool" else json.dumps(value)
    run = await agent_for([answer], schema, mode).run("go")
    assert (run.error, run.steps) == (None, 1)
    assert "why" not in repr(run.value)


async def test_keys_that_a_type_forbids_are_a_fault() -> None:
    class Strict(BaseModel, extra="forbid"):
        x: int

    run = await agent_for(['{"x": 1, "y": 2}', '{"x": 1}'], Strict).run("go")
    assert (run.value, run.steps) == (Strict(x=1), 2)
    closed = {"type": "object", "properties": {"x": {}}, "additionalProperties": False}
    assert (await agent_for(['{"x": 1, "y": 2}', '{"x": 1}'], closed).run("go")).steps == 2


@pytest.mark.parametrize("mode", ["native", "text", "tool"])
async def test_a_validator_that_refuses_goes_back_to_the_model(mode: str) -> None:
    def say(number: int) -> Answer:
        text = f'{{"number":{number}}}'
        return [call("final_answer", text)] if mode == "tool" else text

    agent = agent_for([say(1), say(3), say(4)], Even, mode)
    run = await agent.run("go")
    assert run.value == Even(number=4)
    told = " ".join(item.content for item in run.messages)
    assert "/number: 1 is odd" in told
    assert "/number: 3 is odd" in told
    replay = await agent.replay(run.run_id)
    assert replay.is_exact, replay.divergence
    assert repr(replay) == f"Replay({run.run_id!r}, {replay.events} events, exact)"


@pytest.mark.parametrize("mode", ["native", "tool"])
async def test_refusals_of_a_validator_are_bounded(mode: str) -> None:
    text = '{"number":1}'
    agent = agent_for([[call("final_answer", text)] if mode == "tool" else text] * 3, Even, mode)
    run = await agent.run("go")
    assert (run.stop_reason, run.fault) == ("error", "model")
    with pytest.raises(ValueError, match="no answer that fits the schema after 3 attempts"):
        run.value  # noqa: B018
    replay = await agent.replay(run.run_id)
    assert replay.is_exact, replay.divergence


async def test_two_types_with_one_schema_keep_their_own_validators() -> None:
    class AnyNumber(BaseModel):
        number: int

    AnyNumber.__name__ = AnyNumber.__qualname__ = "Even"
    agent = agent_for([[call("final_answer", '{"number":1}')]] * 5, Even, "tool")
    assert (await agent.run("go")).error is not None
    assert (await agent.run("go", schema=AnyNumber)).value.number == 1


async def test_a_value_that_does_not_fit_the_type_given_later_is_a_clear_error() -> None:
    agent = agent_for(['{"x":1}'], Point)
    run = await agent.run("go", run_id="r")
    assert run.value == Point(1)
    with pytest.raises(
        ValueError, match=r"run 'r': the answer '\{\"x\":1\}' does not fit Even: /number: Field"
    ):
        Run.load("r", agent.journal, schema=Even).value  # noqa: B018


async def test_a_resumed_run_asks_the_validators_of_its_type_again() -> None:
    journal = MemoryJournal()
    agent = Agent(
        ScriptedModel([RuntimeError("down"), '{"number":1}', '{"number":2}']), schema=Even, journal=journal
    )
    await agent.run("go", run_id="r")
    assert (await agent.resume("r")).value == Even(number=2)


@pytest.mark.parametrize(
    ("schema", "advice"),
    [
        (Even(number=2), "give the class Even"),
        (3, r"schema is 3, from which no JSON Schema can be made \(Unable to generate [^.\n]+\); give"),
        (Part("a", []), "give the class Part"),
        (7, "give a pydantic model"),
        ("Even", "give a pydantic model"),
        (object(), "give a pydantic model"),
        (lambda: 3, "give a pydantic model"),
        ([int], "give a pydantic model"),
    ],
)
def test_a_schema_that_is_no_type_is_told(schema: Any, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        Agent(ScriptedModel([]), schema=schema)
