"""Costs as people read them."""

from treadle.cli.terminal.output import write_cost


def test_a_cost_that_is_too_small_to_show_is_not_nothing() -> None:
    assert [write_cost(cost) for cost in (0.0, 2.5e-05, 0.0001, 1.5)] == [
        "$0",
        "<$0.0001",
        "$0.0001",
        "$1.5000",
    ]
