"""A process that has used nothing yet, and forks one that drives a run for each line that it reads.

Forking is quick; but a process whose tools have threads of their own, as the tests' may have by then, cannot be
forked and go on using them.
"""

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path

from tests.crash.scenario import drive

from treadle import InDoubt


def work(order: dict[str, object]) -> None:
    path = Path(str(order["path"]))
    crash_at = order["crash_at"]
    assert crash_at is None or isinstance(crash_at, int)
    coroutine = drive(
        path,
        str(order["scenario"]),
        str(order["level"]),
        crash_at,
        listens=bool(order["listens"]),
        in_doubt=InDoubt(str(order["in_doubt"])),
    )
    _, count = asyncio.run(coroutine)
    path.with_suffix(".count").write_text(str(count))


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work(json.loads(line))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == "__main__":
    main()
