"""The folder of a task in the format of Harbor or of terminal-bench: its parts and settings.

A setting that Treadle cannot give its effect is an error that names it, so that no task is measured under other
conditions than its author wants. A link that leads out of the folder is refused, because the agent would see files
of this machine.
"""

import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.core.texts.documents import decode_document
from treadle.core.types import Json
from treadle.tasks.foreign.harbor_compose import TEMPLATE, ComposeService, fill, read_service
from treadle.tasks.foreign.harbor_dockerfile import ImageBuild

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG])", re.IGNORECASE)
_MEBIBYTES = {"K": 1 / 1024, "M": 1, "G": 1024}
_CANARY = re.compile(r"\A\ufeff?(?:[ \t]*(?:<!--.*canary.*-->|#.*canary.*)[ \t]*\n\s*)*", re.IGNORECASE)
"""The marks by which data sets are found in training data, which no agent is to see."""


_KEYS = msgspec.toml.decode(
    files(__package__).joinpath("harbor_keys.toml").read_bytes(), type=dict[str, frozenset[str]]
)
_SIMILAR = 0.8
"""How similar, from 0 to 1, an unknown key is to a known one that is meant."""


class HarborTurn(Struct, frozen=True):
    """The parts of a task, or of one of its steps, as Harbor calls the turns that go on in the same environment."""

    instruction: str
    place: Path
    """The folder of the task."""
    context: Path
    """The folder with the Dockerfile, or with the file for Docker Compose that says where it is."""
    tests: Sequence[Path]
    """The folders of tests. A file in a later one replaces that of the same name in an earlier one."""
    script: Path
    """The script that runs the tests."""
    solution: Path
    """The script, or the list of commands, that solves the task."""
    settings: Mapping[str, Json]
    is_harbor: bool
    name: str = ""
    """The name of the step; empty for a task without steps."""
    workdir: Path | None = None
    """The folder with the files that are put into the working folder before the turn; `None` without one."""
    least: Mapping[str, float] = {}
    """The rewards without which no further turn begins."""
    ready: str = ""
    """The command that fails if the environment is not ready for the turn."""

    def section(self, name: str) -> Mapping[str, Json]:
        """Return a table of `task.toml`. Raises: `ConfigError` if it is none."""
        found = self.settings.get(name) or {}
        if not isinstance(found, dict):
            raise ConfigError(f"its {name} is {found!r:.80}; write a table")
        return found

    def seconds(self, name: str, older: str, default: float) -> float:
        """Return the time limit of the section `name`; terminal-bench has it under `older`.

        Raises: `ConfigError` for one that is no time.
        """
        key = f"{name}.timeout_sec" if self.is_harbor else older
        found = self.section(name).get("timeout_sec") if self.is_harbor else self.settings.get(older)
        if found is None:
            return default
        if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found < math.inf:
            raise ConfigError(f"its {key} is {found!r}; give a number of seconds above 0")
        return float(found)

    @property
    def is_separate(self) -> bool:
        """Whether the tests run in a container of their own, which has only the artifacts of the run."""
        verifier = self.section("verifier")
        return bool(
            verifier.get("environment_mode", verifier.get("environment") and "separate") == "separate"
        )

    def artifacts(self) -> list[str]:
        """Return the paths of files and folders that separate tests get from the run. Raises: `ConfigError`."""
        given = self.settings.get("artifacts") or []
        found = ["/logs/artifacts"]
        for item in given if isinstance(given, list) else [given]:
            source = item.get("source") if isinstance(item, dict) else item
            if not isinstance(source, str) or ".." in source.split("/"):
                raise ConfigError(f"its artifact {item!r:.80} has no path; give a source without '..'")
            if isinstance(item, dict) and (item.get("exclude") or item.get("service", "main") != "main"):
                raise ConfigError(
                    f"its artifact {source!r} has exclude or service, which Treadle cannot give it"
                )
            found.append(source)
        return found

    def memory_mb(self) -> int | None:
        """Return the limit of memory; `None` if there is none. Raises: `ConfigError`."""
        environment = self.section("environment")
        found = environment.get("memory_mb", environment.get("memory"))
        if isinstance(found, str) and (size := _SIZE.fullmatch(found.strip())):
            found = int(float(size[1]) * _MEBIBYTES[size[2].upper()])
        if found is not None and (not isinstance(found, int) or isinstance(found, bool) or found < 1):
            raise ConfigError(f"its environment.memory_mb is {found!r}; give a whole number of at least 1")
        return found

    def variables(self, name: str) -> dict[str, str]:
        """Return the variables of a section, filled in; those of the verifier may be of this process.

        Those of others are kept with runs, so that nothing of this process may be in them. Raises: `ConfigError`.
        """
        given = self.section(name).get("env") or {}
        if not isinstance(given, dict):
            raise ConfigError(f"its {name}.env is {given!r:.80}; write a table")
        outside = os.environ if name == "verifier" else {}
        made = {
            key: fill(str(text), outside, f"{name}.env.{key}") if TEMPLATE.fullmatch(str(text)) else str(text)
            for key, text in given.items()
        }
        return {**(self.service.variables() if name == "environment" else {}), **made}

    @property
    def service(self) -> ComposeService:
        """What the file for Docker Compose says about the container. Raises: `ConfigError`."""
        return read_service(self.context, self.place)

    def find_build(self) -> ImageBuild:
        """Return what the image is built from. Raises: `ConfigError` if that is not in the folder of the task."""
        given = self.service.settings.get("build") or {}
        told = given if isinstance(given, dict) else {"context": given}
        known = {"CONTEXT_DIR": str(self.context.absolute())}
        context = self.context / fill(str(told.get("context") or ""), known, "build")
        file = context / fill(str(told.get("dockerfile") or "Dockerfile"), known, "build")
        if not all(path.resolve().is_relative_to(self.place.resolve()) for path in (context, file)):
            shown = ", ".join([f"{key}: {value}" for key, value in told.items()])
            raise ConfigError(f"its image is built from `{shown[:80]}`, which leads out of its folder")
        return ImageBuild(context, file)

    def find_shortfall(self, rewards: Mapping[str, float]) -> str:
        """Return why no further turn begins after these rewards; an empty text if one may."""
        short = [key for key, least in self.least.items() if rewards.get(key, -math.inf) < least]
        told = f"too little {', '.join(short)}" if short else "" if rewards else "no reward"
        return told and f"its step {self.name!r} has {told}"


def read_folder(place: Path) -> list[HarborTurn]:
    """Return the parts of a task, one for each of its turns.

    Raises: `ConfigError` if one is missing or cannot be read, or if it asks for more than the sandbox has.
    """
    _check_links(place)
    try:
        if (place / "task.toml").is_file():
            settings: dict[str, Json] = tomllib.loads((place / "task.toml").read_text("utf-8"))
            steps = settings.get("steps") or [{"name": ""}]
            if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
                raise ConfigError(f"its steps are {steps!r:.80}; write tables [[steps]]")
            strategy = settings.get("multi_step_reward_strategy", "mean")
            if strategy not in ("mean", "final"):
                raise ConfigError(
                    f"its multi_step_reward_strategy is {strategy!r:.80}; write 'mean' or 'final'"
                )
            tables = [step for step in steps if isinstance(step, dict)]
            _check_keys("task.toml", settings)
            for step in tables:
                _check_keys("steps", step)
            made = [_read_turn(place, settings, step, is_first=step is tables[0]) for step in tables]
        else:
            made = [_read_bench(place)]
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the task {str(place)!r} cannot be read: {error}") from error
    for turn in made:
        _check_settings(turn)
    return made


def _read_bench(place: Path) -> HarborTurn:
    """Return the parts of a task of terminal-bench. Raises: `ConfigError`, `OSError`."""
    found = decode_document((place / "task.yaml").read_bytes(), str(place / "task.yaml"), is_yaml=True)
    said = found.get("instruction") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(said, str):
        raise ConfigError(f"the file {str(place / 'task.yaml')!r} has no instruction")
    _check_keys("task.yaml", found)
    solution = place / "solution.sh"
    solution = solution if solution.is_file() else place / "solution.yaml"
    script, tests = place / "run-tests.sh", [place / "tests"]
    return HarborTurn(_show(said), place, place, tests, script, solution, found, is_harbor=False)


def _read_turn(
    place: Path, settings: Mapping[str, Json], step: Mapping[str, Json], *, is_first: bool
) -> HarborTurn:
    """Return the parts of a step of a task of Harbor; that of a task without steps has no name.

    Raises: `ConfigError`, `OSError`.
    """
    name = step.get("name")
    if not isinstance(name, str) or Path(name).name != name:
        raise ConfigError(f"one of its steps has the name {name!r:.80}; give the name of a folder in steps/")
    base = place / "steps" / name if name else place
    if (base / "trajectory.json").is_file():
        raise ConfigError("its agent has earlier answers (trajectory.json)")
    tests = [path for path in dict.fromkeys((place / "tests", base / "tests")) if path.is_dir()]
    scripts = [path / "test.sh" for path in reversed(tests) if (path / "test.sh").is_file()]
    given = step.get("min_reward")
    least = given if isinstance(given, dict) else {} if given is None else {"reward": given}
    if wrong := [key for key, text in least.items() if not isinstance(text, int | float)]:
        raise ConfigError(f"its step {name!r} has the min_reward {least[wrong[0]]!r}; give a number")
    environment = settings.get("environment") if is_first else None
    checks = [
        step.get("healthcheck"),
        environment.get("healthcheck") if isinstance(environment, dict) else None,
    ]
    commands = [check.get("command") for check in checks if isinstance(check, dict)]
    if not all(isinstance(command, str) for command in commands):
        raise ConfigError(f"its healthcheck has the commands {commands!r:.80}; give texts")
    return HarborTurn(
        _show(_read_instruction(base / "instruction.md", name)),
        place,
        place / "environment",
        tests,
        next(iter(scripts), base / "tests" / "test.sh"),
        base / "solution" / "solve.sh",
        _merge(settings, step),
        is_harbor=True,
        name=name,
        workdir=base / "workdir" if name and (base / "workdir").is_dir() else None,
        least=cast("dict[str, float]", least),
        ready=" && ".join([f"({command}\n)" for command in commands]),  # it may end with a comment
    )


def _read_instruction(path: Path, step: str) -> str:
    """Return the text of an instruction. Raises: `ConfigError` if there is none, `OSError`."""
    what = f"its step {step!r}" if step else "it"
    if not path.is_file():
        raise ConfigError(f"{what} has no instruction: there is no file {str(path)!r}")
    try:
        return path.read_text("utf-8")
    except UnicodeError:
        raise ConfigError(f"{what} has an instruction that is not UTF-8: {str(path)!r}") from None


def _show(instruction: str) -> str:
    """Return what the agent is shown of an instruction."""
    return instruction[_CANARY.match(instruction).end() :].strip()  # type: ignore[union-attr]


def _merge(settings: Mapping[str, Json], step: Mapping[str, Json]) -> dict[str, Json]:
    """Return the settings of a step: its own, and else those of its task.

    The tests of a named step do not have the task's time limit. Source: Harbor 0.26, where `VerifierConfig`, and
    so that of a step, has a default of its own.
    """
    made = dict(settings)
    for name in ("agent", "verifier"):
        own, general = step.get(name) or {}, settings.get(name) or {}
        if isinstance(own, dict) and isinstance(general, dict):
            if step.get("name") and name == "verifier":
                general = {key: value for key, value in general.items() if key != "timeout_sec"}
            if own.get("environment"):  # it decides on the mode, unless the step names one
                general = {**general, "environment_mode": "separate"}
            env = [given.get("env") or {} for given in (general, own)]
            made[name] = {
                **general,
                **own,
                "env": {key: text for given in env for key, text in given.items()},
            }
    lists = [given.get("artifacts") or [] for given in (settings, step)]
    made["artifacts"] = [item for given in lists for item in (given if isinstance(given, list) else [given])]
    return made


def _check_keys(name: str, table: Mapping[str, Json]) -> None:
    """Check the keys of a table, and of the tables in it. Raises: `ConfigError` for one that is misspelt."""
    known = _KEYS[name]
    for key, value in table.items():
        if key in known and key in _KEYS and isinstance(value, dict):
            _check_keys(key, value)
        elif key not in known and (hint := did_you_mean(key, known - table.keys(), cutoff=_SIMILAR)):
            raise ConfigError(f"its {name} has the key {key!r}, which does not exist{hint}")


def _check_links(place: Path) -> None:
    root = place.resolve()
    for path in (path for path in place.rglob("*") if path.is_symlink()):
        if not path.resolve().is_relative_to(root):
            raise ConfigError(f"its {str(path.relative_to(place))!r} is a link that leads out of its folder")


def _check_settings(folder: HarborTurn) -> None:
    """Raises: `ConfigError` if the settings of a task ask for more than the sandbox has."""
    environment, verifier = folder.section("environment"), folder.section("verifier")
    for name in ("gpus", "tpu"):
        if environment.get(name):
            raise ConfigError(f"its environment has {name}, which Treadle cannot give it")
    if str(environment.get("os", "linux")).lower() != "linux":
        raise ConfigError(f"it is made for {environment['os']}")
    if verifier.get("collect"):
        raise ConfigError("its verifier has collect, which Treadle cannot give it")
    users = [folder.section(name).get("user") for name in ("agent", "verifier")]
    if users[0] != users[1]:
        told = " and ".join([repr(user or "root") for user in users])
        raise ConfigError(f"its agent and its tests work as the users {told}, and the sandbox has one user")
    kind = "pytest" if folder.is_harbor else folder.settings.get("parser_name", "pytest")
    if kind != "pytest":
        raise ConfigError(f"the results of its tests are read by {kind!r}, and Treadle reads pytest's")
    if folder.settings.get("run_tests_in_same_shell"):
        raise ConfigError("its tests run in the agent's shell, which ends with each command here")
