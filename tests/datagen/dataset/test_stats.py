"""Statistics of a dataset."""

from tests.datagen.dataset.made import plain_row

from treadle.datagen.dataset.dataset_stats import DatasetStats
from treadle.datagen.dataset.entries import RowEntry
from treadle.datagen.quality.protocol import FilterVerdict


def test_no_token_is_counted_twice() -> None:
    """The row of an attempt has the tokens of earlier attempts too. In the sums, each attempt counts once."""
    stats = DatasetStats()
    bad = (FilterVerdict("length", is_passed=False),)
    stats.add(RowEntry(1, plain_row(1, input_tokens=300, output_tokens=30, cost_usd=3.0)))
    for number, tokens in ((1, 100), (1, 250), (2, 100), (2, 180)):
        row = plain_row(number, input_tokens=tokens, output_tokens=tokens // 10, cost_usd=tokens / 100)
        stats.reject(RowEntry(number, row, bad))
    assert (stats.input_tokens, stats.output_tokens, stats.cost_usd) == (50, 5, 0.5)
    assert (stats.rejected_input_tokens, stats.rejected_output_tokens) == (430, 43)
    assert stats.rejected_cost_usd == 4.3
