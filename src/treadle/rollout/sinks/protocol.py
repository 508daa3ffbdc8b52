"""The protocol of sinks."""

from typing import Protocol

from treadle.export.groups import Group
from treadle.trajectory.tokens.types import TokenGrade


class Sink(Protocol):
    """A receiver of groups."""

    @property
    def name(self) -> str:
        """The name of the sink in the configuration."""
        ...

    @property
    def needs(self) -> TokenGrade:
        """The lowest grade of trajectories that the sink accepts."""
        ...

    def encode(self, group: Group) -> bytes:
        """Return what is stored for the group until the sink has acknowledged it.

        Raises: `ExportError` if the sink's format cannot express the group.
        """
        ...

    async def deliver(self, key: str, data: bytes) -> None:
        """Hand over a group. After a crash this is called again with the same key, and must not deliver twice.

        Raises: `ExportError` if the receiver refuses the group for good; `TransportError` if it should be tried
        again.
        """
        ...

    async def close(self) -> None:
        """Release connections and files."""
        ...
