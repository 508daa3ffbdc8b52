"""Worker, database, trainer and Atropos server are killed at random moments; no group is lost or trained on twice.

The test itself is the trainer: it registers at each server, asks for batches, and writes down what it takes.
"""

import json
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.forks.process import FORKS, ROOT
from tests.postgres.server import Server as Database
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
            self.server.register(batch_size=8, max_token_len=100_000)
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
        while not self.trained:  # on a busy machine, no worker may have come that far
            self.train()
            time.sleep(0.02)
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


class RolloutWorld(World):
    """Real rollouts: `treadle rollout` with a mock engine and a journal in PostgreSQL."""

    def __init__(self, folder: Path, seed: int, groups: int) -> None:
        super().__init__(folder, seed)
        self.groups = groups
        self.database = Database.make()
        self.database.start()
        tokenizer = ("--tokenizer-folder", str(folder / "tokenizer"))
        self.engine = FORKS.start(
            "-m", "treadle", "mock", "--engine", "vllm", "--port", "0", "--latency", "0.02", *tokenizer,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        url = self.engine.stdout.readline().strip()
        sink = f"atropos:{self.server.url}?poll_seconds=0.02&lost_after_seconds=0.5&taken={self.log}"
        self.command = [
            "-m", "treadle", "rollout", "--task", "files", "--group-size", "4", "--groups", str(groups),
            "--model", "vllm:oracle:0.3", "--base-url", url, "--renderer", f"hf:{folder / 'tokenizer'}",
            "--window", "8",
            "--journal", self.database.make_database(), "--out", str(folder / "work"), "--sink", sink,
        ]  # fmt: skip

    def start_worker(self) -> None:
        self.worker = FORKS.start(*self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill_database(self) -> None:
        self.database.kill()
        self.database.start()

    def left(self) -> int:
        """Return how many groups are not trained on yet."""
        return self.groups - len({mark.key for mark in self.trained})

    def finish(self) -> None:
        """Train until every group is trained on. A worker that ended is started again, as a supervisor does."""
        idle = 0
        while self.left():
            before = self.trained.total()
            self.train()
            time.sleep(0.02)
            idle = 0 if self.trained.total() > before else idle + 1
            if self.worker.poll() is not None:
                self.start_worker()
            elif idle % 200 == 199:
                filler = {"tokens": [[1]] * 4, "masks": [[1]] * 4, "scores": [0] * 4}
                self.server.ask("POST", "/scored_data", filler)
            assert idle < 3000, (self.kills, self.left())

    def close(self) -> None:
        for process in (self.worker, self.engine, self.server.process):
            if process is not None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        self.database.remove()


@pytest.mark.sets(0)
def test_real_rollouts_reach_the_trainer_once(tmp_path: Path) -> None:
    """The short form has 3 kills, the full form 200. All rollouts have the engine's ids and log probabilities."""
    kills = 200 if IS_FULL else 3
    world = RolloutWorld(tmp_path, seed=7, groups=2 * kills)
    try:
        world.server.start()
        world.start_worker()
        for _ in range(kills):
            for _ in range(world.random.randrange(4, 24)):
                world.train()
                time.sleep(world.random.random() * 0.04)
            if world.worker.poll() is not None:
                world.start_worker()
            world.kill(["worker", "database", "server"])
        world.finish()
    finally:
        world.close()
    assert set(world.trained.values()) == {1}
    keys = {mark.key.partition("/")[2] for mark in world.trained}
    lines = (tmp_path / "work" / "groups.jsonl").read_bytes().splitlines()
    assert keys == {msgspec.json.decode(line)["group_id"] for line in lines}
    assert len(keys) == world.groups
    doubled = world.received.total() - world.trained.total()
    print(f"{dict(world.kills)}: {len(keys)} groups, 0 lost, 0 trained on twice, {doubled} handed out twice")
