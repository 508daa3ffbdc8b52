"""Which files of a sandbox a run changed, and writing them to a folder."""

from pathlib import Path

from msgspec import Struct

from treadle.agent.run import Run
from treadle.cli.terminal.output import clean, print_note, stdout, write_count
from treadle.core import events as e
from treadle.core.errors import ConfigError


class Changes(Struct, frozen=True):
    """A sandbox as it is against what it was when the run began."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    deleted: tuple[str, ...]

    @property
    def written(self) -> tuple[str, ...]:
        """The files that have a new content."""
        return tuple(sorted(self.added + self.changed))


def find_changes(run: Run) -> Changes:
    """What the run's tools did to its files."""
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
    """Raises: `ConfigError` if files cannot be written to `out` without overwriting others."""
    if mount is not None and out.resolve() == mount.resolve():
        raise ConfigError(
            f"--out {str(out)!r} is the mounted folder, which is never written to; give another"
        )
    try:
        is_free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    except OSError as error:
        raise ConfigError(f"--out {str(out)!r} cannot be read: {error}") from error
    if not is_free:
        raise ConfigError(f"--out {str(out)!r} is there and not empty; give a new folder")


def write_changes(run: Run, changes: Changes, out: Path) -> None:
    """Write the files that have a new content. Raises: `ConfigError` if that cannot be done."""
    files = run.files
    try:
        for path in changes.written:
            target = out / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(files[path])
    except OSError as error:
        raise ConfigError(
            f"cannot write to {str(out)!r}: {error}; the files are kept in run {run.run_id!r}"
        ) from error


def print_changes(changes: Changes, mount: Path | None, out: Path | None) -> None:
    """Say what changed, if the run has files to change."""
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
        print_note(f"changed in the sandbox only; {str(mount)!r} is as it was. --out DIR writes the files")
