"""Preference pairs from forks: two steps that were taken after the same messages, the better one first.

Runs that were forked from each other are compared message by message. Where their assistant messages differ, each
step has the mean value of the runs that continue from it, and the best step makes a pair with each worse one.
Values are the rewards of the checks of tasks, or those that the caller gives. Call ids do not count in the
comparison.

Source: TRL 1.16, dataset formats, preference type with an explicit prompt, conversational, with tools.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

import msgspec
from msgspec import Struct

from treadle.core.errors import ExportError, RunNotFoundError
from treadle.core.types import Json, Message, Role, ToolSpec
from treadle.export.row_formats.chat_rows import TRL
from treadle.export.rows import Row, load_row, write_tools
from treadle.journal.protocol import Journal
from treadle.runs.statuses import iterate_runs

OnSkip: TypeAlias = Callable[[str, str], None]
"""A function that is called with the id of a run and the reason why no pair was made of it."""


class Side(Struct, frozen=True):
    """One side of a pair: the messages and their run."""

    messages: tuple[Message, ...]
    run_id: str
    value: float
    """The mean value of the runs that continue from this step."""


class Pair(Struct, frozen=True):
    """Two continuations of the same messages."""

    prompt: tuple[Message, ...]
    chosen: Side
    rejected: Side
    tools: tuple[ToolSpec, ...]


def find_pairs(
    journal: Journal,
    *,
    values: Mapping[str, float] | None = None,
    is_whole: bool = False,
    min_gap: float = 0.0,
    on_skip: OnSkip = lambda run_id, why: None,
) -> Iterator[Pair]:
    """Yield the pairs in the families of forks in a journal.

    A run has the value that `values` gives, otherwise its reward. A pair consists of single steps, or, with
    `is_whole`, of everything up to the end of the runs, results of tools included. The values of a pair differ by
    more than `min_gap`.
    """
    for family in _find_families(journal):
        rows = []
        for run_id in family:
            try:
                rows.append(load_row(journal, run_id))
            except (ExportError, RunNotFoundError) as error:
                on_skip(run_id, str(error))
        yield from pair_rows(rows, values=values, is_whole=is_whole, min_gap=min_gap, on_skip=on_skip)


def pair_rows(
    rows: Sequence[Row],
    *,
    values: Mapping[str, float] | None = None,
    is_whole: bool = False,
    min_gap: float = 0.0,
    on_skip: OnSkip = lambda run_id, why: None,
) -> Iterator[Pair]:
    """Yield the pairs of runs that were forked from each other; the arguments are as for `find_pairs`."""
    worth: dict[str, float] = {}
    for row in rows:
        run_id = row.lineage.run_id
        value = (values or {}).get(run_id, row.lineage.reward)
        if value is None:
            on_skip(run_id, "it has no reward")
        else:
            worth[run_id] = value
    valued = [row for row in rows if row.lineage.run_id in worth]
    keys = {row.lineage.run_id: [_key(message) for message in row.messages] for row in valued}
    by_tools: dict[str, list[Row]] = defaultdict(list)
    for row in valued:
        by_tools[row.lineage.tools_hash].append(row)
    waiting = [(found, 0) for found in by_tools.values()]
    while waiting:
        group, depth = waiting.pop()
        branches: dict[object, list[Row]] = defaultdict(list)
        for row in group:
            if depth < len(row.messages):
                branches[keys[row.lineage.run_id][depth]].append(row)
        waiting += [(branch, depth + 1) for branch in branches.values() if len(branch) > 1]
        steps = [branch for branch in branches.values() if branch[0].messages[depth].role is Role.ASSISTANT]
        if len(steps) > 1:
            yield from _pair_steps(steps, depth, worth, is_whole, min_gap)


def write_pair(pair: Pair) -> bytes:
    """Return a pair as a line of JSON, in TRL's preference format, with the column `lineage`.

    Raises: `ExportError` if the arguments of a call are not an object.
    """
    raw: dict[str, Json] = {
        "prompt": TRL.write_messages(pair.prompt, with_reasoning=True),
        "chosen": TRL.write_messages(pair.chosen.messages, with_reasoning=True),
        "rejected": TRL.write_messages(pair.rejected.messages, with_reasoning=True),
        "tools": write_tools(pair.tools),
        "lineage": {
            "chosen_run_id": pair.chosen.run_id,
            "rejected_run_id": pair.rejected.run_id,
            "chosen_value": pair.chosen.value,
            "rejected_value": pair.rejected.value,
            "message": len(pair.prompt),
        },
    }
    return msgspec.json.encode(raw)


def _find_families(journal: Journal) -> list[list[str]]:
    """Return the groups of two or more runs that were forked from each other, directly or not."""
    forks = [(info.run_id, info.parent_run_id) for info in iterate_runs(journal) if info.parent_run_id]
    parents = dict(reversed(forks))  # the oldest family comes first
    families: dict[str, dict[str, None]] = defaultdict(dict)
    for run_id in parents:
        path = [run_id]
        while (parent := parents.get(path[-1])) is not None and parent not in path:
            path.append(parent)
        families[path[-1]] |= dict.fromkeys(reversed(path))
    return [list(family) for family in families.values()]


def _key(message: Message) -> object:
    """Return a key that is equal for messages with the same content. Call ids are not part of it."""
    calls = tuple([(call.name, call.arguments.strip() or "{}") for call in message.tool_calls])
    return message.role, message.content, message.reasoning, message.name, message.is_error, calls


def _pair_steps(
    steps: Sequence[Sequence[Row]], depth: int, worth: Mapping[str, float], is_whole: bool, min_gap: float
) -> Iterator[Pair]:
    """Yield the pairs of the best step at a message with each worse one."""
    means = [fmean([worth[row.lineage.run_id] for row in step]) for step in steps]
    best = max(range(len(steps)), key=means.__getitem__)

    def side(index: int, pick: Callable[..., Row]) -> tuple[Row, Side]:
        row = pick(steps[index], key=lambda row: worth[row.lineage.run_id])
        end = len(row.messages) if is_whole else depth + 1
        return row, Side(row.messages[depth:end], row.lineage.run_id, means[index])

    good, chosen = side(best, max)
    for index, mean in enumerate(means):
        if means[best] - mean > min_gap:
            yield Pair(good.messages[:depth], chosen, side(index, min)[1], good.tools)
