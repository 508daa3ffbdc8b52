"""The worker and the Atropos server are killed at random moments; no group is lost, and none is trained on twice.

The test itself is the trainer: it registers at each server, asks for batches, and writes down what it takes.
"""

import json
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.forks.process import FORKS, ROOT
from tests.rollout.sinks.atropos_server import IS_FULL, Server

from treadle.rollout.sinks.taken import Mark, TakenGroups, mark_of

RUN = "from tests.rollout.sinks.delivery import main; main()"


class World:
    """A server, a worker, and a trainer, which can all die."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.log = folder / "taken.jsonl"
        options = f"poll_seconds=0.02&lost_after_seconds=0.5&taken={self.log}"
        self.server = Server()
        self.order = json.dumps({"folder": str(folder), "url": self.server.url, "options": options})
        self.random = random.Random(seed)
        self.taken = TakenGroups(self.log)
        self.received: Counter[Mark] = Counter()
        """How often the server handed out each group."""
        self.trained: Counter[Mark] = Counter()
        self.kills: Counter[str] = Counter()
        self.worker: Any = None

    def start_worker(self) -> None:
        self.worker = FORKS.start("-c", RUN, self.order, cwd=ROOT)

    def kill_worker(self) -> None:
        self.worker.send_signal(signal.SIGKILL)
        self.worker.wait()
        self.start_worker()

    def kill_server(self) -> None:
        self.server.kill()
        self.server.start()

    def kill_trainer(self) -> None:
        """Lose a batch that the trainer has received and not written down."""
        self.receive()
        self.taken = TakenGroups(self.log)

    def receive(self) -> list[Any]:
        if self.server.ask("GET", "/info")["batch_size"] < 0:
            self.server.register(batch_size=8)
        batch = self.server.ask("GET", "/batch")["batch"] or []
        self.received.update(self.marks(batch))
        return list(batch)

    def marks(self, batch: list[Any]) -> list[Mark]:
        return [mark for group in batch if (mark := mark_of(group)) is not None]

    def train(self) -> None:
        self.trained.update(self.marks(self.taken.take(self.receive())))

    def kill(self, kinds: list[str]) -> None:
        kind = self.random.choice(kinds)
        self.kills[kind] += 1
        getattr(self, f"kill_{kind}")()

    def run(self, kills: int, kinds: list[str]) -> int:
        """Train and kill, and train until all is delivered. Return how many groups the worker counted."""
        self.server.start()
        self.start_worker()
        for _ in range(kills):
            for _ in range(self.random.randrange(16)):
                self.train()
                time.sleep(self.random.random() * 0.04)
            self.kill(kinds)
        (self.folder / "stop").touch()
        idle = 0
        while self.worker.poll() is None:
            before = self.trained.total()
            self.train()
            time.sleep(0.02)
            idle = 0 if self.trained.total() > before else idle + 1
            if idle % 100 == 99:
                # The last group does not fill a batch, and another environment does.
                self.server.ask(
                    "POST", "/scored_data", {"tokens": [[1]] * 4, "masks": [[1]] * 4, "scores": [0] * 4}
                )
            assert idle < 2000, self.kills
        assert self.worker.wait() == 0, self.worker.communicate()
        self.server.kill()
        return int((self.folder / "done").read_text())

    def expected(self, groups: int) -> Counter[Mark]:
        label = next(iter(self.trained)).key.partition("/")[0]
        numbers = range(1, groups + 1)
        return Counter(
            [Mark(f"{label}/g{number}", part) for number in numbers for part in range(1 if number % 4 else 2)]
        )


@pytest.mark.parametrize("kinds", [["worker"], ["worker", "server", "trainer"]], ids="-".join)
def test_no_group_is_lost_and_none_is_trained_on_twice(kinds: list[str], tmp_path: Path) -> None:
    """The short form has 6 kills of each combination, the full form 200."""
    world = World(tmp_path, seed=len(kinds))
    counted = world.run(200 if IS_FULL else 6, kinds)
    assert world.trained == world.expected(counted)
    if kinds == ["worker"]:
        # While the server lives, not even the server gets a group twice.
        assert world.received == world.trained
    doubled = world.received.total() - world.trained.total()
    print(f"{dict(world.kills)}: {counted} groups, 0 lost, 0 trained on twice, {doubled} handed out twice")
