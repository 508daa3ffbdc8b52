"""The task sets `harbor:FOLDER`: folders of tasks in the formats of Harbor and of terminal-bench.

A task whose Dockerfile only copies files onto a common base image needs no image: it runs in the sandbox, where its
working folder is the folder of the run's files. Its tests run on the final files, after the run, and are never seen
by the agent. Source: Harbor 0.24 (`task.toml`, `instruction.md`, `environment/`, `tests/test.sh`, which writes
`/logs/verifier/reward.txt`) and terminal-bench 0.2 (`task.yaml`, `run-tests.sh`, `tests/`).
"""

import logging
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.core.documents import decode_document
from treadle.core.errors import ConfigError, SandboxError
from treadle.core.registry import did_you_mean
from treadle.core.types import Json
from treadle.runs.task import Grade, TaskSet
from treadle.sandbox.commands.host import HostCommands
from treadle.sandbox.in_memory import MemorySandbox
from treadle.sandbox.protocol import Limits
from treadle.tools.shell import Shell

_HIDDEN = ".grading"
"""The folder of the tests and of their logs, while a task is graded."""
_BASES = re.compile(r"(?:\S*/)?(?:python|ubuntu|debian|alpine|busybox)(?:[:@]\S*)?|\S*/t-bench/\S+", re.ASCII)
"""Images that have nothing which the sandbox lacks, as far as a task copies files onto them."""
_INSTALLS = re.compile(r"\b(apt(-get)?|apk|pip3?|uvx?|npm|curl|wget)\b")
_PLAIN = frozenset(
    ("FROM", "WORKDIR", "COPY", "ENV", "LABEL", "CMD", "ENTRYPOINT", "USER", "ARG", "EXPOSE", "SHELL")
)


def open_harbor(folder: str) -> TaskSet:
    """Return the tasks in a folder, which is one task or has one in each subfolder. Raises: `ConfigError`."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise ConfigError(f"there is no folder {folder!r}; write harbor:FOLDER with a folder of tasks")
    places = [root] if _is_task(root) else sorted([path for path in root.iterdir() if _is_task(path)])
    if not places:
        raise ConfigError(f"the folder {folder!r} has no tasks: no subfolder has a task.toml or a task.yaml")
    return HarborSet(f"harbor:{folder}", places)


def _is_task(path: Path) -> bool:
    return (path / "task.toml").is_file() or (path / "task.yaml").is_file()


class _Layout(Struct, frozen=True):
    """Where the parts of a task are."""

    instruction: str
    environment: Path
    """The folder with the Dockerfile."""
    script: Path
    """The script that runs the tests."""
    tests: Path
    settings: Mapping[str, Json]
    is_harbor: bool


def _read_layout(place: Path) -> _Layout:
    """Return the parts of a task. Raises: `ConfigError` if one is missing or cannot be read."""
    is_harbor = (place / "task.toml").is_file()
    try:
        if is_harbor:
            settings = tomllib.loads((place / "task.toml").read_text("utf-8"))
            said = (place / "instruction.md").read_text("utf-8")
            return _Layout(
                said, place / "environment", place / "tests" / "test.sh", place / "tests", settings, True
            )
        found = decode_document((place / "task.yaml").read_bytes(), str(place / "task.yaml"), is_yaml=True)
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the task {str(place)!r} cannot be read: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("instruction"), str):
        raise ConfigError(f"the file {str(place / 'task.yaml')!r} has no instruction")
    said = str(found["instruction"])
    return _Layout(said, place, place / "run-tests.sh", place / "tests", found, False)


class _Image(Struct):
    """What a Dockerfile makes, as far as it only copies files."""

    folder: str = "/app"
    """The working folder."""
    files: dict[str, bytes] = {}
    """The files in it."""


def _read_image(layout: _Layout) -> _Image:
    """Return what the Dockerfile of a task makes. Raises: `ConfigError` that says why the task needs its image."""
    path = layout.environment / "Dockerfile"
    composed = [item for item in layout.environment.glob("docker-compose*") if layout.is_harbor]
    if composed:
        raise _needs_image(f"it has several containers ({composed[0].name})")
    image = _Image()
    if not path.is_file():
        named = layout.settings.get("environment")
        given = named.get("docker_image") if isinstance(named, dict) else None
        raise _needs_image(f"its image is {given!r}" if given else "it has no Dockerfile")
    text = re.sub(r"\\\n", " ", path.read_text("utf-8", "replace"))
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        word, rest = word.upper(), rest.strip()
        if not word or word.startswith("#"):
            continue
        if word == "RUN" and re.fullmatch(r"mkdir -p [\w/. -]+", rest):
            continue  # folders appear with their files
        if word not in _PLAIN or (word == "FROM" and not _BASES.fullmatch(rest.partition(" ")[0])):
            raise _needs_image(f"its Dockerfile has `{line.strip()[:80]}`")
        if word == "WORKDIR":
            image.folder = rest.rstrip("/") or "/"
        elif word == "COPY":
            _copy(image, layout.environment, rest)
    if image.folder == "/":
        raise _needs_image("its working folder is the root")
    return image


def _needs_image(why: str) -> ConfigError:
    return ConfigError(f"it needs its image, and Treadle runs tasks only without one: {why}")


def _copy(image: _Image, context: Path, arguments: str) -> None:
    """Add the files of a COPY line to an image."""
    words = [word for word in shlex.split(arguments) if not word.startswith("--")]
    if arguments.startswith("["):
        words = msgspec.json.decode(arguments, type=list[str])
    *sources, target = words
    if target.startswith("/"):
        inner = f"{target.rstrip('/')}/"
        if not inner.startswith(f"{image.folder}/"):
            raise _needs_image(f"its Dockerfile copies to {target!r}, outside of {image.folder!r}")
        target = target[len(image.folder) + 1 :]
    target = "" if target == "." else target.removeprefix("./").strip("/")
    for source in sources:
        found = sorted(context.glob(source.strip("/"))) if source not in (".", "./") else [context]
        if not found:
            raise ConfigError(f"its Dockerfile copies {source!r}, which is not there")
        for path in found:
            is_into = (
                path.is_dir() or len(sources) > 1 or arguments.rstrip().endswith(("/", " .")) or not target
            )
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if not file.is_file() or file.name in ("Dockerfile", "docker-compose.yaml"):
                    continue
                own = file.relative_to(path).as_posix() if path.is_dir() else path.name
                name = f"{target}/{own}".strip("/") if is_into else target
                image.files[name] = file.read_bytes()


class HarborTask:
    """A task in a folder."""

    seed: int | None = None
    instructions: str | None = None

    def __init__(self, task_set: str, task_id: str, place: Path) -> None:
        """Read a task. Raises: `ConfigError` that says why it cannot be run here."""
        self.task_set = task_set
        self.task_id = task_id
        try:
            self._layout = _read_layout(place)
            self._image = _read_image(self._layout)
            self._script = _read_script(self._layout)
        except ConfigError as error:
            raise ConfigError(f"the task {task_set}:{task_id} cannot be run here: {error}") from error
        self.input = self._layout.instruction.strip()
        self.files: Mapping[str, bytes] = self._image.files
        self.tools: Sequence[str] = (f"harbor-shell:{self._image.folder}",)

    async def check(self, output: str, files: Mapping[str, bytes]) -> Grade:
        """Run the tests on the final files. Raises: `SandboxError` if commands cannot be run."""
        tests = {
            f"{_HIDDEN}/tests/{path.relative_to(self._layout.tests).as_posix()}": path.read_bytes()
            for path in sorted(self._layout.tests.rglob("*"))
            if path.is_file()
        }
        log = f"{_HIDDEN}/logs/verifier/reward.txt"
        held = {f"{_HIDDEN}/logs/verifier/.keep": b"", f"{_HIDDEN}/test.sh": self._script}
        own = {path: content for path, content in files.items() if not path.startswith(f"{_HIDDEN}/")}
        box = MemorySandbox({**own, **tests, **held})
        folder = self._image.folder
        aliases = {folder: "", "/tests": f"{_HIDDEN}/tests", "/logs": f"{_HIDDEN}/logs"}
        commands = HostCommands(aliases=aliases)
        async with commands.open() as place:
            outcome = await place.run(
                f"export TEST_DIR=/tests && cd {shlex.quote(folder)} && bash {_HIDDEN}/test.sh",
                box,
                self._limits(),
            )
        last = outcome.text.strip()[-200:]
        if not self._layout.is_harbor:
            is_right = outcome.exit_code == 0
            return Grade(float(is_right), "its tests pass" if is_right else f"its tests fail: {last}")
        if log not in box.paths():
            return Grade(0.0, f"its tests gave no reward: {last}")
        try:
            reward = float(box.read(log).decode().strip())
        except ValueError as error:
            raise SandboxError(f"the reward of {self.task_id} is no number: {box.read(log)!r:.80}") from error
        return Grade(min(1.0, max(0.0, reward)), f"its tests gave {reward:g}")

    def _limits(self) -> Limits:
        verifier = self._layout.settings.get("verifier")
        given = verifier.get("timeout_sec") if isinstance(verifier, dict) else None
        given = given or self._layout.settings.get("max_test_timeout_sec")
        return Limits(seconds=float(given) if isinstance(given, int | float) else 120.0)


def _read_script(layout: _Layout) -> bytes:
    """Return the script of the tests. Raises: `ConfigError` if there is none, or if it installs programs."""
    try:
        content = layout.script.read_bytes()
    except OSError as error:
        raise ConfigError(f"it has no script of tests: {error}") from error
    for line in content.decode("utf-8", "replace").splitlines():
        command = line.strip()
        if not command.startswith("#") and (found := _INSTALLS.search(command)):
            raise ConfigError(
                f"its tests install programs with {found[0]}, and the sandbox has no network: `{command[:80]}`"
            )
    return content


class HarborSet:
    """The tasks in a folder. The id of a task is the name of its subfolder."""

    def __init__(self, name: str, places: Sequence[Path]) -> None:
        self.name = name
        self._places = {place.resolve().name: place for place in places}

    @cached_property
    def _tasks(self) -> list[HarborTask]:
        """Return the tasks that can be run here; the log says why others cannot."""
        found, refused = [], []
        for task_id in self._places:
            try:
                found.append(self.get(task_id))
            except ConfigError as error:
                refused.append(error)
        if not found:
            raise refused[0]
        for reason in refused:
            logging.getLogger("treadle").warning("%s", reason)
        return found

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[HarborTask]:
        return iter(self._tasks)

    def get(self, task_id: str) -> HarborTask:
        """See `TaskSet.get`."""
        place = self._places.get(task_id)
        if place is None:
            raise ConfigError(f"{self.name} has no task {task_id!r}{did_you_mean(task_id, self._places)}")
        return HarborTask(self.name, task_id, place)


def make_shell(folder: str) -> Shell:
    """Return the tool `shell` in which the run's files are in `folder`, the toolset `harbor-shell:FOLDER`."""
    return Shell(work_folder=folder)
