"""Files that go into a sandbox from the disk, and files that a run changed in it."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from treadle.cli.jobs.driving import FollowUp
from treadle.cli.options.common import MountOptions
from treadle.cli.terminal.output import clean, print_note, stdout, write_count
from treadle.core import events as e
from treadle.core.errors import ConfigError, SandboxError
from treadle.runs.run import Run
from treadle.sandbox.mount import Mount
from treadle.sandbox.paths import normalize_file


def read_mount(options: MountOptions, *, is_quiet: bool = False) -> Mount | None:
    """Return the files of --mount, and print what is left out unless `is_quiet`. Raises: `ConfigError`."""
    if options.path is None:
        return None
    mount = Mount(options.path, is_whole=options.is_whole)
    if mount.left_out and not is_quiet:
        print_note(f"not mounted: {_join(mount.left_out)}; --mount-all mounts everything")
    if mount.refused and not is_quiet:
        print_note(f"cannot be mounted: {_join([f'{name} ({why})' for name, why in mount.refused.items()])}")
    return mount


def _join(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")


_MAX_NAMED = 6
"""The most files that a remark names."""


def refuse_folder(out: Path, mount: Path | None) -> None:
    """Raise an error if files cannot be written to `out` without overwriting others. Raises: `ConfigError`."""
    if mount is not None and out.resolve() == mount.resolve():
        raise ConfigError(
            f"--out {str(out)!r} is the mounted folder, which is never written to; give another folder"
        )
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {str(out)!r} is a file; give a new folder")
    try:
        is_free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    except OSError as error:
        raise ConfigError(f"--out {str(out)!r} cannot be read: {error.strerror}") from error
    if not is_free:
        raise ConfigError(f"--out {str(out)!r} exists and is not empty; give a new folder")


class FileChanges(Struct, frozen=True):
    """The files that a run added, changed and deleted in its sandbox."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    deleted: tuple[str, ...]

    @property
    def written(self) -> tuple[str, ...]:
        """The added and the changed files."""
        return tuple(sorted(self.added + self.changed))


def find_changes(run: Run) -> FileChanges:
    """Return the changes from the files at the beginning of the run to its files now."""
    before: dict[str, str] = {}
    for event in run.events:
        if isinstance(event.body, e.SnapshotTaken):
            before = dict(event.body.delta.changed)
        elif isinstance(event.body, e.TurnStarted):
            break
    # The files of skills come with `use_skill`, and are not the run's work.
    after = {
        path: digest for path, digest in run.state.sandbox.files.items() if not path.startswith(".skills/")
    }
    before = {path: digest for path, digest in before.items() if not path.startswith(".skills/")}
    return FileChanges(
        added=tuple(sorted(path for path in after if path not in before)),
        changed=tuple(sorted(path for path in after if path in before and after[path] != before[path])),
        deleted=tuple(sorted(path for path in before if path not in after)),
    )


def write_files(run: Run, paths: Iterable[str], out: Path, *, is_forced: bool = False) -> None:
    """Write files of a run to the folder `out`. With `is_forced`, files that exist are replaced.

    Nothing is written outside `out`, even if `out` contains symlinks or the journal has paths that lead out of it.
    Raises: `ConfigError` if a file exists or cannot be written.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {str(out)!r} is a file; give a folder")
    try:
        targets = {path: _place(out, path, is_forced=is_forced) for path in paths}
        for path, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(run.read_artifact(run.state.sandbox.files[path]))
    except SandboxError as error:
        raise ConfigError(f"cannot write to {str(out)!r}: {error}") from error
    except OSError as error:
        raise ConfigError(
            f"cannot write {error.filename!r}: {error.strerror}; run {run.run_id!r} still has the files"
        ) from error


def _place(out: Path, path: str, *, is_forced: bool) -> Path:
    """Return where to write a file. Raises: `ConfigError`, `SandboxError`."""
    target = out / normalize_file(path)
    if not target.parent.resolve().is_relative_to(out.resolve()) or target.is_symlink():
        raise ConfigError(f"cannot write {str(target)!r}: a symlink leads out of {str(out)!r}")
    if target.exists() and not is_forced:
        raise ConfigError(f"{str(target)!r} exists; give a new folder, or --force to replace files")
    return target


def print_changes(changes: FileChanges, run: Run, follow_up: FollowUp, out: Path | None) -> None:
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
    elif count:
        command = follow_up.write("files", run.run_id, changed=True, out="DIR")
        print_note(
            f"changed in the sandbox only; write them to a folder with: {command}   (or give run --out DIR)"
        )
