"""The queue on disk, with sinks that write files."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.export.token_formats.groups import make_group

from treadle import ConfigError
from treadle.export.row_files import read_group_file
from treadle.jobs.ledger import ItemOutcome, ItemStatus, Ledger, PlannedItem
from treadle.rollout.deliveries import DeliveryQueue, ParcelStatus
from treadle.rollout.held_out_scores import HeldOutScore
from treadle.rollout.sinks.registry import make_sinks
from treadle.scoring.statistics import MeanEstimate


def count(ledger: Ledger, outbox: DeliveryQueue, number: int, *, fails: bool = False, **options: Any) -> None:
    """Count a group, and put it into the queue in the same transaction."""
    ledger.plan(PlannedItem(number, "files", "", {}))
    parcels = outbox.encode(make_group(number, **options))

    def settle(connection: sqlite3.Connection) -> ItemOutcome:
        outbox.put(connection, parcels)
        if fails:
            raise RuntimeError
        return ItemOutcome(status=ItemStatus.KEPT)

    ledger.count(number, 1, settle)
    outbox.wake()


def sinks(path: Path) -> list[Any]:
    return make_sinks(
        [f"jsonl:{path / 'a.jsonl'}", f"verl:{path / 'b'}", f"parquet:{path / 'c'}"], group_size=4
    )


async def test_every_sink_gets_every_group(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        async with DeliveryQueue(path, sinks(tmp_path)) as outbox:
            count(ledger, outbox, 1)
            count(ledger, outbox, 2, branches=[1, 2, 1, 1])
            count(ledger, outbox, 3, rewards=[None, 1.0, 0.0, 0.0])
            await outbox.drain()
            refused = outbox.refusals()
            assert [(item.sink.partition(":")[0], item.key) for item in refused] == [("verl", "g3")]
            assert "has no reward" in refused[0].reason
            assert outbox.counts()[f"jsonl:{tmp_path / 'a.jsonl'}"][ParcelStatus.DONE] == 3
    assert [group.number for group in read_group_file(tmp_path / "a.jsonl")] == [1, 2, 3]
    assert sorted(item.name for item in (tmp_path / "b").iterdir()) == ["g1.parquet", "g2.parquet"]
    (group,) = read_group_file(tmp_path / "c" / "g2.parquet")
    assert [len(rollout.trajectories) for rollout in group.rollouts] == [1, 2, 1, 1]


async def test_a_group_that_is_not_counted_is_not_delivered(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        async with DeliveryQueue(path, make_sinks([f"jsonl:{tmp_path / 'a.jsonl'}"], group_size=4)) as outbox:
            with pytest.raises(RuntimeError):
                count(ledger, outbox, 1, fails=True)
            assert outbox.backlog == 0


@pytest.mark.parametrize("left", ["nothing", "a part", "all"])
async def test_a_line_that_was_written_and_not_acknowledged_is_written_once(
    left: str, tmp_path: Path
) -> None:
    """A worker that dies between the file and the queue leaves nothing, a part of a group, or all of it."""
    path, out = tmp_path / "ledger.db", tmp_path / "a.jsonl"
    specs = [f"jsonl:{out}"]
    with Ledger(path) as ledger:
        async with DeliveryQueue(path, make_sinks(specs, group_size=4)) as outbox:
            count(ledger, outbox, 1)
            await outbox.drain()
            size = out.stat().st_size
            count(ledger, outbox, 2)
            await outbox.drain()
        whole = out.read_bytes()
        # As if the second acknowledgement had been lost.
        ledger.connection.execute(
            "UPDATE parcels SET status = 'queued', data = ? WHERE key = 'g2'", (whole[size:],)
        )
        ledger.connection.execute("UPDATE sink_notes SET value = ? WHERE name = 'end'", (str(size),))
        kept = {"nothing": size, "a part": size + 100, "all": len(whole)}[left]
        out.write_bytes(whole[:kept])
        async with DeliveryQueue(path, make_sinks(specs, group_size=4)) as outbox:
            await outbox.drain()
    assert out.read_bytes() == whole


async def test_a_foreign_or_shortened_file_is_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "ledger.db", tmp_path / "a.jsonl"
    specs = [f"jsonl:{out}"]
    with Ledger(path) as ledger:
        out.write_text("mine\n")
        with pytest.raises(ConfigError, match="exists already"):
            DeliveryQueue(path, make_sinks(specs, group_size=4))
        out.unlink()
        async with DeliveryQueue(path, make_sinks(specs, group_size=4)) as outbox:
            count(ledger, outbox, 1)
            await outbox.drain()
        out.write_bytes(out.read_bytes()[:-10])
        with pytest.raises(ConfigError, match="lines are missing"):
            DeliveryQueue(path, make_sinks(specs, group_size=4))


async def test_a_file_that_is_shortened_in_the_middle_gets_no_hole(tmp_path: Path) -> None:
    """Rules out that the next group is written behind a row of zero bytes."""
    path, out = tmp_path / "ledger.db", tmp_path / "a.jsonl"
    with Ledger(path) as ledger:
        async with DeliveryQueue(path, make_sinks([f"jsonl:{out}"], group_size=4)) as outbox:
            count(ledger, outbox, 1)
            await outbox.drain()
            out.write_bytes(b"")
            count(ledger, outbox, 2)
            with pytest.raises(ConfigError, match="lines are missing"):
                await outbox.drain()
    assert out.read_bytes() == b""


async def test_groups_for_a_sink_that_is_not_used_any_more_do_not_hold_up_the_others(tmp_path: Path) -> None:
    """Rules out that a start with another sink waits for ever for the queue of the one before. The groups stay, and
    are delivered when the sink is used again."""
    path, away = tmp_path / "ledger.db", tmp_path / "away" / "a.jsonl"
    with Ledger(path) as ledger:
        outbox = DeliveryQueue(path, make_sinks([f"jsonl:{away}"], group_size=4))
        count(ledger, outbox, 1)
        async with DeliveryQueue(path, make_sinks([f"jsonl:{tmp_path / 'b.jsonl'}"], group_size=4)) as other:
            count(ledger, other, 2)
            async with asyncio.timeout(20):
                await other.drain()
            assert other.backlog == 0
        async with outbox:
            await outbox.drain()
    assert [group.number for group in read_group_file(tmp_path / "b.jsonl")] == [2]
    assert [group.number for group in read_group_file(away)] == [1]


def test_mistakes_in_the_text_of_a_sink_are_named() -> None:
    for spec, text in (
        ("jsonl", "no target"),
        ("jsnl:a", "did you mean 'jsonl'"),
        ("jsonl:a?formt=verl", "did you mean 'format'"),
        ("jsonl:a.jsonl?format=x", "unknown token format 'x'"),
    ):
        with pytest.raises(ConfigError, match=text):
            make_sinks([spec], group_size=4)


async def test_curves_of_groups_go_on_after_a_restart(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path, spec = tmp_path / "ledger.db", f"tensorboard:{tmp_path}/curves?name=first"
    with Ledger(path) as ledger:
        for number, rewards in ((1, [1.0, 0.0, 1.0, 1.0]), (2, [None, 0.5, 0.5, 0.5])):
            async with DeliveryQueue(path, make_sinks([spec], group_size=4)) as outbox:
                count(ledger, outbox, number, rewards=rewards)
                score = HeldOutScore(
                    number, str(number + 6), number, MeanEstimate(number / 4, 0.1, 0.9, 3, 3)
                )
                outbox.put(ledger.connection, outbox.encode_score(f"held-{number}", score))
                await outbox.drain()
                assert outbox.refusals() == []
    found = EventAccumulator(str(tmp_path / "curves/first")).Reload()
    points = [(event.step, event.tensor_proto.float_val[0]) for event in found.Tensors("rollout/reward")]
    assert points == [(1, 0.75), (2, 0.5)]
    assert {"rollout/reward_std", "held_out/low", "held_out/high"} <= set(found.Tags()["tensors"])
    for name, values in (("score", [0.25, 0.5]), ("weight_version", [7.0, 8.0])):
        points = [(it.step, it.tensor_proto.float_val[0]) for it in found.Tensors(f"held_out/{name}")]
        assert points == list(enumerate(values, 1))


def test_a_sink_of_curves_has_the_option_name_alone() -> None:
    with pytest.raises(ConfigError, match="has no option 'nam'; did you mean 'name'"):
        make_sinks(["tensorboard:curves?nam=first"], group_size=4)
