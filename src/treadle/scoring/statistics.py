"""Statistics of scores: intervals of means, differences between models, pass rates, and how many tasks are needed.

Pure functions. Samples of one task are alike, so each task is a cluster: `scores_by_task` has a list of scores for
each task. What is estimated is the mean over the tasks that these were drawn from, not over these tasks alone.
"""

import math
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from statistics import NormalDist, fmean

from msgspec import Struct

LEVEL = 0.95
"""The share of evaluations whose interval has the true value in it."""
_POWER = 0.8
"""The share of evaluations that are to find a difference that exists."""
_EXACT_TASKS = 13
"""Up to so many tasks whose scores differ, all changes of signs are tried."""
_LEAST_FREEDOM = 0.5
"""The least number of degrees of freedom, of clusters of which one is much larger than the others."""
_BINARY_FREEDOM = 8
"""How many times as many degrees of freedom clusters of samples that are 0 or 1 have: chosen so that intervals of 5
to 200 tasks have the true mean in 93 to 97 of 100 cases."""
_LEAST_TASKS = 6
"""With fewer tasks, no differences are significant at the usual level."""
_FLIPS = 5000
_MOST_FLIPPED = 200
"""From so many tasks on, the test of a difference is Student's."""
_RESAMPLES = 2000
_ROUNDING = 1e-9
"""Differences below this are errors of rounding."""


def reaches(score: float, least: float) -> bool:
    """Return whether a score, or a mean of scores, is at least `least`, apart from errors of rounding."""
    return score > least - _ROUNDING


class MeanEstimate(Struct, frozen=True):
    mean: float
    low: float
    high: float
    tasks: int
    samples: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def estimate_mean(scores_by_task: Sequence[Sequence[float]], level: float = LEVEL) -> MeanEstimate | None:
    """Return the mean of all scores with an interval that respects the clusters; `None` if there are no scores.

    For scores from 0 to 1 it is Wilson's interval for as many independent samples as the clusters are worth. Thus
    it stays within 0 and 1, and is no point if all scores are 0. The variance between clusters is mixed with that
    of one more cluster whose samples are half dependent, because a variance of few clusters that are not all 0, or
    all 1, is too small too often. Other scores have Student's interval. If there is only one task, its samples are
    the clusters, and the mean of that task is estimated. Clusters of different sizes count for fewer of one size
    (Kish, `(sum n)^2 / sum n^2`), since the large ones decide. `python -m benchmarks coverage` measures how often
    the interval has the true mean.
    """
    groups = [group for group in scores_by_task if group]
    if len(groups) == 1:
        groups = [[score] for score in groups[0]]
    scores = [score for group in groups for score in group]
    if not scores:
        return None
    tasks, samples, mean = len(groups), len(scores), fmean(scores)
    is_share = all(0 <= score <= 1 for score in scores)
    if tasks == 1:
        low, high = (0.0, 1.0) if is_share else (-math.inf, math.inf)
        return MeanEstimate(mean, low, high, tasks, samples)
    clusters = samples**2 / sum([len(group) ** 2 for group in groups])
    freedom = max(clusters - 1, _LEAST_FREEDOM)
    sums = [sum([score - mean for score in group]) for group in groups]
    variance = sum([item * item for item in sums]) / samples**2 * (1 + 1 / freedom)
    if not is_share:
        half = student_quantile((1 + level) / 2, freedom) * math.sqrt(variance)
        return MeanEstimate(mean, mean - half, mean + half, tasks, samples)
    is_binary = all(score in (0, 1) for score in scores)
    half_dependent = (1 / clusters + 1 / samples) / 2
    spread = sum([(score - mean) ** 2 for score in scores]) / (samples - 1)
    telling = min(sum([max(group) > 0 for group in groups]), sum([min(group) < 1 for group in groups]))
    weight = telling * clusters / tasks
    mixed = (variance * weight + spread * half_dependent) / (weight + 1)
    worth = mean * (1 - mean) / mixed if mixed > _ROUNDING**2 else 1 / half_dependent
    quantile = NormalDist().inv_cdf((1 + level) / 2)
    # The variance of independent samples that are 0 or 1 follows from their mean. Else it is estimated from the
    # clusters; of samples that are 0 or 1, a part follows from the means of the clusters.
    if is_binary and samples == tasks:
        worth = samples
    else:
        quantile = student_quantile((1 + level) / 2, (_BINARY_FREEDOM if is_binary else 1) * freedom)
    low, high = _wilson(mean, worth, quantile)
    return MeanEstimate(mean, low, high, tasks, samples)


def _wilson(mean: float, samples: float, quantile: float) -> tuple[float, float]:
    ratio = quantile * quantile / samples
    centre = (mean + ratio / 2) / (1 + ratio)
    half = quantile / (1 + ratio) * math.sqrt(mean * (1 - mean) / samples + ratio / samples / 4)
    # Rounding must not leave the mean outside.
    return max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))


def bootstrap_mean(
    scores_by_task: Sequence[Sequence[float]], level: float = LEVEL, seed: int = 0
) -> MeanEstimate | None:
    """Return the mean of all scores with the interval of a bootstrap over tasks; `None` if there are no scores.

    It is the percentile interval, widened for few tasks (Hesterberg, arXiv 1411.5279, section 4.2). It assumes
    nothing about the scores, so that it shows whether the interval of `estimate_mean` depends on what that assumes.
    With fewer than 20 tasks whose scores are nearly all equal, it is too narrow.
    """
    groups = [group for group in scores_by_task if group]
    if not groups:
        return None
    sums, sizes = [sum(group) for group in groups], [len(group) for group in groups]
    tasks, draw = len(groups), random.Random(seed)
    means = []
    for _ in range(_RESAMPLES):
        chosen = draw.choices(range(tasks), k=tasks)
        means.append(sum([sums[place] for place in chosen]) / sum([sizes[place] for place in chosen]))
    means.sort()
    wide = 1.0
    if tasks > 1:
        wide = math.sqrt(tasks / (tasks - 1)) * student_quantile((1 + level) / 2, tasks - 1)
        wide = NormalDist().cdf(wide) * 2 - 1
    low, high = _percentile(means, (1 - wide) / 2), _percentile(means, (1 + wide) / 2)
    return MeanEstimate(sum(sums) / sum(sizes), low, high, tasks, sum(sizes))


def _percentile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    before = math.floor(place)
    after = min(before + 1, len(ordered) - 1)
    return ordered[before] + (ordered[after] - ordered[before]) * (place - before)


class ScoreDifference(Struct, frozen=True):
    """How much the scores of one model are above those of another, over the tasks that both have."""

    mean: float
    low: float
    high: float
    p_value: float
    """The probability of a difference at least this large if the models were equally good."""
    tasks: int
    needed_tasks: int | None = None
    """How many tasks would show a difference of this size in four of five evaluations, with the same number of
    samples of each; `None` if there is no difference."""

    @property
    def is_significant(self) -> bool:
        """True if the models differ at the level of the intervals."""
        return self.p_value < 1 - LEVEL


def compare_paired(
    one: Mapping[str, Sequence[float]], other: Mapping[str, Sequence[float]], level: float = LEVEL
) -> ScoreDifference | None:
    """Return the mean difference of the scores of `one` and `other` by task; `None` if no task has both.

    The interval is Student's over the differences of the tasks' means, from -1 to 1 at most for scores from 0 to 1.
    If all are 0, it says how often the models may still differ on further tasks. The test changes the signs of
    differences at random, or in all ways if these are few.
    """
    names = [name for name, scores in one.items() if scores and other.get(name)]
    if not names:
        return None
    differences = [fmean(one[name]) - fmean(other[name]) for name in names]
    found = [item if abs(item) >= _ROUNDING else 0.0 for item in differences]
    mean, tasks = fmean(found), len(found)
    if abs(mean) < _ROUNDING:
        mean = 0.0
    if tasks == 1:
        return ScoreDifference(mean, -1.0, 1.0, 1.0, 1)
    variance = sum([(item - mean) ** 2 for item in found]) / (tasks - 1)
    if variance < _ROUNDING**2:
        unseen = 1 - (1 - level) ** (1 / tasks)
        low, high = mean - unseen, mean + unseen
    else:
        half = student_quantile((1 + level) / 2, tasks - 1) * math.sqrt(variance / tasks)
        low, high = mean - half, mean + half
    if all(0 <= score <= 1 for name in names for score in (*one[name], *other[name])):
        low, high = max(low, -1.0), min(high, 1.0)
    needed = None if mean == 0 else find_needed_tasks(mean, variance, level)
    return ScoreDifference(mean, low, high, _test_signs(found), tasks, needed)


def _test_signs(differences: Sequence[float]) -> float:
    """Return the two-sided probability of a sum that is at least as far from 0 if signs were chosen at random."""
    found = [abs(item) for item in differences if item]
    total = abs(sum(differences)) - _ROUNDING
    if len(found) <= _EXACT_TASKS:
        sums = [
            abs(sum(map(float.__mul__, found, signs))) for signs in product((1.0, -1.0), repeat=len(found))
        ]
        return sum([item >= total for item in sums]) / len(sums)
    count = len(differences)
    if count >= _MOST_FLIPPED:
        mean = sum(differences) / count
        variance = sum([(item - mean) ** 2 for item in differences]) / (count - 1)
        if variance < _ROUNDING**2:
            return 2.0 ** (1 - count)
        return student_tails(abs(mean) / math.sqrt(variance / count), count - 1)
    draw = random.Random(0).getrandbits
    beyond = 0
    for _ in range(_FLIPS):
        bits = draw(len(found))
        value = sum([item if bits >> place & 1 else -item for place, item in enumerate(found)])
        beyond += abs(value) >= total
    return (beyond + 1) / (_FLIPS + 1)


def find_needed_tasks(difference: float, variance: float, level: float = LEVEL, power: float = _POWER) -> int:
    """Return how many tasks show a `difference` between two models at `level` in a share `power` of evaluations.

    `variance` is that of the differences of the tasks' means. Raises: `ValueError` if `difference` is 0.
    """
    if difference == 0:
        raise ValueError("no number of tasks shows a difference of 0; give the least difference that matters")
    normal = NormalDist()
    reach = normal.inv_cdf((1 + level) / 2) + normal.inv_cdf(power)
    return max(_LEAST_TASKS, math.ceil(reach * reach * variance / difference**2))


class Agreement(Struct, frozen=True):
    """How far a scorer, such as a judge, says the same as labels."""

    share: MeanEstimate
    """The share of the labelled samples about which both say the same."""
    kappa: float | None
    """Cohen's kappa: 1 if they always agree, 0 if as often as by chance; `None` if both say only one thing."""


def measure_agreement(
    labels: Mapping[str, bool], scores: Mapping[str, float], least: float = 0.5
) -> Agreement | None:
    """Return how far scores, of which `least` and above are good, agree with labels of the same samples; `None` if
    there are no samples with both."""
    pairs = [(label, scores[name] >= least) for name, label in labels.items() if name in scores]
    share = estimate_mean([[float(label == verdict)] for label, verdict in pairs])
    if share is None:
        return None
    good, said = fmean([label for label, _ in pairs]), fmean([verdict for _, verdict in pairs])
    chance = good * said + (1 - good) * (1 - said)
    return Agreement(share, None if chance == 1 else (share.mean - chance) / (1 - chance))


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Return the probability that at least one of `k` attempts at a task solves it, estimated without bias from
    `samples` attempts of which `solved` did (arXiv 2107.03374). Raises: `ValueError` if `k` is above `samples`."""
    _check_k(samples, solved, k)
    return 1 - math.comb(samples - solved, k) / math.comb(samples, k)


def pass_all_k(samples: int, solved: int, k: int) -> float:
    """Return the probability that all of `k` attempts at a task solve it (pass^k of arXiv 2406.12045), estimated
    without bias. Raises: `ValueError` if `k` is above `samples`."""
    _check_k(samples, solved, k)
    return math.comb(solved, k) / math.comb(samples, k)


def _check_k(samples: int, solved: int, k: int) -> None:
    if not 1 <= k <= samples or not 0 <= solved <= samples:
        raise ValueError(
            f"{k} of {samples} attempts, {solved} of them solved, cannot be drawn; give k from 1 to {samples}"
        )


@lru_cache(maxsize=512)
def student_quantile(share: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution, for a `share` above 0.5, with `freedom` degrees."""
    low, high = 0.0, 1.0
    while student_cdf(high, freedom) < share:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, freedom) < share else (low, middle)
    return high


def student_cdf(value: float, freedom: float) -> float:
    """Return the share of Student's t distribution below a `value` of at least 0."""
    return 1 - student_tails(value, freedom) / 2


def student_tails(value: float, freedom: float) -> float:
    """Return the share of Student's t distribution further from 0 than `value`, exact also where it is tiny."""
    return incomplete_beta(freedom / (freedom + value * value), freedom / 2, 0.5)


def incomplete_beta(value: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction (DLMF 8.17.22)."""
    if value <= 0 or value >= 1:
        return float(value >= 1)
    if value > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - value, b, a)
    log = a * math.log(value) + b * math.log1p(-value) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    # Lentz's algorithm.
    fraction, numerator, denominator = 1.0, 1.0, 0.0
    for step in range(1, 1000):
        half = step // 2
        if step % 2:
            part = -(a + half) * (a + b + half) * value / ((a + step - 1) * (a + step))
        else:
            part = half * (b - half) * value / ((a + step - 1) * (a + step))
        denominator = 1 / (1 + part * denominator or 1e-300)
        numerator = 1 + part / numerator or 1e-300
        change = numerator * denominator
        fraction *= change
        if abs(change - 1) < 1e-15:
            break
    return math.exp(log) / a / fraction
