"""The built-in task sets, with their checks and solvers, and those of others.

Each built-in task set is one folder: `files/`, `shop/`, `repair/` and `lookup/` are made from templates.
`generated` has what they share, and `simulated_user` the users of tasks with more than one turn. `foreign/` reads
the tasks of other projects, and `conversation_set` rows of a dataset as tasks. `solver` says what a solver is: a
generator that yields steps and is sent results. `draws` has reproducible random draws.

A task set has the methods of `TaskSet` and an entry point of the group `treadle.tasks`; those of Treadle itself
are entry points in `pyproject.toml`. If it has a method `find_solver`, the oracle can solve its tasks. A new
template is two functions, `generate_NAME` and `solve_NAME`, and an entry in the `wordings.toml` of the set. In a
set with levels it has a split, and `tests/tasks/test_generated.py` checks that its shape is in no other.
"""

from treadle.runs.task import TASK_SETS as TASK_SETS
from treadle.runs.task import Grade as Grade
from treadle.runs.task import SimpleTask as SimpleTask
from treadle.runs.task import Task as Task
from treadle.runs.task import TaskSet as TaskSet
from treadle.runs.task import load_task as load_task
from treadle.runs.task import split_reference as split_reference
from treadle.runs.task import task_set as task_set
