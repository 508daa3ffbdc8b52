"""Files that go into a sandbox from the disk, and files that a run changed in it."""

from collections.abc import Sequence
from pathlib import Path

from treadle.cli.jobs.driving import FollowUp
from treadle.cli.options.common import MountOptions
from treadle.cli.terminal.output import print_line, print_note, write_count
from treadle.core.errors import ConfigError
from treadle.runs.run import FileChanges, Run
from treadle.sandbox.mount import Mount


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


def print_changes(changes: FileChanges, run: Run, follow_up: FollowUp, out: Path | None) -> None:
    """Print which files changed, and where they are now."""
    for mark, style, paths in (
        ("+", "green", changes.added),
        ("~", "yellow", changes.changed),
        ("-", "red", changes.deleted),
    ):
        for path in paths:
            print_line(f"{mark} {path}", style)
    count = len(changes.written)
    if out is not None and not count:
        print_note(f"no file was changed, so nothing is written to {str(out)!r}")
    elif out is not None:
        print_note(f"{write_count(count, 'changed file')} written to {str(out)!r}")
    elif count:
        command = follow_up.write("files", run.run_id, changed=True, out="DIR")
        print_note(
            f"changed in the sandbox only; write them to a folder with: {command}   (or give run --out DIR)"
        )
