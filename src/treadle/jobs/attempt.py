"""Attempts: task x model x seed, each driven to a graded run or a fault of the infrastructure."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.runs.task import load_task, split_reference, task_set


def find_tasks(references: Iterable[str]) -> list[str]:
    """Return the tasks that are meant by task sets, `SET:ID` and patterns such as `files:csv_sum-*`.

    Raises: `ConfigError` for a set or a task that does not exist, and for a pattern that no task fits.
    """
    found: dict[str, None] = {}
    for reference in references:
        if reference.endswith(":"):
            raise ConfigError(
                f"{reference!r} has no task; write a task set without a colon, SET:ID, or a pattern"
            )
        name, task_id = split_reference(reference)
        if task_id and not set(task_id) & set("*?["):
            load_task(reference)
            found[reference] = None
            continue
        ids = [task.task_id for task in task_set(name)]
        chosen = [item for item in ids if not task_id or fnmatchcase(item, task_id)]
        if not chosen:
            if not ids:
                raise ConfigError(f"the task set {name!r} has no tasks")
            families = dict.fromkeys([item.rpartition("-")[0] for item in ids])
            near = did_you_mean(task_id.rstrip("*?-"), families) or f"; ids are such as {ids[0]!r}"
            raise ConfigError(f"no task of the set {name!r} fits {task_id!r}{near}")
        found.update(dict.fromkeys([f"{name}:{item}" for item in chosen]))
    return list(found)
