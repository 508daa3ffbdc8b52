"""Statistics over runs."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.telemetry.test_turn_log import BEGIN, answer, asked, ended, said, turn

from treadle.core import events as e
from treadle.core.judgement import Verdict
from treadle.core.lineage import Child, Parent
from treadle.core.types import Fault, StopReason, ToolErrorKind, ToolResult, Usage
from treadle.telemetry.usage_stats import Durations, UsageStats

DAY = 86_400.0


def stats_of(*runs: list[e.DurableBody]) -> Any:
    found = UsageStats()
    for bodies in runs:
        found.add_run([e.Event("r", seq, body) for seq, body in enumerate(bodies, start=1)])
    return found.describe()


def test_an_unknown_cost_is_not_zero() -> None:
    """A model without a price cost 0, so that a sum over models was too low without a word."""
    told = stats_of([BEGIN, turn(), asked(), said(), asked(), said(answer("ok", cost=None)), ended()])
    assert (told["cost_usd"], told["known_cost_usd"], told["unknown_costs"]) == (None, 0.5, 1)
    assert told["models"]["p:m"]["cost_usd"] is None
    told = stats_of([BEGIN, turn(), asked(), said(), ended()])
    assert (told["cost_usd"], told["cached_share"], told["inferences"]) == (0.5, 0.5, 1)


def test_figures_are_by_model_tool_and_day() -> None:
    failed = e.InferenceFailed(
        step=1, error="x", error_type="RateLimitError", fault=Fault.INFRASTRUCTURE, retry_in_seconds=0.0
    )
    called = e.ToolCompleted(step=1, result=ToolResult("c", "look", "x"), duration_seconds=2.0)
    broken = replace(
        called,
        result=ToolResult("d", "look", "x", True, ToolErrorKind.TIMEOUT),
        child=Child("k", Usage(9, 9), 9.0),
    )
    verdict = Verdict("no", "p:judge", Usage(5, 5), 0.5)
    told = stats_of(
        [
            replace(BEGIN, at=0.0),
            replace(turn(), at=1 * DAY),
            replace(asked(), at=1 * DAY),
            replace(failed, at=1 * DAY),
            replace(said(verdict=verdict), at=1 * DAY),
            replace(called, at=2 * DAY),
            replace(broken, at=2 * DAY),
            replace(asked(), at=3 * DAY),
            replace(said(answered_by="p:other"), at=3 * DAY),
            replace(ended(reason=StopReason.ERROR), at=3 * DAY),
        ]
    )
    assert told["models"]["p:m"]["errors"] == {"RateLimitError": 1}
    assert told["models"]["p:m"]["cost_usd"] == 1.0
    assert told["models"]["p:other"]["inferences"] == 1
    assert (told["tools"]["look"]["calls"], told["tools"]["look"]["errors"]) == (2, {"timeout": 1})
    assert told["tools"]["look"]["median_seconds"] == pytest.approx(2.0, rel=0.011)
    assert [use["inferences"] for use in told["days"].values()] == [1, 1]
    assert told["stop_reasons"] == {"error": 1}


def test_copies_and_lost_inferences() -> None:
    """What a fork copied was paid once; an inference whose answer was lost has an unknown cost."""
    forked = e.RunStarted(version=e.VERSION, parent=Parent("origin", 4))
    told = stats_of([forked, turn(), asked(), said(), e.RunResumed(), asked(), said(), ended()])
    assert (told["inferences"], told["cost_usd"]) == (1, 0.5)
    told = stats_of([BEGIN, turn(), asked(), e.RunResumed(), asked(), said(), ended()])
    assert (told["errors"], told["cost_usd"], told["unknown_costs"]) == ({"Lost": 1}, None, 1)


def test_quantiles_are_right_to_one_percent() -> None:
    durations = Durations()
    assert durations.quantile(0.5) is None
    for number in range(1, 1001):
        durations.add(number / 100)
    assert durations.quantile(0.5) == pytest.approx(5.0, rel=0.011)
    assert durations.quantile(0.95) == pytest.approx(9.5, rel=0.011)
    durations.add(0.0)
    assert len(durations.buckets) < 400
