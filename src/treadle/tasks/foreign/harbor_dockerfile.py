"""What the Dockerfile of a task makes, as files, folders and variables for the sandbox.

What it installs must be on this machine: programs for apt, and packages of the task's Python for pip. Versions are
not compared. Other commands run in the sandbox. The task of a Dockerfile that needs more needs its image.
"""

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, SandboxError
from treadle.http.background import run_blocking
from treadle.sandbox.commands.images import digest_build, find_ignored
from treadle.sandbox.commands.run_folder import PROGRAMS, STATE, Extras
from treadle.sandbox.in_memory import MemorySandbox
from treadle.sandbox.mount import IgnoreRules
from treadle.sandbox.protocol import CommandOutcome, Limits
from treadle.tasks.foreign.harbor_image import OUTER, Image, make_commands, needs_image
from treadle.tasks.foreign.installers import (
    NAMES,
    HereDocument,
    find_binds,
    find_missing,
    read_documents,
    read_functions,
    split_commands,
)

_IGNORED = frozenset(("LABEL", "CMD", "ENTRYPOINT", "EXPOSE", "SHELL", "HEALTHCHECK", "STOPSIGNAL"))
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_PATH = re.compile(r"\$\{?PATH\b")
_OPEN = re.compile(r"\$[\w{@*#?$!-]")
"""The beginning of a variable."""
_ARCHIVE = re.compile(r"\.(?:tar(?:\.\w+)?|tgz|tbz2?|txz)$")
_TOP = re.compile(r"(?<![\w./:])/((?!(?:" + "|".join(NAMES.sandbox_folders) + r")\b)\w[\w.-]*)")
"""The first part of an absolute path in a command, besides those that the sandbox has itself."""
_RUN_SECONDS = 120
"""How long a line of a Dockerfile may run in the sandbox."""
_TESTS = ("/tests", "/logs", "/solution", "/oracle")
_READ: dict[tuple[object, ...], Image] = {}
"""What the newest Dockerfiles make, because their lines may take long in the sandbox."""
_MAX_READ = 64


class ImageBuild(Struct, frozen=True):
    """What an image is built from."""

    context: Path
    """The folder with the files that the Dockerfile may copy."""
    dockerfile: Path

    def read(self) -> "list[Instruction]":
        """Return the instructions of the Dockerfile; none without a file."""
        return _split(self.dockerfile.read_text("utf-8", "replace")) if self.dockerfile.is_file() else []


class Instruction(Struct, frozen=True):
    """An instruction of a Dockerfile, with continued lines joined."""

    word: str
    rest: str
    documents: tuple[HereDocument, ...] = ()
    """The texts that follow it."""

    @property
    def shown(self) -> str:
        """The beginning of the instruction, for messages."""
        return f"{self.word} {self.rest}".strip()[:80]


def read_image(build: ImageBuild, settings: Mapping[str, object]) -> Image:
    """Return what a Dockerfile makes; `settings` are those of the environment in `task.toml`.

    Raises: `ConfigError` that says why the task needs its image, or what must be installed.
    """
    path = build.dockerfile
    if not path.is_file():
        given = settings.get("docker_image")
        raise needs_image(f"its image is {given!r}" if given else "it has no Dockerfile")
    folder = find_folder(settings)
    key = (digest_build(build.context, path), folder, str(find_binds()))
    if known := _READ.get(key):
        return known.copy()
    image = Image()
    for item in build.read():
        if item.word == "FROM":
            image = Image()  # What an earlier stage makes is not in the image.
        try:
            _apply(image, build, item)
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            why = f": {error}" if str(error) else ""
            raise needs_image(f"its Dockerfile has `{item.shown}`{why}") from error
    image.folder = folder or image.folder
    if image.folder == "/":
        raise needs_image("its working folder is the root")
    for name in (image.folder, *image.files):
        image.place(name)
    image.folders.add(image.home)
    # Caches of programs would fill the run's files, of which /tmp may be a part.
    image.variables = {"HOME": image.home, "XDG_CACHE_HOME": "/dev/shm", **image.variables}
    if image.folder.split("/")[1] in NAMES.sandbox_folders:
        raise needs_image(f"its working folder is {image.folder!r}, which the sandbox has itself")
    if len(_READ) >= _MAX_READ:
        del _READ[next(iter(_READ))]
    _READ[key] = image.copy()
    return image


def _split(text: str) -> list[Instruction]:
    """Return the instructions of a Dockerfile, without comments and with continued lines joined."""
    lines, found = text.splitlines()[::-1], []
    while lines:
        joined, is_open = "", True
        while lines and is_open:
            line = lines.pop()
            if line.strip().startswith("#"):
                continue
            part = line.rstrip()
            is_open = part.endswith("\\") or (bool(joined) and not part)
            joined += f"{part.removesuffix(chr(92)).strip()} " if is_open else part.strip()
        word, _, rest = joined.strip().partition(" ")
        if word:
            has_documents = word.upper() in ("RUN", "COPY", "ADD")
            documents = read_documents(rest, lines) if has_documents else ()
            found.append(Instruction(word.upper(), rest.strip(), documents))
    return found


def find_folder(settings: Mapping[str, object]) -> str | None:
    """Return the working folder that the settings name; `None` if they do not. Raises: `ConfigError`."""
    given = settings.get("workdir")
    if given is not None and not (isinstance(given, str) and given.startswith("/")):
        raise ConfigError(f"its environment.workdir is {given!r:.80}; give an absolute path")
    return given and (given.rstrip("/") or "/")


def _apply(image: Image, build: ImageBuild, item: Instruction) -> None:
    """Apply an instruction. Raises: `ConfigError`, and `ValueError` with the reason, if it needs an image."""
    word, rest = item.word, item.rest
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
        _copy(image, build, item)
    elif word == "ARG":
        for name, has_value, value in (pair.partition("=") for pair in shlex.split(rest)):
            image.arguments[name] = _expand(image, value) if has_value else ""
    elif word == "ENV":
        pairs = shlex.split(rest) if "=" in rest.split(" ")[0] else ["=".join(rest.split(None, 1))]
        for pair in pairs:
            name, _, value = pair.partition("=")
            image.variables[name] = _expand(image, value)
    elif word == "RUN":
        _run(image, item)
    elif word == "USER":
        image.home = "/root" if rest in ("root", "0") else f"/home/{rest.partition(':')[0]}"
    elif word not in _IGNORED:
        raise ValueError


def _run(image: Image, item: Instruction) -> None:
    """Apply a RUN line, in the sandbox if it has more than installers and usual commands. Raises: `ConfigError`,
    `ValueError`."""
    text = _join_documents(item)
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


def _join_documents(item: Instruction) -> str:
    """Return the script of a RUN line. A document alone is itself the script, for the program in its first line."""
    if not item.documents:
        return item.rest
    (document, *others) = item.documents
    if not others and document.mark == item.rest:
        program = document.text.partition("\n")[0].removeprefix("#!")
        if not document.text.startswith("#!"):
            return document.text
        return f"{program} <<'{document.name}'\n{document.text}{document.name}"
    return "\n".join([item.rest, *[f"{one.text}{one.name}" for one in item.documents]])


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
    # Later lines, and the agent, find what the build leaves in /tmp.
    named = {f"/{top}" for top in _TOP.findall(text)} | {image.home, "/tmp"}
    # Nothing can be mounted in place of the root.
    folder = f"/{OUTER}" if image.folder == "/" else image.folder
    made = replace(image, folder=folder, folders={*image.folders, *named})
    box = MemorySandbox({made.place(path): content for path, content in image.files.items()})
    # Where images come from, `echo` of /bin/sh knows escapes, and bash has the functions for installers.
    script = f"cd {shlex.quote(image.folder)}\n{read_functions().decode()}\n{text}"
    command = f"bash -O xpg_echo -c {shlex.quote(script)}"
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
    odd = [*extras.links, *[path for path in extras.executable if not box.read(path).startswith(PROGRAMS)]]
    if outcome.exit_code or outcome.stop or outcome.removed or odd:
        said = f"it makes {odd[0]!r}" if odd else outcome.reason or outcome.text.strip()[-200:]
        raise ValueError(said)
    image.files = {made.find(path): box.read(path) for path in box.paths()}
    image.folders |= {made.find(path) for path in extras.folders} - named


def _expand(image: Image, text: str) -> str:
    """Return a text with the variables of the Dockerfile filled in; those of the shell and the base are left."""
    known = {"PATH": "", **image.arguments, **image.variables}

    def find(found: re.Match[str]) -> str:
        value = known.get(found[1] or found[2])
        return value or found[3] if found[3] is not None else found[0] if value is None else value

    return _VARIABLE.sub(find, text)


def _fill(image: Image, document: HereDocument, path: str) -> str:
    """Return the text of the file `path` that a Dockerfile writes. Raises: `ConfigError` if it has a variable whose
    value only the image has."""
    if document.is_literal:
        return document.text
    # Every second part is a character after a backslash, which is removed.
    parts = _ESCAPE.split(document.text)
    filled = [_expand(image, part) for part in parts[::2]]
    if any(map(_PATH.search, parts[::2])) or any(map(_OPEN.search, filled)):
        raise needs_image(f"its Dockerfile writes {path!r} with variables that are not known")
    parts[::2] = filled
    return "".join(parts)


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


def _copy(image: Image, build: ImageBuild, item: Instruction) -> None:
    """Add the files of a COPY or ADD line to an image. Raises: `ConfigError`."""
    arguments = _expand(image, item.rest)
    if re.match(r"--from=\S*astral-sh/uv\b", arguments):
        return  # uv is among the installers that do nothing here
    options = re.match(r"(?:--\S+\s+)*", arguments)
    given = arguments[options.end() :] if options else arguments
    words = msgspec.json.decode(given, type=list[str]) if given.startswith("[") else shlex.split(given)
    has_more = not all(
        re.match("--ch(mod|own)=|--link", word) for word in arguments.split() if word[:2] == "--"
    )
    may_unpack = item.word == "ADD"
    is_other = any("://" in word or (may_unpack and _ARCHIVE.search(word)) for word in words)
    if has_more or is_other or len(words) < 2 or any(".." in Path(word).parts for word in words[:-1]):
        raise needs_image(f"its Dockerfile copies `{arguments[:80]}`")
    *sources, target = words
    is_folder = target.endswith(("/", "/.")) or target == "." or len(sources) > 1
    target = _resolve(image, target)
    is_folder |= target in image.folders or any(path.startswith(f"{target}/") for path in image.files)
    is_folder |= target[1:] in NAMES.root_folders
    context, is_ignored = build.context, _read_ignored(build)
    if is_for_tests(target):
        return
    for document in item.documents:
        sources.remove(shlex.split(document.mark)[0])
        place = f"{target}/{document.name}" if is_folder else target
        image.files[place] = _fill(image, document, place).encode()
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


def is_for_tests(path: str) -> bool:
    """Return whether only the tests or the reference solution use a path. What a task has there is left out."""
    return path in _TESTS or path.startswith(tuple(f"{folder}/" for folder in _TESTS))


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
