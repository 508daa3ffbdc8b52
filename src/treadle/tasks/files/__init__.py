"""The task set `files`: office and code tasks over a folder of files.

`grading` has the results that tasks expect, `file_calls` and `materials` what the templates share. The templates
are in the modules that `wordings.toml` names.
"""

from treadle.tasks.generated import GeneratedSet

INSTRUCTIONS = (
    "You work on a folder of files through tools; paths are relative to its root. Look at the files before you "
    "change or conclude anything, and change nothing that you were not asked to change. When you are done, "
    "reply with a short message whose last line is `Answer: ` followed by what was asked for."
)
TASK_SET = GeneratedSet("files", __name__, tools=("files",), instructions=INSTRUCTIONS, has_levels=False)
find_solver, identify = TASK_SET.find_solver, TASK_SET.identify

__all__ = ["INSTRUCTIONS", "TASK_SET", "find_solver", "identify"]
