"""The task sets `harbor:FOLDER`: folders of tasks in the formats of Harbor and of terminal-bench.

A task whose image adds nothing but files and what this machine has needs no image: it runs in the sandbox, where
commands find the run's files in the task's own folders. Others run in their image, in the same sandbox. The tests
run on the final files, after the run, and are never seen by the agent. The reference solution is what the model
`oracle` runs. The steps of a task are turns of one run, which keeps what their tests found.

Source: Harbor 0.26 (`task.toml`, `instruction.md`, `environment/`, `solution/solve.sh`, `tests/test.sh`, which
writes `/logs/verifier/reward.json` or `reward.txt`) and terminal-bench 0.2.18 (`task.yaml`, `solution.sh` or
`solution.yaml`, `run-tests.sh`, `tests/`, whose results are in pytest's summary).
"""

import fnmatch
import os
import posixpath
import shlex
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, SandboxError
from treadle.core.texts.documents import decode_document
from treadle.core.types import Message, Role
from treadle.journal.named_files import suggest_path
from treadle.runs.task import Grade, TaskSet, get_task
from treadle.sandbox.commands.images import IMAGE_ID
from treadle.sandbox.in_memory import MemorySandbox
from treadle.sandbox.protocol import Limits, RunFiles, Sandbox
from treadle.tasks.foreign.harbor_build import find_image
from treadle.tasks.foreign.harbor_folder import HarborTurn, read_folder
from treadle.tasks.foreign.harbor_image import Image, make_commands, place_mounts
from treadle.tasks.foreign.harbor_servers import find_servers
from treadle.tasks.foreign.harbor_tests import (
    BASH,
    OTHER_PROGRAM,
    TurnOutcome,
    TurnTests,
    join_outcomes,
)
from treadle.tasks.foreign.installers import find_binds, read_functions
from treadle.tasks.foreign.left_out import warn_once
from treadle.tasks.solver import Solver, Step, WantedCall
from treadle.tools.shell import Shell

_VARIABLE = "variable."
"""The beginning of the names of variables in the text of a toolset."""
_STATE = "harbor"
"""The name under which a run keeps what the tests of earlier turns found."""
_SOLUTION = "/solution"
"""The folder of the reference solution, which is empty for other models."""
_SKILLS = "The folder {} has skills. Before you begin, read the SKILL.md of each that may help."
"""What an agent is told about the skills of a task."""
_KEPT = ".solution"
"""The file of the run with a solution that is too long for one command."""
_CHUNK_CHARS = 60_000
_BUILDS = 4
"""How many images are built at the same time."""


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

    def __init__(self, task_set: str, task_id: str, turns: Sequence[HarborTurn]) -> None:
        """Make a task from the parts of its turns. Raises: `ConfigError` that says why it cannot be run here."""
        self.task_set = task_set
        self.task_id = task_id
        self._turns, first = turns, turns[0]
        own = first.variables("environment")
        first.variables("solution")
        environment = {**first.service.image_settings(), **first.section("environment")}
        self._image = find_image(first.find_build(), environment)
        self._image.variables |= own
        first.service.mount(self._image)
        self._tests = [TurnTests(turn, self._image) for turn in turns]
        if self._image.root is None:
            # Files in /tmp last as long as a container, not only for one command.
            self._image.folders |= {"/tmp", *(("/logs/agent", "/logs/artifacts") if first.is_harbor else ())}
        self.tools: Sequence[str] = (f"harbor-shell:{self._describe_shell()}", *find_servers(turns))
        self.input = first.instruction
        if skills := first.section("environment").get("skills_dir"):
            self.instructions = _SKILLS.format(skills)
        self.files: Mapping[str, bytes] = {
            self._image.locate(path): content for path, content in self._image.files.items()
        }

    @property
    def _seconds(self) -> float:
        """How long one command of the agent may take."""
        return max([turn.seconds("agent", "max_agent_timeout_sec", 360.0) for turn in self._turns])

    def _describe_shell(self) -> str:
        """Return the text of the toolset: the folders, the working folder last, limits and variables."""
        told = {"seconds": f"{self._seconds:g}"}
        if (memory := self._turns[0].memory_mb()) is not None:
            told["memory_mb"] = str(memory)
        if self._image.root is not None:
            told["root"] = self._image.root.image_id
        told |= {f"{_VARIABLE}{name}": text for name, text in self._image.variables.items() if name != "PATH"}
        solved = [_SOLUTION] if self._image.root is None and self._turns[0].is_harbor else []
        return f"{','.join([*self._image.mounts, *solved, self._image.folder])}?{urlencode(told)}"

    def find_solver(self, prompt: str) -> Solver | None:
        """Return a solver that runs the reference solution; `None` for another prompt, or without a solution."""
        asked = next((turn for turn in self._turns if turn.instruction == prompt.strip()), None)
        if asked is None or not any(turn.solution.is_file() for turn in self._turns):
            return None
        return _run_solution(asked, self._image) if asked.solution.is_file() else _do_nothing()

    async def check(self, output: str, files: Mapping[str, bytes]) -> Grade:
        """Run the tests of the last turn on the final files, and join their rewards with those of earlier turns.

        Raises: `SandboxError` if they cannot be run.
        """
        past = _read_past(files.read_state(_STATE) if isinstance(files, RunFiles) else None)
        made = past.made if past.stopped else (*past.made, await self._tests[len(past.made)].run(files))
        missing = 0 if past.stopped and not past.is_spoiled else len(self._turns) - len(made)
        strategy = self._turns[0].settings.get("multi_step_reward_strategy")
        grade = join_outcomes(made, missing, is_final=strategy == "final")
        return replace(grade, detail=f"{past.stopped}; {grade.detail}") if past.stopped else grade


class SteppedHarborTask(HarborTask):
    """A task of several steps, which are turns of one run, or whose environment must be ready."""

    def __init__(self, task_set: str, task_id: str, turns: Sequence[HarborTurn]) -> None:
        super().__init__(task_set, task_id, turns)
        self.max_turns = len(turns)

    async def reply(self, messages: Sequence[Message], sandbox: Sandbox) -> str | None:
        """Run the tests of the last turn, and prepare the files for the next one, whose instruction is returned;
        `None` if no turn follows.

        Raises: `SandboxError` if the tests cannot be run, or the first turn cannot be prepared.
        """
        known = {turn.instruction for turn in self._turns}
        over = sum([item.role is Role.USER and item.content.strip() in known for item in messages])
        if not over:
            if fault := await self._prepare(self._turns[0], sandbox):
                raise SandboxError(fault)
            return self.input
        past = _read_past(sandbox.read_state(_STATE))
        if over == len(self._turns) or past.stopped:
            return None
        following = self._turns[over]
        if len(past.made) < over:  # else it was done before the run was left
            outcome = await self._tests[over - 1].run(RunFiles.of(sandbox))
            stopped = self._turns[over - 1].find_shortfall(outcome.rewards)
            fault = "" if stopped else await self._prepare(following, sandbox)
            spoiled = bool(fault) and await self._can_prepare(over)
            if spoiled:
                fault += "; it can be prepared with the task's own files, so this is the agent's fault"
            past = _Past(made=(*past.made, outcome), stopped=stopped or fault, is_spoiled=spoiled)
            sandbox.write_state(_STATE, msgspec.json.encode(past))
        return None if past.stopped else following.instruction

    async def _can_prepare(self, number: int) -> bool:
        """Return whether a turn can be prepared after those before it if the agent changes nothing."""
        sandbox = MemorySandbox(self.files)
        faults = [await self._prepare(turn, sandbox) for turn in self._turns[: number + 1]]
        return not any(faults)

    async def _prepare(self, turn: HarborTurn, sandbox: Sandbox) -> str:
        """Put the files of a turn into the working folder, and run its script. Return why it cannot begin, or an
        empty text. Raises: `SandboxError`."""
        folder, runnable, commands = self._image.folder, [], []
        what = f"its step {turn.name!r}" if turn.name else "its environment"
        for path in sorted(turn.workdir.rglob("*") if turn.workdir else ()):
            if turn.workdir and path.is_file():
                target = posixpath.join(folder, path.relative_to(turn.workdir).as_posix())
                try:
                    sandbox.write(self._image.locate(target), path.read_bytes())
                except SandboxError as error:
                    return f"{what} could not be prepared: {error}"
                runnable += [shlex.quote(target)] if os.access(path, os.X_OK) else []
        if runnable:
            commands.append(f"chmod +x {' '.join(runnable)}")
        if turn.workdir and (turn.workdir / "setup.sh").is_file():
            commands.append(f"{BASH} {shlex.quote(posixpath.join(folder, 'setup.sh'))}")
        commands += [turn.ready] if turn.ready else []
        if not commands:
            return ""
        script = f"cd {shlex.quote(folder)} && {' && '.join(commands)}"
        async with make_commands(self._image, self._image.variables).open() as place:
            outcome = await place.run(script, sandbox, Limits(seconds=self._seconds))
        said = outcome.reason or outcome.text.strip()[-200:] or f"exit code {outcome.exit_code}"
        is_ready = outcome.exit_code == 0 and outcome.stop is None
        return "" if is_ready else f"{what} could not be prepared: {said}"


class _Past(Struct, frozen=True):
    """What the tests of earlier turns found, which a run keeps as a state beside its files."""

    made: tuple[TurnOutcome, ...] = ()
    stopped: str = ""
    """Why no further turn begins; empty if one does."""
    is_spoiled: bool = False
    """True if what the agent did keeps the next turn from being prepared. The missing turns have rewards of 0."""


def _read_past(state: bytes | None) -> _Past:
    return _Past() if state is None else msgspec.json.decode(state, type=_Past)


def _do_nothing() -> Solver:
    """Solve a step that has no reference solution."""
    yield from ()
    return "This step has no reference solution."


def _run_solution(turn: HarborTurn, image: Image) -> Solver:
    """Run the reference solution in one call, with the files beside it in `/solution`, which is empty then."""
    folder = _SOLUTION if image.root or turn.is_harbor else f"/tmp{_SOLUTION}"
    if turn.solution.suffix == ".yaml":
        listed = decode_document(turn.solution.read_bytes(), str(turn.solution), is_yaml=True)
        lines = (
            [str(item.get("command", "")) for item in listed if isinstance(item, dict)]
            if isinstance(listed, list)
            else []
        )
        parts = {"solve.sh": "\n".join(lines).encode()}
    else:
        parts = {"solve.sh": turn.solution.read_bytes()}
        if turn.is_harbor:
            beside = turn.solution.parent
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
        # A command takes no more.
        data = b64encode(written.encode()).decode()
        for at in range(0, len(data), _CHUNK_CHARS):
            told = f"printf %s {data[at : at + _CHUNK_CHARS]} >> {_KEPT}"
            yield Step([WantedCall("shell", {"command": told})])
        written = f"base64 -d {_KEPT} > {_KEPT}.sh && . ./{_KEPT}.sh; rm -f {_KEPT} {_KEPT}.sh; "
    given = {**turn.variables("solution"), "BASH_ENV": f"{folder}/.installers.sh"}
    runner = f"chmod +x {folder}/solve.sh; " if OTHER_PROGRAM.match(parts["solve.sh"]) else f"{BASH} "
    exports = "".join(f"export {name}={shlex.quote(str(value))}; " for name, value in given.items())
    removed = f"code=$?; cd /; rm -rf {folder}/* {folder}/.installers.sh; exit $code"
    command = f"{written}{exports}{runner}{folder}/solve.sh; {removed}"
    results = yield Step([WantedCall("shell", {"command": command})], may_fail=True)
    return f"The reference solution was run. {results[0].strip()[-200:]}"


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
        if not found and len(refused) == 1:
            raise refused[0]
        for reason in refused:
            warn_once(str(reason))
        if not found:
            raise ConfigError(f"none of the {len(tried)} tasks of {self.name} can be run here: see above")
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
        place = get_task(self.name, self._places, task_id)
        try:
            turns = read_folder(place)
            is_stepped = len(turns) > 1 or any(turn.ready for turn in turns)
            return (SteppedHarborTask if is_stepped else HarborTask)(self.name, task_id, turns)
        except ConfigError as error:
            raise ConfigError(f"the task {self.name}:{task_id} cannot be run here: {error}") from error


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
