"""Environments: the tools of a generation, and the initial files of each sample.

Files are read once. The sandboxes of all samples share them until one of them is written to.
"""

import codecs
from collections import Counter
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.core.types import Json
from treadle.datagen.config.generation_config import Tools
from treadle.datagen.scenarios.kinds import TASK_KINDS
from treadle.datagen.scenarios.scenario import Environment, SampleSpec
from treadle.runs.agent_parts import read_mount
from treadle.runs.task import Task, TaskSet, task_set
from treadle.sandbox.in_memory import SharedFiles
from treadle.tasks.draws import Draw
from treadle.tools.protocol import ToolLike

MAX_LISTED_FILES = 24
"""How many files a scenario writer is shown. If there are more, each sample shows different ones."""
MAX_HEAD_CHARS = 320
"""How many characters of each file a scenario writer is shown."""
MAX_LISTED_FOLDERS = 40
_KEPT_TASKS = 256


class Environments:
    """The environments of a generation. Every sample has the same files, or draws a task of a task set."""

    def __init__(
        self,
        fixed: Environment,
        tools: tuple[ToolLike, ...] = (),
        tasks: TaskSet | None = None,
        seed: int = 0,
    ) -> None:
        self.tools = tools
        """The agent's tools, as an `Agent` takes them."""
        self._fixed = fixed
        self._tasks = tasks
        self._seed = seed
        self.load_task = lru_cache(maxsize=_KEPT_TASKS)(self._load_task)
        """Return the task `SET:ID`. Recently drawn tasks are cached, so that each is made once."""

    def draw(self, spec: SampleSpec) -> Environment:
        """Return the environment of a sample.

        Tasks are drawn without replacement until each has been drawn once. A sample of a kind for which the task
        cannot be asked has the files of the task without its input and check.
        """
        if self._tasks is None:
            return self._fixed
        reference = f"{self._tasks.name}:{self._order[(spec.number - 1) % len(self._order)]}"
        task = self.load_task(reference)
        applies = spec.kind in TASK_KINDS
        return Environment(
            files=SharedFiles(task.files),
            source=f"tasks:{self._tasks.name}",
            task=reference if applies else None,
            task_input=task.input if applies else "",
        )

    def _load_task(self, reference: str) -> Task:
        tasks = self._tasks
        assert tasks is not None
        return tasks.get(reference.removeprefix(f"{tasks.name}:"))

    def describe(self, environment: Environment, seed: int) -> dict[str, Json]:
        """Describe the files for a scenario writer: some files with their beginnings, and a summary."""
        files = environment.files
        paths = list(files)
        if len(paths) <= MAX_LISTED_FILES:
            return {"files": [_describe(path, files[path]) for path in paths]}
        chosen = Draw(f"{seed}:files").distinct(0, len(paths) - 1, MAX_LISTED_FILES)
        summary = self._summary if environment is self._fixed else _summarize(files)
        return {
            "files": [_describe(paths[index], files[paths[index]]) for index in sorted(chosen)],
            "files_summary": summary,
        }

    @cached_property
    def _summary(self) -> Json:
        return _summarize(self._fixed.files)

    @cached_property
    def _order(self) -> list[str]:
        assert self._tasks is not None
        ids = [task.task_id for task in self._tasks]
        return Draw(f"{self._seed}:tasks").shuffled(ids)


def open_environments(tools: Tools, seed: int) -> Environments:
    """Return the environments for the tools and files of a configuration. Without tools, those of the task set are
    used.

    Raises: `ConfigError` if the folder cannot be read, or the task set does not exist or is empty.
    """
    files, given = tools.files, _open_tools(tools)
    if files is None:
        return Environments(Environment(), given)
    if isinstance(files, Mapping):
        return Environments(Environment(files=SharedFiles(files), source="configuration"), given)
    if (name := tools.task_set) is not None:
        tasks = task_set(name)
        if not len(tasks):
            raise ConfigError(f"tools.files is {files!r}, and the task set has no tasks; name another one")
        return Environments(Environment(), given or tuple(next(iter(tasks)).tools), tasks, seed)
    mounted = read_mount(Path(files).expanduser())
    if not mounted:
        raise ConfigError(f"tools.files is {files!r}, and there is no file to mount; name another folder")
    return Environments(Environment(files=SharedFiles(mounted), source=files), given)


def _open_tools(tools: Tools) -> tuple[ToolLike, ...]:
    """Return the toolsets of a configuration by name, and one with the simulated tools."""
    found: list[ToolLike] = [*tools.parts()]
    if tools.definitions:
        from treadle.tools.mock.mocks import mock_of

        found.append(mock_of({"tools": tools.definitions}, "tools.definitions"))
    return tuple(found)


def _describe(path: str, content: bytes) -> Json:
    return {"path": path, "size_bytes": len(content), "head": _head(content)}


def _head(content: bytes) -> str:
    """Return the beginning of a text; empty for other content."""
    start = content[: 4 * MAX_HEAD_CHARS]
    if b"\0" in start:
        return ""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        # A character may be cut in half at the end.
        return decoder.decode(start, final=len(start) == len(content))[:MAX_HEAD_CHARS]
    except UnicodeDecodeError:
        return ""


def _summarize(files: Mapping[str, bytes]) -> Json:
    """Return the number of files, their bytes, and the folders with the most files."""
    folders = Counter(path.rpartition("/")[0] for path in files)
    return {
        "files": len(files),
        "size_bytes": sum(map(len, files.values())),
        "folders": {folder or ".": count for folder, count in folders.most_common(MAX_LISTED_FOLDERS)},
    }
