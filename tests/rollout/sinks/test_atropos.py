"""The sink `atropos`, against a real server: what is posted when, and what happens if either side dies."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.export.token_formats.groups import make_group
from tests.rollout.sinks.atropos_server import IS_FULL, KINDS, Server

from treadle import ConfigError, ExportError
from treadle.rollout.deliveries import DeliveryQueue, ParcelStatus
from treadle.rollout.sinks.atropos import AtroposSink
from treadle.rollout.sinks.registry import make_sinks
from treadle.rollout.sinks.taken import TakenGroups, mark_of


@pytest.fixture(params=KINDS if IS_FULL else KINDS[-1:])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made = Server(request.param)
    made.start()
    yield made
    made.kill()


def make_sink(server: Server, group_size: int = 4, **options: Any) -> AtroposSink:
    query = "&".join(f"{key}={value}" for key, value in ({"poll_seconds": 0.02} | options).items())
    (sink,) = make_sinks([f"atropos:{server.url}?{query}"], group_size=group_size)
    assert isinstance(sink, AtroposSink)
    return sink


@contextlib.asynccontextmanager
async def opened(path: Path, sink: Any) -> AsyncIterator[DeliveryQueue]:
    async with DeliveryQueue(path, [sink], check_seconds=0.02) as outbox:
        yield outbox


def put(path: Path, outbox: DeliveryQueue, *numbers: int, **options: Any) -> None:
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    for number in numbers:
        outbox.put(connection, outbox.encode(make_group(number, **options)))
    connection.close()
    outbox.wake()


def status_of(outbox: DeliveryQueue) -> dict[ParcelStatus, int]:
    return next(iter(outbox.counts().values()))


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def take(server: Server, taken: TakenGroups | None = None) -> list[str]:
    """Return the ids of the groups in the next batch."""
    batch = server.ask("GET", "/batch")["batch"] or []
    groups = batch if taken is None else taken.take(batch)
    return [group["generation_params"]["treadle"]["group_id"] for group in groups]


async def test_groups_arrive_whole_with_their_logprobs(server: Server, tmp_path: Path) -> None:
    """The environments of the reference never copy `inference_logprobs` into the group, so that the trainer gets
    none."""
    server.register()
    path = tmp_path / "ledger.db"
    async with opened(path, make_sink(server)) as outbox:
        put(path, outbox, 1, 2)
        await outbox.drain()
        assert status_of(outbox)[ParcelStatus.SENT] == 2
        batch = server.ask("GET", "/batch")["batch"]
        await until(lambda: status_of(outbox)[ParcelStatus.DONE] == 2)
    (expected,) = make_group_rows(1)
    for key in ("tokens", "masks", "scores", "inference_logprobs", "advantages", "messages"):
        assert batch[0][key] == expected[key], key
    assert [len(group["tokens"]) for group in batch] == [4, 4]
    assert mark_of(batch[1]).key.endswith("/g2")  # type: ignore[union-attr]


def make_group_rows(number: int) -> list[dict[str, Any]]:
    from treadle.export.token_exporter import TOKEN_FORMATS, encode_group

    lines = encode_group(make_group(number), TOKEN_FORMATS.load("atropos")).splitlines()
    return [json.loads(line) for line in lines]


async def test_nothing_is_posted_before_a_trainer_has_registered(server: Server, tmp_path: Path) -> None:
    """Data that reaches a server of Atropos before `/register` creates its queue; the registration then initialises
    nothing, and `/batch` answers for ever that no trainer has registered."""
    path = tmp_path / "ledger.db"
    async with opened(path, make_sink(server)) as outbox:
        put(path, outbox, 1, 2)
        await until(lambda: "no trainer" in str(outbox.troubles))
        assert server.ask("GET", "/status")["queue_size"] == 0
        server.register()
        await outbox.drain()
        assert take(server) == ["g1", "g2"]


async def test_the_queue_never_holds_more_than_the_limit(server: Server, tmp_path: Path) -> None:
    server.register(batch_size=8)
    path = tmp_path / "ledger.db"
    async with opened(path, make_sink(server)) as outbox:
        put(path, outbox, *range(1, 9))
        for round_ in range(4):
            await until(lambda: server.ask("GET", "/status")["queue_size"] == 2)
            await asyncio.sleep(0.1)
            assert server.ask("GET", "/status")["queue_size"] == 2
            assert take(server) == [f"g{2 * round_ + 1}", f"g{2 * round_ + 2}"]
        await outbox.drain(until_taken=True)
        assert status_of(outbox)[ParcelStatus.DONE] == 8


async def test_a_group_with_branches_is_posted_in_one_request_of_whole_groups(
    server: Server, tmp_path: Path
) -> None:
    server.register(batch_size=8)
    path = tmp_path / "ledger.db"
    async with opened(path, make_sink(server)) as outbox:
        put(path, outbox, 1, branches=[1, 2, 1, 1])
        await outbox.drain()
        batch = server.ask("GET", "/batch")["batch"]
        assert [len(group["tokens"]) for group in batch] == [4, 4]
        assert [mark_of(group).part for group in batch] == [0, 1]  # type: ignore[union-attr]
        await outbox.drain(until_taken=True)


async def test_what_the_server_would_hold_back_or_drop_is_refused_with_the_reason(
    server: Server, tmp_path: Path
) -> None:
    server.register(batch_size=8, max_token_len=11)
    path = tmp_path / "ledger.db"
    async with opened(path, make_sink(server)) as outbox:
        put(path, outbox, 1, size=3)
        put(path, outbox, 2)
        put(path, outbox, 3, rewards=[1.0, None, 0.0, 0.0])
        await outbox.drain()
        reasons = {parcel.key: parcel.reason for parcel in outbox.refusals()}
        assert "3 rollouts, and the environment has registered groups of 4" in reasons["g1"]
        assert "11 tokens, and the trainer takes fewer than 11" in reasons["g2"]
        assert "has no reward" in reasons["g3"]
        assert server.ask("GET", "/status")["queue_size"] == 0


async def test_a_group_size_that_never_fills_a_batch_is_an_error(server: Server, tmp_path: Path) -> None:
    """A group whose size does not divide the batch is stranded in the server for ever."""
    server.register(batch_size=10)
    async with opened(tmp_path / "ledger.db", make_sink(server)) as outbox:
        put(tmp_path / "ledger.db", outbox, 1)
        with pytest.raises(ConfigError, match="batches of 10 sequences, which groups of 4 never fill"):
            await outbox.drain()


@pytest.mark.parametrize("is_logged", [True, False])
async def test_a_server_that_dies_gets_again_what_was_not_taken(
    server: Server, is_logged: bool, tmp_path: Path
) -> None:
    path, log = tmp_path / "ledger.db", tmp_path / "taken.jsonl"
    server.register()
    taken = TakenGroups(log) if is_logged else None
    async with opened(path, make_sink(server, **({"taken": log} if is_logged else {}))) as outbox:
        put(path, outbox, 1, 2, 3, 4, 5, 6)
        await until(lambda: server.ask("GET", "/status")["queue_size"] == 2)
        assert take(server, taken) == ["g1", "g2"]
        await until(lambda: server.ask("GET", "/status")["queue_size"] == 2)
        await until(lambda: status_of(outbox)[ParcelStatus.DONE] == 2)
        server.kill()
        server.start()
        await until(lambda: "no trainer" in str(outbox.troubles))
        server.register()
        got = []
        while len(got) < 4:
            got += take(server, taken)
            await asyncio.sleep(0.02)
        assert got == ["g3", "g4", "g5", "g6"]
        await outbox.drain(until_taken=True)


async def test_a_batch_that_was_taken_just_before_the_server_died_is_trained_on_once(
    server: Server, tmp_path: Path
) -> None:
    """The sink has not seen that the batch was taken. The trainer's file tells it."""
    path, log = tmp_path / "ledger.db", tmp_path / "taken.jsonl"
    server.register()
    taken = TakenGroups(log)
    sink = make_sink(server, taken=log)
    async with opened(path, sink) as outbox:
        put(path, outbox, 1, 2, 3, 4)
        await until(lambda: server.ask("GET", "/status")["queue_size"] == 2)
    # Nobody looks now.
    assert take(server, taken) == ["g1", "g2"]
    server.kill()
    server.start()
    server.register()
    async with opened(path, make_sink(server, taken=log)) as outbox:
        await outbox.drain()
        assert take(server, taken) == ["g3", "g4"]
        await outbox.drain(until_taken=True)


async def test_a_trainer_that_dies_before_it_writes_gets_the_batch_again(
    server: Server, tmp_path: Path
) -> None:
    path, log = tmp_path / "ledger.db", tmp_path / "taken.jsonl"
    server.register()
    taken = TakenGroups(log)
    async with opened(path, make_sink(server, taken=log, lost_after_seconds=0.3)) as outbox:
        put(path, outbox, 1, 2, 3, 4, 5, 6)
        await until(lambda: server.ask("GET", "/status")["queue_size"] == 2)
        assert take(server) == ["g1", "g2"]
        got: list[str] = []
        while len(got) < 6:
            got += take(server, taken)
            await asyncio.sleep(0.02)
        assert sorted(got) == ["g1", "g2", "g3", "g4", "g5", "g6"]
        await outbox.drain(until_taken=True)


class LostError(Exception):
    """The process is lost."""


@pytest.mark.parametrize("has_arrived", [True, False])
@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_group_whose_answer_was_lost_is_posted_once(
    server: Server, has_arrived: bool, is_taken: bool, tmp_path: Path
) -> None:
    """The server has no idempotency: posting again after a lost answer doubles a group in the reference."""
    path = tmp_path / "ledger.db"
    server.register(batch_size=4)
    sink = make_sink(server)

    async def post(rows: list[bytes]) -> None:
        if has_arrived:
            await original(rows)
        raise LostError

    async with opened(path, sink) as outbox:
        put(path, outbox, 1)
        await outbox.drain(until_taken=False)
        assert take(server) == ["g1"]
        await outbox.drain(until_taken=True)
        session = sink._session
        assert session is not None
        original = session.post
        session.post = post  # type: ignore[method-assign]
        put(path, outbox, 2)
        with pytest.raises(LostError):
            await outbox.drain()
    got = []
    if is_taken:
        got += take(server)
        server.ask(
            "POST",
            "/register-env",
            {"max_token_length": 1, "desired_name": "x", "weight": 1, "group_size": 1},
        )
    async with opened(path, make_sink(server)) as outbox:
        put(path, outbox, 3)
        while status_of(outbox)[ParcelStatus.DONE] < 3:
            got += take(server)
            await asyncio.sleep(0.02)
    got += take(server)
    assert got == ["g2", "g3"]


async def test_a_request_that_the_server_refuses_is_refused_for_good(server: Server, tmp_path: Path) -> None:
    if server.kind == "reference":
        pytest.skip("the reference does not validate")
    server.register()
    path = tmp_path / "ledger.db"
    sink = make_sink(server)
    async with opened(path, sink) as outbox:
        connection = sqlite3.connect(path, isolation_level=None)
        parcel = outbox.encode(make_group(1))[0]
        assert parcel.data is not None
        spoilt = msgspec.structs.replace(parcel, data=parcel.data.replace(b'"scores":', b'"scorez":'))
        outbox.put(connection, [spoilt])
        connection.close()
        await outbox.drain()
        assert "status 422" in outbox.refusals()[0].reason


def test_a_group_of_another_environment_is_not_recorded(tmp_path: Path) -> None:
    taken = TakenGroups(tmp_path / "taken.jsonl")
    assert taken.take([{"tokens": []}, {"generation_params": None}]) == [
        {"tokens": []},
        {"generation_params": None},
    ]
    mine = {"generation_params": {"treadle": {"key": "a/g1", "part": 0}}}
    assert taken.take([mine, mine]) == [mine]
    with (tmp_path / "taken.jsonl").open("ab") as file:
        file.write(b'[["a/g2"')
    again = TakenGroups(tmp_path / "taken.jsonl")
    assert again.take([mine]) == []
    second = {"generation_params": {"treadle": {"key": "a/g2", "part": 0}}}
    assert again.take([second]) == [second]


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigError, match="no option 'wieght'; did you mean 'weight'"):
        make_sinks(["atropos:http://h?wieght=1"], group_size=4)
    with pytest.raises(ConfigError, match="wrong option"):
        make_sinks(["atropos:http://h?weight=x"], group_size=4)
    with pytest.raises(ConfigError, match="no sink 'atrpos'; did you mean 'atropos'"):
        make_sinks(["atrpos:http://h"], group_size=4)
    with pytest.raises(ExportError):
        make_sinks(["atropos:http://h"], group_size=4)[0].encode(make_group(size=2))
