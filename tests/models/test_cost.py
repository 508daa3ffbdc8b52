"""The cost of responses by the price table, and the message for an unknown price."""

import pytest
from tests.models.answers import REQUEST

from treadle import Agent, ConfigError, Policy, Price
from treadle import model as make_model
from treadle.core.types import UNREPORTED, Completion, FinishReason, Message, Role, StopReason, Usage
from treadle.journal.memory import MemoryJournal
from treadle.models import CostModel, FallbackModel, ScriptedModel, Watch
from treadle.models.protocol import has_price

pytest.importorskip("genai_prices")


def said(model=None, usage=Usage(1_000_000, 100_000), cost=None):
    return Completion(Message(Role.ASSISTANT, "x"), FinishReason.STOP, usage, cost, model)


async def cost(name, completion, **options):
    model = CostModel(ScriptedModel([completion], name=name), **options)
    return (await model.infer(REQUEST, Watch())).cost_usd


async def test_a_known_model():
    full = await cost("openai:gpt-5-mini", said())
    assert full == pytest.approx(0.25 + 0.2)
    cached = await cost("openai:gpt-5-mini", said(usage=Usage(1_000_000, 100_000, 1_000_000)))
    assert cached == pytest.approx(0.025 + 0.2)


async def test_writing_to_a_cache_costs_more():
    usage = Usage(1_000, 0, 0, 0, 1_000)
    assert await cost("anthropic:claude-sonnet-4-5", said(usage=usage)) == pytest.approx(1_000 * 3.75e-6)


async def test_the_server_says_which_model_it_was():
    assert await cost("openai:my-alias", said("gpt-5-mini-2025-08-07")) == pytest.approx(0.45)
    assert await cost("openai:gpt-5-mini", said("an-unknown-snapshot")) == pytest.approx(0.45)
    assert await cost("mine", said(), provider="openai", model="gpt-5-mini") == pytest.approx(0.45)


async def test_what_is_told_or_not_counted_stays():
    assert await cost("openai:gpt-5-mini", said(cost=7.0)) == 7.0
    assert await cost("openai:gpt-5-mini", said(usage=UNREPORTED)) is None


@pytest.mark.parametrize("name", ["openai:no-such-model", "nowhere:gpt-5-mini", "m"])
async def test_an_unknown_price_is_not_zero(name):
    assert await cost(name, said()) is None
    model = CostModel(ScriptedModel([said(), said()], name=name))
    assert not model.has_price
    run = await Agent(model, journal=MemoryJournal()).run("Hello")
    assert (run.cost_usd, run.stop_reason) == (None, StopReason.COMPLETED)


def test_known_says_so_before():
    assert CostModel(ScriptedModel([], name="anthropic:claude-sonnet-4-5")).has_price


PRICE = Price(1.0, 2.0)
NAMES = {
    "openai:gpt-5-mini": True,
    "openai:no-such-model": False,
    "openrouter:some/model": True,
    "vllm:Qwen/Qwen3-8B": False,
    "ollama:qwen3": False,
}


@pytest.mark.parametrize("name", NAMES)
async def test_a_limit_of_a_cost_that_is_not_known_is_refused_before_anything_is_sent(name):
    agent = Agent(make_model(name, api_key="k"), journal=MemoryJournal(), policy=Policy(max_cost_usd=1.0))
    assert has_price(agent.model) is NAMES[name]
    assert has_price(make_model(name, api_key="k", price=PRICE))
    if not NAMES[name]:
        with pytest.raises(
            ConfigError, match=r"max_cost_usd \(--max-cost\) .* no price of the model .*: give its"
        ):
            await agent.run("Hello", run_id="r")
        assert agent.journal.runs() == []


async def test_other_ways_of_driving_refuse_it_too():
    journal = MemoryJournal()
    await Agent(ScriptedModel(["x"]), journal=journal).run("Hello", run_id="r")
    fallback = FallbackModel([make_model("vllm:m", price=PRICE), make_model("vllm:n")])
    agent = Agent(fallback, journal=journal, policy=Policy(max_cost_usd=1.0))
    with pytest.raises(ConfigError, match="no price"):
        await agent.fork("r", text="again")
    with pytest.raises(ConfigError, match="no price"):
        await agent.session().open()
    assert [info.run_id for info in journal.runs()] == ["r"]
