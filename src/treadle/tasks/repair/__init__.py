"""The task set `repair`: small Python projects with a bug, whose hidden tests decide.

`snippets.toml` has the functions, each with the bug that is put in and the calls that test it; `projects` draws
projects from them and runs the tests. The hidden tests and their results are never in the run's files.
"""

from treadle.core.texts.documents import read_data
from treadle.tasks.generated import GeneratedSet

TASK_SET = GeneratedSet(
    "repair",
    __name__,
    tools=("files", "shell"),
    instructions=read_data(__name__, "snippets")["instructions"].strip(),
)

__all__ = ["TASK_SET"]
