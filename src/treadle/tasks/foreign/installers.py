"""What the scripts of foreign tasks install, and whether this machine has it.

A task's scripts run without a network. Where they call apt, pip or uv, what these would install must be here:
programs of the machine, and packages of the task's Python. That Python is the environment that the variable
`TREADLE_HARBOR_ENV` names, else the one that runs Treadle if commands can reach it, else that of the system.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.sandbox.commands.bubblewrap import ImageRoot, is_root
from treadle.sandbox.commands.home import is_open_to_all

VARIABLE = "TREADLE_HARBOR_ENV"
_REDIRECTION = re.compile(r"(?<=\s)\d*>{1,2}\s*(&\d|[\w./-]+)")
_DOCUMENT = re.compile(r"(?<!<)\d*<<(-?)\s*(['\"]?)([A-Za-z_][\w.]*)\2(?=[\s;&|>)]|$)")
"""The mark of a text that follows a command, up to a line with its name."""
_UV = "astral.sh/uv"
"""The part of an address by which uv is installed."""
_PLACE = "/usr/local"
"""Where commands find the task's Python: the first folder of their PATH is in it."""


class _Names(Struct, frozen=True):
    """The lists of `installers.toml`, which says what each is."""

    assumed: frozenset[str]
    valued_options: frozenset[str]
    network_programs: frozenset[str]
    sandbox_folders: frozenset[str]
    root_folders: frozenset[str]
    idle_entries: frozenset[str]
    base_images: frozenset[str]
    base_image_folders: dict[str, str]
    package_folders: tuple[str, ...]


NAMES = msgspec.toml.decode(files(__package__).joinpath("installers.toml").read_bytes(), type=_Names)


class MissingPrograms(Struct, frozen=True):
    """What a command would install that is not on this machine."""

    is_installer: bool
    """True if the command installs."""
    names: tuple[str, ...] = ()
    tool: str = "pip"

    @property
    def advice(self) -> str:
        names = " ".join(self.names)
        if self.tool == "apt":
            return f"{names}; install it on this machine with: apt install {names}"
        return (
            f"{names}; make a Python environment that all users can read, install it there with pip, and set "
            f"{VARIABLE} to its folder"
        )


class HereDocument(Struct, frozen=True):
    """A text that follows a command, which gets it as its input (`<<EOF`)."""

    mark: str
    """The mark in the command."""
    name: str
    """The line after the text."""
    text: str
    """The lines, each with its end."""
    is_literal: bool
    """Whether variables stay as they are written."""


def read_documents(line: str, following: list[str]) -> tuple[HereDocument, ...]:
    """Return the documents of a line of a script. Their lines are removed from those that follow, which are in
    reverse order. A mark without an end is none."""
    found = []
    for mark in _DOCUMENT.finditer(line):
        tabs, quote, name = mark.groups()
        lines = [part.lstrip("\t") if tabs else part for part in reversed(following)]
        if name not in lines:
            break
        count = lines.index(name)
        del following[len(following) - count - 1 :]
        text = "".join([f"{part}\n" for part in lines[:count]])
        found.append(HereDocument(mark[0], name, text, bool(quote)))
    return tuple(found)


def split_commands(text: str) -> list[list[str]]:
    """Return the words of each command of a line or script, without the documents that commands get as their input.
    Quoted texts that have no end are left out."""
    found: list[list[str]] = []
    following = re.sub(r"\\\n", " ", text).splitlines()[::-1]
    while following:
        line = following.pop()
        if line.strip().startswith("#"):
            continue
        read_documents(line, following)
        lexer = shlex.shlex(_REDIRECTION.sub(" ", line), posix=True, punctuation_chars="&|;")
        lexer.whitespace_split, lexer.commenters = True, "#"
        command: list[str] = []
        try:
            for word in lexer:
                if word and not word.strip("&|;"):
                    found.append(command)
                    command = []
                else:
                    command.append(word)
        except ValueError:
            continue
        found.append(command)
    return [command for command in found if command]


def find_missing(command: list[str], root: Path | None = None) -> MissingPrograms:
    """Return what a command would install that is not here, or not in the image that is unpacked in `root`."""
    has_program, has_package = partial(_has_program, root), partial(_has_package, root)
    words = [word for word in command if word not in ("sudo", "-qq")]
    while words and re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    name, *words = words or [""]
    name = Path(name).name
    if name in NAMES.network_programs and any(_UV in word for word in words):
        return MissingPrograms(True)
    if name in ("sh", "bash") and not words:  # it runs what an installer writes to its input
        return MissingPrograms(True)
    if re.fullmatch(r"python3?(\.\d+)?", name) and words[:2] == ["-m", "pip"]:
        name, words = "pip", words[2:]
    if name in ("apt", "apt-get"):
        wanted = words[words.index("install") + 1 :] if "install" in words else []
        return MissingPrograms(True, _without(_plain(wanted), has_program), "apt")
    if name in ("pip", "pip3"):
        return MissingPrograms(
            "install" in words or words[:1] == ["cache"],
            _packages(words[1:], has_package) if "install" in words else (),
        )
    if name == "uv" and words[:1] != ["run"]:
        wanted = (
            words[words.index("install" if "install" in words else "add") + 1 :]
            if {"install", "add"} & {*words}
            else []
        )
        return MissingPrograms(True, _packages(wanted, has_package))
    if name in ("uv", "uvx"):
        given = [
            words[place + 1] for place, word in enumerate(words[:-1]) if word in ("-w", "--with", "--from")
        ]
        started = next(iter(_plain(words[1:] if name == "uv" else words)), "")
        return MissingPrograms(True, _without([*given, *([started] if name == "uvx" else [])], has_package))
    return MissingPrograms(False)


def find_obstacle(script: str, image: ImageRoot | None = None) -> str | None:
    """Return why a script cannot run without a network; `None` if all that it installs is here, or in its image."""
    for command in split_commands(script):
        missing = find_missing(command, None if image is None else Path(image.folder))
        if missing.names and image is not None:
            names = " ".join(missing.names)
            return f"its tests install what its image lacks, without a network: {names}; add it to the Dockerfile"
        if missing.names:
            return f"its tests install what is not here: {missing.advice}"
        if command[0] in NAMES.network_programs and not missing.is_installer:
            return f"its tests use the network, and the sandbox has none: `{' '.join(command)[:80]}`"
    return None


def _plain(words: list[str]) -> list[str]:
    """Return the words that are no options and no values of options."""
    pairs = zip(["", *words], words, strict=False)
    return [word for before, word in pairs if not word.startswith("-") and before not in NAMES.valued_options]


def _packages(words: list[str], has_package: Callable[[str], bool]) -> tuple[str, ...]:
    if any(word in ("-r", "--requirement") for word in words):
        return (f"the packages of {words[-1]}",)
    return _without(_plain(words), has_package)


def _without(names: list[str], is_here: Callable[[str], bool]) -> tuple[str, ...]:
    bare = [re.split(r"[\[=<>~!@; ]", name, maxsplit=1)[0] for name in names]
    return tuple(
        dict.fromkeys(name for name in bare if name and name not in NAMES.assumed and not is_here(name))
    )


def _has_program(root: Path | None, name: str) -> bool:
    path = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    if root is not None:
        # Links of an image lead elsewhere here, so it is enough that the name is there.
        return name in _debian_packages(root) or any(
            os.path.lexists(f"{root}{folder}/{name}") for folder in path.split(":")
        )
    if shutil.which(name, path=path) is not None:
        return True
    return name in _debian_packages(root) or (name == "build-essential" and shutil.which("gcc") is not None)


@cache
def _debian_packages(root: Path | None) -> frozenset[str]:
    if root is not None:
        status = root / "var" / "lib" / "dpkg" / "status"
        text = status.read_text("utf-8", "replace") if status.is_file() and _is_inside(status, root) else ""
        return frozenset(re.findall(r"^Package: (.+)\nStatus: install ok", text, re.MULTILINE))
    if shutil.which("dpkg-query") is None:
        return frozenset()
    asked = ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package}\n"]
    shown = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    return frozenset(line[3:] for line in shown.splitlines() if line.startswith("ii"))


def _has_package(root: Path | None, name: str) -> bool:
    found = _python_packages(find_prefix() or Path("/usr")) if root is None else _image_packages(root)
    return _plain_name(name) in found


def _plain_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_inside(path: Path, root: Path) -> bool:
    """Return whether no link of the image in `root` leads out of it, to files of this machine."""
    return path.resolve().is_relative_to(root.resolve())


@cache
def _image_packages(root: Path) -> frozenset[str]:
    """Return the names of the Python packages of an unpacked image, from the folders that pip leaves."""
    folders = [path for place in NAMES.package_folders for path in root.glob(place)]
    found = [
        path.name for folder in folders if _is_inside(folder, root) for path in folder.glob("*.dist-info")
    ]
    return frozenset(_plain_name(name.partition("-")[0]) for name in found)


@cache
def _python_packages(prefix: Path) -> frozenset[str]:
    program = (
        "import importlib.metadata as m; print(*[d.metadata['Name'] for d in m.distributions()], sep='\\n')"
    )
    asked = [str(prefix / "bin" / "python3"), "-I", "-c", program]
    try:
        shown = subprocess.run(asked, capture_output=True, text=True, check=False, cwd="/", env={}).stdout
    except OSError:
        return frozenset()
    return frozenset(map(_plain_name, shown.splitlines()))


def find_prefix() -> Path | None:
    """Return the folder of the task's Python; `None` for that of the system. Raises: `ConfigError`."""
    given = os.environ.get(VARIABLE)
    if given is not None and not (Path(given) / "bin" / "python3").exists():
        raise ConfigError(f"{VARIABLE} is {given!r}, which is no Python environment: it has no bin/python3")
    prefix = Path(given or sys.prefix)
    if str(prefix.resolve()).startswith("/usr"):
        return None
    closed = [path for path in _folders_of(prefix) if is_root() and not is_open_to_all(path)]
    if closed and given is not None:
        raise ConfigError(
            f"{VARIABLE} is {given!r}, and commands, which run as another user than root, cannot read "
            f"{str(closed[0])!r}; make it of a Python and in a folder that all users can read, as in: "
            "/usr/bin/python3 -m venv /opt/task-env"
        )
    return None if closed else prefix


def _folders_of(prefix: Path) -> list[Path]:
    """Return the folders that a Python needs: its own, and that of the Python that it was made from."""
    base = (prefix / "bin" / "python3").resolve().parent.parent
    return [prefix] if str(base).startswith("/usr") or base == prefix else [prefix, base]


def find_binds() -> dict[str, str]:
    """Return what commands must see of the host for the task's Python. Raises: `ConfigError`."""
    prefix = find_prefix()
    if prefix is None:
        return {}
    folders = _folders_of(prefix)
    return {**{str(folder): str(folder) for folder in folders}, f"{prefix}/.": _PLACE}


def read_functions() -> bytes:
    """Return the bash functions that stand for the installers."""
    return files(__package__).joinpath("installers.sh").read_bytes()
