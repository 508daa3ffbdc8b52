"""Warnings about tasks that cannot be run here. Each is given once in a while, since a command lists the same tasks
several times."""

import logging
import time
from collections.abc import Mapping

_PAUSE_SECONDS = 600
_TOLD: dict[str, float] = {}
"""When each warning was last given."""


def warn_once(text: str) -> None:
    """Log a warning, unless it was logged a short time ago."""
    if time.monotonic() - _TOLD.get(text, -_PAUSE_SECONDS) >= _PAUSE_SECONDS:
        _TOLD[text] = time.monotonic()
        logging.getLogger("treadle").warning("%s", text)


def warn_left_out(name: str, count: int, reasons: Mapping[str, str]) -> None:
    """Log which of the `count` tasks of a set are left out. `reasons` says why, by the ids of these tasks."""
    named: dict[str, list[str]] = {}
    for task_id, reason in reasons.items():
        named.setdefault(reason, []).append(task_id)
    for reason, ids in named.items():
        warn_once(f"{len(ids)} of the {count} tasks of {name} are left out (such as {ids[0]!r}): {reason}")
