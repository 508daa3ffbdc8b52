"""The token format `atropos`: the groups that the API server of Atropos takes (`ScoredData`).

The masked positions have -100 in `masks` and 1.0 in `inference_logprobs`. A probability is at most 1, so that a
logarithm of 1.0 stands for "none" there. A group of the server has exactly as many sequences as its environment
registered, and the trainer computes advantages from the mean of their scores. If rollouts have several
branches, row n therefore has the n-th branch of each rollout. A rollout without an n-th branch is represented
by the first tokens of its prompt, fully masked, with its score and `set_advantage_to_zero`: it is not trained
on, and the mean of the scores stays that of the rollouts.

Source: atroposlib 0.4.0, `api/server.py` (`ScoredData`) and `example_trainer/data.py`.
"""

from collections.abc import Mapping
from itertools import zip_longest

from treadle.core.types import Json, Message
from treadle.export.exporter import ColumnType
from treadle.export.groups import Group
from treadle.export.row_formats.chat_rows import OPENAI
from treadle.export.token_exporter import Branch, LossMask, read_branches, reward_of
from treadle.trajectory.tokens.trajectories import TokenGrade

MASKED_ID = -100
MASKED_LOGPROB = 1.0
MARK = "treadle"
"""The key in `generation_params` with the origin of the group, which the server and its trainers pass on."""
_FILLER_TOKENS = 2
"""A trainer shifts a sequence by one, so that a sequence needs at least two tokens."""


class AtroposGroups:
    """The token format `atropos`: the groups (`ScoredData`) of the API server of Atropos."""

    needs = TokenGrade.TOKEN_EXACT
    columns: Mapping[str, ColumnType] = {
        "tokens": ColumnType.LIST,
        "masks": ColumnType.LIST,
        "scores": ColumnType.LIST,
        "inference_logprobs": ColumnType.LIST,
        "advantages": ColumnType.LIST,
        "messages": ColumnType.LIST,
        "overrides": ColumnType.LIST,
        "generation_params": ColumnType.JSON,
    }

    def write(self, group: Group, mask: LossMask) -> list[dict[str, Json]]:
        """Return one row, or as many as the most branches that a rollout of the group has."""
        branches: dict[int, list[Branch]] = {}
        for branch in read_branches(group, mask, self.needs):
            branches.setdefault(branch.index, []).append(branch)
        layers = list(zip_longest(*[branches[index] for index in sorted(branches)]))
        has_advantages = all(rollout.advantage is not None for rollout in group.rollouts)
        rows = []
        for layer, found in enumerate(layers):
            made = [
                _write(item) if item is not None else _fill(branches[index][0])
                for index, item in enumerate(found)
            ]
            mark = {"group_id": group.group_id, "task": group.task, "part": layer, "parts": len(layers)}
            rows.append(
                {
                    "tokens": [ids for ids, _, _ in made],
                    "masks": [masks for _, masks, _ in made],
                    "inference_logprobs": [logprobs for _, _, logprobs in made],
                    "scores": [reward_of(rollout) for rollout in group.rollouts],
                    "advantages": [
                        [0.0 if token == MASKED_ID else rollout.advantage or 0.0 for token in masks]
                        for rollout, (_, masks, _) in zip(group.rollouts, made, strict=True)
                    ]
                    if has_advantages
                    else None,
                    "messages": [
                        [_write_message(message) for message in item.trajectory.messages] if item else []
                        for item in found
                    ],
                    "overrides": [{} if item else {"set_advantage_to_zero": True} for item in found]
                    if layer
                    else None,
                    "generation_params": {**_settings_of(branches[0][0]), MARK: mark},
                }
            )
        return rows


FORMAT = AtroposGroups()


def _write(branch: Branch) -> tuple[list[int], list[int], list[float]]:
    flags = branch.binary_mask()
    masks = [token if flag else MASKED_ID for token, flag in zip(branch.ids_T, flags, strict=True)]
    return branch.ids_T, masks, branch.masked_logprobs(MASKED_LOGPROB)


def _fill(branch: Branch) -> tuple[list[int], list[int], list[float]]:
    ids = branch.ids_T[:_FILLER_TOKENS]
    return ids, [MASKED_ID] * len(ids), [MASKED_LOGPROB] * len(ids)


def _write_message(message: Message) -> dict[str, Json]:
    # The server refuses a message without the key `content`.
    return {**OPENAI.write_message(message, True), "content": message.content}


def _settings_of(branch: Branch) -> dict[str, Json]:
    """Return the sampling settings that the trainers of Atropos read."""
    settings = next((span.settings for span in branch.trajectory.spans if span.settings), None)
    if settings is None or settings.temperature is None:
        return {}
    return {"temperature": settings.temperature}
