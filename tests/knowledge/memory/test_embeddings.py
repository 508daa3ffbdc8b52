"""Searching by embeddings: a real server, its failures, vectors that do not fit, and the search without numpy."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.knowledge.memory.embedding_server import EmbeddingServer, serving

from treadle.core.errors import ConfigError, ServerError
from treadle.http.transport import HttpTransport
from treadle.journal import Journal, open_journal
from treadle.knowledge.memory import Draft, Memory, Store, make_embedder, open_memory, vectors
from treadle.knowledge.memory.namespace import BATCH
from treadle.knowledge.memory.protocol import Vector

NOW = 1_800_000_000.0
TEXTS = (
    "Kim bought a red automobile.",
    "The physician has time on Monday.",
    "A puppy ate the cake.",
    "The roof leaks.",
)


@pytest.fixture(name="server")
def _server() -> Iterator[EmbeddingServer]:
    with serving() as server:
        yield server


@pytest.fixture
def memory(server: EmbeddingServer, tmp_path: Path) -> Iterator[Memory]:
    with open_journal(tmp_path / "runs.db") as journal:
        yield make_memory(journal, server)


def make_memory(journal: Journal, server: EmbeddingServer) -> Memory:
    transport = HttpTransport(timeout_seconds=0.5)
    embedder = make_embedder("vllm:m", base_url=server.base_url, transport=transport)
    return open_memory(journal, embeddings=embedder)


async def fill(memory: Memory) -> None:
    for text in TEXTS:
        await memory.write(Draft(store=Store.SELF_FACTS, text=text))


async def test_entries_are_found_by_meaning(memory: Memory, server: EmbeddingServer) -> None:
    await fill(memory)
    assert await memory.embed_missing() == len(TEXTS)
    assert await memory.embed_missing() == 0
    found = await memory.search("which vehicle?", limit=1)
    assert (found.hits[0].entry.text, found.note) == (TEXTS[0], None)
    both = await memory.search("the hound and the roof", limit=4)
    assert {hit.entry.text for hit in both.hits[:2]} == {TEXTS[2], TEXTS[3]}


async def test_a_text_is_sent_once(memory: Memory, server: EmbeddingServer) -> None:
    """Vectors are kept by the content's hash, so that a text that is written again
    elsewhere is not sent again."""
    await fill(memory)
    await memory.embed_missing()
    sent = len(server.inputs)
    for persona in ("other", "third"):
        again = Memory(type(memory.store)(memory.store._database, persona, "x"), memory.embedder)  # type: ignore[attr-defined,call-arg]
        await fill(again)
        await again.embed_missing()
        assert [hit.entry.text for hit in (await again.search("vehicle", limit=1)).hits] == [TEXTS[0]]
    assert [inputs for inputs in server.inputs[sent:] if inputs != ["vehicle"]] == []
    assert len(server.inputs) == sent + 1


async def test_a_changed_entry_is_embedded_again(memory: Memory) -> None:
    await fill(memory)
    await memory.embed_missing()
    await memory.write(Draft(store=Store.SELF_FACTS, text="Kim has a hound."), replaces="self_facts-1")
    assert (await memory.search("vehicle")).hits == ()
    assert await memory.embed_missing() == 1
    assert (await memory.search("puppy", limit=2)).hits[0].entry.store is Store.SELF_FACTS


async def test_who_speaks_is_not_embedded(memory: Memory, server: EmbeddingServer) -> None:
    """A name that many entries and the query have would make all of them similar."""
    said = ("Åse: I bought an automobile.", "Åse: The roof leaks.", "Kim: Åse bought flowers.", "Note: Hamar")
    for text in said:
        await memory.write(Draft(store=Store.EPISODIC, text=text))
    await memory.embed_missing()
    assert server.inputs[-1] == ["I bought an automobile.", "The roof leaks.", "Åse bought flowers.", "Hamar"]
    for query, sent in (
        ("What is åse’s vehicle in Hamar?", "What is my vehicle in Hamar?"),
        ("Åse", "Åse"),
        ("What did Åsel buy?", "What did Åsel buy?"),
    ):
        await memory.search(query)
        assert server.inputs[-1] == [sent]


async def test_a_query_is_embedded_as_those_whom_it_names_say_it(
    memory: Memory, server: EmbeddingServer
) -> None:
    for text in ("Åse: The roof leaks.", "Nils: I går kjøpte jeg en bil."):
        await memory.write(Draft(store=Store.EPISODIC, text=text))
    await memory.embed_missing()
    for query, sent in (
        ("What is Åse's car and what does Åse drive?", "What is my car and what does I drive?"),
        ("Hva kjøpte Nils?", "Hva kjøpte jeg?"),
        ("Åse, Nils", "Åse, Nils"),
    ):
        await memory.search(query)
        assert server.inputs[-1] == [sent]


async def test_what_people_say_about_themselves_comes_before_what_is_as_similar(memory: Memory) -> None:
    for text in ("A hound saw me.", "A hound saw Kim."):
        await memory.write(Draft(store=Store.SELF_FACTS, text=text))
    await memory.embed_missing()
    found = await memory.search("puppy")
    assert [hit.entry.text for hit in found.hits] == ["A hound saw me.", "A hound saw Kim."]


@pytest.mark.parametrize("mode", ["fail", "slow", "fewer", "zero", "ragged", "nan", "huge", "junk"])
async def test_a_failing_server_leaves_the_search_by_words(
    memory: Memory, server: EmbeddingServer, mode: str
) -> None:
    """A failed embedding ended the turn in the reference system. Here it is said, and words are searched."""
    await fill(memory)
    await memory.embed_missing()
    server.mode = mode
    if mode not in ("fewer", "ragged"):
        found = await memory.search("the leaking roof")
        assert [hit.entry.text for hit in found.hits] == [TEXTS[3]]
        assert "by their words alone" in str(found.note)
    await memory.write(Draft(store=Store.SELF_FACTS, text="One more text."))
    await memory.write(Draft(store=Store.SELF_FACTS, text="And then another."))
    with pytest.raises((ServerError, OSError)):
        await memory.embed_missing()
    server.mode = "well"
    assert await memory.embed_missing() == 2


async def test_what_was_paid_for_is_kept_if_a_later_request_fails(
    memory: Memory, server: EmbeddingServer
) -> None:
    for number in range(2 * BATCH + 1):
        await memory.write(Draft(store=Store.SELF_FACTS, text=f"Fact {number}."))
    server.fails_after = 1
    with pytest.raises(ServerError):
        await memory.embed_missing(limit=1000)
    server.fails_after = None
    assert await memory.embed_missing(limit=1000) == BATCH + 1


async def test_a_dead_server_is_not_asked_again_for_a_while(memory: Memory, server: EmbeddingServer) -> None:
    await fill(memory)
    server.close()
    notes = [(await memory.search("roof")).note for _ in range(3)]
    assert notes[0] is not None
    assert notes == [notes[0]] * 3


async def test_vectors_of_another_length_are_refused_and_words_are_searched(
    memory: Memory, server: EmbeddingServer
) -> None:
    await fill(memory)
    await memory.embed_missing()
    server.numbers = 32
    found = await memory.search("leaking roof")
    assert [hit.entry.text for hit in found.hits] == [TEXTS[3]]
    assert "have 32 numbers, and those stored in this journal have 64" in str(found.note)
    await memory.write(Draft(store=Store.SELF_FACTS, text="One more text."))
    with pytest.raises(ConfigError, match="drop_vectors"):
        await memory.embed_missing()
    memory.store.drop_vectors("vllm:m")
    assert await memory.embed_missing() == len(TEXTS) + 1
    assert (await memory.search("a vehicle")).note is None


@pytest.mark.parametrize("has_numpy", [True, False])
def test_the_nearest_vectors_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_numpy: bool
) -> None:
    """The search by signs finds what a search of all vectors finds, with numpy and without."""
    if not has_numpy:
        monkeypatch.setattr(vectors, "load_numpy", lambda: None)
    elif vectors.load_numpy() is None:
        pytest.skip("numpy is not installed")
    draw = random.Random(3)
    points = [[draw.gauss(0, 1) for _ in range(100)] for _ in range(600)]
    with open_journal(tmp_path / "runs.db") as journal:
        store = open_memory(journal).store
        for number in range(600):
            kind = Store.EPISODIC if number % 2 else Store.SELF_FACTS
            store.write(Draft(store=kind, text=f"text {number}"), NOW)
        names = [entry.entry_id for entry in store.entries()]
        store.put_vectors("m", dict(zip(names, points, strict=True)))
        near = [value + draw.gauss(0, 0.3) for value in points[77]]
        query = Vector("m", vectors.normalize(near))
        assert store.search("", NOW, vector=query)[0].entry.text == "text 77"
        (found,) = store.search("", NOW, vector=query, stores=[Store.EPISODIC], limit=1)
        assert found.entry.text == "text 77"
        assert all(
            hit.entry.store == "self_facts"
            for hit in store.search("", NOW, vector=query, stores=[Store.SELF_FACTS])
        )


def test_the_places_in_both_searches_count(tmp_path: Path) -> None:
    """What is far down by meaning does not come first only because its words fit best: cosines differ little."""
    cosines = {"Opera, Verdi, Hamar": 0.8, "Opera by Verdi": 1.0} | {
        f"Trip {n}": 0.99 - n / 100 for n in range(9)
    }
    with open_journal(tmp_path / "runs.db") as journal:
        store = open_memory(journal).store
        for text in cosines:
            store.write(Draft(store=Store.SELF_FACTS, text=text), NOW)
        points = [[value, (1 - value**2) ** 0.5] for value in cosines.values()]
        store.put_vectors("m", dict(zip([entry.entry_id for entry in store.entries()], points, strict=True)))
        hits = store.search("Opera Verdi Hamar", NOW, vector=Vector("m", [1.0, 0.0]))
        assert hits[0].entry.text == "Opera by Verdi"
        assert store.search("Opera Verdi Hamar", NOW)[0].entry.text == "Opera, Verdi, Hamar"


def test_a_provider_without_embeddings_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not speak /v1/embeddings"):
        make_embedder("mock:echo")
