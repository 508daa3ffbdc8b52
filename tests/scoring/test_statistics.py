"""Intervals have the true mean as often as they say, and agree with other implementations."""

import math
import random
from itertools import combinations

import mpmath
import pytest
from benchmarks import evals as simulated
from tests.conftest import IS_FULL

from treadle.scoring.statistics import (
    bootstrap_mean,
    compare_paired,
    estimate_mean,
    find_needed_tasks,
    incomplete_beta,
    measure_agreement,
    pass_all_k,
    pass_at_k,
    reaches,
    student_quantile,
    student_tails,
)


@pytest.mark.parametrize(
    ("share", "freedom", "value"),
    [
        # scipy 1.17: scipy.stats.t.ppf
        (0.975, 1, 12.706204736174694),
        (0.975, 4, 2.7764451051977934),
        (0.975, 27, 2.0518305164802846),
        (0.995, 1999, 2.5782910195219233),
    ],
)
def test_quantiles_of_student(share: float, freedom: int, value: float) -> None:
    assert student_quantile(share, freedom) == pytest.approx(value, rel=1e-9)


def test_the_incomplete_beta_function() -> None:
    draw = random.Random(3)
    for _ in range(200):
        a, b, x = draw.uniform(0.2, 60), draw.uniform(0.2, 60), draw.random()
        assert incomplete_beta(x, a, b) == pytest.approx(
            float(mpmath.betainc(a, b, 0, x, regularized=True)), abs=1e-10
        )


def test_chances_are_those_of_all_draws() -> None:
    for samples in (1, 3, 5):
        for solved in range(samples + 1):
            results = [1] * solved + [0] * (samples - solved)
            for k in range(1, samples + 1):
                draws = list(combinations(results, k))
                assert pass_at_k(samples, solved, k) == pytest.approx(sum(map(any, draws)) / len(draws))
                assert pass_all_k(samples, solved, k) == pytest.approx(sum(map(all, draws)) / len(draws))
    with pytest.raises(ValueError, match="give k from 1 to 3"):
        pass_at_k(3, 1, 4)


def test_an_interval_of_independent_samples_is_that_of_wilson() -> None:
    # statsmodels' proportion_confint(6, 20, method="wilson")
    found = estimate_mean([[1.0]] * 6 + [[0.0]] * 14)
    assert found is not None
    assert (found.mean, found.tasks, found.samples) == (0.3, 20, 20)
    assert (found.low, found.high) == (pytest.approx(0.1455, abs=1e-4), pytest.approx(0.5190, abs=1e-4))


def test_intervals_at_the_ends_are_no_points() -> None:
    for value in (0.0, 1.0):
        found = estimate_mean([[value] * 4] * 10)
        assert found is not None
        assert found.mean == value
        assert 0.19 < found.high - found.low < 0.35
    assert estimate_mean([]) is None
    assert estimate_mean([[], []]) is None
    single = estimate_mean([[0.4]])
    assert single is not None
    assert (single.low, single.high) == (0.0, 1.0)


def test_samples_that_are_alike_count_less() -> None:
    alike = estimate_mean([[1.0] * 4] * 10 + [[0.0] * 4] * 10)
    apart = estimate_mean([[1.0, 0.0, 1.0, 0.0]] * 20)
    assert alike is not None
    assert apart is not None
    assert alike.mean == apart.mean == 0.5
    assert alike.high - alike.low > 2 * (apart.high - apart.low)


def test_other_scores_have_the_interval_of_student() -> None:
    # scipy 1.17: scipy.stats.t.interval(0.95, 4, mean, sem)
    found = estimate_mean([[2.0], [4.0], [4.5], [7.0], [1.0]])
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(0.801306, abs=1e-5), pytest.approx(6.598694, abs=1e-5))


@pytest.mark.parametrize("tasks", [5, 10, 20])
def test_a_large_cluster_does_not_count_for_many(tasks: int) -> None:
    """A few conversations with many answers decide the mean, and are few all the same."""
    draw, hits = random.Random(tasks), 0
    for _ in range(300):
        scores = []
        for place in range(tasks):
            rate = draw.random()
            scores.append([float(draw.random() < rate) for _ in range(1 if place % 5 else 20)])
        found = estimate_mean(scores)
        assert found is not None
        hits += found.low <= 0.5 <= found.high
    assert hits / 300 >= 0.91


def test_one_cluster_with_nearly_all_samples_says_little() -> None:
    found = estimate_mean([[1.0, 0.0] * 5000, [1.0]])
    assert found is not None
    assert found.high - found.low > 0.8
    wide = estimate_mean([[1.0, 3.0] * 5000, [1.0]])
    assert wide is not None
    assert wide.low <= wide.mean <= wide.high


def test_the_bootstrap_is_near_the_interval_for_many_tasks() -> None:
    draw = random.Random(5)
    scores = [[float(draw.random() < 0.6) for _ in range(3)] for _ in range(200)]
    one, other = estimate_mean(scores), bootstrap_mean(scores)
    assert one is not None
    assert other is not None
    assert one.mean == pytest.approx(other.mean)
    assert (one.low, one.high) == (pytest.approx(other.low, abs=0.01), pytest.approx(other.high, abs=0.01))
    assert bootstrap_mean([]) is None


@pytest.mark.parametrize("number", range(len(simulated.SETTINGS)) if IS_FULL else (8, 13, 26, 39))
def test_coverage(number: int) -> None:
    """The intervals of 1,000 simulated evaluations have the true mean in 93 to 97 % of them, and of a few tasks
    in up to 98 %. The draws are the same each time."""
    tasks, epochs, alike, rates = simulated.SETTINGS[number]
    draw = random.Random(f"{tasks}/{epochs}/{alike}/{rates}")
    count = simulated.EVALUATIONS
    hits = sum(simulated.is_covered(draw, tasks, epochs, alike, rates) for _ in range(count))
    assert 0.93 <= hits / count <= (0.98 if tasks <= 20 else 0.97)


def test_paired_differences() -> None:
    names = [str(number) for number in range(30)]
    draw = random.Random(1)
    hard = {name: draw.random() for name in names}
    one = {name: [min(1.0, hard[name] + 0.1 + draw.uniform(-0.02, 0.02))] for name in names}
    other = {name: [hard[name]] for name in names}
    found = compare_paired(one, {**other, "more": [0.0]})
    assert found is not None
    assert found.tasks == 30
    assert found.low < found.mean < found.high
    assert found.is_significant
    assert found.p_value < 0.001
    # The scores of the models alone would not show it.
    alone = [estimate_mean(list(scores.values())) for scores in (one, other)]
    assert alone[0] is not None
    assert alone[1] is not None
    assert alone[0].low < alone[1].high
    back = compare_paired(other, one)
    assert back is not None
    assert (back.mean, back.p_value) == (pytest.approx(-found.mean), found.p_value)


def test_the_test_of_signs_is_exact_for_few_tasks() -> None:
    one = {str(number): [1.0] for number in range(6)}
    found = compare_paired(one, {name: [0.5] for name in one})
    assert found is not None
    assert found.p_value == 2 / 2**6
    same = compare_paired(one, one)
    assert same is not None
    assert (same.mean, same.p_value, same.needed_tasks) == (0.0, 1.0, None)
    assert same.low < -0.3 < 0.3 < same.high
    assert compare_paired(one, {}) is None


@pytest.mark.parametrize("score", [0.1, 0.2, 0.3, 0.7, 0.95, 1 / 3])
def test_errors_of_rounding_are_no_differences(score: float) -> None:
    widths = []
    for tasks in range(3, 12):
        estimate = estimate_mean([[score]] * tasks)
        assert estimate is not None
        widths.append(estimate.high - estimate.low)
        raised = {str(at): [score + at / 10 + 0.3] for at in range(tasks)}
        difference = compare_paired(raised, {str(at): [score + at / 10] for at in range(tasks)})
        assert difference is not None
        assert difference.high - difference.low > 0.4
    assert widths == sorted(widths, reverse=True)  # the more tasks, the surer, and never a point
    assert widths[-1] > 0.3
    mean = estimate_mean([[score]] * 3)
    assert mean is not None
    assert reaches(mean.mean, score)
    assert not reaches(mean.mean, score + 0.001)
    one = {"a": [1.0, 1.0, 0.0], "b": [0.0], "c": [2 / 3]}
    nothing = compare_paired(one, {"a": [0.0], "b": [2 / 3], "c": [1.0, 1.0, 0.0]})
    assert nothing is not None
    assert (nothing.mean, nothing.needed_tasks) == (0.0, None)


@pytest.mark.parametrize("tasks", [10, 50, 400])
def test_equal_models_do_not_differ_if_their_means_are_rounded_differently(tasks: int) -> None:
    names = [str(number) for number in range(tasks)]
    same = compare_paired({name: [0.1 + 0.2] for name in names}, {name: [0.3] for name in names})
    assert same is not None
    assert (same.mean, same.p_value, same.is_significant) == (0.0, 1.0, False)
    better = compare_paired({name: [0.7] for name in names}, {name: [0.4] for name in names})
    assert better is not None
    assert better.p_value < 0.01


def test_the_interval_of_a_difference_stays_within_what_scores_allow() -> None:
    for scores in (
        ([1.0] * 12, [0.0] * 11 + [1.0]),
        ([1.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        ([1.0] * 3, [0.0] * 3),
    ):
        one, other = ({str(at): [score] for at, score in enumerate(side)} for side in scores)
        for found in (compare_paired(one, other), compare_paired(other, one)):
            assert found is not None
            assert -1 <= found.low <= found.mean <= found.high <= 1
    points = compare_paired({"a": [10.0], "b": [0.0]}, {"a": [0.0], "b": [0.0]})
    assert points is not None
    assert points.high > 10


@pytest.mark.sets(0)
def test_equal_models_rarely_differ() -> None:
    draw, wrong = random.Random(8), 0
    for _ in range(200):
        scores = [{str(task): [float(draw.random() < 0.5)] for task in range(20)} for _ in range(2)]
        found = compare_paired(scores[0], scores[1])
        assert found is not None
        wrong += found.is_significant
    assert wrong <= 20  # 5 % of 200, and three standard deviations


def test_agreement_with_labels() -> None:
    # 20 good by both, 15 bad by both, 10 and 5 by one: the example in Cohen's measure on Wikipedia has kappa 0.4.
    both = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    labels = {str(number): label for number, (label, _) in enumerate(both)}
    scores = {str(number): float(verdict) for number, (_, verdict) in enumerate(both)}
    found = measure_agreement({**labels, "not scored": True}, scores)
    assert found is not None
    assert (found.share.mean, found.share.samples) == (0.7, 50)
    assert found.kappa == pytest.approx(0.4)
    assert measure_agreement(labels, {}) is None
    alike = measure_agreement({"a": True}, {"a": 0.9})
    assert alike is not None
    assert alike.kappa is None


@pytest.mark.sets(0)
def test_needed_tasks_show_the_difference_in_four_of_five_evaluations() -> None:
    draw, deviation, difference = random.Random(2), 0.4, 0.15
    needed = find_needed_tasks(difference, deviation**2)
    assert needed == math.ceil((1.959964 + 0.841621) ** 2 * 0.16 / 0.0225)
    shown, evaluations = 0, 100 if IS_FULL else 15
    for _ in range(evaluations):
        one = {str(task): [draw.gauss(difference, deviation)] for task in range(needed)}
        found = compare_paired(one, {name: [0.0] for name in one})
        assert found is not None
        shown += found.is_significant
    assert 0.68 <= shown / evaluations <= 0.92
    with pytest.raises(ValueError, match="a difference of 0"):
        find_needed_tasks(0.0, 1.0)


@pytest.mark.parametrize(
    ("value", "freedom", "share"),
    [(2.0, 10, 0.07338803477074), (8.3, 719, 5.142352152022725e-16), (35.0, 719, 1.9102151181549012e-157)],
)
def test_tails_are_exact_where_they_are_tiny(value: float, freedom: float, share: float) -> None:
    # The shares are those of scipy 1.17, `2 * stats.t.sf(value, freedom)`.
    assert student_tails(value, freedom) == pytest.approx(share, rel=1e-6)
