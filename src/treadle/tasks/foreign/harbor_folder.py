"""The folder of a task in the format of Harbor or of terminal-bench: its parts and settings.

A setting that Treadle cannot give its effect is an error that names it, so that no task is measured under other
conditions than its author wants. A link that leads out of the folder is refused, because the agent would see files
of this machine.
"""

import math
import os
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.texts.documents import decode_document
from treadle.core.types import Json

_DOCKER = "Dockerfile"
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-([^}]*))?\}")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG])", re.IGNORECASE)
_MEBIBYTES = {"K": 1 / 1024, "M": 1, "G": 1024}
_CANARY = re.compile(r"\A\ufeff?(?:[ \t]*(?:<!--.*canary.*-->|#.*canary.*)[ \t]*\n\s*)*", re.IGNORECASE)
"""The marks by which data sets are found in training data, which no agent is to see."""


class _Compose(Struct, frozen=True):
    """The lists of `compose.toml`, which says what each is."""

    harmless_keys: frozenset[str]
    contexts: frozenset[str]
    waiting_commands: frozenset[str]
    main_services: frozenset[str]
    log_volumes: tuple[str, ...]
    variables: dict[str, str]


_COMPOSE = msgspec.toml.decode(files(__package__).joinpath("compose.toml").read_bytes(), type=_Compose)


class HarborFolder(Struct, frozen=True):
    """The parts of a task."""

    instruction: str
    context: Path
    """The folder with the Dockerfile."""
    script: Path
    """The script that runs the tests."""
    solution: Path
    """The script, or the list of commands, that solves the task."""
    settings: Mapping[str, Json]
    is_harbor: bool

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
            key: _fill(str(text), outside, name) if _TEMPLATE.fullmatch(str(text)) else str(text)
            for key, text in given.items()
        }
        return {**(_read_compose(self.context) if name == "environment" else {}), **made}


def read_folder(place: Path) -> HarborFolder:
    """Return the parts of a task.

    Raises: `ConfigError` if one is missing or cannot be read, or if it asks for more than the sandbox has.
    """
    is_harbor = (place / "task.toml").is_file()
    tests = place / "tests"
    _check_links(place)
    try:
        if is_harbor:
            found: Json = tomllib.loads((place / "task.toml").read_text("utf-8"))
            assert isinstance(found, dict)
            if found.get("steps"):
                raise ConfigError("it has several steps, each with tests of its own")
            said: Json = (place / "instruction.md").read_text("utf-8")
        else:
            found = decode_document(
                (place / "task.yaml").read_bytes(), str(place / "task.yaml"), is_yaml=True
            )
            said = found.get("instruction") if isinstance(found, dict) else None
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the task {str(place)!r} cannot be read: {error}") from error
    if not isinstance(found, dict) or not isinstance(said, str):
        raise ConfigError(f"the file {str(place / 'task.yaml')!r} has no instruction")
    said = said[_CANARY.match(said).end() :]  # type: ignore[union-attr]
    if is_harbor:
        solution = place / "solution" / "solve.sh"
        made = HarborFolder(said, place / "environment", tests / "test.sh", solution, found, True)
    else:
        solution = place / "solution.sh"
        solution = solution if solution.is_file() else place / "solution.yaml"
        made = HarborFolder(said, place, place / "run-tests.sh", solution, found, False)
    _check_settings(made)
    if (place / "trajectory.json").is_file() and is_harbor:
        raise ConfigError("its agent has earlier answers (trajectory.json)")
    return made


def _check_links(place: Path) -> None:
    root = place.resolve()
    for path in (path for path in place.rglob("*") if path.is_symlink()):
        if not path.resolve().is_relative_to(root):
            raise ConfigError(f"its {str(path.relative_to(place))!r} is a link that leads out of its folder")


def _check_settings(folder: HarborFolder) -> None:
    """Raises: `ConfigError` if the settings of a task ask for more than the sandbox has."""
    environment, verifier = folder.section("environment"), folder.section("verifier")
    for name in ("mcp_servers", "healthcheck", "gpus", "tpu", "skills_dir"):
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


def _fill(text: str, outside: Mapping[str, str], place: str) -> str:
    """Return a text with its variables filled in. Raises: `ConfigError` for one without a value."""

    def find(found: re.Match[str]) -> str:
        value = outside.get(found[1], found[2])
        if value is None:
            raise ConfigError(f"its {place} needs the variable {found[1]!r} from outside")
        return value

    return _TEMPLATE.sub(find, text)


def _read_compose(context: Path) -> dict[str, str]:
    """Return the variables that the file for Docker Compose gives the task's container.

    Raises: `ConfigError` if it has more than one container, or one that needs what the sandbox has not.
    """
    path = next(iter(sorted(context.glob("docker-compose.y*ml"))), None)
    if path is None:
        return {}
    found = decode_document(path.read_bytes(), str(path), is_yaml=True)
    services = found.get("services") if isinstance(found, dict) else None
    named = services if isinstance(services, dict) else {}
    if len(named) > 1 or not named.keys() <= _COMPOSE.main_services:
        told = ", ".join(map(str, named))
        raise ConfigError(f"it has several containers, or one of its own ({path.name}: {told})")
    given: Json = next(iter(named.values()), None) or {}
    service = given if isinstance(given, dict) else {}
    _check_service(service, path.name)
    listed = service.get("environment") or {}
    pairs = listed.items() if isinstance(listed, dict) else [str(item).partition("=")[::2] for item in listed]
    made = {str(key): _fill(str(text), _COMPOSE.variables, path.name) for key, text in pairs}
    return {key: text for key, text in made.items() if text}


def _check_service(service: Mapping[str, Json], name: str) -> None:
    command = service.get("command") or ""
    told = " ".join(map(str, command)) if isinstance(command, list) else str(command)
    if told not in _COMPOSE.waiting_commands:
        raise ConfigError(
            f"its container runs `{told[:80]}` ({name}), and Treadle starts nothing beside the agent"
        )
    volumes = service.get("volumes") or []
    kept = volumes if isinstance(volumes, list) else [volumes]
    if own := [item for item in kept if not str(item).startswith(_COMPOSE.log_volumes)]:
        raise ConfigError(
            f"its container has the volume {str(own[0])!r:.80} ({name}), which Treadle cannot give it"
        )
    build = service.get("build") or {}
    given = build if isinstance(build, dict) else {"context": build}
    is_usual = (
        str(given.get("context", "")) in _COMPOSE.contexts and given.get("dockerfile", _DOCKER) == _DOCKER
    )
    if not is_usual or given.keys() - {"context", "dockerfile"}:
        told = ", ".join([f"{key}: {value}" for key, value in given.items()])
        raise ConfigError(
            f"its image is built from `{told[:80]}` ({name}), and Treadle builds from the {_DOCKER}"
        )
    if unknown := service.keys() - _COMPOSE.harmless_keys:
        raise ConfigError(
            f"its container has {min(map(str, unknown))!r} ({name}), which Treadle cannot give it"
        )
