"""The making of a sample of a dataset, with numbered boundaries at which its process can be killed."""

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.crash.scenario import CrashingJournal, boundary
from tests.datagen.conversations.cast import NOTES, SCENARIO, Cast, make_studio, read_notes, spec

from treadle.core.types import Request
from treadle.datagen.conversations.make import make_sample
from treadle.models.protocol import Model

SCENARIOS = [{**SCENARIO, "message": "Read {{file}}."}, SCENARIO]
USERS = [{"message": "Again.", "is_done": False}, {"message": "", "is_done": True}]


class Witness:
    """A model that records every answer that is paid for."""

    name = "script"

    def __init__(self, inner: Model) -> None:
        self._inner = inner

    async def infer(self, request: Request, watch: Any) -> Any:
        boundary()
        completion = await self._inner.infer(request, watch)
        await asyncio.sleep(0)
        boundary.witness("paid")
        boundary()
        return completion


async def make(path: Path, crash_at: int | None) -> int:
    """Make the sample, or continue it; write its row. Return the number of boundaries."""
    boundary.begin(crash_at, path.with_suffix(".witness"))
    journal: Any = CrashingJournal(path, "process")
    cast = Cast(read_notes, SCENARIOS, USERS)
    cast.model = Witness(cast.model)  # type: ignore[assignment]
    made = await make_sample(make_studio(NOTES, cast, journal), spec(turns=4))
    journal.close()
    assert made.row is not None, made.error
    shown = [[message.role, message.content] for message in made.row.messages]
    path.with_suffix(".row").write_text(json.dumps(shown))
    return boundary.count


def main() -> None:
    """Make the sample that the last argument describes, then end at once, without Python's own shutdown."""
    order = json.loads(sys.argv[-1])
    code = 1
    try:
        count = asyncio.run(make(Path(order["path"]), order["crash_at"]))
        Path(order["path"]).with_suffix(".count").write_text(str(count))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
