"""Vector stores in a program: embeddings, many files, other processes, time, and what was left by a crash."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import IS_FULL
from tests.knowledge.memory.embedding_server import EmbeddingServer, serving

from treadle import Agent
from treadle.core.errors import ConfigError
from treadle.http.transport import HttpTransport
from treadle.journal import Journal, open_journal
from treadle.journal.resources import Resource
from treadle.knowledge.files.attribute_filters import check_attributes, read_filter
from treadle.knowledge.files.file_search import FileSearch
from treadle.knowledge.files.file_store import FileStore, attached_facts
from treadle.knowledge.files.vector_stores import VectorStores
from treadle.knowledge.memory import make_embedder
from treadle.knowledge.memory.namespace import Embedder

TEXTS = {
    "car": "Kim bought a red automobile.",
    "doctor": "The physician has time on Monday.",
    "roof": "The roof leaks.",
}


class Hands:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A function that opens the journal, as a process of its own would."""
    address: Any = tmp_path / "runs.db"
    if request.param == "postgres":
        address = request.getfixturevalue("postgres_url")
    journals: list[Journal] = []

    def again() -> Journal:
        journals.append(open_journal(address))
        return journals[-1]

    yield again
    for journal in journals:
        journal.close()


@pytest.fixture(name="server")
def _server() -> Any:
    with serving() as server:
        yield server


def embedder_of(server: EmbeddingServer) -> Embedder:
    return make_embedder("vllm:m", base_url=server.base_url, transport=HttpTransport(timeout_seconds=1.0))


async def put(
    stores: VectorStores, store: Resource, text: str, name: str = "a.txt", **attributes: Any
) -> Resource:
    file = FileStore(stores.table).add(name, text.encode(), "x")
    await stores.read_in(stores.attach(store, [(file, attributes)], None)[1])
    found = stores.attached(store.resource_id, file.resource_id)
    assert found is not None
    return found


async def names(stores: VectorStores, store: Resource, query: str, given: Any = None) -> list[str]:
    condition = None if given is None else read_filter(given)
    return [hit.filename for hit in await stores.search(store, [query], 10, condition)]


async def test_files_are_found_by_meaning_also_by_the_next_process(
    opened: Callable[[], Journal], server: EmbeddingServer
) -> None:
    stores = VectorStores(opened().resources, embedder_of(server))
    store = stores.create("x", {}, None)
    for name, text in TEXTS.items():
        await put(stores, store, text, name, kind=name)
    assert await names(stores, store, "which vehicle?") == ["car"]
    sent = len(server.inputs)
    other = VectorStores(opened().resources, embedder_of(server))
    assert (await names(other, store, "a doctor"))[0] == "doctor"
    assert len(server.inputs) == sent + 1  # only the query: the vectors of files are kept
    only = {"type": "in", "key": "kind", "value": ["roof", "doctor"]}
    assert await names(other, store, "which vehicle?", only) == []
    assert "doctor" in await names(other, store, "a doctor for the roof", only)
    server.mode = "fail"
    assert await names(VectorStores(opened().resources, embedder_of(server)), store, "roof") == ["roof"]
    assert (await put(stores, store, "The garden has roses.", "garden")).state == "completed"
    assert await names(stores, store, "roses") == ["garden"]


async def test_each_process_sees_what_others_attach_and_detach(opened: Callable[[], Journal]) -> None:
    one, two = VectorStores(opened().resources), VectorStores(opened().resources)
    store = one.create("x", {}, None)
    car = await put(one, store, TEXTS["car"], "car", size=1)
    assert await names(two, store, "red automobile") == ["car"]
    await put(two, store, TEXTS["roof"], "roof")
    assert set(await names(one, store, "red roof")) == {"roof", "car"}
    two.change_attached(car, attributes={"size": 2})
    assert await names(one, store, "automobile", {"type": "eq", "key": "size", "value": 2}) == ["car"]
    two.detach(car)
    assert await names(one, store, "red automobile") == []
    file = FileStore(two.table).get(car.resource_id)
    assert file is not None
    await two.read_in(two.attach(store, [(file, None)], None)[1])
    assert await names(one, store, "red automobile") == ["car"]
    FileStore(two.table).delete(car.resource_id)
    assert await names(one, store, "red automobile") == []


async def test_what_was_being_attached_is_read_by_the_next_process(opened: Callable[[], Journal]) -> None:
    before = VectorStores(opened().resources)
    store = before.create("x", {}, None)
    files = [FileStore(before.table).add(f"{name}", text.encode(), "x") for name, text in TEXTS.items()]
    batch, made = before.attach(store, [(file, None) for file in files], None, is_batch=True)
    assert batch is not None
    assert before.counts(store.resource_id).counts == {"in_progress": 3}
    before.change_attached(made[2], is_cancelled=True)
    # The process dies here.
    after = VectorStores(opened().resources)
    await asyncio.gather(after.read_in(after.unread()), before.read_in(before.unread()))
    assert after.counts(store.resource_id, batch.resource_id).counts == {"completed": 2, "cancelled": 1}
    assert await names(after, store, "roof leaks") == []
    after.attach(store, [(files[2], None)], None)
    await after.read_in(after.unread())
    assert await names(after, store, "roof leaks") == ["roof"]


async def test_files_and_stores_expire(tmp_path: Path) -> None:
    clock = Hands()
    with open_journal(tmp_path / "runs.db") as journal:
        stores, files = VectorStores(journal.resources, clock=clock), FileStore(journal.resources, clock)
        store = stores.create("x", {}, 2)
        file = files.add("a.txt", b"The roof leaks.", "x", expires_seconds=3600)
        await stores.read_in(stores.attach(store, [(file, None)], None)[1])
        assert await names(stores, store, "roof") == ["a.txt"]
        clock.now += 3601
        assert await names(stores, store, "roof") == []
        assert files.get(file.resource_id) is None
        clock.now += 86400 * 1.5
        found = stores.get(store.resource_id)
        assert found is not None
        await names(stores, found, "roof")  # which counts as use
        clock.now += 86400 * 1.5
        found = stores.get(store.resource_id)
        assert found is not None
        await names(stores, found, "roof")
        clock.now += 86400 * 2.5
        with pytest.raises(ConfigError, match="has expired"):
            await names(stores, found, "roof")
        files.add("b.txt", b"x", "x")  # deletes what has expired
        assert journal.resources.content(file) is None


@pytest.mark.sets(0)
async def test_a_store_of_many_files(tmp_path: Path) -> None:
    count = 10_000 if IS_FULL else 400
    with open_journal(tmp_path / "runs.db") as journal:
        stores, files = VectorStores(journal.resources), FileStore(journal.resources)
        store = stores.create("x", {}, None)
        given = []
        for number in range(count):
            file = files.add(f"{number}.txt", b"Ticket %d is about shelf %d." % (number, number % 97), "x")
            given.append((file, {"number": number}))
        await stores.read_in(stores.attach(store, given, None, is_batch=True)[1])
        assert stores.counts(store.resource_id).counts == {"completed": count}
        assert await names(stores, store, f"ticket {count // 2}") == [f"{count // 2}.txt"]
        high = {"type": "gte", "key": "number", "value": count - 5}
        assert set(await names(stores, store, "ticket about a shelf", high)) == {
            f"{number}.txt" for number in range(count - 5, count)
        }


OWN = {"text": "b", "number": 2, "flag": True}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"type": "eq", "key": "text", "value": "b"}, True),
        ({"type": "eq", "key": "number", "value": 2.0}, True),
        ({"type": "eq", "key": "flag", "value": 1}, False),
        ({"type": "eq", "key": "none", "value": "x"}, False),
        ({"type": "ne", "key": "text", "value": "a"}, True),
        ({"type": "ne", "key": "none", "value": "a"}, True),
        ({"type": "gt", "key": "number", "value": 1}, True),
        ({"type": "gte", "key": "number", "value": 2}, True),
        ({"type": "lt", "key": "number", "value": 2}, False),
        ({"type": "lte", "key": "text", "value": "b"}, True),
        ({"type": "gt", "key": "text", "value": 1}, False),
        ({"type": "in", "key": "text", "value": ["a", "b"]}, True),
        ({"type": "nin", "key": "text", "value": ["a", "b"]}, False),
        ({"type": "and", "filters": []}, True),
        ({"type": "or", "filters": []}, False),
        (
            {
                "type": "or",
                "filters": [
                    {"type": "eq", "key": "text", "value": "x"},
                    {"type": "and", "filters": [{"type": "eq", "key": "flag", "value": True}]},
                ],
            },
            True,
        ),
    ],
)
def test_filters(given: Any, wanted: bool) -> None:
    assert read_filter(given)(check_attributes(OWN)) is wanted


async def test_a_failed_file_can_be_attached_again(tmp_path: Path) -> None:
    with open_journal(tmp_path / "runs.db") as journal:
        stores = VectorStores(journal.resources)
        store = stores.create("x", {}, None)
        found = await put(stores, store, "\0\0\0", "a.bin")
        assert attached_facts(found).error_code == "unsupported_file"
        file = FileStore(stores.table).get(found.resource_id)
        assert file is not None
        await stores.read_in(stores.attach(store, [(file, {"a": 1})], None)[1])
        assert stores.counts(store.resource_id).counts == {"failed": 1}


async def test_an_agent_that_is_built_from_its_spec_searches(tmp_path: Path) -> None:
    with open_journal(tmp_path / "runs.db") as journal:
        stores = VectorStores(journal.resources)
        store = stores.create("x", {}, None)
        await put(stores, store, "The codename is BLUE_FALCON.", kind="name")
        filters = {"type": "eq", "key": "kind", "value": "name"}
        search = FileSearch([store.resource_id], max_num_results=2, filters=filters)
        spec = Agent("mock:echo", tools=[search], journal=journal).spec
        run = await Agent.from_spec(spec, journal=journal).run('call file_search {"queries": ["codename"]}')
        assert "BLUE_FALCON" in run.output
        stores.delete(store.resource_id)
        run = await Agent.from_spec(spec, journal=journal).run('call file_search {"queries": ["codename"]}')
        assert "was deleted" in run.output


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs the ids"),
        ({"vector_store_ids": "vs_1"}, "needs the ids"),
        ({"vector_store_ids": ["vs_1"], "max_num_results": 51}, "1 to 50"),
        ({"vector_store_ids": ["vs_1"], "score_threshold": 2}, "from 0 to 1"),
        ({"vector_store_ids": ["vs_1"], "filters": {"type": "odd", "key": "a", "value": 1}}, "the types are"),
    ],
)
def test_wrong_settings_are_told(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FileSearch(**settings)
