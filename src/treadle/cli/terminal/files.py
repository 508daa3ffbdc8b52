"""Files of the commands: changes in a run's sandbox, complete files, and exported journals."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from treadle.agent.run import Run
from treadle.cli.terminal.execute import execute
from treadle.cli.terminal.output import clean, print_note, stdout, write_count
from treadle.core import events as e
from treadle.core.errors import ConfigError, ExportError, JournalError
from treadle.journal.jsonl import Imported, import_lines
from treadle.journal.protocol import Journal


def write_whole(lines: Iterable[bytes], out: Path) -> int:
    """Write lines to a file that appears only when it is complete, and return their number.

    Raises: `ConfigError` if no file can be made at `out`; `ExportError` if it cannot be written completely.
    """
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    count = 0
    try:
        file = part.open("wb")
    except OSError as error:
        raise ConfigError(f"cannot write {str(out)!r}: {error.strerror}") from error
    try:
        try:
            with file:
                for line in lines:
                    file.write(line + b"\n")
                    count += 1
            part.replace(out)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ExportError(f"cannot write {str(out)!r}: {error.strerror}") from error
    return count


def import_file(journal: Journal, path: str) -> Imported:
    """Store the runs of an exported journal, and return their ids. `-` is standard input.

    Raises: `ConfigError` if the file cannot be read; `JournalError` if it is not an exported journal.
    """
    try:
        if path == "-":
            return execute(import_lines(journal, sys.stdin.buffer))
        with Path(path).open("rb") as file:
            return execute(import_lines(journal, file))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read {path!r}: {error.strerror}") from error
    except JournalError as error:
        raise type(error)(f"{path}: {error}") from error


class Changes(Struct, frozen=True):
    """The files that a run added, changed and deleted in its sandbox."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    deleted: tuple[str, ...]

    @property
    def written(self) -> tuple[str, ...]:
        """The added and the changed files."""
        return tuple(sorted(self.added + self.changed))


def find_changes(run: Run) -> Changes:
    """Return the changes from the files at the beginning of the run to its files now."""
    before: dict[str, str] = {}
    for event in run.events:
        if isinstance(event.body, e.SnapshotTaken):
            before = dict(event.body.delta.changed)
        elif isinstance(event.body, e.TurnStarted):
            break
    after = run.state.files
    return Changes(
        added=tuple(sorted(path for path in after if path not in before)),
        changed=tuple(sorted(path for path in after if path in before and after[path] != before[path])),
        deleted=tuple(sorted(path for path in before if path not in after)),
    )


def refuse_folder(out: Path, mount: Path | None) -> None:
    """Raise an error if files cannot be written to `out` without overwriting others. Raises: `ConfigError`."""
    if mount is not None and out.resolve() == mount.resolve():
        raise ConfigError(
            f"--out {str(out)!r} is the mounted folder, which is never written to; give another folder"
        )
    try:
        is_free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    except OSError as error:
        raise ConfigError(f"--out {str(out)!r} cannot be read: {error}") from error
    if not is_free:
        raise ConfigError(f"--out {str(out)!r} exists and is not empty; give a new folder")


def write_changes(run: Run, changes: Changes, out: Path) -> None:
    """Write the added and changed files to the folder `out`. Raises: `ConfigError` if that fails."""
    files = run.files
    try:
        for path in changes.written:
            target = out / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(files[path])
    except OSError as error:
        raise ConfigError(
            f"cannot write to {str(out)!r}: {error}; run {run.run_id!r} still has the files"
        ) from error


def print_changes(changes: Changes, mount: Path | None, out: Path | None) -> None:
    """Print which files changed, and where they are now."""
    console = stdout()
    for mark, style, paths in (
        ("+", "green", changes.added),
        ("~", "yellow", changes.changed),
        ("-", "red", changes.deleted),
    ):
        for path in paths:
            console.print(f"{mark} {clean(path)}", style=style, soft_wrap=True)
    count = len(changes.written)
    if out is not None:
        print_note(f"{write_count(count, 'changed file')} written to {str(out)!r}")
    elif mount is not None and (count or changes.deleted):
        print_note(f"changed in the sandbox only, not in {str(mount)!r}; --out DIR writes the files")
