"""A worker that counts groups and delivers them to an Atropos server, as a process that can be killed."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.export.token_formats.groups import make_group

from treadle.jobs.ledger import ItemOutcome, ItemStatus, Ledger, PlannedItem
from treadle.rollout.deliveries import DeliveryQueue
from treadle.rollout.sinks.registry import make_sinks


async def deliver(folder: Path, url: str, options: str) -> None:
    """Count groups, one by one, until there is a file `stop`, and deliver them until all are taken."""
    path = folder / "ledger.db"
    with Ledger(path) as ledger:
        sinks = make_sinks([f"atropos:{url}?{options}"], group_size=4)
        async with DeliveryQueue(path, sinks, check_seconds=0.02) as outbox:
            number = ledger.counts().kept
            while not (folder / "stop").exists():
                number += 1
                if ledger.last_number < number:
                    ledger.plan(PlannedItem(number, "files", "", {}))
                branches = [1, 2, 1, 1] if number % 4 == 0 else []
                parcels = outbox.encode(make_group(number, branches=branches))

                def settle(connection: Any, parcels: Any = parcels) -> ItemOutcome:
                    outbox.put(connection, parcels)
                    return ItemOutcome(status=ItemStatus.KEPT)

                ledger.count(number, 1, settle)
                outbox.wake()
                while outbox.backlog >= 3:
                    await outbox.wait()
            await outbox.drain(until_taken=True)
            (folder / "done.part").write_text(str(number))
    (folder / "done.part").rename(folder / "done")


def main() -> None:
    """Run until all groups are taken. The argument is a JSON object with the parameters of `deliver`."""
    order = json.loads(sys.argv[1])
    asyncio.run(deliver(Path(order["folder"]), order["url"], order["options"]))
