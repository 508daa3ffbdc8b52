"""What the Dockerfile of a task makes: without an image as far as the sandbox can have it, else its image.

Files, folders and variables are read from the Dockerfile. What it installs must be on this machine: programs for
apt, and packages of the task's Python for pip. Versions are not compared. Anything else needs the image.
"""

import os
import posixpath
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, SandboxError
from treadle.http.background import run_blocking
from treadle.sandbox.commands.bubblewrap import ImageRoot
from treadle.sandbox.commands.host import HostCommands, find_fault
from treadle.sandbox.commands.images import (
    BUILDER_VARIABLE,
    FOLDER_VARIABLE,
    NoBuilderError,
    build_image,
    digest_build,
    find_ignored,
    find_image_fault,
    open_image,
)
from treadle.sandbox.commands.run_folder import STATE, Extras
from treadle.sandbox.in_memory import MemorySandbox
from treadle.sandbox.mount import IgnoreRules
from treadle.sandbox.protocol import CommandOutcome, Limits
from treadle.tasks.foreign.installers import NAMES, find_binds, find_missing, read_functions, split_commands

OUTER = ".root"
"""The folder of the run's files with everything that is outside of the working folder."""
_IGNORED = frozenset(("LABEL", "CMD", "ENTRYPOINT", "EXPOSE", "SHELL", "HEALTHCHECK", "STOPSIGNAL"))
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")
_ARCHIVE = re.compile(r"\.(?:tar(?:\.\w+)?|tgz|tbz2?|txz)$")
_TOP = re.compile(r"(?<![\w./:])/((?!(?:" + "|".join(NAMES.sandbox_folders) + r")\b)\w[\w.-]*)")
"""The first part of an absolute path in a command, besides those that the sandbox has itself."""
_RUN_SECONDS = 120
"""How long a line of a Dockerfile may run in the sandbox."""
_TESTS = ("/tests", "/logs", "/solution", "/oracle")
"""Folders that only the tests or the reference solution use; what an image copies there is left out."""
_REMEMBERED_SECONDS = 600
"""How long a failure of an image is remembered. A command lists the same tasks several times."""
_READ: dict[tuple[object, ...], "Image"] = {}
"""What the newest Dockerfiles make, because their lines may take long in the sandbox."""
_MAX_READ = 64
_FAILED: dict[tuple[object, ...], tuple[float, str]] = {}
"""When images could not be made, and why, by all that an image is made from."""


class ImageBuild(Struct, frozen=True):
    """What an image is built from."""

    context: Path
    """The folder with the files that the Dockerfile may copy."""
    dockerfile: Path


class Image(Struct):
    """What a Dockerfile makes."""

    folder: str = "/"
    """The working folder."""
    files: dict[str, bytes] = {}
    """The files, by absolute path."""
    folders: set[str] = set()
    """Further folders, by absolute path."""
    variables: dict[str, str] = {}
    arguments: dict[str, str] = {}
    """The variables of the build."""
    home: str = "/root"
    """The home folder of the user."""
    root: ImageRoot | None = None
    """The unpacked image, which then has all files and variables; `None` if the sandbox itself will do."""

    def copy(self) -> "Image":
        """Return an equal image, whose parts can be changed."""
        return replace(self, files={**self.files}, folders={*self.folders}, variables={**self.variables})

    def place(self, path: str) -> str:
        """Return where an absolute path is in the run's files. Raises: `ConfigError` if only the sandbox has it."""
        if self.is_inner(path):
            return path[len(self.folder) + 1 :]
        top = path.split("/")[1]
        if top in NAMES.sandbox_folders or not top:
            raise needs_image(f"it has files in {path!r}, which the sandbox has itself")
        return f"{OUTER}{path}"

    @property
    def mounts(self) -> list[str]:
        """The absolute paths that commands find beside the working folder: those of the root, and empty folders."""
        outer = [path for path in (*self.files, *self.folders) if not self.is_inner(path)]
        full = {parent for path in self.files for parent in map(str, PurePosixPath(path).parents)}
        found = {f"/{path.split('/')[1]}" for path in outer} | (self.folders - full)
        return sorted(
            path for path in found - {self.folder} if path.split("/")[1] not in NAMES.sandbox_folders
        )

    def find(self, place: str) -> str:
        """Return the absolute path of a file of the run, the inverse of `place`."""
        is_outer = place.startswith(f"{OUTER}/")
        return place[len(OUTER) :] if is_outer else posixpath.join(self.folder, place)

    def is_inner(self, path: str) -> bool:
        """Return whether an absolute path is in the working folder."""
        return path == self.folder or path.startswith(f"{self.folder}/")


def place_mounts(folder: str, mounts: Sequence[str]) -> dict[str, str]:
    """Return where commands find the run's files: absolute paths to folders of the run."""
    inner = {path: path[len(folder) + 1 :] for path in mounts if path.startswith(f"{folder}/")}
    return {**{path: f"{OUTER}{path}" for path in mounts if path not in inner}, folder: "", **inner}


def needs_image(why: str) -> ConfigError:
    """Return the error of a task that needs its image."""
    return ConfigError(f"it needs its image: {why}")


def find_image(build: ImageBuild, settings: Mapping[str, object]) -> Image:
    """Return what a Dockerfile makes: as files for the sandbox if these will do, else as an image
    that Docker or Podman builds or pulls. `settings` are those of the environment in `task.toml`.

    An image that could not be made is not tried again for `_REMEMBERED_SECONDS`, unless its folder changes.
    Raises: `ConfigError` that says why neither can be had.
    """
    _check_entry(build.dockerfile)
    folder = _find_folder(settings)
    try:
        return read_image(build, settings)
    except ConfigError as error:
        refusal = error
    given = settings.get("docker_image")
    if not given and not build.dockerfile.is_file():
        raise refusal
    if (fault := find_fault() or find_image_fault()) is not None:
        raise ConfigError(f"{refusal}; images cannot be used here: {fault}")
    seconds = settings.get("build_timeout_sec", 600.0)
    limit = float(seconds) if isinstance(seconds, int | float) else 600.0
    place = [os.environ.get(name) for name in (BUILDER_VARIABLE, FOLDER_VARIABLE)]
    key = (given or digest_build(build.context, build.dockerfile), limit, *place)
    failed_at, why = _FAILED.get(key, (0.0, ""))
    if why and time.monotonic() - failed_at < _REMEMBERED_SECONDS:
        raise ConfigError(why)
    try:
        root = open_image(str(given or build_image(build.context, limit, build.dockerfile)))
    except NoBuilderError as error:
        raise ConfigError(f"{refusal}; {error}") from None
    except (ConfigError, SandboxError) as error:
        why = f"{refusal}; {error}"
        _FAILED[key] = time.monotonic(), why
        raise ConfigError(why) from error
    return Image(folder=folder or root.begin, root=root)


def _find_folder(settings: Mapping[str, object]) -> str | None:
    """Return the working folder that the settings name; `None` if they do not. Raises: `ConfigError`."""
    given = settings.get("workdir")
    if given is not None and not (isinstance(given, str) and given.startswith("/")):
        raise ConfigError(f"its environment.workdir is {given!r:.80}; give an absolute path")
    return given and (given.rstrip("/") or "/")


def read_image(build: ImageBuild, settings: Mapping[str, object]) -> Image:
    """Return what a Dockerfile makes; `settings` are those of the environment in `task.toml`.

    Raises: `ConfigError` that says why the task needs its image, or what must be installed.
    """
    path = build.dockerfile
    if not path.is_file():
        given = settings.get("docker_image")
        raise needs_image(f"its image is {given!r}" if given else "it has no Dockerfile")
    folder = _find_folder(settings)
    key = (digest_build(build.context, path), folder, str(find_binds()))
    if known := _READ.get(key):
        return known.copy()
    image = Image()
    for line in _lines(path.read_text("utf-8", "replace")):
        word, _, rest = line.partition(" ")
        if word.upper() == "FROM":
            image = Image()  # What an earlier stage makes is not in the image.
        try:
            _apply(image, build, word.upper(), rest.strip())
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            why = f": {error}" if str(error) else ""
            raise needs_image(f"its Dockerfile has `{line[:80]}`{why}") from error
    image.folder = folder or image.folder
    if image.folder == "/":
        raise needs_image("its working folder is the root")
    for name in (image.folder, *image.files):
        image.place(name)
    image.folders.add(image.home)
    # Caches of programs would fill the run's files.
    image.variables = {"HOME": image.home, "XDG_CACHE_HOME": "/tmp", **image.variables}
    if image.folder.split("/")[1] in NAMES.sandbox_folders:
        raise needs_image(f"its working folder is {image.folder!r}, which the sandbox has itself")
    if len(_READ) >= _MAX_READ:
        del _READ[next(iter(_READ))]
    _READ[key] = image.copy()
    return image


def _check_entry(path: Path) -> None:
    """Raises: `ConfigError` if the image of a Dockerfile starts a program beside the agent."""
    lines = _lines(path.read_text("utf-8", "replace")) if path.is_file() else []
    last = ""
    for word, _, rest in (line.partition(" ") for line in lines):
        last = {"FROM": "", "ENTRYPOINT": rest.strip()}.get(word.upper(), last)
    words = set(re.findall(r"[^\s\[\]\"',]+", last))
    if words - NAMES.idle_entries:
        raise ConfigError(f"its image starts `{last[:80]}`, and Treadle starts nothing beside the agent")


def _lines(text: str) -> list[str]:
    """Return the instructions of a Dockerfile, without comments and with continued lines joined."""
    kept = "\n".join(line for line in text.splitlines() if not line.strip().startswith("#"))
    return [line.strip() for line in re.sub(r"\\[ \t]*\n", " ", kept).splitlines() if line.strip()]


def _apply(image: Image, build: ImageBuild, word: str, rest: str) -> None:
    """Apply an instruction. Raises: `ConfigError`, and `ValueError` with the reason, if it needs an image."""
    if word == "FROM":
        *folders, last = next((name for name in rest.split() if name[:2] != "--"), "").split("/")
        known = NAMES.base_image_folders.get(folders[-1] if folders else "")
        if known is None and re.split(r"[:@]", last)[0] not in NAMES.base_images:
            raise ValueError  # the sandbox may lack what the base has
        image.folder = known or "/"
    elif word == "WORKDIR":
        image.folder = _resolve(image, _expand(image, rest.strip("\"'")))
        image.folders.add(image.folder)
    elif word in ("COPY", "ADD"):
        _copy(image, build, _expand(image, rest), may_unpack=word == "ADD")
    elif word == "ARG":
        for name, has_value, value in (pair.partition("=") for pair in shlex.split(rest)):
            image.arguments[name] = _expand(image, value) if has_value else ""
    elif word == "ENV":
        pairs = shlex.split(rest) if "=" in rest.split(" ")[0] else ["=".join(rest.split(None, 1))]
        for pair in pairs:
            name, _, value = pair.partition("=")
            image.variables[name] = _expand(image, value)
    elif word == "RUN":
        _run(image, rest)
    elif word == "USER":
        image.home = "/root" if rest in ("root", "0") else f"/home/{rest.partition(':')[0]}"
    elif word not in _IGNORED:
        raise ValueError


def _run(image: Image, text: str) -> None:
    """Apply a RUN line, in the sandbox if it has more than installers and usual commands. Raises: `ConfigError`,
    `ValueError`."""
    commands = split_commands(_expand(image, text))
    installs = [find_missing(command) for command in commands]
    for missing in installs:
        if missing.names:
            raise ConfigError(f"its Dockerfile installs what is not here: {missing.advice}")
    others = [
        command for command, missing in zip(commands, installs, strict=True) if not missing.is_installer
    ]
    if any(command[0] in NAMES.network_programs for command in others):
        raise ValueError
    if not commands or not all(_is_usual(image, command) for command in others):
        _run_in_sandbox(image, text)
        return
    for name, *words in others:
        if name == "mkdir":
            named = [word for word in words if not word.startswith("-") and word != "777"]
            image.folders.update(_resolve(image, word) for word in named)


def _is_usual(image: Image, command: list[str]) -> bool:
    """Return whether the effect of a command is known: it makes folders, or has none on the run's files."""
    name, *words = command
    if name == "ln":
        return any(PurePosixPath(word).name.startswith("python3") for word in words)
    if name == "rm":
        removed = tuple(word.split("*")[0] for word in words if not word.startswith("-"))
        return all(word.startswith("/") for word in removed) and not any(
            path.startswith(removed) for path in (*image.files, *image.folders)
        )
    # The sandbox has one user, who may do all with the run's files.
    return name in ("mkdir", "chmod", "chown", "true", "set", "export")


def _run_in_sandbox(image: Image, text: str) -> None:
    """Run the commands of a RUN line over the files of an image, which gets what they change.

    Raises: `ValueError` if they fail, or change what a run's files cannot hold.
    """
    named = {f"/{top}" for top in _TOP.findall(text)} | {image.home}
    # Nothing can be mounted in place of the root.
    folder = f"/{OUTER}" if image.folder == "/" else image.folder
    made = replace(image, folder=folder, folders={*image.folders, *named})
    # Later lines find what the build keeps in /tmp, which is another one for each command.
    kept = shlex.quote(f"{folder}/{OUTER}/tmp")
    places = {path: OUTER + path if path.startswith("/tmp/") else made.place(path) for path in image.files}
    box = MemorySandbox({places[path]: content for path, content in image.files.items()})
    # Where images come from, `echo` of /bin/sh knows escapes, and bash has the functions for installers.
    script = f"cd {shlex.quote(image.folder)}\n{read_functions().decode()}\n{text}"
    command = f"mkdir -p {kept}; cp -a {kept}/. /tmp/; bash -O xpg_echo -c {shlex.quote(script)}; code=$?; "
    command += f"rm -rf {kept}; cp -a /tmp {kept}; exit $code"
    commands = make_commands(made, {**image.arguments, **image.variables, "HOME": image.home})

    async def run() -> CommandOutcome:
        async with commands.open() as place:
            return await place.run(command, box, Limits(seconds=_RUN_SECONDS))

    try:
        outcome = run_blocking(run())
    except SandboxError as error:
        raise ValueError(str(error)) from error
    state = box.read_state(STATE)
    extras = Extras() if state is None else msgspec.json.decode(state, type=Extras)
    odd = [*extras.links, *[path for path in extras.executable if not box.read(path).startswith(b"#!")]]
    if outcome.exit_code or outcome.stop or outcome.removed or odd:
        said = f"it makes {odd[0]!r}" if odd else outcome.reason or outcome.text.strip()[-200:]
        raise ValueError(said)
    image.files = {made.find(path): box.read(path) for path in box.paths()}
    image.folders |= {made.find(path) for path in extras.folders} - named


def make_commands(
    image: Image, variables: Mapping[str, str], places: Mapping[str, str] = MappingProxyType({})
) -> HostCommands:
    """Return the place for commands in an image, with the variables of the environment. `places` maps paths of
    commands to more folders of the run's files, if the image is not unpacked."""
    given = {name: text for name, text in variables.items() if name != "PATH"}
    if image.root is not None:
        return HostCommands(aliases={image.folder: ""}, root=image.root.image_id, variables=given)
    aliases = {**place_mounts(image.folder, image.mounts), **places}
    return HostCommands(aliases=aliases, binds=find_binds(), variables=given)


def _expand(image: Image, text: str) -> str:
    """Return a text with the variables of the Dockerfile filled in; those of the shell and the base are left."""
    known = {"PATH": "", **image.arguments, **image.variables}

    def find(found: re.Match[str]) -> str:
        value = known.get(found[1] or found[2])
        return value or found[3] if found[3] is not None else found[0] if value is None else value

    return _VARIABLE.sub(find, text)


def _resolve(image: Image, path: str) -> str:
    """Return a path of the Dockerfile as an absolute one. Raises: `ConfigError` for one with open variables."""
    if "$" in path or "`" in path:
        raise needs_image(f"its Dockerfile has the path {path!r:.80}")
    parts: list[str] = []
    for part in f"{image.folder}/{path}".split("/") if not path.startswith("/") else path.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", ".", ".."):
            parts.append(part)
    return f"/{'/'.join(parts)}"


def _copy(image: Image, build: ImageBuild, arguments: str, *, may_unpack: bool) -> None:
    """Add the files of a COPY or ADD line to an image. Raises: `ConfigError`."""
    if re.match(r"--from=\S*astral-sh/uv\b", arguments):
        return  # uv is among the installers that do nothing here
    options = re.match(r"(?:--\S+\s+)*", arguments)
    given = arguments[options.end() :] if options else arguments
    words = msgspec.json.decode(given, type=list[str]) if given.startswith("[") else shlex.split(given)
    has_more = not all(
        re.match("--ch(mod|own)=|--link", word) for word in arguments.split() if word[:2] == "--"
    )
    is_other = any("://" in word or (may_unpack and _ARCHIVE.search(word)) for word in words)
    if has_more or is_other or len(words) < 2 or any(".." in Path(word).parts for word in words[:-1]):
        raise needs_image(f"its Dockerfile copies `{arguments[:80]}`")
    *sources, target = words
    is_folder = target.endswith(("/", "/.")) or target == "." or len(sources) > 1
    target = _resolve(image, target)
    is_folder |= target in image.folders or any(path.startswith(f"{target}/") for path in image.files)
    is_folder |= target[1:] in NAMES.root_folders
    context, is_ignored = build.context, _read_ignored(build)
    if target in _TESTS or target.startswith(tuple(f"{path}/" for path in _TESTS)):
        return
    for source in sources:
        inner = source.strip("/").removeprefix("./")
        named = [context] if inner in ("", ".") else sorted(context.glob(inner))
        found = [path for path in named if path.is_dir() or not is_ignored(str(path.relative_to(context)))]
        if not found:
            raise ConfigError(f"its Dockerfile copies {source!r}, which is not there")
        for path in found:
            if path.is_file():
                image.files[f"{target}/{path.name}" if is_folder else target] = path.read_bytes()
                continue
            image.folders.add(target)
            for file in sorted(path.rglob("*")):
                if file.is_file() and not is_ignored(file.relative_to(context).as_posix()):
                    image.files[f"{target}/{file.relative_to(path).as_posix()}"] = file.read_bytes()


def _read_ignored(build: ImageBuild) -> Callable[[str], bool]:
    """Return a function that says whether `.dockerignore` keeps a path of the context out of the build."""
    own = find_ignored(build.dockerfile)
    path = own if own.is_file() else build.context / ".dockerignore"
    lines = path.read_text("utf-8", "replace").splitlines() if path.is_file() else []
    given = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    # In contrast to git's, all rules are about the whole path, and the last one decides, also one about a folder.
    names = [posixpath.normpath(rule.lstrip("!").strip()).strip("/") for rule in given]
    rules = [
        IgnoreRules([f"{'!' * rule.startswith('!')}/{name}"]) for rule, name in zip(given, names, strict=True)
    ]

    def is_ignored(name: str) -> bool:
        parts = [PurePosixPath(name), *PurePosixPath(name).parents][:-1]
        found = [rule.ignores(str(part), is_folder=True) for rule in reversed(rules) for part in parts]
        return next((verdict for verdict in found if verdict is not None), False)

    return is_ignored
