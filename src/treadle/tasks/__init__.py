"""The built-in task sets with their checks. Each task set is one folder."""

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
