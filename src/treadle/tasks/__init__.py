"""The built-in task sets, with their checks and solvers.

Each task set is one folder; in `files/` each family of tasks is one file, and `grading` has the results that
tasks expect. `solver` says what a solver is: a generator that yields steps and is sent results. `draws` has
reproducible random draws.

A task set has the methods of `TaskSet` and an entry point of the group `treadle.tasks`; those of Treadle itself
are entry points in `pyproject.toml`. If it has a method `find_solver`, the oracle can solve its tasks. A new
family of the set `files` is one file with `generate` and `solve`, and an entry in `files/wordings.toml`.
"""

from treadle.runs.task import (
    TASK_SETS,
    Grade,
    SimpleTask,
    Task,
    TaskSet,
    load_task,
    split_reference,
    task_set,
)

__all__ = ["TASK_SETS", "Grade", "SimpleTask", "Task", "TaskSet", "load_task", "split_reference", "task_set"]
