"""The report as a page. All texts of runs are escaped, and the page loads nothing."""

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from statistics import fmean, pstdev

from treadle.export.groups import Group
from treadle.export.html.blocks import bars, columns, section, spread, table, tile, tone
from treadle.export.html.page import Page, write_page
from treadle.export.whole import write_whole
from treadle.rollout.report.curve import draw_curve
from treadle.rollout.report.facts import DriftFacts, Facts, GroupFacts
from treadle.rollout.report.runs import Runs
from treadle.trajectory.tokens.drift import Decode

_SECTIONS = {
    "rewards": "Rewards",
    "groups": "Groups",
    "lengths": "Lengths",
    "tools": "Tools",
    "drift": "Drift",
    "tokens": "Tokens",
}
_MOST_GROUPS = 400
"""How many groups are drawn side by side."""
_SAME = "all rewards are equal"


def write_report(
    groups: Iterable[Group],
    out: Path,
    *,
    name: str,
    dropped: Mapping[str, int] | None = None,
    decode: Decode | None = None,
) -> Path:
    """Write the report of delivered groups to `out`, and return the path.

    `dropped` has the number of groups that were not delivered, by reason. `decode` converts token ids to text;
    without it, tokens are shown as numbers. Raises: `ConfigError` if the file cannot be made.
    """
    facts, runs = Facts(), Runs(decode)
    for group in groups:
        facts.add(group)
        runs.add(group)
    rows = runs.rows()
    sections = {
        "rewards": _rewards(facts),
        "groups": _groups(facts),
        "lengths": _lengths(facts),
        "tools": _tools(facts),
        "drift": _drift(facts),
        "tokens": _tokens(len(rows), facts.rollouts),
    }
    page = Page(
        title=f"{name}: rollouts",
        head=_head(name, facts, dropped or {}),
        sections=sections,
        titles=_SECTIONS,
        footer="Written by treadle rollout report. This file contains everything that it shows.",
        package="treadle.rollout.report",
        data=rows,
    )
    write_whole([write_page(page).encode()], out)
    return out


def _head(name: str, facts: Facts, dropped: Mapping[str, int]) -> str:
    rewards = [reward for group in facts.groups for reward in group.known]
    mean, deviation = (f"{fmean(rewards):.3f}", f" ± {pstdev(rewards):.3f}") if rewards else ("-", "")
    flat = sum(not group.has_variance for group in facts.groups)
    exact = facts.grades.get("token_exact", 0)
    total = sum(facts.grades.values())
    tiles = [
        tile(f"{len(facts.groups):,}", "groups"),
        tile(f"{facts.rollouts:,}", "rollouts"),
        tile(mean, f"mean reward{deviation}"),
        tile(_share(facts.solved, len(facts.groups)), "solved at least once"),
        tile(f"{flat:,}", "groups without variance"),
        tile(f"{facts.sampled_tokens:,}", "sampled tokens"),
        tile(_share(exact, total), "branches with exact tokens", "good" if total and exact == total else ""),
        tile(f"{sum(dropped.values()):,}", "groups dropped", "bad" if dropped else ""),
    ]
    notes = "".join(
        f'<p class="note">{count:,} groups were dropped: {escape(reason)}.</p>'
        for reason, count in dropped.items()
    )
    tasks = len({group.task for group in facts.groups})
    return (
        f'<h1>{escape(name)}</h1><p class="lead">Rollouts of {tasks:,} tasks.</p>'
        f'<div class="tiles">{"".join(tiles)}</div>{notes}'
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _rewards(facts: Facts) -> str:
    named = [
        [name, f"{fmean(values):.3f}", f"{pstdev(values):.3f}", f"{min(values):.3g}", f"{max(values):.3g}"]
        for name, values in facts.rewards.items()
    ]
    return section(
        "rewards",
        "Rewards",
        "The mean reward of each group, in the order of delivery. The band is the deviation within a group.",
        draw_curve(facts.groups),
        table(["reward", "mean", "deviation", "least", "most"], named, numbers=(1, 2, 3, 4)),
    )


def _groups(facts: Facts) -> str:
    shown = facts.groups[-_MOST_GROUPS:]
    lines = "".join([_group(group) for group in shown])
    more = len(facts.groups) - len(shown)
    rest = f'<p class="soft">and {more:,} earlier groups</p>' if more else ""
    lead = (
        "One line for each group, one cell for each rollout. Choose a cell to read its tokens and messages."
    )
    return section("groups", "Groups", lead, f'<div class="ids">{lines}</div>{rest}' if lines else "")


def _group(group: GroupFacts) -> str:
    cells = "".join(
        [_cell(reward, run_id) for reward, run_id in zip(group.rewards, group.run_ids, strict=True)]
    )
    mean = "-" if group.mean is None else f"{group.mean:.2f} ± {group.deviation:.2f}"
    kind, why = ("", "") if group.has_variance else (" flat", f' title="{_SAME}"')
    return (
        f'<span class="num soft">{group.number:,}</span><span class="task" title="{escape(group.task)}">'
        f'{escape(group.task)}</span><span class="cells{kind}"{why}>{cells}</span><span class="num">{mean}</span>'
    )


def _cell(reward: float | None, run_id: str) -> str:
    name = escape(run_id, quote=True)
    if reward is None:
        return f'<button type="button" class="none" data-run="{name}" title="{name}: no reward"></button>'
    colour = tone(min(1.0, max(0.0, reward)))
    text = f"{reward:.2g}".replace("0.", ".")
    kind = ' class="strong"' if reward > 0.5 else ""
    return (
        f'<button type="button"{kind} data-run="{name}" style="background:{colour}" title="{name}: {reward:.4g}">'
        f"{text}</button>"
    )


def _lengths(facts: Facts) -> str:
    return section(
        "lengths",
        "Lengths",
        "How long the rollouts are, and how they ended.",
        columns(
            spread("Output tokens", facts.tokens, "rollouts"),
            spread("Steps", facts.steps, "rollouts"),
            spread("Tool calls", facts.calls, "rollouts"),
            bars("Stop reasons", facts.stop_reasons),
        ),
    )


def _tools(facts: Facts) -> str:
    return section(
        "tools",
        "Tools",
        "Calls by tool. The red part failed or was not run.",
        bars(
            "",
            {name: tool.calls for name, tool in facts.tools.items()},
            marked={name: tool.errors for name, tool in facts.tools.items()},
        ),
    )


def _drift(facts: Facts) -> str:
    counts = {kind: found.branches for kind, found in facts.drift.items()}
    examples = "".join([_example(kind, found) for kind, found in facts.drift.items()])
    return section(
        "drift",
        "Drift",
        "A branch begins where a prompt does not extend the tokens of an earlier prompt and answer.",
        columns(
            bars("Branches by reason", counts),
            bars("Trajectories by exactness", facts.grades),
            bars("Sampled tokens by version of the weights", facts.versions),
        ),
        f"<h3>Examples</h3>{examples}" if examples else "",
    )


def _example(kind: str, found: DriftFacts) -> str:
    report = found.example
    if report is None:
        return ""
    expected, got = (
        escape(ids if text is None else repr(text))
        for text, ids in (
            (report.expected_text, " ".join(map(str, report.expected))),
            (report.found_text, " ".join(map(str, report.found))),
        )
    )
    return (
        f'<p class="drift"><b>{escape(kind)}</b> in {escape(found.run_id)}, token {report.position:,}\n'
        f"expected: {expected}\nfound:    {got}</p>"
    )


def _tokens(shown: int, total: int) -> str:
    if not shown:
        return ""
    part = "All rollouts" if shown == total else f"{shown:,} of {total:,} rollouts"
    lead = (
        f"{part} can be read here. Tokens that the model sampled are underlined, dotted where another branch is "
        "trained on them; the colour is the log probability, from green (certain) to red (surprising)."
    )
    return section(
        "tokens",
        "Tokens",
        lead,
        '<div class="controls"><select id="pick" aria-label="rollout"></select></div><div id="run"></div>',
    )
