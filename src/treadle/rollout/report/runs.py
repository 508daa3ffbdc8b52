"""The runs whose tokens and messages can be read in a report."""

import math
import random
from collections.abc import Sequence
from typing import Any

import msgspec

from treadle.core.types import Json, Message, Role
from treadle.export.groups import Group, Rollout
from treadle.trajectory.tokens.drift import Decode
from treadle.trajectory.tokens.token_texts import split_text
from treadle.trajectory.tokens.trajectories import TokenGrade, Trajectory

_MAX_BYTES = 4_000_000
"""How large the data of all runs together may be."""
_MAX_CHARS = 4_000
"""How much of a message is shown."""
_MAX_TOKENS = 6_000
"""How many tokens of a branch are shown."""


class Runs:
    """The runs of some groups: those of the first and the last groups, and of a random sample between them."""

    def __init__(self, decode: Decode | None, *, most_groups: int = 24, seed: int = 0) -> None:
        self._decode = decode
        self._most = most_groups
        self._random = random.Random(seed)
        self._kept: list[Group] = []
        self._seen = 0

    def add(self, group: Group) -> None:
        """Add a group, which may take the place of another one."""
        self._seen += 1
        if len(self._kept) < self._most:
            self._kept.append(group)
            return
        # The newest group is always kept; the others are a random sample of those before.
        if self._random.random() < self._most / self._seen:
            self._kept[self._random.randrange(1, self._most - 1)] = self._kept[-1]
        self._kept[-1] = group

    def rows(self) -> list[Json]:
        """Return the runs as the page's script reads them, as many as there is room for."""
        found: list[Json] = []
        size = 0
        for group in sorted(self._kept, key=lambda item: item.number):
            for rollout in group.rollouts:
                row = self._write(group, rollout)
                size += len(msgspec.json.encode(row))
                if size > _MAX_BYTES:
                    return found
                found.append(row)
        return found

    def _write(self, group: Group, rollout: Rollout) -> dict[str, Json]:
        reward = "no reward" if rollout.reward is None else f"reward {rollout.reward:.3g}"
        grades = ", ".join([f"{name} {value:.3g}" for name, value in rollout.rewards.items()])
        advantage = "" if rollout.advantage is None else f", advantage {rollout.advantage:+.3f}"
        facts = (
            f"{group.task} · {reward}{f' ({grades})' if grades else ''}{advantage} · {rollout.stop_reason.value} · "
            f"{rollout.steps:,} steps · {rollout.usage.output_tokens:,} output tokens"
        )
        return {
            "id": rollout.run_id,
            "title": f"group {group.number}: {rollout.run_id} ({reward})",
            "facts": facts,
            "branches": [
                self._write_branch(item)
                for item in rollout.trajectories
                if item.grade is not TokenGrade.TEXT and len(item.token_ids_T)
            ],
            "messages": write_messages(rollout.messages),
        }

    def _write_branch(self, branch: Trajectory) -> dict[str, Json]:
        ids = branch.token_ids_T[:_MAX_TOKENS].tolist()
        logprobs = branch.logprobs_T[:_MAX_TOKENS].tolist()
        answered = bytearray(len(branch.token_ids_T))
        for span in branch.spans:
            answered[span.start : span.end] = b"\x01" * (span.end - span.start)
        flags = zip(branch.sampled_T, answered, strict=True)
        kinds = ["1" if mine else "2" if anywhere else "0" for mine, anywhere in flags]
        counts = f"{branch.sampled_tokens:,} of {len(branch.token_ids_T):,}"
        about = f"branch {branch.branch} of {branch.run_id}: {counts}"
        if branch.drift is not None:
            about += f" tokens are sampled here; it begins because of {branch.drift.kind.value}"
        else:
            about += " tokens are sampled"
        cut = len(branch.token_ids_T) - len(ids)
        return {
            "title": about + (f"; the last {cut:,} tokens are not shown" if cut else ""),
            "ids": ids,
            "tokens": [f"{item} " for item in ids] if self._decode is None else split_text(ids, self._decode),
            "logprobs": [None if math.isnan(value) else round(value, 4) for value in logprobs],
            "mask": "".join(kinds[:_MAX_TOKENS]),
        }


def write_messages(messages: Sequence[Message]) -> list[Json]:
    """Return messages as the page's script reads them, with each result below its call."""
    results = {item.call_id: item for item in messages if item.role is Role.TOOL}
    found: list[Json] = []
    for message in messages:
        if message.role is Role.TOOL:
            continue
        calls: list[dict[str, Any]] = []
        for call in message.tool_calls:
            result = results.get(call.call_id)
            calls.append(
                {
                    "name": call.name,
                    "arguments": call.arguments[:_MAX_CHARS],
                    "result": None if result is None else result.content[:_MAX_CHARS],
                    "error": result is not None and result.is_error,
                }
            )
        found.append(
            {
                "role": message.role.value,
                "text": message.content[:_MAX_CHARS],
                "thought": (message.reasoning or "")[:_MAX_CHARS],
                "calls": calls,
            }
        )
    return found
