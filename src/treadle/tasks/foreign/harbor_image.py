"""What the commands of a task find: files, folders and variables, or an unpacked image that has them all."""

import posixpath
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.sandbox.commands.bubblewrap import ImageRoot
from treadle.sandbox.commands.host import HostCommands
from treadle.tasks.foreign.installers import NAMES, find_binds

OUTER = ".root"
"""The folder of the run's files with everything that is outside of the working folder."""


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
    mounts_read_only: tuple[str, ...] = ()
    """The absolute paths whose files the tests find as the task has them, whatever commands did."""
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

    def locate(self, path: str) -> str:
        """Return where an absolute path is in the run's files, also in an image. Raises: `ConfigError`."""
        return path[1:] if self.root else self.place(path)

    def restore(self, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the files of a run with those of read-only mounts as the task has them."""
        if not (fixed := tuple(map(self.locate, self.mounts_read_only))):
            return files

        def is_fixed(name: str) -> bool:
            return any(f"{name}/".startswith(f"{place}/") for place in fixed)

        kept = {name: content for name, content in files.items() if not is_fixed(name)}
        given = {self.locate(path): content for path, content in self.files.items()}
        return {**kept, **{name: content for name, content in given.items() if is_fixed(name)}}

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
