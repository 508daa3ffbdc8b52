"""A run's status as stores keep it for listings: what its newest lifecycle event says."""

from collections.abc import Sequence

from treadle.core import events as e
from treadle.core.state import Status

LIFECYCLE = frozenset((e.RunStarted, e.TurnStarted, e.RunPaused, e.RunResumed, e.RunFinished))
"""The bodies that change a run's status."""


def status_of(bodies: Sequence[e.DurableBody]) -> tuple[str | None, str | None]:
    """Status, and stop reason or why it is paused, after `bodies`; `(None, None)` if they change neither."""
    for body in reversed(bodies):
        if isinstance(body, e.RunFinished):
            return Status.FINISHED.value, body.stop_reason.value
        if isinstance(body, e.RunPaused):
            return Status.PAUSED.value, body.reason
        if isinstance(body, e.RunStarted | e.TurnStarted | e.RunResumed):
            return Status.RUNNING.value, None
    return None, None
