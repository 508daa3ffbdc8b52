"""Answers that are lost on the way do not change what a rollout is: no limit of the rollout counts them."""

import asyncio
import json
from pathlib import Path

import pytest

from treadle import ScriptedModel
from treadle.core.errors import TransportError
from treadle.core.types import Completion, FinishReason, Message, Role, Usage
from treadle.models import RetryModel, call
from treadle.rollout import Rollouts


@pytest.mark.parametrize("losses", [0, 1, 3])
def test_a_lost_answer_uses_up_none_of_the_tokens_of_a_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    """Otherwise long rollouts would be cut or dropped more often than short ones."""
    monkeypatch.chdir(tmp_path)

    def say(*calls: str) -> Completion:
        message = Message(Role.ASSISTANT, "" if calls else "ok", tuple(call(name, {}) for name in calls))
        reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        return Completion(message, reason, Usage(900, 100), 0.0)

    def make_model(task: object, seed: int) -> RetryModel:
        steps = [say("ls"), *[TransportError("broke")] * losses, say("ls"), say()]
        return RetryModel(ScriptedModel(steps), min_delay_seconds=0.0)

    rollouts = Rollouts(
        model=make_model,
        tasks=["files:todo_count-0000"],
        groups=1,
        group_size=2,
        path="out",
        agent={"max_tokens": 3500},
    )
    result = asyncio.run(rollouts.run())
    assert (result.end.reason, result.progress.kept, result.progress.dropped) == ("done", 1, 0)
    (group,) = [json.loads(line) for line in Path("out/groups.jsonl").read_text().splitlines()]
    assert [rollout["steps"] for rollout in group["rollouts"]] == [3, 3]
