"""Files on the disk: those to mount in a sandbox, and folders for the output."""

from collections.abc import Sequence
from pathlib import Path

from treadle.cli.options.shared import MountOptions
from treadle.cli.terminal.output import print_note
from treadle.core.errors import ConfigError
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
