"""Tasks: pieces of work with an input, files and a check, which are found by the name of their task set.

Task sets are entry points of the group `treadle.tasks`, including those of Treadle itself, or objects in a module
or file, whose name is `package.module:ATTRIBUTE` or `file.py:ATTRIBUTE`.
"""

import inspect
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from msgspec import Struct

from treadle.core.errors import ConfigError, ExportError
from treadle.core.registry import NamedFields, Registry, did_you_mean
from treadle.core.types import Message
from treadle.sandbox.protocol import Sandbox
from treadle.tools.threads import THREADS
from treadle.tools.toolset_parts import refuse_async
from treadle.tools.user_code import hide_secrets, place_of

T = TypeVar("T")
_MAX_IDS = 1000
"""How many ids of tasks are compared with one that a set does not have."""


class Grade(Struct, frozen=True, metaclass=NamedFields):
    """The verdict of a task's check."""

    reward: float
    """A number from 0 to 1."""
    detail: str
    """One sentence that says what was right or wrong."""


class Task(Protocol):
    """A task for an agent: its input, its files, and a check of the outcome.

    A task with a simulated user has a method `reply`, which may be a coroutine function. It is given the transcript
    after each answer and returns what the user says next; `None` if the user has no more to say. A run has at most
    `max_turns` turns, which is 100 if the task has no such attribute. A `reply` with a parameter `sandbox` is also
    given the run's `Sandbox`, whose files it may read and change; it is then called before the first turn too, with
    no messages, and what it returns there is not used. A task that rewards single steps has a method
    `score_steps`, which is given the transcript and returns a reward for each assistant message. A task that is
    graded by what was said and called has a method `check_transcript`, which is given the transcript and is called
    in place of `check`. A task that comes with an environment, a program with a loop of its own that plays and
    grades it, has an attribute `environment`, the words of the command of that program.
    """

    @property
    def task_set(self) -> str:
        """The name of the task set that the task belongs to."""

    @property
    def task_id(self) -> str:
        """The task's id, unique in its set; the set can make the task again from it."""

    @property
    def seed(self) -> int | None:
        """The seed that the task's parameters were drawn from; `None` if they were not drawn."""

    @property
    def input(self) -> str:
        """The user's message."""

    @property
    def instructions(self) -> str | None:
        """The system message, or `None` if the task has none."""

    @property
    def tools(self) -> Sequence[str]:
        """The names of the toolsets that the task needs, such as `files`."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """The initial files of the sandbox: path to content."""

    def check(self, output: str, files: Mapping[str, bytes]) -> "Grade | Awaitable[Grade]":
        """Grade the final answer `output` and the sandbox's final `files`, which are `RunFiles` after a run.

        It may be a coroutine function. `check_task` calls either, and one of a user's set in a thread.
        """


async def check_task(
    task: Task, output: str, files: Mapping[str, bytes], messages: Sequence[Message] = ()
) -> Grade:
    """Return the grade that the check of a task gives. `messages` is the transcript. Raises: what the check raises;
    `ConfigError` if it returns no grade."""
    check = getattr(task, "check_transcript", None)
    call = partial(task.check, output, files) if check is None else partial(check, messages)
    # A slow check of a user must not keep other runs waiting.
    found: Any = await THREADS.run(call, {}) if isinstance(task, SimpleTask | _PlacedTask) else call()
    return _to_grade(await found if isinstance(found, Awaitable) else found)


async def find_reply(task: Task | None, messages: Sequence[Message], sandbox: Sandbox | None) -> str | None:
    """Return what the simulated user of a task says after `messages`; `None` if there is no user, or no reply.
    Before the first turn, nothing is called that does not work on the files.

    Raises: `ConfigError` if it is no text.
    """
    reply = getattr(task, "reply", None)
    works_on_files = reply is not None and "sandbox" in inspect.signature(reply).parameters
    if reply is None or not (works_on_files or messages):
        return None
    said: Any = reply(messages, sandbox=sandbox) if works_on_files else reply(messages)
    if isinstance(said, Awaitable):
        said = await said
    if not isinstance(said, str | None):
        raise ConfigError(
            f"the simulated user of a task said {said!r:.100}; let reply return a text, or None"
        )
    return said


def find_environment(task: Task) -> tuple[str, ...] | None:
    """Return the command of the environment that plays a task; `None` if the loop does. Raises: `ConfigError`."""
    command = getattr(task, "environment", None)
    if command is None:
        return None
    if not isinstance(command, list | tuple) or not all(isinstance(word, str) for word in command):
        what = f"the environment of the task '{task.task_set}:{task.task_id}'"
        raise ConfigError(f"{what} is {command!r:.100}; give a list with the words of its command")
    return tuple(command)


def find_step_rewards(task: Task, messages: Sequence[Message]) -> tuple[float, ...] | None:
    """Return the reward of each assistant message in `messages`; `None` if the task does not reward steps."""
    score = getattr(task, "score_steps", None)
    return None if score is None else tuple([_to_grade(reward).reward for reward in score(messages)])


class TaskSet(Protocol):
    """A collection of tasks under one name. If it has an attribute `splits`, a mapping of names to the ids of
    tasks, `SET:SPLIT` stands for these tasks. If tasks are costly to make, it may have a method `match`, which
    returns the tasks whose ids fit a pattern and makes no others."""

    @property
    def name(self) -> str:
        """The name of the set; references to its tasks begin with it."""

    def __len__(self) -> int:
        """Return the number of distinct tasks."""

    def __iter__(self) -> Iterator[Task]:
        """Iterate over all tasks in a fixed order that mixes the kinds."""

    def get(self, task_id: str) -> Task:
        """Return the task with this id.

        Raises: `ConfigError` that names similar ids if there is no such task.
        """


Verdict: TypeAlias = Grade | float
Grader: TypeAlias = Callable[["SimpleTask", str, dict[str, bytes]], Verdict | Awaitable[Verdict]]
"""A function of a task, the final answer and the final files that returns a grade, a number or a bool. A coroutine
function is awaited; any other function is called in a thread."""


class SimpleTask(Struct, frozen=True, kw_only=True, metaclass=NamedFields):
    """A task whose parts are given as values."""

    task_id: str
    input: str
    instructions: str | None = None
    tools: Sequence[str] = ()
    files: Mapping[str, bytes] = {}
    grader: Grader | None = None
    """The check of the outcome; `None` if the task can only be graded by other rewards."""
    data: Any = None
    """Whatever the grader or a reward function needs, such as the right answer. The model does not see it."""
    seed: int | None = None
    task_set: str = ""
    """The name of the set; the set itself fills it in."""

    def check(self, output: str, files: Mapping[str, bytes]) -> Grade | Awaitable[Grade]:
        """See `Task.check`. Raises: `ConfigError` if the task has no grader."""
        if self.grader is None:
            raise ConfigError(f"the task {self.task_id!r} has no grader; give it one, or use other rewards")
        verdict = self.grader(self, output, dict(files))
        return _await_grade(verdict) if isinstance(verdict, Awaitable) else _to_grade(verdict)


def _to_grade(verdict: Verdict) -> Grade:
    """Return the verdict of the user's code as a grade. Raises: `ConfigError` if it is no number."""
    grade = verdict if isinstance(verdict, Grade) else Grade(verdict, "")
    with suppress(TypeError, ValueError):
        # numpy has numbers of its own
        reward = math.nan if isinstance(grade.reward, str) else float(grade.reward)
        if math.isfinite(reward):
            return Grade(reward, grade.detail)
    raise ConfigError(f"it returned {verdict!r:.100}; return a Grade, a number from 0 to 1, or a bool")


def keep_finite(metrics: Mapping[str, float] | None) -> dict[str, float] | None:
    """Return the metrics that are numbers, which an event can have; `None` if there are none."""
    return {name: float(value) for name, value in (metrics or {}).items() if math.isfinite(value)} or None


async def _await_grade(verdict: Awaitable[Verdict]) -> Grade:
    return _to_grade(await verdict)


TASK_SETS: Registry[object] = Registry("task set", "treadle.tasks", {})
"""The installed task sets. An entry is a `TaskSet`, a list of tasks, or a function without arguments that returns
one of these. A name that ends with a colon is written with a text, as in `harbor:folder`; the function gets the
text."""
_TEXT = re.compile(
    r"""((?:https?://[^:/?]*(?::\d+)?)?[^:?]*(?:\?(?:"[^"]*"|\{(?:[^{}]|\{[^{}]*\})*\}|[^:])*)?):?(.*)""",
    re.DOTALL,
)
"""The text in the name of a task set, and a task in it. Only an address, and JSON after a `?`, have colons."""
_PLACE = re.compile(r"([\w.]+|.+?\.py):([^\W\d]\w*)(?::(.*))?", re.DOTALL)
"""A task set in a module or file, and a task in it."""


def split_reference(reference: str) -> tuple[str, str]:
    """Return the name of the task set and the id of the task in a reference; the id is empty if there is none.

    `files:csv_sum-0042` is a task of an installed set, `puzzles.py:PUZZLES:sum-7` one of a set in a file, and
    `harbor:folder:hello` one of a set whose name has a text.
    """
    name, _, task_id = reference.partition(":")
    if f"{name}:" in TASK_SETS:
        text, task_id = cast("re.Match[str]", _TEXT.fullmatch(task_id)).groups()
        return f"{name}:{text}", task_id
    found = _PLACE.fullmatch(reference)
    if found is None or name in TASK_SETS:
        return name, task_id
    return f"{found[1]}:{found[2]}", found[3] or ""


def task_set(name: str) -> TaskSet:
    """Return the task set with this name.

    Raises: `ConfigError` that names similar task sets if there is no such set, or if it cannot be loaded.
    """
    found, is_installed = _load(name)
    refuse_async(found, f"the task set {name!r}")
    try:
        made = found() if callable(found) else found
    except (ConfigError, ExportError):
        raise
    except Exception as error:
        said = f"{hide_secrets(repr(error))}{place_of(error)}"
        raise ConfigError(f"the task set {name!r} cannot be loaded: {said}") from error
    if isinstance(made, Sequence) and not isinstance(made, str):
        return _ListedSet(name, made)
    if not callable(getattr(made, "get", None)) or not hasattr(made, "__iter__") or isinstance(made, Mapping):
        raise ConfigError(
            f"the task set {name!r} is {made!r:.100}; give a TaskSet, a list of tasks, or a function that "
            "returns one"
        )
    return cast("TaskSet", made) if is_installed else _PlacedSet(name, cast("TaskSet", made))


def load_task(reference: str) -> Task:
    """Return the task with the reference `SET:ID`, such as `files:csv_sum-0042` or `puzzles.py:PUZZLES:sum-7`.

    Raises: `ConfigError` that names similar sets or ids if there is no such task.
    """
    name, task_id = split_reference(reference)
    if not name or not task_id:
        if reference in TASK_SETS:
            task_set(reference)  # its error says which text is missing
        if ":" in reference.strip(":"):
            task_set(reference.partition(":")[0])  # its error names similar sets
        raise ConfigError(f"{reference!r} is not a task; write SET:ID, such as 'files:csv_sum-0042'")
    found = task_set(name)
    try:
        return found.get(task_id)
    except ConfigError:
        if task_id not in splits_of(found) and not set(task_id) & set("*?["):
            raise
        text = f"{reference!r} stands for several tasks, and here one is needed; `treadle tasks {name}` lists them"
        raise ConfigError(text) from None


def _load(name: str) -> tuple[object, bool]:
    """Return the object with the name of a task set, and whether it is installed. Raises: `ConfigError`."""
    kind, _, text = name.partition(":")
    if f"{kind}:" in TASK_SETS:
        return partial(cast("Callable[[str], object]", TASK_SETS.load(f"{kind}:")), text), True
    place, colon, _ = name.rpartition(":")
    if not colon or name in TASK_SETS:
        try:
            return TASK_SETS.load(name), True
        except ConfigError as error:
            if name in TASK_SETS:
                raise
            forms = "file.py:ATTRIBUTE or package.module:ATTRIBUTE"
            raise ConfigError(f"{error}. A set of your own is written as {forms}") from error
    from treadle.tools.toolset_parts import load_reference

    try:
        return load_reference(name), False
    except ConfigError as error:
        raise ConfigError(f"{error}{did_you_mean(place, TASK_SETS.names(), cutoff=0.7)}") from error


def splits_of(found: TaskSet) -> Mapping[str, Sequence[str]]:
    """Return the ids of the tasks of each split of a set, such as `test`; a set without `splits` has none."""
    splits: Mapping[str, Sequence[str]] = getattr(found, "splits", {})
    return splits


class _PlacedTask:
    """A task of a set in a module or file. Its `task_set` is the name by which any process finds the set."""

    def __init__(self, task: Task, task_set: str) -> None:
        self._task = task
        self.task_set = task_set

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


class _SolvableTask(_PlacedTask):
    """A placed task that can be solved."""

    def find_solver(self, prompt: str) -> Any:
        return cast("Any", self._task).find_solver(prompt)


class _PlacedSet:
    """A task set in a module or file, under the name by which any process finds it."""

    def __init__(self, name: str, inner: TaskSet) -> None:
        self.name = name
        self._inner = inner
        self.splits = splits_of(inner)

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[Task]:
        return map(self._place, self._inner)

    def get(self, task_id: str) -> Task:
        try:
            return self._place(self._inner.get(task_id))
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"the task set {self.name!r} cannot make the task {task_id!r}: {error!r}"
            ) from error

    def _place(self, task: Task) -> Task:
        made = _SolvableTask if hasattr(task, "find_solver") else _PlacedTask
        return cast("Task", made(task, self.name))


class _ListedSet(_PlacedSet):
    """A list of tasks as a task set."""

    def __init__(self, name: str, tasks: Iterable[Task]) -> None:
        """Make a set. Raises: `ConfigError` for an item that is no task, and for two tasks with the same id."""
        self.name = name
        self.splits = {}
        self._tasks: dict[str, Task] = {}
        for task in tasks:
            if not callable(getattr(task, "check", None)) or not isinstance(
                getattr(task, "task_id", None), str
            ):
                raise ConfigError(
                    f"the task set {name!r} has {task!r:.100}; give a Task, such as a SimpleTask"
                )
            if task.task_id in self._tasks:
                raise ConfigError(f"the task set {name!r} has two tasks with the id {task.task_id!r}")
            self._tasks[task.task_id] = task

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return map(self._place, self._tasks.values())

    def get(self, task_id: str) -> Task:
        return self._place(get_task(self.name, self._tasks, task_id))


def get_task(name: str, tasks: Mapping[str, T], task_id: str) -> T:
    """Return the task of a set called `name` that has an id. Raises: `ConfigError` with near ids, or an example."""
    if task_id in tasks:
        return tasks[task_id]
    hint = did_you_mean(task_id, islice(tasks, _MAX_IDS), f"ids are such as {next(iter(tasks), 'none')!r}")
    raise ConfigError(f"the task set {name!r} has no task {task_id!r}{hint}")


def find_tasks(references: Iterable[str]) -> list[str]:
    """Return the tasks that `references` name: task sets, `SET:ID`, `SET:SPLIT` such as `files:test`, and patterns
    such as `files:csv_sum-*`.

    Raises: `ConfigError` for a set or a task that does not exist, and for a pattern that no task fits.
    """
    found: dict[str, None] = {}
    for reference in references:
        if reference.endswith(":"):
            if reference in TASK_SETS:
                task_set(reference)  # its error says which text is missing
            raise ConfigError(
                f"{reference!r} has no task; write a task set without a colon, SET:ID, or a pattern"
            )
        name, task_id = split_reference(reference)
        if task_id and task_id in (splits := splits_of(task_set(name))):
            found.update(dict.fromkeys([f"{name}:{item}" for item in splits[task_id]]))
            continue
        if task_id and not set(task_id) & set("*?["):
            try:
                load_task(reference)
            except ConfigError as error:
                if not splits:
                    raise
                near = did_you_mean(task_id, splits)
                wrong = f"the task set {name!r} has no split {task_id!r}{near}"
                raise ConfigError(
                    wrong if near else f"{error}. Its splits are {', '.join(splits)}"
                ) from error
            found[reference] = None
            continue
        chosen_from = task_set(name)
        match = getattr(chosen_from, "match", None) if task_id else None
        chosen = [
            task.task_id
            for task in (chosen_from if match is None else match(task_id))
            if match or not task_id or fnmatchcase(task.task_id, task_id)
        ]
        if not chosen:
            ids = [task.task_id for task in chosen_from]
            if not ids:
                raise ConfigError(f"the task set {name!r} has no tasks")
            families = dict.fromkeys([item.rpartition("-")[0] for item in ids])
            near = did_you_mean(task_id.rstrip("*?-"), families) or f"; ids are such as {ids[0]!r}"
            raise ConfigError(f"no task of the set {name!r} fits {task_id!r}{near}")
        found.update(dict.fromkeys([f"{name}:{item}" for item in chosen]))
    return list(found)
