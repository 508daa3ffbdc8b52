"""What a sandbox is to the loop: files that can be read, changed, snapshotted and restored."""

from collections.abc import Mapping
from typing import Protocol

from treadle.core.types import FileDelta


class Sandbox(Protocol):
    """The files of one run. Paths are relative to the root, with `/` between their parts.

    Every method raises `SandboxError` for a path that leaves the root, and where it says so.
    """

    def read(self, path: str) -> bytes:
        """A file's content. Raises: `SandboxError` if there is no such file."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Create or replace a file."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file. Raises: `SandboxError` if there is no such file."""
        ...

    def paths(self) -> list[str]:
        """The paths of all files, sorted."""
        ...

    def read_state(self, name: str) -> bytes | None:
        """What a tool keeps beside the files under `name`; `None` if nothing."""
        ...

    def write_state(self, name: str, content: bytes) -> None:
        """Keep a tool's own state: it is part of the snapshot, so that a resume or a fork has it, and no file."""
        ...

    @property
    def snapshot_id(self) -> str:
        """SHA-256 over the sorted (path, content hash) pairs, hex: equal files, equal id."""
        ...

    @property
    def has_changes(self) -> bool:
        """False if `take_delta` would return `None`. It is cheap to read, and may be true without a change."""
        ...

    def take_delta(self) -> tuple[FileDelta, Mapping[str, bytes]] | None:
        """Return what changed since the last call, and the changed contents by their hash.

        Return `None` if nothing changed. The first call reports every file.
        """
        ...
