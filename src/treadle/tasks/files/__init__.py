"""Office and code chores over files."""

from treadle.tasks.files.task_set import TASK_SET, FilesTask, FilesTaskSet, find_solver

__all__ = ["TASK_SET", "FilesTask", "FilesTaskSet", "find_solver"]
