"""Runs whose model consists of tiers: what is chosen, recorded, kept, replaced and counted."""

import asyncio
import threading

import pytest
from tests.models.wire import openai_chat as wire

from treadle import Agent, Policy, Run
from treadle.core import events as e
from treadle.core.errors import (
    AuthenticationError,
    ContextOverflowError,
    ProviderError,
    RateLimitError,
    RequestError,
    ServerError,
    TransportError,
    UnavailableError,
)
from treadle.core.events import TextDelta
from treadle.core.log import Log
from treadle.core.spec import PartSpec
from treadle.core.state import ESCALATED, fold
from treadle.core.tokens.packed import unpack_ids
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import Completion, FinishReason, Message, Request, Role, Usage
from treadle.journal.listing import facts_of
from treadle.journal.memory import MemoryJournal
from treadle.models import (
    FallbackModel,
    HttpResponse,
    InProcessTransport,
    Limiter,
    LimitModel,
    OpenAIChatModel,
    RetryModel,
    ScriptedModel,
    Watch,
    call,
)
from treadle.models.wrappers.fallback import RESTS
from treadle.models.wrappers.tiered import Tier, TieredModel
from treadle.routing import LATENCIES, Latencies
from treadle.routing.cascade import find_fault

EASY = "What is the capital of Norway?"
HARD = (
    "Prove that there is no largest prime, derive a bound for the next one, and compare two proofs in depth."
)


@pytest.fixture(autouse=True)
def _forget():
    """What other tests measured must not change the choices."""
    LATENCIES._known.clear()
    yield
    LATENCIES._known.clear()
    RESTS._until.clear()


def look(text: str) -> str:
    """Look something up."""
    return f"found {text}"


def scripted(name: str, *answers) -> ScriptedModel:
    return ScriptedModel(answers, name=name)


def answered(text: str, *, tokens: int = 10, cost: float | None = 0.01) -> Completion:
    return Completion(Message(Role.ASSISTANT, text), FinishReason.STOP, Usage(tokens, tokens), cost_usd=cost)


def starts(run: Run) -> list[e.InferenceStarted]:
    return [event.body for event in run.events if isinstance(event.body, e.InferenceStarted)]


def failures(run: Run) -> list[e.InferenceFailed]:
    return [event.body for event in run.events if isinstance(event.body, e.InferenceFailed)]


async def check_exact(agent: Agent, run: Run) -> None:
    """Check that the run can be replayed, and that a listing agrees with its events."""
    found = await agent.replay(run.run_id)
    assert found.is_exact, found.divergence
    bodies = [event.body for event in run.events]
    facts, state = facts_of(bodies), fold(bodies)
    assert (facts.input_tokens, facts.output_tokens) == (state.usage.input_tokens, state.usage.output_tokens)
    assert facts.cost_usd == state.cost_usd


async def test_the_choice_is_recorded_once_a_turn_and_holds_for_its_steps():
    small, mid = scripted("s", "Bare hyggelig."), scripted("m", [call("look", {"text": "x"})], "Oslo.")
    frontier = scripted("f", "QED.")
    model = TieredModel({"small": small, "mid": mid, "frontier": frontier})
    agent = Agent(model, tools=[look], journal=MemoryJournal())
    async with agent.session() as session:
        await session.send(EASY)
        await session.send("takk!")
        run = await session.send(HARD)
    assert [(item.model, item.route and item.route.tier) for item in starts(run)] == [
        ("m", "mid"),
        ("m", None),
        ("s", "small"),
        ("f", "frontier"),
    ]
    route = starts(run)[0].route
    assert route is not None
    assert route.reasons
    assert route.scores.keys() == {"small", "mid", "frontier"}
    assert len(mid.requests) == 2
    await check_exact(agent, run)


async def test_a_resumed_turn_goes_on_with_the_tier_that_was_recorded():
    journal = MemoryJournal()
    stuck = ScriptedModel(lambda _: asyncio.CancelledError(), name="m")
    agent = Agent(TieredModel({"mid": stuck, "small": scripted("s")}), journal=journal)
    with pytest.raises(asyncio.CancelledError):
        await agent.run(EASY, run_id="r")
    # Now everything would be chosen differently.
    model = TieredModel({"mid": scripted("m", "Oslo."), "small": scripted("s")}, router="cascade")
    run = await Agent(model, journal=journal).resume("r")
    assert run.output == "Oslo."
    assert [(item.model, item.route is not None) for item in starts(run)] == [("m", True), ("m", False)]


async def test_another_model_at_a_resume_is_chosen_anew():
    journal = MemoryJournal()
    stuck = ScriptedModel(lambda _: asyncio.CancelledError(), name="m")
    with pytest.raises(asyncio.CancelledError):
        await Agent(TieredModel({"mid": stuck}), journal=journal).run(EASY, run_id="r")
    tiers = {"mid": scripted("m"), "small": scripted("s", "Oslo.")}
    other = TieredModel(tiers, router="fixed", options={"tier": "small"}, part=PartSpec(name="tier:small"))
    run = await Agent(other, journal=journal).resume("r")
    assert (run.output, starts(run)[-1].route.tier) == ("Oslo.", "small")


@pytest.mark.parametrize(
    "error",
    [
        ServerError("down"),
        TransportError("gone"),
        AuthenticationError("no"),
        ContextOverflowError("long"),
        UnavailableError("no credit is left", status=402),
        RateLimitError("slow down", retry_after_seconds=60.0),
        ProviderError("broken"),
    ],
)
async def test_a_tier_that_fails_for_good_is_replaced_within_the_turn(error):
    mid = scripted("m", [call("look", {"text": "x"})], error)
    model = TieredModel({"mid": mid, "frontier": scripted("f", "Oslo.")})
    agent = Agent(model, tools=[look], journal=MemoryJournal())
    run = await agent.run(EASY)
    assert run.output == "Oslo."
    (failed,) = failures(run)
    assert (failed.error_type, failed.next_tier) == (type(error).__name__, "frontier")
    route = starts(run)[-1].route
    assert route.reasons == (f"mid: {error}", "frontier is the nearest better tier than mid")
    # The result of the call is not asked for again, and nobody is told of an answer that there was not.
    assert [item.role for item in run.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    await check_exact(agent, run)


async def no_sleep(_: float) -> None:
    raise AssertionError("a wait that a server asked for is slept through")


def server(name: str, status: int, limiter: Limiter | None = None, **headers: str) -> RetryModel:
    """A model as `treadle.model` makes it, whose server answers `status`."""
    body = {"error": {"message": "no"}} if status >= 400 else wire.answer(Message(Role.ASSISTANT, "Oslo."))
    transport = InProcessTransport(lambda _: HttpResponse(body, status, headers))
    model = OpenAIChatModel(name, transport=transport, base_url=f"https://{name}.example/v1", name=name)
    limited = model if limiter is None else LimitModel(model, limiter=limiter)
    return RetryModel(limited, sleep=no_sleep)


@pytest.mark.parametrize("has_limiter", [False, True])
@pytest.mark.parametrize(
    ("status", "headers"),
    [(402, {}), (404, {}), (401, {}), (429, {"retry-after": "60"}), (503, {"retry-after": "60"})],
)
async def test_a_tier_that_ends_or_is_to_wait_moves_on_and_rests_for_all_runs(status, headers, has_limiter):
    limiter = Limiter() if has_limiter else None
    small, mid = server("s", status, limiter, **headers), server("m", 200)
    asked = (small.inner.inner if has_limiter else small.inner)._transport.requests
    for tiers in ({"small": small, "mid": mid}, {"small": FallbackModel([small]), "mid": mid}):
        RESTS._until.clear()
        count = len(asked)
        for number in range(3):
            # Each run has a model of its own, as those of different commands or sessions have.
            model = TieredModel(tiers, router="fixed", options={"tier": "small"})
            run = await Agent(model, journal=MemoryJournal()).run(EASY)
            assert run.output == "Oslo.", run.error
            assert [item.model for item in starts(run)] == (["s", "m"] if number == 0 else ["m"])
            if number:
                assert starts(run)[0].route.rejected["small"].startswith("s failed and rests for ")
        assert len(asked) - count <= 1


async def test_a_tier_rests_only_if_another_one_may_take_its_place():
    best, small = server("f", 429, **{"retry-after": "1"}), server("s", 200)
    RESTS.begin(best, 60.0)
    sleeps: list[float] = []

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    best._sleep = sleep
    model = TieredModel({"frontier": best, "small": small}, router="fixed", options={"tier": "frontier"})
    run = await Agent(model, journal=MemoryJournal()).run(HARD)
    assert (run.stop_reason, len(sleeps)) == ("error", 5)
    RESTS.begin(best, 60.0)
    model = TieredModel({"frontier": best, "small": small}, allows_weaker=True)
    run = await Agent(model, journal=MemoryJournal()).run(HARD)
    assert (run.output, len(sleeps)) == ("Oslo.", 5)


async def test_a_weaker_tier_takes_over_only_if_it_is_allowed():
    """The reference falls from frontier to its weakest model without saying so."""

    def tiers():
        return {"frontier": scripted("f", ServerError("down")), "small": scripted("s", "QED.")}

    run = await Agent(TieredModel(tiers()), journal=MemoryJournal()).run(HARD)
    assert (run.stop_reason, run.error, failures(run)[0].next_tier) == ("error", "down", None)
    agent = Agent(TieredModel(tiers(), allows_weaker=True), journal=MemoryJournal())
    run = await agent.run(HARD)
    assert run.output == "QED."
    assert "a weaker one is allowed" in starts(run)[-1].route.reasons[1]
    await check_exact(agent, run)


async def test_an_error_that_every_model_would_raise_ends_the_turn():
    model = TieredModel({"mid": scripted("m", RequestError("bad")), "frontier": scripted("f", "no")})
    run = await Agent(model, journal=MemoryJournal()).run(EASY)
    assert (run.stop_reason, run.error) == ("error", "bad")


async def test_if_no_tier_can_do_it_the_run_ends_and_names_each(tmp_path):
    (tmp_path / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(32))
    tiers = [Tier(name=name, model=scripted(name), sees_images=False) for name in ("mid", "small")]
    run = await Agent(TieredModel(tiers), journal=MemoryJournal()).run(EASY, attach=[tmp_path / "dot.png"])
    assert (run.stop_reason, run.fault) == ("error", "user")
    assert run.error == "no tier can do this: mid: mid cannot see images; small: small cannot see images"


async def test_a_conversation_that_outgrows_a_tier_moves_to_a_larger_one():
    """The reference never compares its estimate with the window of the tier once a turn runs."""

    def dump(text: str) -> str:
        """Return much."""
        return "word " * 4000

    small = Tier(name="mid", model=scripted("m", [call("dump", {"text": "x"})]), context_tokens=4000)
    large = Tier(name="frontier", model=scripted("f", "Oslo."), context_tokens=100_000)
    agent = Agent(TieredModel([small, large]), tools=[dump], journal=MemoryJournal())
    run = await agent.run(EASY)
    assert [item.route.tier for item in starts(run)] == ["mid", "frontier"]
    assert "the context of m has 4,000 tokens" in starts(run)[1].route.reasons[0]
    await check_exact(agent, run)


async def test_an_image_goes_to_a_tier_that_can_see(tmp_path):
    (tmp_path / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(32))
    blind = Tier(name="mid", model=scripted("m", "Oslo."), sees_images=False)
    seeing = Tier(name="frontier", model=scripted("f", "A dot.", "Still a dot."), sees_images=True)
    agent = Agent(TieredModel([blind, seeing]), journal=MemoryJournal())
    async with agent.session() as session:
        await session.send(EASY)
        run = await session.send("What is this?", attach=[tmp_path / "dot.png"])
        # The image is in the conversation from now on.
        run = await session.send(EASY)
    assert [item.route.tier for item in starts(run)] == ["mid", "frontier", "frontier"]
    assert starts(run)[1].route.rejected == {"mid": "m cannot see images"}


async def test_a_cascade_counts_the_answer_that_it_throws_away_once():
    small = scripted("s", answered("I'm not sure.", tokens=100, cost=0.001))
    mid = scripted("m", answered("Oslo.", tokens=50, cost=0.02))
    model = TieredModel({"small": small, "mid": mid}, router="cascade")
    journal = MemoryJournal()
    agent = Agent(model, journal=journal, policy=Policy(max_cost_usd=1.0, max_steps=1))
    run = await agent.run(EASY)
    assert run.output == "Oslo."
    (thrown,) = failures(run)
    assert (thrown.error_type, thrown.usage, thrown.cost_usd) == (ESCALATED, Usage(100, 100), 0.001)
    assert (thrown.model, thrown.next_tier) == ("s", "mid")
    assert run.usage == Usage(150, 150)
    assert run.cost_usd == pytest.approx(0.021)
    assert (run.state.turn.spent.tokens, run.state.turn.spent.steps) == (300, 1)
    assert run.state.turn.spent.cost_usd == pytest.approx(0.021)
    # The next model is told what was tried, and by whom it was not.
    told = mid.requests[0].messages[-1].content
    assert "its answer was not used: it gave up" in told
    assert "I'm not sure." in told
    await check_exact(agent, run)
    (listed,) = journal.runs()
    assert (listed.input_tokens, listed.cost_usd) == (150, pytest.approx(0.021))


async def test_an_answer_that_was_thrown_away_can_exhaust_the_budget():
    small = scripted("s", answered("I'm not sure.", cost=0.9))
    model = TieredModel({"small": small, "mid": scripted("m")}, router="cascade")
    run = await Agent(model, journal=MemoryJournal(), policy=Policy(max_tokens=30)).run(EASY)
    assert run.stop_reason == "max_tokens"


async def test_what_a_thrown_away_answer_cost_is_said_to_be_unknown_if_it_is():
    small = scripted("s", answered("I'm not sure.", cost=None))
    model = TieredModel({"small": small, "mid": scripted("m", answered("Oslo."))}, router="cascade")
    run = await Agent(model, journal=MemoryJournal()).run(EASY)
    assert run.cost_usd is None


async def test_a_cascade_climbs_tier_by_tier_and_takes_the_last_answer_as_it_is():
    tiers = {
        "small": scripted("s", ""),
        "mid": scripted("m", "I don't know."),
        "frontier": scripted("f", "Sorry, I can't."),
    }
    agent = Agent(TieredModel(tiers, router="cascade"), journal=MemoryJournal())
    run = await agent.run(EASY)
    assert run.output == "Sorry, I can't."
    assert [item.next_tier for item in failures(run)] == ["mid", "frontier"]
    assert run.state.turn.tried == {"small": "it was empty", "mid": "it gave up"}
    await check_exact(agent, run)


async def test_a_cascade_escalates_a_call_that_cannot_be_run_and_keeps_those_that_can():
    small = scripted("s", [call("look", {"text": "x"})], [call("loook", {"text": "x"})])
    model = TieredModel({"small": small, "mid": scripted("m", "Oslo.")}, router="cascade")
    agent = Agent(model, tools=[look], journal=MemoryJournal())
    run = await agent.run(EASY)
    assert run.output == "Oslo."
    assert [result.content for result in run.results] == ["found x"]
    assert "it called 'loook', which is not a tool" in failures(run)[0].error
    await check_exact(agent, run)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (Completion(Message(Role.ASSISTANT, "Os"), FinishReason.LENGTH), "it was cut off"),
        (Completion(Message(Role.ASSISTANT, ""), FinishReason.CONTENT_FILTER), "it was refused"),
        ("again and again " * 100, "it repeated itself"),
        ("Beklager, jeg kan ikke svare på det.", "it gave up"),
        (
            "Well, I can't look anything up for you.",
            "it said that it cannot use the tool 'look', which it has",
        ),
        ([call("look", "{")], "it called 'look' with arguments that are not a JSON object"),
        ("Oslo. I can't think of a nicer city.", None),
        ([call("look", {"text": "x"})], None),
    ],
)
async def test_what_a_cascade_finds_wrong_with_an_answer(answer, fault):
    specs = Agent(ScriptedModel([]), tools=[look]).kit.own.specs
    request = Request(Log([Message(Role.USER, EASY)]), specs)
    assert find_fault(request, await scripted("s", answer).infer(request, Watch())) == fault


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ('{"city": "Oslo"}', None),
        ('```json\n{"city": "Oslo"}\n```', None),
        ('```JSON\n{"city": "Oslo"}\n```\n', None),
        ("null", None),
        ("The city is Oslo.", "it was not JSON"),
        ('{"city": "Oslo"', "it was not JSON"),
    ],
)
async def test_a_cascade_reads_json_as_the_loop_does(answer, fault):
    request = Request(Log([Message(Role.USER, EASY)]), output_schema={"type": "object"})
    assert find_fault(request, await scripted("s", answer).infer(request, Watch())) == fault


async def test_a_judge_reads_the_answer_and_its_cost_counts():
    judge = scripted("j", answered("BAD: it is in Sweden.", cost=0.1), answered("GOOD", cost=0.2))
    tiers = {
        "small": scripted("s", answered("Stockholm.")),
        "mid": scripted("m", answered("Oslo.")),
        "frontier": scripted("f"),
    }
    agent = Agent(TieredModel(tiers, router="cascade", options={"judge": judge}), journal=MemoryJournal())
    run = await agent.run(EASY)
    assert run.output == "Oslo."
    assert failures(run)[0].error.startswith("a check found: it is in Sweden\nThe answer was:")
    assert run.cost_usd == pytest.approx(0.01 + 0.1 + 0.01 + 0.2)
    assert run.usage == Usage(40, 40)
    (done,) = [event.body for event in run.events if isinstance(event.body, e.InferenceCompleted)]
    assert (done.verdict.model, done.verdict.text, done.verdict.cost_usd) == ("j", "GOOD", 0.2)
    assert done.completion.usage == Usage(10, 10), "the answer's own usage is not changed"
    # A judge that is the model itself draws other numbers than for the answer.
    assert {item.place for item in judge.requests} == {"/check"}
    asked = judge.requests[0].messages[-1].content
    assert EASY in asked
    assert "Stockholm." in asked
    await check_exact(agent, run)


async def test_a_judge_that_fails_or_raves_does_not_stop_the_answer():
    for said in (ServerError("down"), answered("hm")):
        tiers = {"small": scripted("s", answered("Oslo.")), "mid": scripted("m")}
        model = TieredModel(tiers, router="cascade", options={"judge": scripted("j", said)})
        run = await Agent(model, journal=MemoryJournal()).run(EASY)
        assert run.output == "Oslo."


async def test_pieces_of_an_answer_that_was_thrown_away_come_before_its_failure():
    tiers = {"small": scripted("s", "I don't know."), "mid": scripted("m", "Oslo.")}
    agent = Agent(TieredModel(tiers, router="cascade"), journal=MemoryJournal())
    heard = [item.body async for item in agent.stream(EASY)]
    kinds = [type(body) for body in heard]
    cut = kinds.index(e.InferenceFailed)
    text = "".join(body.text for body in heard[cut:] if isinstance(body, TextDelta))
    assert text == "Oslo."
    done = next(body for body in heard if isinstance(body, e.InferenceCompleted))
    assert 0 <= done.first_token_seconds <= done.duration_seconds


async def test_tokens_of_an_answer_that_was_thrown_away_are_not_referred_to():
    def exact(text, prompt, ids):
        record = TokenRecord.of(prompt=prompt, output=ids)
        return Completion(Message(Role.ASSISTANT, text), FinishReason.STOP, Usage(1, 1), tokens=record)

    tiers = {
        "small": scripted("s", exact("I don't know.", (1, 2), (3,))),
        "mid": scripted("m", exact("Oslo.", (1, 2, 3, 4), (5,))),
    }
    run = await Agent(TieredModel(tiers, router="cascade"), journal=MemoryJournal()).run(EASY)
    (done,) = [event.body for event in run.events if isinstance(event.body, e.InferenceCompleted)]
    assert unpack_ids(done.completion.tokens.prompt_token_ids) == (1, 2, 3, 4)
    assert not done.completion.tokens.prompt_shared_tokens


async def test_the_model_that_really_answered_is_recorded_and_measured():
    """The reference keeps the attempts of the newest request on an object that all conversations share."""
    chain = FallbackModel([scripted("a", ServerError("down")), scripted("b", "Oslo.")])
    agent = Agent(TieredModel({"mid": chain}), journal=MemoryJournal())
    run = await agent.run(EASY)
    (done,) = [event.body for event in run.events if isinstance(event.body, e.InferenceCompleted)]
    assert (starts(run)[0].model, done.answered_by) == ("a", "b")
    assert (LATENCIES.get("a").samples, LATENCIES.get("b").samples) == (0, 1)
    assert LATENCIES.get("a").failure_rate > 0
    await check_exact(agent, run)


def test_latencies_are_a_mean_first_and_then_follow_the_newest():
    known = Latencies()
    for seconds in (1.0, 2.0, 3.0, 4.0, 5.0):
        known.add("m", seconds, seconds / 10)
    assert known.get("m").total_seconds == pytest.approx(3.0)
    known.add("m", 13.0)
    assert known.get("m").total_seconds == pytest.approx(5.0)
    assert known.get("m").first_token_seconds == pytest.approx(0.3)


async def test_another_process_reads_latencies_from_the_newest_runs_of_a_journal():
    """The reference measures latencies that nothing reads, and forgets them with the process."""
    journal = MemoryJournal()
    agent = Agent(ScriptedModel(lambda _: "x", name="m", delay_seconds=0.001), journal=journal)
    for _ in range(30):
        await agent.run(EASY)
    fresh = Latencies()
    fresh.warm(journal)
    fresh.warm(journal)
    assert fresh.get("m").samples == 20, "a bounded number of runs is read, once"
    assert fresh.get("m").total_seconds >= 0.001
    # An agent with tiers does it when its first run begins.
    assert LATENCIES.get("m").samples == 0
    await Agent(TieredModel({"mid": scripted("other", "x")}), journal=journal).run(EASY)
    assert LATENCIES.get("m").samples == 20


def test_latencies_can_be_added_in_any_thread():
    known = Latencies()
    threads = [threading.Thread(target=lambda: [known.add("m", 1.0) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert known.get("m").samples == 2000


async def test_a_run_with_one_model_has_no_part_in_this():
    run = await Agent(ScriptedModel(["done"])).run("go")
    assert [body.route for body in starts(run)] == [None]
