"""The picture of rewards over groups."""

from collections.abc import Sequence
from html import escape

from treadle.rollout.report.facts import GroupFacts

_WIDTH, _HEIGHT = 600, 100
_WINDOW_SHARE = 20
"""The curve is the mean over the n-th part of all groups."""
_MOST_DOTS = 2_000


def draw_curve(groups: Sequence[GroupFacts]) -> str:
    """Return the mean rewards of groups as dots, their moving mean as a line, and its deviation as a band.

    Nothing if fewer than two groups have a reward.
    """
    known = [(group.mean, group.deviation) for group in groups]
    means = [(mean, deviation) for mean, deviation in known if mean is not None]
    if len(means) < 2:
        return ""
    low = min(0.0, *[mean for mean, _ in means])
    high = max(1.0, *[mean for mean, _ in means])

    def x(index: int) -> float:
        return _WIDTH * index / (len(means) - 1)

    def y(value: float) -> float:
        return _HEIGHT * (1.0 - (min(high, max(low, value)) - low) / (high - low))

    window = max(1, len(means) // _WINDOW_SHARE)
    smooth = [_mean_of(means[max(0, index - window + 1) : index + 1]) for index in range(len(means))]
    upper = [f"{x(index):.1f} {y(mean + deviation):.2f}" for index, (mean, deviation) in enumerate(smooth)]
    lower = [f"{x(index):.1f} {y(mean - deviation):.2f}" for index, (mean, deviation) in enumerate(smooth)]
    line = [f"{x(index):.1f} {y(mean):.2f}" for index, (mean, _) in enumerate(smooth)]
    every = max(1, len(means) // _MOST_DOTS)
    dots = "".join(
        f'<ellipse class="dot" cx="{x(index):.1f}" cy="{y(mean):.2f}" rx="2" ry="1"/>'
        for index, (mean, _) in enumerate(means)
        if index % every == 0
    )
    about = f"mean of {window:,} groups" if window > 1 else "mean of each group"
    first, last = smooth[min(window, len(smooth)) - 1][0], smooth[-1][0]
    title = f"from {first:.3f} to {last:.3f}"
    return (
        f'<div class="curve"><h3>Reward <span class="soft num">{escape(title)}, {escape(about)}</span></h3>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="reward by group">'
        f'<path class="rule" d="M0 {y(0):.2f} H{_WIDTH}"/><path class="rule" d="M0 {y(1):.2f} H{_WIDTH}"/>'
        f'<path class="band" d="M{" L".join(upper)} L{" L".join(reversed(lower))} Z"/>{dots}'
        f'<path class="line" d="M{" L".join(line)}"/></svg>'
        f'<div class="axis num"><span>first group, reward {low:g} to {high:g}</span>'
        f"<span>group {len(means):,}</span></div></div>"
    )


def _mean_of(items: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(mean for mean, _ in items) / len(items), sum(deviation for _, deviation in items) / len(items)
