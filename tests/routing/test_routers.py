"""All routers: filters that none can overrule, decisions that can be explained, and those of each router."""

import random

import pytest
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.types import Route
from treadle.models.wrappers.tiered import QUALITY, find_nearest, rank_of
from treadle.routing import ROUTERS, Router, RoutingFacts, TierCandidate, choose, replace_tier, split
from treadle.routing.judging import is_boilerplate, is_identity_sensitive, rate_difficulty

# Prices of 2025, in USD for a request of 1,000 tokens with an answer of 500.
COSTS = {"frontier": 0.0105, "mid": 0.0028, "small": 0.00009}
LATENCIES = {"frontier": 8.0, "mid": 4.0, "small": 1.5}


def candidate(tier: str, **more) -> TierCandidate:
    known = {"quality": QUALITY[tier], "cost_usd": COSTS[tier], "latency_seconds": LATENCIES[tier]}
    return TierCandidate(tier=tier, model=f"{tier}-model", **{**known, **more})


ALL = tuple(candidate(tier) for tier in QUALITY)


def facts(text: str = "", *candidates: TierCandidate, **more) -> RoutingFacts:
    """Return the facts for a message, as the loop makes them."""
    return RoutingFacts(
        text=text,
        candidates=candidates or ALL,
        is_boilerplate=is_boilerplate(text),
        is_identity_sensitive=is_identity_sensitive(text),
        difficulty=rate_difficulty(text),
        **more,
    )


def make(name: str, **options) -> Router:
    return ROUTERS.load(name)(**options)


def route(name: str, text: str, *candidates: TierCandidate, **more) -> Route:
    return choose(make(name), facts(text, *candidates, **more))


@pytest.mark.parametrize("name", ROUTERS.names())
class TestContract:
    """What holds for every router, those of other packages included."""

    def test_a_decision_has_reasons_and_a_score_or_a_refusal_for_each_tier(self, name: str) -> None:
        chance = random.Random(1)
        for _ in range(200):
            tiers = sorted(chance.sample(list(QUALITY), chance.randint(1, 3)), key=rank_of)
            items = tuple(
                candidate(
                    tier,
                    context_tokens=chance.choice([None, 1000, 100_000]),
                    sees_images=chance.choice([None, True, False]),
                    tool_strength=chance.choice([None, "weak", "medium", "strong"]),
                    cost_usd=chance.choice([None, 0.0, 0.01]),
                    latency_seconds=chance.choice([None, 0.0, 2.0]),
                    failure_rate=chance.choice([0.0, 0.9]),
                )
                for tier in tiers
            )
            asked = facts(
                chance.choice(["takk", "prove it", "what is the time"]),
                *items,
                images=chance.choice([0, 2]),
                prompt_tokens=chance.choice([10, 50_000]),
                tools=chance.choice([0, 3, 40]),
            )
            fitting, rejected = split(asked)
            if not fitting or (name == "fixed" and fitting[0].tier != "frontier"):
                # A tier that was named is not replaced by a weaker one.
                with pytest.raises(ConfigError) as raised:
                    choose(make(name), asked)
                assert all(f"{tier}: {why}" in str(raised.value) for tier, why in rejected.items())
                continue
            found = choose(make(name), asked)
            assert found == choose(make(name), asked), "two decisions about the same facts differ"
            assert found.reasons
            assert all(found.reasons)
            assert found.tier in found.scores
            assert found.scores.keys() | found.rejected.keys() == set(tiers)
            assert not found.scores.keys() & found.rejected.keys()
            chosen = next(item for item in items if item.tier == found.tier)
            assert found.model == chosen.model
            assert not (asked.images and chosen.sees_images is False)
            assert not (asked.tools and chosen.tool_strength == "weak")
            assert chosen.context_tokens is None or chosen.context_tokens > asked.prompt_tokens

    def test_if_no_tier_can_do_it_the_error_names_each_and_why(self, name: str) -> None:
        items = (
            candidate("frontier", context_tokens=100),
            candidate("mid", sees_images=False),
            candidate("small", tool_strength="weak"),
        )
        with pytest.raises(ConfigError) as raised:
            route(name, "hi", *items, images=1, tools=1, prompt_tokens=5000)
        text = str(raised.value)
        assert "the context of frontier-model has 100 tokens, and 5,025 are needed" in text
        assert "mid-model cannot see images" in text
        assert "small-model is weak with tools" in text

    def test_a_price_or_latency_that_is_not_known_excludes_no_tier(self, name: str) -> None:
        """The reference leaves out every tier without metadata, so that an unpriced model is never chosen."""
        bare = tuple(candidate(tier, cost_usd=None, latency_seconds=None) for tier in QUALITY)
        assert set(route(name, "prove that it terminates", *bare).scores) == set(QUALITY)


@pytest.mark.parametrize("name", ["rules", "scored"])
@pytest.mark.parametrize(
    "text",
    [
        "Great, now write a 20-page novel about a lighthouse keeper, in three acts",
        "is it ok to sue my landlord over mould?",
        "Perfekt, skriv nå en masteroppgave om samtidighet og vranglås",
    ],
)
def test_work_that_begins_or_goes_on_with_a_pleasantry_is_not_boilerplate(name: str, text: str) -> None:
    """The reference finds "great" and "ok" anywhere in a message, and sends it to the smallest model."""
    assert route(name, text).tier in ("frontier", "mid")


@pytest.mark.parametrize("name", ["rules", "scored"])
@pytest.mark.parametrize("text", ["Thanks!", "takk skal du ha", "ok, got it", "den er grei"])
def test_thanks_go_to_the_smallest_tier_in_both_languages(name: str, text: str) -> None:
    """The reference reads ASCII words only, so Norwegian messages are never recognised."""
    assert route(name, text, is_session=True).tier == "small"


@pytest.mark.parametrize("name", ["rules", "scored"])
@pytest.mark.parametrize(
    "text",
    [
        "Prove that there is no largest prime, and derive a bound for the next one. Compare two proofs in depth.",
        "Design a distributed consensus algorithm without a leader and analyse its failure modes.",
        "Drøft grundig om vi kan si opp husleiekontrakten, og sammenlign konsekvensene for begge parter.",
    ],
)
@pytest.mark.parametrize("is_first_turn", [True, False])
def test_a_hard_message_goes_to_the_frontier(name: str, text: str, is_first_turn: bool) -> None:
    """With realistic prices, the reference's scores never choose frontier, because difficulty does not count."""
    assert route(name, text, is_first_turn=is_first_turn).tier == "frontier"


def test_ordinary_messages_go_to_small_and_mid_by_their_difficulty() -> None:
    """With realistic prices, the reference's scores send every ordinary message to the smallest model."""
    scored = make("scored")

    def tier_at(difficulty: float) -> str:
        return choose(scored, replace(facts("x", is_first_turn=False), difficulty=difficulty)).tier

    found = [tier_at(number / 20) for number in range(21)]
    assert found == sorted(found, key=rank_of, reverse=True), "a harder message never goes to a weaker tier"
    assert (tier_at(0.0), tier_at(0.45), tier_at(0.9)) == ("small", "mid", "frontier")
    assert min(map(found.count, QUALITY)) >= 3, found
    easy = ["What is the capital of Norway?", "Kan du oversette 'god morgen' til fransk?"]
    assert {route("scored", text, is_first_turn=False).tier for text in easy} == {"small"}


def test_a_tier_that_is_measured_to_be_slow_loses() -> None:
    """The reference measures latencies, and its scores then use the configured ones."""
    slow = tuple(
        candidate(tier, latency_seconds=600.0 if tier == "mid" else 1.0, is_measured=True) for tier in QUALITY
    )
    router = make("scored", haste=0.5)
    before = choose(router, replace(facts("x"), difficulty=0.4))
    after = choose(router, replace(facts("x", *slow), difficulty=0.4))
    assert before.tier == "mid"
    assert after.tier != "mid"
    assert after.scores["mid"] < before.scores["mid"]
    assert any("measured" in reason for reason in after.reasons)


def test_a_tier_that_keeps_failing_is_passed_over() -> None:
    failing = (ALL[0], candidate("mid", failure_rate=0.8), ALL[2])
    found = route("rules", "What is the capital of Norway?", *failing)
    assert found.tier == "frontier"
    assert any("failed in 80%" in reason for reason in found.reasons)
    assert choose(make("scored"), replace(facts("x", *failing), difficulty=0.4)).tier != "mid"


@pytest.mark.parametrize(
    ("wanted", "known", "expected"),
    [
        ("small", ["frontier", "mid"], "mid"),
        ("mid", ["small", "frontier"], "frontier"),
        ("frontier", ["mid", "frontier", "small"], "frontier"),
        ("premium", ["small", "mid"], "mid"),
    ],
)
def test_the_nearest_better_tier_takes_the_place_of_one_that_is_missing(
    wanted: str, known: list[str], expected: str
) -> None:
    assert find_nearest(wanted, known)[0] == expected
    items = tuple(candidate(tier) for tier in sorted(known, key=rank_of))
    found = choose(make("fixed", tier=wanted), facts("hi", *items))
    assert found.tier == expected
    assert wanted == expected or any(expected in reason or "strongest" in reason for reason in found.reasons)


def test_a_weaker_tier_never_takes_the_place_of_one_that_is_missing_unless_it_is_allowed() -> None:
    """The reference answers with its weakest model if frontier is asked for and not configured."""
    weaker = (candidate("mid"), candidate("small"))
    with pytest.raises(ConfigError, match="'frontier' is not available, and no better one is"):
        choose(make("fixed", tier="frontier"), facts("hi", *weaker))
    found = choose(make("fixed", tier="frontier", allows_weaker=True), facts("hi", *weaker))
    assert (found.tier, found.reasons[1]) == (
        "mid",
        "there is no better tier than frontier, and a weaker one is allowed",
    )
    # A router's own wish is served by the best that there is.
    assert route("rules", "Prove it in depth, and compare two proofs.", *weaker).tier == "mid"


def test_a_message_with_an_image_goes_to_a_tier_that_is_known_to_see() -> None:
    items = (candidate("frontier"), candidate("mid", sees_images=True), candidate("small", sees_images=False))
    found = route("rules", "Prove what this picture shows, in depth.", *items, images=1)
    assert found.tier == "mid"
    assert found.rejected == {
        "frontier": "it is not known whether frontier-model sees images",
        "small": "small-model cannot see images",
    }
    # If nobody knows, the dialect decides.
    unknown = (candidate("frontier"), candidate("mid", refusal="the dialect completions cannot send images"))
    assert route("rules", "What is it?", *unknown, images=1).tier == "frontier"


def test_many_tools_need_a_model_that_is_strong_with_them() -> None:
    """The reference's documentation says that medium models are kept too, and its code leaves them out always."""
    items = (candidate("frontier", tool_strength="strong"), candidate("mid", tool_strength="medium"))
    assert route("rules", "hello there, sum this up", *items, tools=3).tier == "mid"
    assert route("rules", "hello there, sum this up", *items, tools=40).tier == "frontier"


def test_a_router_that_fails_is_replaced_and_that_is_told() -> None:
    class Broken:
        def route(self, facts: RoutingFacts) -> Route:
            raise ZeroDivisionError("no weights")

    class Wrong:
        def route(self, facts: RoutingFacts) -> Route:
            return Route("small", "small-model")

    for router, said in ((Broken(), "ZeroDivisionError: no weights"), (Wrong(), "it chose 'small'")):
        found = choose(
            router,
            facts("hi", candidate("frontier"), candidate("small", context_tokens=10), prompt_tokens=50),
        )
        assert found.tier == "frontier"
        assert said in found.reasons[0]
        assert found.rejected.keys() == {"small"}


def test_a_tier_that_failed_is_replaced_by_a_better_one_only() -> None:
    before = Route("mid", "mid-model", ("x",), {"mid": 1.0, "frontier": 0.5})
    tried = facts("hi", tried={"mid": "503"})
    found = replace_tier(tried, before, "503", allows_weaker=False)
    assert (found.tier, found.scores) == ("frontier", before.scores)
    assert found.reasons == ("mid: 503", "frontier is the nearest better tier than mid")
    last = replace(tried, tried={"mid": "503", "frontier": "401"})
    with pytest.raises(ConfigError, match="no other tier can do this: frontier: 401; mid: 503"):
        replace_tier(last, found, "401", allows_weaker=False)
    assert replace_tier(last, found, "401", allows_weaker=True).tier == "small"


def test_the_cascade_begins_with_the_weakest_tier_and_may_skip_to_the_best() -> None:
    hard = "Prove that there is no largest prime, and derive a bound. Compare two proofs in depth."
    assert route("cascade", hard).tier == "small"
    assert choose(make("cascade", hard_from=0.6), facts(hard)).tier == "frontier"
