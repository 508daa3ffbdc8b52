"""The report of rollouts, as blocks that the viewer shows: rewards, groups, lengths, tools, drift and tokens."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean, pstdev
from typing import NamedTuple

from msgspec import Raw, Struct, field

from treadle.core.types import Json, Role
from treadle.export import report_blocks as b
from treadle.export.groups import Group, Rollout
from treadle.trajectory.tokens.trajectories import Decode, DriftReport, TokenGrade, Trajectory, split_text

_WHOLE, _WHOLE_BYTES = 192, 12_000_000
"""How many rollouts have their messages and tokens in the report, and how large these may be."""
_MAX_TOKENS = 6_000
"""How many tokens of a branch are shown."""
_WINDOW_SHARE = 20
"""The curve of rewards is the mean over the n-th part of all groups."""
_MAX_POINTS = 2_000
_LOGPROBS = {
    True: "of the policy, as it samples",
    False: "of another distribution than the one sampled from",
    None: "not known of which distribution",
}
"""What the log probabilities of a trajectory are of, by `Trajectory.has_policy_logprobs`."""


class GroupLine(NamedTuple):
    """One group as a line of the report."""

    number: int
    task: str
    cells: list[tuple[str, float | None]]
    """The runs and their rewards."""
    has_variance: bool

    @property
    def known(self) -> list[float]:
        """The rewards that are known."""
        return [reward for _, reward in self.cells if reward is not None]


class RolloutCounts(Struct):
    """Everything that a report counts, group by group."""

    groups: list[GroupLine] = field(default_factory=list)
    tokens: b.Spread = field(default_factory=b.Spread)
    """Output tokens of a rollout."""
    steps: b.Spread = field(default_factory=b.Spread)
    calls: b.Spread = field(default_factory=b.Spread)
    tools: Counter[str] = field(default_factory=Counter)
    tool_errors: Counter[str] = field(default_factory=Counter)
    """Calls that failed or were not run."""
    drift: Counter[str] = field(default_factory=Counter)
    """The number of branches by the reason why they begin."""
    examples: dict[str, tuple[str, DriftReport]] = field(default_factory=dict)
    """The run and the report of the first branch of each reason."""
    stop_reasons: Counter[str] = field(default_factory=Counter)
    grades: Counter[str] = field(default_factory=Counter)
    """The number of trajectories of each grade."""
    logprobs: Counter[str] = field(default_factory=Counter)
    """The number of exact trajectories by what their log probabilities are of."""
    versions: Counter[str] = field(default_factory=Counter)
    """Sampled tokens by the version of the weights."""
    rewards: dict[str, list[float]] = field(default_factory=dict)
    """The grades by name."""
    sampled_tokens: int = 0

    def add(self, group: Group) -> None:
        """Count a group."""
        cells = [(rollout.run_id, rollout.reward) for rollout in group.rollouts]
        self.groups.append(GroupLine(group.number, group.task, cells, group.has_variance))
        for rollout in group.rollouts:
            self._add_rollout(rollout)

    def _add_rollout(self, rollout: Rollout) -> None:
        results = [item for item in rollout.messages if item.role is Role.TOOL]
        self.tools.update([item.name or "" for item in results])
        self.tool_errors.update([item.name or "" for item in results if item.is_error])
        self.calls.add(len(results))
        self.tokens.add(rollout.usage.output_tokens)
        self.steps.add(rollout.steps)
        self.stop_reasons[rollout.stop_reason.value] += 1
        for name, reward in rollout.rewards.items():
            self.rewards.setdefault(name, []).append(reward)
        for trajectory in rollout.trajectories:
            self.grades[trajectory.grade.value] += 1
            if trajectory.grade is TokenGrade.TOKEN_EXACT:
                self.logprobs[_LOGPROBS[trajectory.has_policy_logprobs]] += 1
            self.sampled_tokens += trajectory.sampled_tokens
            if (drift := trajectory.drift) is not None:
                self.drift[drift.kind.value] += 1
                self.examples.setdefault(drift.kind.value, (trajectory.run_id, drift))
            if trajectory.grade is not TokenGrade.TEXT:
                for span in trajectory.spans:
                    for tokens, version in span.weight_versions if span.is_trained else ():
                        self.versions[version] += tokens


def make_rollout_report(
    groups: Iterable[Group],
    *,
    name: str,
    dropped: Mapping[str, int] | None = None,
    decode: Decode | None = None,
) -> b.Report:
    """Return the report of delivered groups.

    `dropped` has the number of groups that were not delivered, by reason. `decode` converts token ids to text;
    without it, tokens are shown as numbers.
    """
    counts, rows = RolloutCounts(), b.RowSample(_WHOLE, _WHOLE_BYTES)
    newest: Group | None = None

    def show(group: Group, *, is_wanted: bool) -> None:
        for rollout in group.rollouts:
            body = partial(_write_body, rollout, decode)
            rows.add(_write_head(group, rollout), body, group.group_id, is_wanted=is_wanted)

    for group in groups:
        counts.add(group)
        if newest is not None:
            show(newest, is_wanted=len(counts.groups) == 2)
        newest = group
    if newest is not None:
        # The first and the newest group are always whole.
        show(newest, is_wanted=True)
    dropped = dropped or {}
    return b.Report(
        title=f"{name}: rollouts",
        name=name,
        lead=f"Rollouts of {len({group.task for group in counts.groups}):,} tasks.",
        figures=_figures(counts, dropped),
        notes=[f"{count:,} groups were dropped: {reason}." for reason, count in dropped.items()],
        sections=(
            _rewards(counts),
            _groups(counts),
            _lengths(counts),
            _tools(counts),
            _drift(counts),
            _tokens(*rows.rows()),
        ),
        footer="Written by treadle rollout report. This file contains everything that it shows.",
    )


def _figures(counts: RolloutCounts, dropped: Mapping[str, int]) -> list[b.Figure]:
    groups, rewards = counts.groups, [reward for group in counts.groups for reward in group.known]
    mean, deviation = (f"{fmean(rewards):.3f}", f" ± {pstdev(rewards):.3f}") if rewards else ("-", "")
    solved = sum(any(reward >= 1.0 for reward in group.known) for group in groups)
    exact, total = counts.grades.get("token_exact", 0), counts.grades.total()
    branches = b.write_share(exact, total)
    return [
        b.Figure(mean, f"mean reward{deviation}"),
        b.Figure(b.write_share(solved, len(groups)), "of groups solved at least once"),
        b.Figure(f"{len(groups):,}", "groups"),
        b.Figure(f"{sum(not group.has_variance for group in groups):,}", "groups without variance"),
        b.Figure(f"{sum(dropped.values()):,}", "groups dropped", "bad" if dropped else ""),
        b.Figure(branches, "of branches with exact tokens", "good" if total and exact == total else ""),
        b.Figure(f"{sum(len(group.cells) for group in groups):,}", "rollouts"),
        b.Figure(f"{counts.sampled_tokens:,}", "sampled tokens"),
    ]


def _rewards(counts: RolloutCounts) -> b.ReportSection:
    named = [
        (name, f"{fmean(values):.3f}", f"{pstdev(values):.3f}", f"{min(values):.3g}", f"{max(values):.3g}")
        for name, values in counts.rewards.items()
    ]
    heads = ("reward", "mean", "deviation", "least", "most")
    lead = (
        "The mean reward of each group, in the order of delivery. The band is the deviation within a group."
    )
    blocks = (
        *_curve([group.known for group in counts.groups if group.known]),
        *b.make_table(heads, named, (1, 2, 3, 4)),
    )
    return b.ReportSection("rewards", "Rewards", lead, blocks)


def _curve(rewards: Sequence[Sequence[float]]) -> Iterable[b.LineBlock]:
    """Return the mean rewards of groups as dots, their moving mean as a line, and its deviation as a band."""
    if len(rewards) < 2:
        return
    means, deviations = [fmean(item) for item in rewards], [pstdev(item) for item in rewards]
    window, every = max(1, len(means) // _WINDOW_SHARE), max(1, len(means) // _MAX_POINTS)

    def smooth(values: Sequence[float]) -> list[float]:
        return [fmean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1, every)]

    line, around = smooth(means), smooth(deviations)
    about = f"mean of {window:,} groups" if window > 1 else "mean of each group"
    yield b.LineBlock(
        title="Reward",
        about=f"from {line[0]:.3f} to {line[-1]:.3f}",
        series=[
            b.Series(
                "deviation",
                [mean - width for mean, width in zip(line, around, strict=True)],
                "band",
                [mean + width for mean, width in zip(line, around, strict=True)],
            ),
            b.Series("one group", means[::every], "dots"),
            b.Series(about, line),
        ],
        ends=("first group", f"group {len(means):,}"),
        point="group" if every == 1 else f"point (every {every} groups)",
        high=1.0,
        is_wide=True,
    )


def _groups(counts: RolloutCounts) -> b.ReportSection:
    lines = [
        b.CellLine(
            group.number,
            group.task,
            group.cells,
            f"{fmean(group.known):.2f} ± {pstdev(group.known):.2f}" if group.known else "-",
            "" if group.has_variance else "all rewards are equal",
        )
        for group in counts.groups
    ]
    about = "Number, task, the reward of each rollout, mean and deviation. Pale: all rewards are equal."
    lead = (
        "One line for each group, one cell for each rollout. Choose a cell to read its tokens and messages."
    )
    return b.ReportSection(
        "groups", "Groups", lead, (b.CellBlock(items=lines, about=about),) if lines else ()
    )


def _lengths(counts: RolloutCounts) -> b.ReportSection:
    blocks = (
        *b.make_histogram("Output tokens of a rollout", counts.tokens, "rollouts"),
        *b.make_histogram("Steps of a rollout", counts.steps, "rollouts"),
        *b.make_histogram("Tool calls of a rollout", counts.calls, "rollouts"),
        *b.make_bars("Stop reasons", counts.stop_reasons, "rollouts"),
    )
    return b.ReportSection("lengths", "Lengths", "How long the rollouts are, and how they ended.", blocks)


def _tools(counts: RolloutCounts) -> b.ReportSection:
    bars = b.make_bars("Calls by tool", counts.tools, "calls", parts=counts.tool_errors, part="failed")
    return b.ReportSection("tools", "Tools", "The red part of a bar failed or was not run.", bars)


def _drift(counts: RolloutCounts) -> b.ReportSection:
    def text(kind: str, run_id: str, found: DriftReport) -> b.TextBlock:
        expected, got = (
            " ".join(map(str, ids)) if said is None else repr(said)
            for said, ids in ((found.expected_text, found.expected), (found.found_text, found.found))
        )
        place = f"{run_id}, token {found.position:,}"
        return b.TextBlock(
            title=f"Example of {kind}", text=f"{place}\nexpected: {expected}\nfound:    {got}", is_mono=True
        )

    blocks = (
        *b.make_bars("Branches by reason", counts.drift, "branches"),
        *b.make_bars("Trajectories by exactness", counts.grades, "trajectories"),
        *b.make_bars("Exact trajectories by their log probabilities", counts.logprobs, "trajectories"),
        *b.make_bars("Sampled tokens by version of the weights", counts.versions, "tokens"),
        *[text(kind, *found) for kind, found in counts.examples.items()],
    )
    lead = "A branch begins where a prompt does not extend the tokens of an earlier prompt and answer."
    return b.ReportSection("drift", "Drift", lead, blocks)


def _tokens(rows: list[Raw], whole: int) -> b.ReportSection:
    part = "All rollouts" if whole == len(rows) else f"{whole:,} of {len(rows):,} rollouts"
    lead = (
        f"{part} can be read here. Tokens that the model sampled are underlined, dotted where another branch is "
        "trained on them; the colour is the log probability, from green (certain) to red (surprising)."
    )
    filters = (("task", "any task"), ("reward", "any reward"), ("ended", "any end"))
    absent = "This rollout is not in the page. Read it with: treadle show {id} --tokens"
    block = b.RowBlock(items=rows, filters=filters, unit="rollouts", absent=absent)
    return b.ReportSection("tokens", "Rollouts and tokens", lead, (block,) if rows else ())


def _write_head(group: Group, rollout: Rollout) -> dict[str, Json]:
    """Return what the list shows of a rollout."""
    reward = "no reward" if rollout.reward is None else f"reward {rollout.reward:.3g}"
    kind = "" if rollout.reward is None else "good" if rollout.reward >= 1.0 else ""
    keys = {"task": group.task, "reward": reward, "ended": rollout.stop_reason.value}
    text = f"group {group.number}: {group.task}"
    return {"id": rollout.run_id, "text": text, "chips": [(reward, kind)], "keys": keys}


def _write_body(rollout: Rollout, decode: Decode | None) -> dict[str, Json]:
    """Return what a rollout shows when it is opened."""
    rewards = [f"{name} {value:.3g}" for name, value in rollout.rewards.items()]
    facts = [*rewards, *([] if rollout.advantage is None else [f"advantage {rollout.advantage:+.3f}"])]
    steps, tokens = f"{rollout.steps:,} steps", f"{rollout.usage.output_tokens:,} output tokens"
    return {
        "facts": [*facts, rollout.stop_reason.value, steps, tokens],
        "branches": [
            _write_branch(item, decode)
            for item in rollout.trajectories
            if item.grade is not TokenGrade.TEXT and len(item.token_ids_T)
        ],
        "messages": b.write_conversation(rollout.messages),
    }


def _write_branch(branch: Trajectory, decode: Decode | None) -> dict[str, Json]:
    ids = branch.token_ids_T[:_MAX_TOKENS].tolist()
    answered = bytearray(len(branch.token_ids_T))
    for span in branch.spans:
        answered[span.start : span.end] = bytes([1]) * (span.end - span.start)
    flags = zip(branch.sampled_T, answered, strict=True)
    kinds = ["1" if mine else "2" if anywhere else "0" for mine, anywhere in flags]
    sampled = f"{branch.sampled_tokens:,} of {len(kinds):,} tokens are sampled"
    about = f"branch {branch.branch} of {branch.run_id}: {sampled}"
    if branch.drift is not None:
        about += f" here; it begins because of {branch.drift.kind.value}"
    cut = len(kinds) - len(ids)
    return {
        "title": about + (f"; the last {cut:,} tokens are not shown" if cut else ""),
        "ids": ids,
        "tokens": [f"{item} " for item in ids] if decode is None else split_text(ids, decode),
        "logprobs": [
            None if math.isnan(it) else round(it, 4) for it in branch.logprobs_T[:_MAX_TOKENS].tolist()
        ],
        "mask": "".join(kinds[:_MAX_TOKENS]),
    }
