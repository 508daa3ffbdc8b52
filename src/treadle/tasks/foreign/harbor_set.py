"""The task sets `harbor:FOLDER`: folders of tasks in the formats of Harbor and of terminal-bench.

A task whose image adds nothing but files and what this machine has needs no image: it runs in the sandbox, where
commands find the run's files in the task's own folders. Others run in their image, in the same sandbox. The tests
run on the final files, after the run, and are never seen by the agent. The reference solution is what the model
`oracle` runs.

Source: Harbor 0.26 (`task.toml`, `instruction.md`, `environment/`, `solution/solve.sh`, `tests/test.sh`, which
writes `/logs/verifier/reward.json` or `reward.txt`) and terminal-bench 0.2.18 (`task.yaml`, `solution.sh` or
`solution.yaml`, `run-tests.sh`, `tests/`, whose results are in pytest's summary).
"""

import fnmatch
import json
import math
import posixpath
import re
import shlex
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.texts.documents import decode_document
from treadle.journal.named_files import suggest_path
from treadle.runs.task import Grade, TaskSet, get_task
from treadle.sandbox.commands.bubblewrap import ImageRoot
from treadle.sandbox.commands.host import HostCommands
from treadle.sandbox.commands.images import IMAGE_ID
from treadle.sandbox.commands.run_folder import open_for_check
from treadle.sandbox.in_memory import MemorySandbox
from treadle.sandbox.protocol import CommandOutcome, Limits
from treadle.tasks.foreign.harbor_folder import HarborFolder, read_folder
from treadle.tasks.foreign.harbor_image import OUTER, Image, find_image, place_mounts, read_image
from treadle.tasks.foreign.installers import find_binds, find_obstacle, read_functions
from treadle.tasks.foreign.left_out import warn_once
from treadle.tasks.solver import Solver, Step, WantedCall
from treadle.tools.shell import Shell

_VARIABLE = "variable."
"""The beginning of the names of variables in the text of a toolset."""
_HIDDEN = ".grading"
"""The folder of the tests and of their logs, while a task is graded."""
_BASH = "$(command -v bash || echo sh)"
_OTHER_PROGRAM = re.compile(rb"#!(?!.*\b(?:ba|da|k|z)?sh\b)")
"""The beginning of a script that is not for a shell."""
_KEPT = ".solution"
"""The file of the run with a solution that is too long for one command."""
_CHUNK_CHARS = 60_000
_BUILDS = 4
"""How many images are built at the same time."""
_SUMMARY = re.compile(r"=+\s*short test summary info\s*=+", re.IGNORECASE)
_RESULT = re.compile(r"^(PASSED|SKIPPED|XFAIL|FAILED|XPASS|ERROR):?\s+(\S.*?)(?: - .*)?$", re.MULTILINE)
_PASSING = ("PASSED", "SKIPPED", "XFAIL")


def open_harbor(folder: str) -> TaskSet:
    """Return the tasks in a folder, which is one task or has one in each subfolder. Raises: `ConfigError`."""
    if not folder:
        raise ConfigError("give a folder of tasks, as in harbor:tasks")
    root = Path(folder).expanduser()
    if not root.is_dir():
        hint = suggest_path(root, "write harbor:FOLDER with a folder of tasks")
        raise ConfigError(f"there is no folder {folder!r}{hint}")
    places = [root] if _is_task(root) else sorted([path for path in root.iterdir() if _is_task(path)])
    if not places:
        raise ConfigError(f"the folder {folder!r} has no tasks: no subfolder has a task.toml or a task.yaml")
    return HarborSet(f"harbor:{folder}", places)


def _is_task(path: Path) -> bool:
    return (path / "task.toml").is_file() or (path / "task.yaml").is_file()


class HarborTask:
    """A task in a folder."""

    seed: int | None = None
    instructions: str | None = None

    def __init__(self, task_set: str, task_id: str, place: Path) -> None:
        """Read a task. Raises: `ConfigError` that says why it cannot be run here."""
        self.task_set = task_set
        self.task_id = task_id
        try:
            self._folder = folder = read_folder(place)
            own, tested = folder.variables("environment"), folder.variables("verifier")
            folder.variables("solution")
            self._seconds = folder.seconds(
                "verifier", "max_test_timeout_sec", 600.0 if folder.is_harbor else 60.0
            )
            self._image = find_image(folder.context, folder.section("environment"))
            self._image.variables |= own
            self._tested = self._find_tested() if folder.is_separate else self._image
            self._artifacts = self._find_artifacts() if folder.is_separate else []
            self._variables = {**self._tested.variables, **tested}
            if self._image.root is None and folder.is_harbor:
                self._image.folders |= {"/logs/agent", "/logs/artifacts"}
            self._script = _read_script(folder, self._image.root)
            self.tools: Sequence[str] = (f"harbor-shell:{self._describe_shell()}",)
        except ConfigError as error:
            raise ConfigError(f"the task {task_set}:{task_id} cannot be run here: {error}") from error
        self.input = folder.instruction.strip()
        self.files: Mapping[str, bytes] = {
            self._image.place(path): content for path, content in self._image.files.items()
        }

    def _find_tested(self) -> Image:
        """Return the image of separate tests: their own, or that of the agent. Raises: `ConfigError`."""
        tests, settings = self._folder.script.parent, self._folder.section("verifier").get("environment")
        given = settings if isinstance(settings, dict) else {}
        names = ("Dockerfile", "docker-compose.yaml")
        has_own = given.get("docker_image") or any((tests / name).is_file() for name in names)
        where = "its tests run in a container of their own"
        if self._image.root is not None:
            raise ConfigError(f"{where}, which Treadle can give only tasks without an image")
        try:
            return read_image(tests, given) if has_own else self._image
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error

    def _find_artifacts(self) -> list[str]:
        """Return the absolute paths of what separate tests get from the run. Raises: `ConfigError`."""
        given = self._folder.artifacts()
        found = [posixpath.normpath(posixpath.join(self._image.folder, source)) for source in given]
        for path in found:
            self._image.place(path)  # its error names what only the sandbox has
        return found

    def _hand_over(self, files: Mapping[str, bytes]) -> tuple[Image, Mapping[str, bytes]]:
        """Return the image in which the tests run, and the files that they find: those of the run or, for separate
        tests, of their image and of the run's artifacts."""
        if not self._folder.is_separate:
            return self._image, files
        outer, folder, made = f"{OUTER}/", self._image.folder, dict(self._tested.files)
        left = {
            f"/{name.removeprefix(outer)}" if name.startswith(outer) else f"{folder}/{name}": content
            for name, content in files.items()
        }
        for source in self._artifacts:
            found = {path: content for path, content in left.items() if f"{path}/".startswith(f"{source}/")}
            if found:
                made = {path: content for path, content in made.items() if not path.startswith(f"{source}/")}
            made |= found
        image = replace(self._tested, files=made)
        return image, {image.place(path): content for path, content in made.items()}

    def _describe_shell(self) -> str:
        """Return the text of the toolset: the folders, the working folder last, limits and variables."""
        told = {"seconds": f"{self._folder.seconds('agent', 'max_agent_timeout_sec', 360.0):g}"}
        if (memory := self._folder.memory_mb()) is not None:
            told["memory_mb"] = str(memory)
        if self._image.root is not None:
            told["root"] = self._image.root.image_id
        told |= {f"{_VARIABLE}{name}": text for name, text in self._image.variables.items() if name != "PATH"}
        return f"{','.join([*self._image.mounts, self._image.folder])}?{urlencode(told)}"

    def find_solver(self, prompt: str) -> Solver | None:
        """Return a solver that runs the reference solution; `None` for another prompt, or without a solution."""
        if prompt.strip() != self.input or not self._folder.solution.is_file():
            return None
        return _run_solution(self._folder, self._image)

    async def check(self, output: str, files: Mapping[str, bytes]) -> Grade:
        """Run the tests on the final files. What they leave without a valid reward has a grade of 0.

        Raises: `treadle.core.errors.SandboxError` if they cannot be run.
        """
        image, files = self._hand_over(files)
        folder = image.folder
        variables = {**self._variables, "TEST_DIR": "/tests", "BASH_ENV": "/tests/.installers.sh"}
        variables.pop("PATH", None)
        if image.root is not None:
            # The run's files begin at the root, so the tests lie where they do in a container.
            base, script, hidden = "", f"tests/{self._folder.script.name}", ["tests", "logs"]
            commands = HostCommands(aliases={folder: ""}, root=image.root.image_id, variables=variables)
        else:
            base, script, hidden = f"{_HIDDEN}/", f"{_HIDDEN}/tests/{self._folder.script.name}", [_HIDDEN]
            aliases = place_mounts(folder, image.mounts)
            aliases |= {"/tests": f"{_HIDDEN}/tests", "/logs/verifier": f"{_HIDDEN}/logs/verifier"}
            commands = HostCommands(aliases=aliases, binds=find_binds(), variables=variables)
        runner = "" if _OTHER_PROGRAM.match(self._script) else f"{_BASH} "
        command = f"cd {shlex.quote(folder)} && {runner}/tests/{self._folder.script.name}"
        # Nothing that the run has left in these folders may take part in its grading, besides its artifacts.
        kept = {path: content for path, content in files.items() if path.startswith("logs/artifacts/")}
        held = {**self._read_tests(base), script: self._script, **(kept if image.root else {})}
        box = open_for_check(files, held, hidden)
        async with commands.open() as place:
            outcome = await place.run(command, box, Limits(seconds=self._seconds))
        if self._folder.is_harbor:
            return self._read_reward(box, f"{base}logs/verifier", outcome)
        return _read_summary(outcome)

    def _read_tests(self, base: str) -> dict[str, bytes]:
        """Return the files that grading adds to those of the run, in the folder `base`."""
        script = self._folder.script
        tests = script.parent if self._folder.is_harbor else script.parent / "tests"
        found = {
            f"{base}tests/{path.relative_to(tests).as_posix()}": path.read_bytes()
            for path in sorted(tests.rglob("*"))
            if path.is_file()
        }
        return {**found, f"{base}tests/.installers.sh": read_functions(), f"{base}logs/verifier/.keep": b""}

    def _read_reward(self, box: MemorySandbox, logs: str, outcome: CommandOutcome) -> Grade:
        """Return the reward that the tests wrote; 0 if they wrote none, or what is no number."""
        fault = "wrote no reward"
        for name in ("reward.json", "reward.txt"):
            if f"{logs}/{name}" not in box.paths():
                continue
            text = box.read(f"{logs}/{name}").decode("utf-8", "replace").strip()
            try:
                found = json.loads(text) if name == "reward.json" else float(text)
                found = (
                    found.get("reward", sum(found.values()) / len(found))
                    if isinstance(found, dict)
                    else found
                )
                reward = float(found)
            except (ValueError, TypeError, ZeroDivisionError, RecursionError):
                reward = math.nan
            if math.isfinite(reward):
                return Grade(min(1.0, max(0.0, reward)), f"its tests gave {reward:g}{_last(outcome)}")
            fault = f"wrote a reward that is no number, {text!r:.80}"
            break
        return Grade(0.0, f"its tests {fault}{_last(outcome)}")


def _last(outcome: CommandOutcome) -> str:
    """Return why a command was stopped and the end of its output, or nothing if there is neither.

    It is a part of its own of the reason, since output varies and would make each failure a kind of its own.
    """
    stopped = "" if outcome.stop is None else f"[stopped: {outcome.reason or outcome.stop}]"
    said = f"{stopped} {outcome.text.strip()[-200:]}".strip()
    return said and f"; the end of their output: {said}"


def _read_summary(outcome: CommandOutcome) -> Grade:
    """Return 1 if pytest's summary has results and none of them failed, as terminal-bench does."""
    parts = _SUMMARY.split(outcome.text, maxsplit=1)
    results = {name: status for status, name in _RESULT.findall(parts[1])} if len(parts) > 1 else {}
    if not results:
        return Grade(0.0, f"its tests printed no summary{_last(outcome)}")
    failed = [status for status in results.values() if status not in _PASSING]
    detail = f"{len(results) - len(failed)} of {len(results)} tests pass"
    return Grade(float(not failed), f"{detail}{_last(outcome)}" if failed else detail)


def _run_solution(layout: HarborFolder, image: Image) -> Solver:
    """Run the reference solution in one call, with the files beside it in `/solution` of the image, or in
    `/tmp/solution` without one."""
    folder = "/solution" if image.root else "/tmp/solution"
    if layout.solution.suffix == ".yaml":
        listed = decode_document(layout.solution.read_bytes(), str(layout.solution), is_yaml=True)
        lines = (
            [str(item.get("command", "")) for item in listed if isinstance(item, dict)]
            if isinstance(listed, list)
            else []
        )
        parts = {"solve.sh": "\n".join(lines).encode()}
    else:
        parts = {"solve.sh": layout.solution.read_bytes()}
        if layout.is_harbor:
            beside = layout.solution.parent
            parts = {
                path.relative_to(beside).as_posix(): path.read_bytes()
                for path in beside.rglob("*")
                if path.is_file()
            }
    written = f"mkdir -p {folder}; "
    for name, content in {**parts, ".installers.sh": read_functions()}.items():
        place = shlex.quote(f"{folder}/{name}")
        written += (
            f"mkdir -p $(dirname {place}); printf %s {b64encode(content).decode()} | base64 -d > {place}; "
        )
    if len(written) > _CHUNK_CHARS:
        # A command takes no more, and what is in /tmp is gone after each.
        data = b64encode(written.encode()).decode()
        for at in range(0, len(data), _CHUNK_CHARS):
            told = f"printf %s {data[at : at + _CHUNK_CHARS]} >> {_KEPT}"
            yield Step([WantedCall("shell", {"command": told})])
        written = f"base64 -d {_KEPT} > {_KEPT}.sh && . ./{_KEPT}.sh; rm -f {_KEPT} {_KEPT}.sh; "
    given = {**layout.variables("solution"), "BASH_ENV": f"{folder}/.installers.sh"}
    runner = f"chmod +x {folder}/solve.sh; " if _OTHER_PROGRAM.match(parts["solve.sh"]) else f"{_BASH} "
    exports = "".join(f"export {name}={shlex.quote(str(value))}; " for name, value in given.items())
    command = f"{written}{exports}{runner}{folder}/solve.sh"
    results = yield Step([WantedCall("shell", {"command": command})], may_fail=True)
    return f"The reference solution was run. {results[0].strip()[-200:]}"


def _read_script(layout: HarborFolder, root: ImageRoot | None) -> bytes:
    """Return the script of the tests. Raises: `ConfigError` if there is none, or it installs what is not here."""
    try:
        content = layout.script.read_bytes()
    except OSError as error:
        raise ConfigError(f"it has no script of tests: {error}") from error
    if (obstacle := find_obstacle(content.decode("utf-8", "replace"), root)) is not None:
        raise ConfigError(obstacle)
    return content


class HarborSet:
    """The tasks in a folder. The id of a task is the name of its subfolder."""

    def __init__(self, name: str, places: Sequence[Path]) -> None:
        self.name = name
        self._places = {place.resolve().name: place for place in places}

    @cached_property
    def _tasks(self) -> list[HarborTask]:
        return self.match("*")

    def match(self, pattern: str) -> list[HarborTask]:
        """Return the tasks whose ids fit a pattern and that can be run here; the log says why others cannot.

        Raises: `ConfigError` if there are none.
        """
        chosen = fnmatch.filter(self._places, pattern)
        if not chosen:
            known = min(self._places)
            raise ConfigError(f"{self.name} has no task that fits {pattern!r}; ids are such as {known!r}")
        with ThreadPoolExecutor(_BUILDS) as pool:
            tried = list(pool.map(self._try, chosen))
        found = [task for task in tried if isinstance(task, HarborTask)]
        refused = [error for error in tried if isinstance(error, ConfigError)]
        if not found:
            raise refused[0]
        for reason in refused:
            warn_once(str(reason))
        if refused:
            warn_once(
                f"{len(refused)} of the {len(tried)} tasks of {self.name} are left out, for the reasons above"
            )
        return found

    def _try(self, task_id: str) -> HarborTask | ConfigError:
        try:
            return self.get(task_id)
        except ConfigError as error:
            return error

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[HarborTask]:
        return iter(self._tasks)

    def get(self, task_id: str) -> HarborTask:
        return HarborTask(self.name, task_id, get_task(self.name, self._places, task_id))


def make_shell(text: str) -> Shell:
    """Return the toolset `harbor-shell:FOLDERS?LIMITS`: a shell that finds the run's files in the folders.

    The folders are absolute paths with commas between them. The last one has the run's files. What is in the
    others, if they are outside of it, is in the hidden folder `.root`. The limits are `seconds` and `memory_mb`;
    `variable.NAME` is added to the environment of commands.
    With `root`, the id of an image, commands work in the image, and the run's files are what they changed in it.
    Raises: `ConfigError`.
    """
    paths, _, query = text.partition("?")
    *mounts, folder = paths.split(",")
    limits = {"seconds": 120}
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
        root = given.pop("root", None)
        named = [name for name in given if name.startswith(_VARIABLE)]
        variables = {name[len(_VARIABLE) :]: given.pop(name) for name in named}
        for name, value in given.items():
            scale = {"seconds": ("seconds", 1), "memory_mb": ("memory_bytes", 2**20)}[name]
            limits[scale[0]] = int(float(value)) * scale[1]
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"harbor-shell:{text} has a wrong limit ({error}); write ?seconds=60&memory_mb=512"
        ) from error
    if root is not None:
        if not IMAGE_ID.fullmatch(root):
            raise ConfigError(f"harbor-shell:{text} has the root {root!r}; give the id of an image")
        return Shell(folders={folder: ""}, limits=limits, root=root, variables=variables)
    return Shell(
        folders=place_mounts(folder, mounts), limits=limits, read_only_binds=find_binds(), variables=variables
    )
