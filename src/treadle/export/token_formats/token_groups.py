"""The token format `tokens`: one row for each branch of a rollout, with all that is known about its tokens.

Reading the rows of a group gives the group again. The data of a whole rollout (its transcript, tools and usage)
are in the row of its first branch, and the data of the group are in the group's first row.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from treadle.core.errors import ExportError
from treadle.core.types import Json, Message, StopReason, ToolSpec, Usage
from treadle.export.exporter import ColumnType
from treadle.export.groups import Group, Rollout
from treadle.export.token_exporter import LossMask, read_branch
from treadle.trajectory.tokens.trajectories import DriftReport, Span, TokenGrade, Trajectory

VERSION = "treadle-tokens/1"
"""The value of the key `format`. A reader refuses another number."""


class _RolloutPart(Struct, frozen=True, omit_defaults=True):
    """The parts of a rollout that only the row of its first branch has."""

    usage: Usage
    steps: int = 0
    is_trained: bool = True
    tools: tuple[ToolSpec, ...] = ()
    metadata: dict[str, Json] = {}
    step_rewards: tuple[float, ...] | None = None
    is_solved: bool = False


class _GroupPart(Struct, frozen=True, omit_defaults=True):
    """The parts of a group that only its first row has."""

    rollouts: int
    has_variance: bool = True
    weight_version: str | None = None
    metadata: dict[str, Json] = {}


class TokenRows:
    """The token format `tokens`: a row for each branch, with all that is known about its tokens."""

    needs = TokenGrade.TEXT
    columns: Mapping[str, ColumnType] = {
        "format": ColumnType.TEXT,
        "group_id": ColumnType.TEXT,
        "number": ColumnType.INTEGER,
        "task": ColumnType.TEXT,
        "rollout": ColumnType.INTEGER,
        "run_id": ColumnType.TEXT,
        "branch_run_id": ColumnType.TEXT,
        "branch": ColumnType.INTEGER,
        "grade": ColumnType.TEXT,
        "token_ids": ColumnType.IDS,
        "sampled": ColumnType.FLAGS,
        "loss": ColumnType.FLOATS,
        "logprobs": ColumnType.FLOATS,
        "spans": ColumnType.LIST,
        "drift": ColumnType.JSON,
        "messages": ColumnType.LIST,
        "tokenizer": ColumnType.TEXT,
        "reward": ColumnType.FLOAT,
        "rewards": ColumnType.JSON,
        "advantage": ColumnType.FLOAT,
        "stop_reason": ColumnType.TEXT,
        "transcript": ColumnType.LIST,
        "rollout_info": ColumnType.JSON,
        "group_info": ColumnType.JSON,
    }

    def write(self, group: Group, mask: LossMask) -> list[dict[str, Json]]:
        rows = []
        for index, rollout in enumerate(group.rollouts):
            if not rollout.trajectories:
                raise ExportError(f"run {rollout.run_id!r} has no trajectory")
            for trajectory in rollout.trajectories:
                branch = read_branch(rollout, index, trajectory, mask, self.needs)
                rows.append(_write_branch(group, rollout, index, trajectory, branch.loss_T))
        if not rows:
            raise ExportError(f"group {group.group_id!r} has no rollouts")
        rows[0]["group_info"] = msgspec.to_builtins(
            _GroupPart(len(group.rollouts), group.has_variance, group.weight_version, group.metadata)
        )
        return rows

    def read(self, rows: Sequence[Mapping[str, Json]]) -> Group:
        """Return the group that `write` wrote. Raises: `ExportError` if the rows are not all of one group."""
        try:
            return _read_group(rows)
        except (LookupError, TypeError, ValueError, msgspec.ValidationError) as error:
            raise ExportError(f"these are not the rows of one group: {error!r}") from error


FORMAT = TokenRows()


def read_groups(rows: Iterable[Mapping[str, Json]]) -> Iterator[Group]:
    """Yield the groups in rows of the format. The rows of a group stand together. Raises: `ExportError`."""
    for _, found in groupby(rows, key=lambda row: row.get("group_id")):
        yield FORMAT.read(list(found))


def _write_branch(
    group: Group, rollout: Rollout, index: int, trajectory: Trajectory, loss: list[float]
) -> dict[str, Json]:
    is_first = trajectory is rollout.trajectories[0]
    part = msgspec.convert(rollout, _RolloutPart, from_attributes=True)
    return {
        "format": VERSION,
        "group_id": group.group_id,
        "number": group.number,
        "task": group.task,
        "rollout": index,
        "run_id": rollout.run_id,
        "branch_run_id": trajectory.run_id,
        "branch": trajectory.branch,
        "grade": trajectory.grade.value,
        "token_ids": trajectory.token_ids_T.tolist(),
        "sampled": list(trajectory.sampled_T),
        "loss": loss,
        "logprobs": [None if math.isnan(value) else value for value in trajectory.logprobs_T],
        "spans": msgspec.to_builtins(trajectory.spans),
        "drift": msgspec.to_builtins(trajectory.drift),
        "messages": msgspec.to_builtins(trajectory.messages),
        "tokenizer": trajectory.tokenizer,
        "reward": rollout.reward,
        "rewards": rollout.rewards,
        "advantage": rollout.advantage,
        "stop_reason": rollout.stop_reason.value,
        "transcript": msgspec.to_builtins(rollout.messages) if is_first else None,
        "rollout_info": msgspec.to_builtins(part) if is_first else None,
        "group_info": None,
    }


def _read_group(rows: Sequence[Mapping[str, Json]]) -> Group:
    first = rows[0]
    if first["format"] != VERSION:
        raise ExportError(f"the format is {first['format']!r}, and this version reads {VERSION!r}")
    part = msgspec.convert(first["group_info"], _GroupPart)
    rollouts = [_read_rollout(list(found)) for _, found in groupby(rows, key=lambda row: row["rollout"])]
    if len(rollouts) != part.rollouts:
        raise ExportError(f"group {first['group_id']!r} has {len(rollouts)} of its {part.rollouts} rollouts")
    return Group(
        group_id=first["group_id"],
        number=first["number"],
        task=first["task"],
        **{**asdict(part), "rollouts": tuple(rollouts)},
    )


def _read_rollout(rows: Sequence[Mapping[str, Json]]) -> Rollout:
    first = rows[0]
    part = msgspec.convert(first["rollout_info"], _RolloutPart)
    return Rollout(
        run_id=first["run_id"],
        trajectories=tuple([_read_trajectory(row) for row in rows]),
        reward=first.get("reward"),
        rewards=first["rewards"],
        advantage=first.get("advantage"),
        stop_reason=StopReason(first["stop_reason"]),
        messages=msgspec.convert(first["transcript"], tuple[Message, ...]),
        **asdict(part),
    )


def _read_trajectory(row: Mapping[str, Json]) -> Trajectory:
    logprobs: list[Any] = row["logprobs"]
    return Trajectory(
        run_id=row["branch_run_id"],
        branch=row["branch"],
        grade=TokenGrade(row["grade"]),
        token_ids_T=array("i", row["token_ids"]),
        sampled_T=bytes(row["sampled"]),
        logprobs_T=array("f", [math.nan if value is None else value for value in logprobs]),
        spans=msgspec.convert(row["spans"], tuple[Span, ...]),
        drift=msgspec.convert(row.get("drift"), DriftReport | None),
        messages=msgspec.convert(row["messages"], tuple[Message, ...]),
        tokenizer=row.get("tokenizer"),
    )
