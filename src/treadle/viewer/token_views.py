"""What pages show of a run's tokens, of the group that it belongs to, and of the rows that exporters make of it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.errors import ExportError
from treadle.export.exporter import (
    FORMATS,
    LINES,
    RowFormat,
    encode_row,
    find_losses,
    fit_untrained,
    read_row,
    wants_tokens,
)
from treadle.export.groups import GROUP_LABEL, Group, load_rollout, make_group
from treadle.export.rows import load_row
from treadle.export.token_exporter import TOKEN_FORMATS, encode_group
from treadle.journal.protocol import Journal
from treadle.journal.run_info import CALLER, RunFilter
from treadle.runs.run import Run
from treadle.scoring.advantages import group_relative
from treadle.trajectory.tokens.masks import make_mask
from treadle.trajectory.tokens.token_graph import load_tokens
from treadle.trajectory.tokens.token_map import TokenMap, make_token_maps
from treadle.trajectory.tokens.trajectories import load_decoders
from treadle.viewer.bundle import escape_part


class RunTokens(Struct, frozen=True):
    """The tokens of a run and of its sub-agents."""

    branches: list[TokenMap]
    conservation: str
    """How many tokens were sampled and are delivered, in words."""


class ExportedRun(Struct, frozen=True):
    """What a format makes of a run."""

    lines: list[str]
    losses: list[str]
    """What the lines lack."""
    refused: str = ""
    """Why the format cannot express the run; empty if it can."""


def view_tokens(journal: Journal, run_id: str, mask: str, visible: Mapping[str, str]) -> RunTokens:
    """Return the branches of a run with their tokens, as a loss mask weighs them.

    The advantage is the one within the run's group, of which runs with the labels `visible` count. Ids become text
    if the run is trusted. Raises: `ConfigError` for an unknown mask; `JournalError`.
    """
    decoders = {}
    if journal.is_trusted(run_id):
        decoders = load_decoders(event.body for event in journal.read(run_id))
    graph = load_tokens(journal, run_id)
    maps = make_token_maps(
        graph.trajectories,
        mask=make_mask(mask, decode=decoders),
        decoders=decoders,
        advantage=_find_advantage(journal, run_id, visible),
    )
    return RunTokens(maps, str(graph.conservation))


def embed_tokens(journal: Journal, run_ids: Iterable[str]) -> dict[str, object]:
    """Return the answers that the pages of runs' tokens need, by their addresses, for runs that have token ids."""
    found = {
        f"/v1/view/runs/{escape_part(run_id)}/tokens": view_tokens(journal, run_id, "all", {})
        for run_id in run_ids
    }
    return {address: answer for address, answer in found.items() if answer.branches}


def _find_advantage(journal: Journal, run_id: str, visible: Mapping[str, str]) -> float | None:
    group_id = Run.load(run_id, journal).metadata.get(GROUP_LABEL)
    if not isinstance(group_id, str):
        return None
    found = load_group(journal, group_id, visible).rollouts
    return next((item.advantage for item in found if item.run_id == run_id), None)


def load_group(journal: Journal, group_id: str, visible: Mapping[str, str]) -> Group:
    """Return the finished runs of a group, without those that cannot be delivered. Raises: `JournalError`."""
    rollouts = []
    for info in journal.runs(RunFilter(labels={**visible, GROUP_LABEL: group_id}, is_finished=True)):
        if CALLER not in info.labels:
            try:
                rollouts.append(load_rollout(journal, info.run_id)[0])
            except ExportError:
                continue
    return make_group(rollouts, group_relative, group_id=group_id, number=1, task="")


def view_export(
    journal: Journal,
    run_id: str,
    format: str,
    visible: Mapping[str, str],
    show: Callable[[Group], Group] | None = None,
) -> ExportedRun:
    """Return the lines that a format of rows or of tokens makes of a run, and what they lose.

    `show` returns a group as its reader may see it. `None`: the reader sees all.

    Raises: `ConfigError` for an unknown format; `JournalError`.
    """
    losses: list[str] = []
    try:
        if format in TOKEN_FORMATS.names():
            group = _load_alone(journal, run_id, visible)
            shown = group if show is None else show(group)
            lines = encode_group(shown, TOKEN_FORMATS.load(format)).splitlines()
        else:
            lines, losses = _export_row(journal, run_id, FORMATS.load(format))
    except ExportError as error:
        return ExportedRun([], [], str(error))
    return ExportedRun([line.decode() for line in lines], losses)


def _export_row(journal: Journal, run_id: str, row_format: RowFormat) -> tuple[list[bytes], list[str]]:
    row = load_row(journal, run_id, with_tokens=wants_tokens(row_format))
    lines = encode_row(fit_untrained(row, row_format), row_format).split(b"\n")
    decoded = [msgspec.json.decode(line) for line in lines]
    back = read_row({LINES: decoded} if row_format.has_own_files else decoded[0], row_format)
    return lines, [loss.value for loss in find_losses(row, back)]


def _load_alone(journal: Journal, run_id: str, visible: Mapping[str, str]) -> Group:
    """Return a run as a group of its own, with its advantage in the group that it belongs to."""
    rollout = load_rollout(journal, run_id)[0]
    advantage = _find_advantage(journal, run_id, visible)
    return make_group([rollout], lambda _: [advantage], group_id=run_id, number=1, task="")


def list_formats() -> dict[str, Any]:
    """Return the formats of rows, with what they may lose, and those of tokens."""
    rows = [
        {"name": name, "losses": [loss.value for loss in FORMATS.load(name).losses]}
        for name in FORMATS.names()
    ]
    return {"rows": rows, "tokens": list(TOKEN_FORMATS.names())}
