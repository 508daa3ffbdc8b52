"""A sink that draws curves of the groups: rewards, tokens and steps, in TensorBoard, trackio or W&B."""

from statistics import fmean, pstdev

import msgspec

from treadle.export.groups import Group
from treadle.rollout.held_out_scores import HeldOutScore
from treadle.rollout.sinks.protocol import BaseSink, Receipt, SinkMemory
from treadle.telemetry.curves import Curves, open_curves

_HELD_OUT = "held_out/"
"""The beginning of the names of the curves of held-out tasks."""
_STEP = "step"
"""The note with the number of the groups that were delivered."""


class CurvesSink(BaseSink):
    """A sink that adds one point for each group to each curve, and for each evaluation of held-out tasks one at the
    newest group. After a crash, a point may be there twice."""

    def __init__(self, name: str, kind: str, target: str, run: str) -> None:
        """`kind` and `target` are those of `open_curves`, and `run` is the name of the curves' run."""
        self.name = name
        self._given = f"{kind}={target}"
        self._run = run
        self._step = 0
        self._curves: Curves | None = None

    def open(self, memory: SinkMemory) -> None:
        self._step = int(memory.get(_STEP) or 0)
        self._curves = open_curves([self._given], self._run)

    def encode(self, group: Group) -> bytes:
        return msgspec.json.encode(_read_point(group))

    def encode_score(self, score: HeldOutScore) -> bytes:
        found = score.score
        values = {} if found is None else {"score": found.mean, "low": found.low, "high": found.high}
        return msgspec.json.encode(
            {
                **{f"{_HELD_OUT}{name}": value for name, value in values.items()},
                f"{_HELD_OUT}solved": None if found is None else score.solved,
                f"{_HELD_OUT}weight_version": _read_number(score.version),
            }
        )

    async def deliver(self, key: str, data: bytes) -> Receipt:
        assert self._curves is not None
        values = msgspec.json.decode(data, type=dict[str, float | None])
        self._step += not any(name.startswith(_HELD_OUT) for name in values)
        self._curves.write(self._step, values)
        return Receipt(notes={_STEP: str(self._step)})

    async def close(self) -> None:
        if self._curves is not None:
            self._curves.close()


def _read_number(version: str | None) -> float | None:
    return float(version) if version is not None and version.isdecimal() else None


def _read_point(group: Group) -> dict[str, float | None]:
    """Return the values of one group by the names of their curves."""
    rollouts = group.rollouts
    graded = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    names = dict.fromkeys([name for rollout in rollouts for name in rollout.rewards])
    return {
        "rollout/reward": fmean(graded) if graded else None,
        "rollout/reward_std": pstdev(graded) if graded else None,
        "rollout/steps": fmean([rollout.steps for rollout in rollouts]),
        "rollout/output_tokens": fmean([rollout.usage.output_tokens for rollout in rollouts]),
        "rollout/weight_version": _read_number(group.weight_version),
        **{
            f"rollout/rewards/{name}": fmean(
                [rollout.rewards[name] for rollout in rollouts if name in rollout.rewards]
            )
            for name in names
        },
    }
