"""Task sets with their checks: `files`, and what other packages declare. One folder for each task set."""

from treadle.agent.task import TASK_SETS, Grade, Task, TaskSet, load_task, task_set

__all__ = ["TASK_SETS", "Grade", "Task", "TaskSet", "load_task", "task_set"]
