"""What the workers of a runner share: the caller's window, and the folders from which modules are imported."""

import sys
from pathlib import Path

from msgspec.structs import replace

from treadle.workers.protocol import RunnerOptions

STOP_SECONDS = 30.0
"""How long a worker may take to give its runs back before it is killed."""


def share_window(options: RunnerOptions, count: int) -> RunnerOptions:
    """Return the options for each of `count` workers, whose windows together are the caller's."""
    return replace(options, window=-(-options.window // count))


def import_path() -> list[str]:
    """Return the folders from which this program imports modules, as paths that mean the same elsewhere."""
    return [entry or str(Path.cwd()) for entry in sys.path]
