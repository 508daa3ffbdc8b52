"""A process whose rollouts wait for answers that never come: `python -m tests.jobs.stuck FOLDER`."""

import asyncio
import sys
from pathlib import Path

from tests.rollout.students import School
from tests.rollout.test_rollouts import make


async def wait(seed: int) -> None:
    print("asked", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1]), School(pause=wait), groups=1, limits={"max_tokens": 5_000}).run())
