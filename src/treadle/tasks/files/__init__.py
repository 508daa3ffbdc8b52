"""The task set `files`: office and code tasks over a folder of files."""

from treadle.tasks.files.task_set import TASK_SET, FilesTask, FilesTaskSet, find_solver, identify

__all__ = ["TASK_SET", "FilesTask", "FilesTaskSet", "find_solver", "identify"]
