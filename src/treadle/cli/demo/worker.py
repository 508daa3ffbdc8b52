"""The worker process of the demonstration: `treadle generate`, which ends when standard input ends.

The demonstration holds the other end, so the worker ends with it, even if it is killed.
"""

import os
import sys
import threading


def main() -> None:
    """Run `treadle` with the arguments of this process."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    from treadle.cli import main as run_treadle

    sys.argv[0] = "treadle"
    run_treadle()


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
