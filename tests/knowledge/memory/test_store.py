"""The store of memories: policy, versions, the audit trail, duplicates, keys and forgetting."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.core.errors import ConfigError, JournalError, MemoryRefusedError
from treadle.journal import open_journal
from treadle.knowledge.memory import Author, Draft, Epistemic, Memory, Outcome, Store, open_memory
from treadle.knowledge.memory.forgetting import FADING_SECONDS, FLOOR, decay, strengthened, weigh

NOW = 1_800_000_000.0


@pytest.fixture(params=["file", "memory", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The place of a journal."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "memory:" if request.param == "memory" else str(tmp_path / "runs.db")


@pytest.fixture
def memory(place: str) -> Iterator[Memory]:
    with open_journal(place) as journal:
        yield open_memory(journal, "ada", "kim")


def fact(text: str, **more: object) -> Draft:
    return Draft(store=Store.SELF_FACTS, text=text, **more)  # type: ignore[arg-type]


def episode(text: str, **more: object) -> Draft:
    return Draft(store=Store.EPISODIC, text=text, **more)  # type: ignore[arg-type]


def found(memory: Memory, query: str, **more: object) -> list[str]:
    return [hit.entry.text for hit in memory.store.search(query, NOW, **more)]  # type: ignore[arg-type]


def test_a_memory_is_written_read_and_found(memory: Memory) -> None:
    written = memory.store.write(fact("Kim's dog is called Rex.", reason="said so", confidence=0.9), NOW)
    assert written.outcome is Outcome.ADDED
    assert written.entry is not None
    assert written.entry == memory.store.get("self_facts-1")
    assert (written.entry.author, written.entry.confidence) == (Author.USER, 0.9)
    assert found(memory, "what are the dogs called?") == ["Kim's dog is called Rex."]
    assert found(memory, "hvem heter hundene?") == []


def test_norwegian_words_are_found_in_other_forms(memory: Memory) -> None:
    memory.store.write(fact("Kim kjøpte en ny sykkel i Bergen."), NOW)
    memory.store.write(fact("Møtet om budsjettet er flyttet."), NOW)
    assert found(memory, "sykkelen som ble kjøpt") == ["Kim kjøpte en ny sykkel i Bergen."]
    assert found(memory, "møter om budsjetter") == ["Møtet om budsjettet er flyttet."]


F, R, C = {"is_forced": True}, {"reason": "because"}, {"confidence": 0.9}
TAG = {"epistemic": Epistemic.BELIEF}


@pytest.mark.parametrize(
    ("store", "author", "least"),
    [
        (Store.IDENTITY, Author.SYSTEM, None),
        (Store.IDENTITY, Author.USER, None),
        (Store.IDENTITY, Author.PERSONA_SELF, None),
        (Store.IDENTITY, Author.FILE, {}),
        (Store.SELF_FACTS, Author.SYSTEM, F),
        (Store.SELF_FACTS, Author.USER, {}),
        (Store.SELF_FACTS, Author.PERSONA_SELF, F | R | C),
        (Store.WORLDVIEW, Author.SYSTEM, F | TAG),
        (Store.WORLDVIEW, Author.USER, TAG),
        (Store.WORLDVIEW, Author.PERSONA_SELF, F | R | TAG),
        (Store.EPISODIC, Author.SYSTEM, {}),
        (Store.EPISODIC, Author.USER, {}),
        (Store.EPISODIC, Author.PERSONA_SELF, {}),
        (Store.DOCUMENTS, Author.PERSONA_SELF, None),
    ],
)
def test_the_policy(store: Store, author: Author, least: dict[str, object] | None, tmp_path: Path) -> None:
    """Each author must give all that the policy demands, and nothing less is accepted. Refused writes, which the
    reference system only logged, are in the audit trail."""
    with open_journal(tmp_path / "runs.db") as journal:
        store_of = open_memory(journal).store
        tries = [F | R | C | TAG, F | R | C] if least is None else [least]
        for given in (
            tries if least is None else [{k: v for k, v in least.items() if k != left} for left in least]
        ):
            with pytest.raises(MemoryRefusedError, match="nothing was remembered"):
                store_of.write(Draft(store=store, text="x y z", author=author, **given), NOW)  # type: ignore[arg-type]
            assert store_of.audit()[0].action == "refused"
            assert store_of.entries() == []
        if least is not None:
            store_of.write(Draft(store=store, text="x y z", author=author, **least), NOW)  # type: ignore[arg-type]
            assert [entry.store for entry in store_of.entries()] == [store]


@pytest.mark.parametrize("confidence", [0.79, float("nan"), -1.0, 1.5])
def test_a_confidence_that_is_too_low_or_none_is_refused(memory: Memory, confidence: float) -> None:
    draft = fact("x", author=Author.PERSONA_SELF, is_forced=True, reason="r", confidence=confidence)
    with pytest.raises(MemoryRefusedError, match="confidence"):
        memory.store.write(draft, NOW)


def test_versions_are_kept_and_can_be_restored(memory: Memory) -> None:
    """Identity had no versions in the reference system, and there was no way to see what a rollback did."""
    memory.store.write(fact("Kim lives in Oslo."), NOW)
    memory.store.write(fact("Kim lives in Hamar."), NOW + 1, replaces="self_facts-1")
    assert [entry.text for entry in memory.store.history("self_facts-1")] == [
        "Kim lives in Oslo.",
        "Kim lives in Hamar.",
    ]
    assert found(memory, "Oslo") == []
    back = memory.store.rollback("self_facts-1", 1, fact("", reason="a mistake"), NOW + 2)
    assert (back.version, back.text, back.created_at) == (3, "Kim lives in Oslo.", NOW)
    assert found(memory, "Oslo") == ["Kim lives in Oslo."]
    assert [item.action for item in memory.store.audit("self_facts-1")] == ["rolled_back", "changed", "added"]
    with pytest.raises(ConfigError, match="no version 9"):
        memory.store.rollback("self_facts-1", 9, fact(""), NOW)
    with pytest.raises(MemoryRefusedError):
        memory.store.rollback("self_facts-1", 1, fact("", author=Author.PERSONA_SELF), NOW)


def test_a_change_needs_an_entry_of_the_same_store(memory: Memory) -> None:
    memory.store.write(fact("Kim lives in Oslo."), NOW)
    for entry_id, text in (
        ("self_facts-2", "there is no memory"),
        ("episodic-1", "there is no memory"),
        ("x", "id"),
    ):
        with pytest.raises(ConfigError, match=text):
            memory.store.write(fact("Kim lives in Hamar."), NOW, replaces=entry_id)


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("Kim likes green tea.", "kim really likes GREEN tea", True),
        ("Kim has two dogs.", "Kim has two dog", True),
        ("Kim's number is 5551234.", "Kim's number is 5551235.", False),
        ("Kim likes green tea.", "Kim does not like green tea.", False),
        ("Kim can eat nuts.", "Kim can't eat nuts.", False),
        ("Ann called Bob.", "Bob called Ann.", False),
        ("The train from Oslo to Hamar is late.", "The train to Oslo from Hamar is late.", False),
        ("Kim likes tea.", "Kim likes tea and coffee.", False),
        ("Kim is allergic to shell fish.", "Kim is allergic to fish.", False),
        ("Kim will move to Oslo in May.", "Kim moved to Oslo in May.", False),
        (
            "Kim's ex wife Ada lives in Hamar by the lake.",
            "Kim's wife Ada lives in Hamar by the lake.",
            False,
        ),
    ],
)
def test_only_what_adds_nothing_is_merged(memory: Memory, old: str, new: str, *, is_same: bool) -> None:
    """Near-duplicates pile up in the reference system. A merge must not lose a fact either."""
    memory.store.write(fact(old, run_id="r1"), NOW)
    written = memory.store.write(fact(new, run_id="r2"), NOW + 5)
    assert (written.outcome is Outcome.MERGED) is is_same
    entries = memory.store.entries()
    if is_same:
        assert [(entry.text, entry.merged, entry.strength, entry.used_at) for entry in entries] == [
            (old, 1, 1.5, NOW + 5)
        ]
        assert [item.run_id for item in memory.store.audit("self_facts-1")] == ["r2", "r1"]
    else:
        assert [entry.text for entry in entries] == [old, new]


def test_a_write_with_the_same_key_is_made_once(memory: Memory) -> None:
    first = memory.store.write(episode("We met in Hamar.", key="r/1"), NOW)
    again = memory.store.write(episode("We met in Hamar.", key="r/1"), NOW + 9)
    assert (again.outcome, again.entry) == (Outcome.REPEATED, first.entry)
    assert len(memory.store.audit()) == 1
    memory.store.forget("episodic-1", Author.USER, NOW)
    assert memory.store.write(episode("We met in Hamar.", key="r/1"), NOW).entry is None
    assert memory.store.entries() == []
    refused = fact("x", author=Author.PERSONA_SELF, key="r/2")
    for _ in range(2):
        with pytest.raises(MemoryRefusedError, match="only with is_forced"):
            memory.store.write(refused, NOW)
    assert [item.action for item in memory.store.audit()] == ["refused", "forgotten", "added"]


def test_ids_are_never_given_out_again(memory: Memory) -> None:
    """The reference system numbered by counting, so that parallel writers and deletions gave ids out twice."""
    memory.store.write(episode("We met in Hamar."), NOW)
    memory.store.forget("episodic-1", Author.USER, NOW)
    assert memory.store.write(episode("We met in Oslo."), NOW).entry.entry_id == "episodic-2"  # type: ignore[union-attr]


def test_namespaces_do_not_see_each_other(tmp_path: Path) -> None:
    with open_journal(tmp_path / "runs.db") as journal:
        mine, hers, other = (
            open_memory(journal, *names) for names in (("ada", "kim"), ("ada", "eve"), ("bob", "kim"))
        )
        mine.store.write(fact("The code is zanzibar.", key="k"), NOW)
        for memory in (hers, other):
            assert found(memory, "zanzibar code") == []
            assert memory.store.get("self_facts-1") is None
            assert list(memory.store.audit()) == []
            assert not memory.store.forget("self_facts-1", Author.USER, NOW)
            memory.store.write(fact("Nothing.", key="k"), NOW)
        assert found(mine, "zanzibar") == ["The code is zanzibar."]


def test_what_is_forgotten_is_nowhere_in_the_files(tmp_path: Path) -> None:
    """Forgetting leaves no version, no words in the index, no reason in the audit trail and no bytes."""
    path = tmp_path / "runs.db"
    with open_journal(path) as journal:
        memory = open_memory(journal)
        for number in range(200):
            memory.store.write(episode(f"Meeting {number} was about budgets."), NOW)
        memory.store.write(fact("The password is xylophonequartz.", reason="quagmirereason"), NOW)
        memory.store.write(fact("The password is now brontosaurusjam."), NOW, replaces="self_facts-201")
        memory.store.put_vectors("m", {"self_facts-201": [0.123456789, 0.5, -0.25]})
        pieces = (b"xylophone", b"brontosaurus", b"quagmirereason", *vector_bytes(0.123456789, 0.5, -0.25))
        assert all(piece in contents(path) for piece in pieces)
        assert memory.store.forget("self_facts-201", Author.USER, NOW)
        assert [piece for piece in pieces if piece in contents(path)] == []
        assert memory.store.history("self_facts-201") == []
        assert [(item.action, item.reason) for item in memory.store.audit("self_facts-201")] == [
            ("forgotten", None),
            ("changed", None),
            ("added", None),
        ]
        assert found(memory, "xylophonequartz brontosaurusjam") == []
        assert not memory.store.forget("self_facts-201", Author.USER, NOW)
        with pytest.raises(MemoryRefusedError):
            memory.store.forget("episodic-1", Author.PERSONA_SELF, NOW)
        assert memory.store.get("episodic-1") is not None


def vector_bytes(*values: float) -> tuple[bytes]:
    from treadle.knowledge.memory.vectors import normalize, pack_vector

    return (pack_vector(normalize(values)),)


def contents(path: Path) -> bytes:
    return b"".join(item.read_bytes() for item in sorted(path.parent.glob("runs.db*")))


def test_episodes_fade_and_recalling_keeps_them() -> None:
    """The reference system's episodes all lost their weight within a day."""
    day = 86_400.0
    assert decay(1.0, 0) == 1
    assert decay(1.0, FADING_SECONDS) == pytest.approx(0.3679, abs=1e-4)
    assert decay(1.0, 7 * day) < decay(strengthened(1.0), 7 * day) < 1
    assert decay(1.0, 1000 * day) == FLOOR
    assert decay(1.0, -5) == 1
    assert strengthened(9.9) == 10
    assert weigh(1.0, 1.0) == 1 > weigh(1.0, FLOOR) > 0.8


def test_of_two_episodes_that_fit_alike_the_newer_comes_first(memory: Memory) -> None:
    for text, days in (("We talked about the red boat.", 60), ("Once more the red boat was our topic.", 1)):
        memory.store.write(episode(text), NOW - days * 86_400)
    assert found(memory, "red boat")[0].startswith("Once more")


def test_a_turn_strengthens_an_episode_once(memory: Memory) -> None:
    memory.store.write(episode("We met in Hamar."), NOW)
    memory.store.write(fact("Kim lives in Hamar."), NOW)
    for turn_key, strength in (("r/1", 1.5), ("r/1", 1.5), ("r/2", 2.0)):
        memory.store.strengthen(["episodic-1", "self_facts-2"], turn_key, NOW + 7)
        assert memory.store.get("episodic-1").strength == strength  # type: ignore[union-attr]
    assert memory.store.get("episodic-1").used_at == NOW + 7  # type: ignore[union-attr]
    assert memory.store.get("self_facts-2").strength == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["", " \n ", "\0"])
def test_an_empty_memory_is_refused(memory: Memory, text: str) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        memory.store.write(fact(text), NOW)


def test_a_memory_outlives_its_journal_object(tmp_path: Path) -> None:
    with open_journal(tmp_path / "runs.db") as journal:
        memory = open_memory(journal)
        memory.store.write(fact("Kim lives in Oslo."), NOW)
    with pytest.raises(JournalError, match="is closed"):
        memory.store.entries()
    with open_journal(tmp_path / "runs.db") as journal:
        assert len(open_memory(journal).store.entries()) == 1
