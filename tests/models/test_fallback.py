"""Asking the next model when one fails, and what the run's journal records."""

import pickle

import pytest
from tests.models.answers import REQUEST, Listener

from treadle import Agent
from treadle.core import events as e
from treadle.core.errors import (
    AuthenticationError,
    ConfigError,
    ContextOverflowError,
    ProviderError,
    RateLimitError,
    RefusedError,
    RequestError,
    ServerError,
    TransportError,
    UnavailableError,
)
from treadle.core.types import OutputMode
from treadle.journal.memory import MemoryJournal
from treadle.models import FallbackModel, ScriptedModel, Watch


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def named(name, *answers):
    return ScriptedModel(answers, name=name)


@pytest.mark.parametrize(
    "error",
    [
        RateLimitError,
        ServerError,
        TransportError,
        AuthenticationError,
        ContextOverflowError,
        UnavailableError,
        ProviderError,
    ],
)
async def test_the_next_one_is_asked(error):
    models = [named("a", error("no")), named("b", error("nor I")), named("c", "yes")]
    listener = Listener()
    completion = await FallbackModel(models).infer(REQUEST, listener.watch)
    assert completion.message.content == "yes"
    assert [(text, number, delay) for text, number, delay in listener.failures] == [
        ("no", 1, 0.0),
        ("nor I", 2, 0.0),
    ]


@pytest.mark.parametrize("error", [RequestError("bad"), RefusedError("no"), KeyError("a bug")])
async def test_what_is_wrong_everywhere_is_raised_at_once(error):
    second = named("b", "yes")
    with pytest.raises(type(error)):
        await FallbackModel([named("a", error), second]).infer(REQUEST, Watch())
    assert second.requests == []


async def test_the_last_error_tells_of_those_before():
    models = [named("a", RateLimitError("slow", status=429)), named("b", ServerError("down", status=503))]
    with pytest.raises(ServerError) as caught:
        await FallbackModel(models).infer(REQUEST, Watch())
    assert str(caught.value) == "down (model b, asked after a: RateLimitError)"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.model, again.status, str(again)) == ("b", 503, str(caught.value))


async def test_one_that_failed_rests():
    clock = Clock()
    first, second = named("a", ServerError("down"), "a is back"), named("b", "b", "b")
    model = FallbackModel([first, second], cooldown_seconds=30, clock=clock)
    assert [(await model.infer(REQUEST, Watch())).message.content for _ in range(2)] == ["b", "b"]
    assert len(first.requests) == 1
    clock.now += 30
    assert (await model.infer(REQUEST, Watch())).message.content == "a is back"


async def test_when_all_rest_all_are_asked_again():
    first, second = named("a", ServerError("down"), "a"), named("b", ServerError("down"))
    model = FallbackModel([first, second])
    with pytest.raises(ServerError):
        await model.infer(REQUEST, Watch())
    assert (await model.infer(REQUEST, Watch())).message.content == "a"


async def test_a_prompt_that_is_too_long_lets_nobody_rest():
    first = named("a", ContextOverflowError("too long"), "a")
    model = FallbackModel([first, named("b", "b")])
    assert [(await model.infer(REQUEST, Watch())).message.content for _ in range(2)] == ["b", "a"]


async def test_the_journal_says_what_was_tried():
    models = [named("a", ServerError("a is down")), named("b", "yes")]
    run = await Agent(FallbackModel(models), journal=MemoryJournal()).run("Hello")
    assert run.output == "yes"
    tried = [event.body for event in run.events if isinstance(event.body, e.InferenceFailed)]
    assert [(item.model, item.error, item.retry_in_seconds) for item in tried] == [("a", "a is down", 0.0)]
    assert run.events[0].body.agent.model.name == "a"


def test_modes_and_names():
    first, second = named("a"), named("b")
    second.output_mode = OutputMode.TOOL
    model = FallbackModel([first, second])
    assert (model.name, model.identity, model.output_mode) == ("a", "a | b", "tool")
    with pytest.raises(ConfigError, match="at least one"):
        FallbackModel([])
    with pytest.raises(ConfigError, match="cooldown_seconds"):
        FallbackModel([first], cooldown_seconds=-1)
