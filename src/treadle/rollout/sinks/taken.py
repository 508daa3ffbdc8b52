"""The groups that a trainer has taken from an Atropos server, in a file that the trainer writes.

Use it in the trainer's loop, between the server's answer and the training:

    taken = TakenGroups("taken.jsonl")
    batch = requests.get(f"{url}/batch").json()["batch"]
    for group in taken.take(batch or []):
        train(group)

The file tells the sink `atropos:URL?taken=taken.jsonl` which groups it can forget. `take` leaves out a group that
was taken before, so that a group that was posted twice is trained on once.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.types import Json
from treadle.export.token_formats.atropos_groups import MARK

G = TypeVar("G", bound=Mapping[str, Json])


class Mark(Struct, frozen=True, array_like=True):
    """The identity of one group at an Atropos server."""

    key: str
    """The name of the sink's environment, and the id of the group."""
    part: int
    """The number of the part, from 0, if the rollouts of the group have several branches."""


class TakenGroups:
    """The file of taken groups, for the trainer. One process at a time writes it."""

    def __init__(self, path: str | Path) -> None:
        """Open the file, which is created if it does not exist. An unfinished last line is removed."""
        self._path = Path(path)
        try:
            self._path.touch()
            marks, end = read_taken(self._path, 0)
            os.truncate(self._path, end)
        except OSError as error:
            raise ConfigError(f"cannot write {str(path)!r}: {error.strerror}") from error
        self._known = set(marks)

    def take(self, batch: Sequence[G]) -> list[G]:
        """Record that these groups were taken, and return those that were not taken before.

        Groups of other environments are returned and not recorded.
        """
        fresh: list[G] = []
        marks: list[Mark] = []
        for group in batch:
            mark = mark_of(group)
            if mark is None:
                fresh.append(group)
            elif mark not in self._known:
                self._known.add(mark)
                marks.append(mark)
                fresh.append(group)
        if marks:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(marks) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        return fresh


def mark_of(group: Mapping[str, Json]) -> Mark | None:
    """Return the identity of a group from the server; `None` if Treadle did not make the group."""
    params = group.get("generation_params")
    mark = params.get(MARK) if isinstance(params, dict) else None
    return Mark(mark["key"], mark["part"]) if isinstance(mark, dict) and "key" in mark else None


def read_taken(path: Path, begin: int) -> tuple[list[Mark], int]:
    """Return the groups in whole lines of the file from the byte `begin` on, and where the last one ends."""
    try:
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read()
    except FileNotFoundError:
        return [], begin
    whole = data[: data.rfind(b"\n") + 1]
    marks = [mark for line in whole.splitlines() for mark in msgspec.json.decode(line, type=list[Mark])]
    return marks, begin + len(whole)
