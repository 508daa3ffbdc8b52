"""Tasks: work with an input, files and a check. One folder for each task set."""

from treadle.tasks.protocol import Grade, Task, TaskSet
from treadle.tasks.registry import load_task, task_set

__all__ = ["Grade", "Task", "TaskSet", "load_task", "task_set"]
