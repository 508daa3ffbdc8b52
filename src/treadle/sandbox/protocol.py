"""The protocol of sandboxes, which are a run's files; the limits and the outcome of commands over these files."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from treadle.core.types import FileDelta
from treadle.sandbox.paths import normalize_file as normalize_file
from treadle.sandbox.paths import normalize_folder as normalize_folder


class Sandbox(Protocol):
    """The files of one run. Paths are relative to the root, with `/` between their parts.

    Every method raises `SandboxError` for a path outside the root; further reasons are given at each method.
    """

    def read(self, path: str) -> bytes:
        """Return a file's content. Raises: `SandboxError` if there is no such file."""

    def write(self, path: str, content: bytes) -> None:
        """Create or replace a file."""

    def delete(self, path: str) -> None:
        """Remove a file. Raises: `SandboxError` if there is no such file."""

    def paths(self) -> list[str]:
        """Return the paths of all files, sorted."""

    def read_state(self, name: str) -> bytes | None:
        """Return the state that a tool stored under `name`, or `None` if nothing was stored."""

    def write_state(self, name: str, content: bytes) -> None:
        """Store a tool's own state. It is part of the snapshot but is not a file of the run."""

    @property
    def snapshot_id(self) -> str:
        """The id of the files, in hex. Equal files have equal ids."""

    @property
    def has_changes(self) -> bool:
        """False if there are certainly no changes since the last `take_delta`. Reading it is cheap."""

    @property
    def unprepared_bytes(self) -> int:
        """How many bytes were written since the last `take_delta` or `prepare_delta`. Reading it is cheap."""

    def prepare_delta(self) -> None:
        """Do the work of the next `take_delta` that takes time. Any thread may call it."""

    def take_delta(self) -> tuple[FileDelta, Mapping[str, bytes]] | None:
        """Return the changes since the last call, and the data to store for each changed content, by its hash.

        The data is the content, or a patch of a content that was reported before (`core.patches`). Return `None`
        if nothing changed. The first call reports every file.
        """

    def undo_changes(self) -> None:
        """Undo all changes since the last `take_delta`. Without an earlier `take_delta`, nothing is undone."""


class RunFiles(dict[str, bytes]):
    """A run's files, path to content, with the states of tools, which the check of a task may need.

    `read_state` is that of the sandbox, see `Sandbox.read_state`.
    """

    def __init__(self, files: Mapping[str, bytes], read_state: Callable[[str], bytes | None]) -> None:
        super().__init__(files)
        self.read_state = read_state

    @classmethod
    def of(cls, sandbox: Sandbox) -> "RunFiles":
        """Return the files and states that a sandbox has now."""
        return cls({path: sandbox.read(path) for path in sandbox.paths()}, sandbox.read_state)

    @classmethod
    def load(
        cls, files: Mapping[str, str], states: Mapping[str, str], read: Callable[[str], bytes]
    ) -> "RunFiles":
        """Return the files and states with hashes whose contents `read` returns. Raises: what `read` raises."""
        return cls(
            {path: read(digest) for path, digest in files.items()},
            lambda name: read(states[name]) if name in states else None,
        )


class Limits(Struct, frozen=True, kw_only=True):
    """The resources that one command may use."""

    seconds: float = 120.0
    memory_bytes: int = 2 * 1024**3
    """The memory of all its processes together."""
    processes: int = 128
    """Processes and threads together."""
    disk_bytes: int = 512 * 1024**2
    """Size of all files together, including those in /tmp."""
    file_bytes: int = 256 * 1024**2
    """Size of any one file."""
    files: int = 50_000
    """Files and folders together."""
    output_bytes: int = 1024**2
    """How many bytes of the output are kept. If the output is longer, its middle is left out."""


class Stop(StrEnum):
    """The reason why a command was stopped before its end."""

    TIME = "time"
    MEMORY = "memory"
    PROCESSES = "processes"
    DISK = "disk"
    CANCELLED = "cancelled"


class CommandOutcome(Struct, frozen=True):
    """The result of a command."""

    exit_code: int
    """The exit code of the command. If a signal ended the command, it is the signal's number plus 128."""
    text: str
    """Standard output and standard error, in the order in which they were written."""
    stop: Stop | None = None
    """`None`: the command ended by itself. `DISK`: its changes to the run's files were undone."""
    reason: str = ""
    """Why the command was stopped, in words."""
    removed: tuple[str, ...] = ()
    """Things that the command made but a run's files cannot hold, each with the reason. They were removed."""
    new_links: tuple[str, ...] = ()
    """The paths of symbolic links that the command made. Only later commands see them."""
