"""The task sets by name: the built-in ones, and those of installed packages (entry points `treadle.tasks`)."""

import difflib
from importlib import import_module

from treadle.core.errors import ConfigError
from treadle.tasks.protocol import Task, TaskSet

ENTRY_POINT_GROUP = "treadle.tasks"

TASK_SETS = {"files": "treadle.tasks.files:TASK_SET"}
"""Name to `module:attribute`; the attribute is a `TaskSet`, or a function without arguments that makes one.
A built-in name wins over an entry point."""


def task_set(name: str) -> TaskSet:
    """The task set of this name.

    Raises: `ConfigError` that names the nearest sets if there is none, or if it cannot be loaded.
    """
    targets = TASK_SETS if name in TASK_SETS else _plugins()
    if name not in targets:
        known = sorted({*TASK_SETS, *targets})
        near = difflib.get_close_matches(name, known, 3, 0.4) or known
        raise ConfigError(f"there is no task set {name!r}; the nearest are {', '.join(near)}")
    module_name, _, attribute = targets[name].partition(":")
    try:
        found = getattr(import_module(module_name), attribute)
        made: TaskSet = found() if callable(found) else found
    except Exception as error:
        raise ConfigError(f"the task set {name!r} ({targets[name]}) cannot be loaded: {error!r}") from error
    return made


def load_task(ref: str) -> Task:
    """The task of a reference `SET:ID`, as `files:csv_sum-0042`.

    Raises: `ConfigError` that names near sets or ids if there is none.
    """
    name, colon, task_id = ref.partition(":")
    if not colon or not name or not task_id:
        raise ConfigError(f"{ref!r} is no task; write SET:ID, as 'files:csv_sum-0042'")
    return task_set(name).get(task_id)


def _plugins() -> dict[str, str]:
    # Slow to import, and needed for the sets of other packages only.
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
