"""The built-in task sets and their checks, in one folder each. Other packages can register further task sets."""

from treadle.agent.task import TASK_SETS, Grade, Task, TaskSet, load_task, task_set

__all__ = ["TASK_SETS", "Grade", "Task", "TaskSet", "load_task", "task_set"]
