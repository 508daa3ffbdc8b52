"""The only container of a task, as its file for Docker Compose describes it.

Files of the task that are mounted are files of the run, so that the folder of the task never changes. What a
container needs beyond that is refused by its name.
"""

import posixpath
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.texts.documents import decode_document
from treadle.core.types import Json
from treadle.tasks.foreign.harbor_dockerfile import is_for_tests
from treadle.tasks.foreign.harbor_image import Image

TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-([^}]*))?\}")


class _Compose(Struct, frozen=True):
    """The lists of `compose.toml`, which says what each is."""

    harmless_keys: frozenset[str]
    waiting_commands: frozenset[str]
    main_services: frozenset[str]
    log_volumes: tuple[str, ...]
    variables: dict[str, str]


_COMPOSE = msgspec.toml.decode(files(__package__).joinpath("compose.toml").read_bytes(), type=_Compose)


class _Mount(Struct, frozen=True):
    """A volume of a container."""

    source: str
    """A path within the task; empty, or the name of a volume, for an empty folder."""
    target: str
    is_read_only: bool = False


class ComposeService(Struct, frozen=True):
    """What a file for Docker Compose says about the container of a task."""

    settings: Mapping[str, Json]
    file: str
    """The name of the file, for messages."""
    context: Path
    place: Path
    """The folder of the task."""
    named_volumes: Mapping[str, Json] = {}

    def variables(self) -> dict[str, str]:
        """Return the variables of the environment, filled in, without empty ones. Raises: `ConfigError`."""
        pairs = [*self._read_variables(), *_pairs(self.settings.get("environment"))]
        filled = {
            key: fill(text, _COMPOSE.variables, f"compose file, environment.{key},") for key, text in pairs
        }
        if wrong := [key for key, text in filled.items() if not key or "=" in key or "\0" in key + text]:
            raise ConfigError(
                f"its container has the variable {wrong[0]!r:.80} ({self.file}), which cannot be set"
            )
        return {key: text for key, text in filled.items() if text}

    def _read_variables(self) -> list[tuple[str, str]]:
        """Return the variables of the files that `env_file` names. Raises: `ConfigError`."""
        listed, found = self.settings.get("env_file") or [], []
        for item in listed if isinstance(listed, list) else [listed]:
            given = item if isinstance(item, dict) else {"path": item}
            path = self._find(str(given.get("path")), "env_file")
            if not path.is_file() and given.get("required") is False:
                continue
            try:
                lines = map(str.strip, path.read_text("utf-8").splitlines())
            except (OSError, UnicodeDecodeError) as error:
                why = "is no text" if path.is_file() else "is not there"
                raise ConfigError(f"its container has the env_file {str(item)!r:.80}, which {why}") from error
            found += [line.removeprefix("export ") for line in lines if line and not line.startswith("#")]
        pairs = [line.partition("=")[::2] for line in found]
        return [(key.strip(), text.strip().strip("\"'")) for key, text in pairs]

    def image_settings(self) -> dict[str, Json]:
        """Return the settings of an environment that the container has, for keys that `task.toml` does not have."""
        folder, image = self.settings.get("working_dir"), self.settings.get("image")
        made: dict[str, Json] = {"workdir": folder} if isinstance(folder, str) else {}
        # With a build, it is only the name that the image gets.
        is_own = not self.settings.get("build") and not (self.context / "Dockerfile").is_file()
        if isinstance(image, str) and is_own and not TEMPLATE.search(image):
            made["docker_image"] = image
        return made

    def mount(self, image: Image) -> None:
        """Add the files of the volumes to an image. Raises: `ConfigError` that names one that cannot be had."""
        for item in self._mounts():
            if is_for_tests(item.target):
                continue
            source = self._find(item.source, "volume") if _is_path(item.source) else None
            if source is None:
                if image.root and not (Path(image.root.folder) / item.target[1:]).is_dir():
                    raise ConfigError(f"its container has the volume {item.target!r}, which its image lacks")
                image.folders |= set() if image.root else {item.target}
                continue
            if not source.exists():
                raise ConfigError(
                    f"its container has the volume {item.source!r} ({self.file}), which is not there"
                )
            covered = {path for path in image.files if f"{path}/".startswith(f"{item.target}/")}
            image.files = {path: content for path, content in image.files.items() if path not in covered}
            found = (
                [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
            )
            for path in found:
                name = posixpath.normpath(f"{item.target}/{path.relative_to(source).as_posix()}")
                image.locate(name)  # its error names what only the sandbox has
                image.files[name] = path.read_bytes()
            image.folders |= set() if image.root or source.is_file() else {item.target}
            image.mounts_read_only += (item.target,) if item.is_read_only else ()

    def _mounts(self) -> list[_Mount]:
        listed, temporary = self.settings.get("volumes") or [], self.settings.get("tmpfs") or []
        given = listed if isinstance(listed, list) else [listed]
        made = [
            _read_mount(item, self.file) for item in given if not str(item).startswith(_COMPOSE.log_volumes)
        ]
        for item in made:
            top = self.named_volumes.get(item.source)
            if isinstance(top, dict) and (unknown := top.keys() & {"external", "driver_opts"}):
                raise ConfigError(
                    f"its volume {item.source!r} has {min(unknown)}, which Treadle cannot give it"
                )
        folders = temporary if isinstance(temporary, list) else [temporary]
        empty: list[Json] = [{"type": "tmpfs", "target": str(item).partition(":")[0]} for item in folders]
        return [*made, *[_read_mount(item, self.file) for item in empty]]

    def _find(self, source: str, what: str) -> Path:
        """Return a path that the file names. Raises: `ConfigError` if it leads out of the folder of the task."""
        known = {"CONTEXT_DIR": str(self.context.absolute())}
        path = self.context / fill(source, known, what)
        if not path.resolve().is_relative_to(self.place.resolve()):
            raise ConfigError(
                f"its container has the {what} {source!r:.80} ({self.file}), which leads out of its folder"
            )
        return path


def read_service(context: Path, place: Path) -> ComposeService:
    """Return what the file for Docker Compose in `context` says about the task's container; nothing without a file.

    Raises: `ConfigError` if it has more than one container, or one that needs what the sandbox has not.
    """
    path = next(iter(sorted(context.glob("docker-compose.y*ml"))), None)
    if path is None:
        return ComposeService({}, "", context, place)
    found = decode_document(path.read_bytes(), str(path), is_yaml=True)
    whole = found if isinstance(found, dict) else {}
    services, volumes = whole.get("services"), whole.get("volumes")
    named = services if isinstance(services, dict) else {}
    # Harbor adds services to a container `main` of its own; for terminal-bench, the only one has any name.
    is_bench = (context / "task.yaml").is_file()
    if len(named) > 1 or not (is_bench or named.keys() <= _COMPOSE.main_services):
        told = ", ".join(map(str, named))
        raise ConfigError(f"it has several containers, or one of its own ({path.name}: {told})")
    given: Json = next(iter(named.values()), None) or {}
    settings = given if isinstance(given, dict) else {}
    _check(settings, path.name)
    return ComposeService(settings, path.name, context, place, volumes if isinstance(volumes, dict) else {})


def _check(settings: Mapping[str, Json], name: str) -> None:
    command = settings.get("command") or ""
    told = " ".join(map(str, command)) if isinstance(command, list) else str(command)
    if told not in _COMPOSE.waiting_commands:
        raise ConfigError(
            f"its container runs `{told[:80]}` ({name}), and Treadle starts nothing beside the agent"
        )
    build = settings.get("build")
    if isinstance(build, dict) and (unknown := build.keys() - {"context", "dockerfile"}):
        raise ConfigError(f"its image is built with {min(unknown)!r} ({name}), which Treadle cannot give it")
    if unknown := settings.keys() - _COMPOSE.harmless_keys:
        raise ConfigError(
            f"its container has {min(map(str, unknown))!r} ({name}), which Treadle cannot give it"
        )


def _read_mount(item: Json, name: str) -> _Mount:
    """Return a volume. Raises: `ConfigError` for one of another kind, or without an absolute target of its own."""
    if isinstance(item, dict):
        source, target = str(item.get("source") or ""), str(item.get("target") or "")
        made = _Mount(source, target, is_read_only=item.get("read_only") is True)
        is_known = item.get("type") in ("bind", "volume", "tmpfs")
    else:
        # A variable may have colons of its own.
        parts = re.split(r":(?![^{]*\})", str(item))
        source, target, options = (["", *parts] if len(parts) == 1 else parts) + [""] * (
            3 - max(2, len(parts))
        )
        made = _Mount(source, target, is_read_only="ro" in options.split(","))
        is_known = len(parts) < 4
    outside = TEMPLATE.search(made.source) and not made.source.startswith("${CONTEXT_DIR}")
    target = posixpath.normpath(f"/{made.target.lstrip('/')}")
    is_own = made.target.startswith("/") and target != "/" and "$" not in target
    if not is_known or outside or not is_own or made.source.startswith("~") or "\0" in source + target:
        raise ConfigError(
            f"its container has the volume {str(item)!r:.80} ({name}), which Treadle cannot give it"
        )
    return msgspec.structs.replace(made, target=target)


def _is_path(source: str) -> bool:
    return source.startswith((".", "/", "$")) or "/" in source


def _pairs(given: Json) -> list[tuple[str, str]]:
    """Return the variables of a table or of a list of assignments."""
    if isinstance(given, dict):
        return [(str(key), _write_value(value)) for key, value in given.items()]
    named = [str(item).partition("=") for item in given] if isinstance(given, list) else []
    return [(key, text) for key, _, text in named]


def _write_value(value: Json) -> str:
    """Return the value of a variable as YAML has it. Null takes it from outside, where there is none."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def fill(text: str, outside: Mapping[str, str], place: str) -> str:
    """Return a text with its variables filled in. Raises: `ConfigError` for one without a value."""

    def find(found: re.Match[str]) -> str:
        value = outside.get(found[1], found[2])
        if value is None:
            raise ConfigError(f"its {place} needs the variable {found[1]!r} from outside")
        return value

    return TEMPLATE.sub(find, text)
