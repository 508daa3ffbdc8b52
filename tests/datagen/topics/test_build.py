"""The construction of topics: counts, duplicates, order, failures and what a request says."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datagen.topics.writers import WORDS, Writer, number, sloppy

from treadle import open_journal
from treadle.core.errors import AuthenticationError, ConfigError, ProviderError, RefusedError, ServerError
from treadle.datagen.config.generation_config import Topics
from treadle.datagen.generation_progress import TopicExpanded
from treadle.datagen.topics.building import BuildStoppedError, build_topics
from treadle.datagen.topics.topic_graph import TopicGraph, similarity, topic_id, words_of
from treadle.journal.protocol import Journal
from treadle.tasks.draws import Draw


async def build(model: Writer, *, journal: Journal | None = None, seed: int = 1, **config: Any) -> TopicGraph:
    settings = Topics(**{"prompt": "everything", "degree": 3, "depth": 2, **config})
    with_journal = journal or open_journal("memory:")
    return await build_topics(settings, model=model, journal=with_journal, seed=seed, dataset="test")


def check(graph: TopicGraph) -> None:
    """Check what holds for every graph."""
    for key, topic in graph.topics.items():
        assert key == topic.topic_id == topic_id(topic.path)
        assert topic.path[-1] == topic.text
        assert key not in graph.ancestors(key), "a cycle"
        assert len(set(topic.parents)) == len(topic.parents)
        for child in topic.children:
            assert graph.topics[child].parents[0] == key
            assert graph.topics[child].path[:-1] == topic.path
        if topic is not graph.root:
            assert key in graph.topics[topic.parents[0]].children
    leaves = [topic.topic_id for topic in graph.leaves()]
    assert len(set(leaves)) == len(leaves)
    assert {topic.topic_id for topic in graph.walk()} == set(graph.topics)
    texts = [words_of(topic.text) for topic in graph.topics.values()]
    limit = graph.origin.similarity if graph.origin else 1.1
    assert all(similarity(a, b) < limit for i, a in enumerate(texts) for b in texts[:i])


async def test_a_tree_has_the_counts_that_were_asked_for_and_stable_ids() -> None:
    graph = await build(Writer())
    check(graph)
    assert len(graph.topics) == 1 + 3 + 9
    assert [leaf.path for leaf in graph.leaves()][:2] == [
        ("everything", "tx0 word", "tx0x0 word"),
        ("everything", "tx0 word", "tx0x1 word"),
    ]
    again = await build(Writer())
    assert list(again.topics) == list(graph.topics)


async def test_further_keys_of_an_answer_are_ignored() -> None:
    """Rules out that a model which gives its reasons too ends the whole generation."""
    graph = await build(Writer(lambda facts: [{"topic": text, "why": "new"} for text in number(facts)]))
    assert len(graph.topics) == 1 + 3 + 9


async def test_a_request_shows_the_path_the_siblings_and_what_exists() -> None:
    """The reference shows a topic without its path, and nothing of a graph with more than 20 topics, so that a
    model cannot know which topics and ids exist."""
    model = Writer()
    await build(model, degree=6, depth=3, mode="graph", instructions="for nurses", seed=7)
    facts = model.facts[-1]
    assert len(facts["path"]) == 3
    assert (facts["instructions"], facts["seed"], facts["count"], facts["mode"]) == (
        "for nurses",
        7,
        6,
        "graph",
    )
    assert len(facts["siblings"]) == 5
    shown = {item["topic"]: item["id"] for item in facts["existing"]}
    assert set(facts["siblings"]) < set(shown)
    assert len(shown) == 10, "the siblings, and those of the topic above"
    parent = facts["path"][:1]
    assert shown["tx0 word"] == topic_id((*parent, "tx0 word"))


async def test_the_same_answers_give_the_same_graph_whatever_their_order() -> None:
    """The reference draws without a seed, and its graphs depend on which answer comes first."""
    for mode in ("tree", "graph"):
        found = set()
        for trial in range(5):
            draw = Draw(str(trial))
            model = Writer(sloppy, delay=lambda facts, draw=draw: 0.02 * draw.below(100) / 100)  # type: ignore[misc]
            graph = await build(model, degree=4, depth=3, mode=mode, window=(1, 3, 7, 16, 64)[trial])
            check(graph)
            found.add(msgspec.json.encode(graph))
        assert len(found) == 1


@given(
    mode=st.sampled_from(["tree", "graph"]),
    degree=st.integers(1, 5),
    depth=st.integers(1, 4),
    words=st.integers(2, len(WORDS)),
    seed=st.integers(0, 10**6),
)
def test_graphs_are_acyclic_and_their_leaves_unique(
    mode: str, degree: int, depth: int, words: int, seed: int
) -> None:
    """The reference accepts links to the topic itself, loses leaves that are linked from, and lists a leaf once for
    each way that leads to it."""

    def write(facts: dict[str, Any]) -> Any:
        draw = Draw(f"{seed}{facts}")
        ids = [item["id"] for item in facts["existing"]]
        own = [
            topic_id((*facts["path"], WORDS[0])),
            topic_id(tuple(facts["path"])),
            topic_id(("everything",)),
        ]
        found: list[Any] = []
        for _ in range(draw.between(0, facts["count"] + 2)):
            links = {"connections": [draw.pick([*ids, *own, "nonsense"])]} if mode == "graph" else {}
            found.append({"topic": f"{draw.pick(WORDS[:words])} {draw.pick(WORDS[:words])}", **links})
        return found

    async def work() -> None:
        try:
            graph = await build(Writer(write), mode=mode, degree=degree, depth=depth, seed=seed)
        except ProviderError:
            return
        check(graph)
        made = Counter(topic.parents[0] for topic in graph.topics.values() if topic.parents)
        assert all(count <= degree for count in made.values()), "counts are enforced"
        if mode == "tree":
            assert graph.count_links() == 0
        for leaf in graph.leaves():
            assert len(leaf.path) == depth + 1

    asyncio.run(work())


async def test_a_link_never_takes_a_leaf_away() -> None:
    """In the reference a topic that another is linked from is no leaf any more, and loses its sample."""

    def write(facts: dict[str, Any]) -> Any:
        if len(facts["path"]) == 1:
            return ["north", "south"]
        names = ["stone", "water"] if facts["path"][-1] == "north" else ["light", "sound"]
        return [{"topic": name, "connections": [item["id"] for item in facts["existing"]]} for name in names]

    graph = await build(Writer(write), mode="graph", degree=2)
    check(graph)
    assert [leaf.text for leaf in graph.leaves()] == ["stone", "water", "light", "sound"]
    by_text = {topic.text: topic for topic in graph.topics.values()}
    assert by_text["stone"].parents == [by_text["north"].topic_id, by_text["south"].topic_id]
    assert by_text["south"].children == [by_text["light"].topic_id, by_text["sound"].topic_id]


async def test_near_duplicates_are_merged_and_replaced() -> None:
    """The reference keeps the same topic twice, and both become leaves."""

    def write(facts: dict[str, Any]) -> Any:
        if len(facts["path"]) == 1:
            return (
                ["Reading files", "the reading of FILES", "Networks"][: facts["count"]]
                if (facts["attempt"] == 1)
                else ["Clocks"]
            )
        shared = ["error handling"] if facts["attempt"] == 1 else []
        own = [f"{facts['path'][-1]} {word}" for word in WORDS]
        taken = {item["topic"] for item in facts["existing"]}
        return (shared + [item for item in own if item not in taken])[: facts["count"]]

    for mode, links in (("tree", 0), ("graph", 2)):
        model = Writer(write)
        graph = await build(model, mode=mode)
        check(graph)
        assert len(list(graph.leaves())) == 9
        assert [graph.topics[key].text for key in graph.root.children] == [
            "Reading files",
            "Networks",
            "Clocks",
        ]
        assert sum(topic.text == "error handling" for topic in graph.topics.values()) == 1
        assert graph.origin is not None
        assert graph.origin.merged == 3
        assert graph.count_links() == links, "a merged topic of a graph is linked to the other parent"
        asked = [facts for facts in model.facts if facts["attempt"] == 2 and len(facts["path"]) == 2]
        assert [facts["count"] for facts in asked] == [1, 1]
        assert all(item["topic"] != "nothing" for facts in asked for item in facts["existing"])
        assert "error handling" in [item["topic"] for item in asked[0]["existing"]]


async def test_too_many_are_cut_and_too_few_are_asked_for_and_recorded() -> None:
    """The reference takes as many topics as a model gives for a graph, and makes up the missing ones of a tree."""

    def write(facts: dict[str, Any]) -> Any:
        if len(facts["path"]) == 1:
            return [*number(facts), "one too many", "", "x" * 1000]
        return number(facts)[:1] if facts["attempt"] < 3 else []

    model = Writer(write)
    graph = await build(model)
    check(graph)
    assert len(graph.root.children) == 3
    assert graph.origin is not None
    assert (graph.origin.cut, graph.origin.unusable) == (1, 2)
    for key in graph.root.children:
        topic = graph.topics[key]
        assert (len(topic.children), topic.missing, topic.error) == (2, 1, None)
    counts = [facts["count"] for facts in model.facts if facts["path"][-1] == "tx0 word"]
    assert counts == [3, 2, 1], "each time, only what is missing is asked for"


@pytest.mark.parametrize("mode", ["tree", "graph"])
async def test_an_engine_that_decodes_within_the_schema_ends_a_list_that_repeats_itself(mode: str) -> None:
    model = Writer()
    await build(model, mode=mode, depth=1)
    (request,) = model.requests
    assert request.output_schema is not None
    assert request.output_schema["properties"]["subtopics"]["maxItems"] == 13


async def test_a_topic_that_fails_is_left_out_and_never_made_up() -> None:
    """When a model fails, the reference fills the tree with topics such as `subtopic_1_for_x`."""

    def write(facts: dict[str, Any]) -> Any:
        if facts["path"][-1] == "tx1 word":
            return RefusedError("no") if facts["attempt"] == 1 else "no JSON"
        return number(facts)

    notices: list[TopicExpanded] = []
    journal = open_journal("memory:")
    graph = await build_topics(
        Topics(prompt="everything", degree=3, depth=2, max_attempts=2),
        model=Writer(write),
        journal=journal,
        seed=1,
        dataset="test",
        on_notice=notices.append,
    )
    check(graph)
    failed = list(graph.failed())
    assert [topic.text for topic in failed] == ["tx1 word"]
    assert "JSON" in (failed[0].error or "")
    assert len(list(graph.leaves())) == 6
    assert not any("subtopic" in topic.text for topic in graph.topics.values())
    assert [notice.error is not None for notice in notices].count(True) == 1
    assert (notices[-1].done, notices[-1].expected) == (4, 4)


async def test_a_server_that_is_down_is_an_error_and_not_a_graph(tmp_path: Path) -> None:
    """With a model that is wholly down, the reference reports success and trains on made-up topics."""
    is_up = has_root = False

    def write(facts: dict[str, Any]) -> Any:
        if is_up or (has_root and len(facts["path"]) == 1):
            return number(facts)
        return ServerError("unavailable", status=503)

    first = open_journal(tmp_path / "first.db")
    with pytest.raises(ProviderError, match="failed for the root topic: unavailable"):
        await build(Writer(write), journal=first)
    is_up = True
    check(await build(Writer(write), journal=first))

    is_up, has_root = False, True
    second = open_journal(tmp_path / "second.db")
    model = Writer(write)
    with pytest.raises(ProviderError, match="8 topics in a row: unavailable"):
        await build(model, journal=second, degree=20, window=4)
    assert len(set(model.begun)) < 16, "the rest is not tried"
    with pytest.raises(ProviderError, match="no topic could be built: unavailable"):
        await build(model, journal=open_journal("memory:"), degree=3, window=4)
    is_up = True
    check(await build(Writer(write), journal=second, degree=20, window=4))


async def test_errors_that_no_request_avoids_end_the_build_at_once() -> None:
    model = Writer(lambda facts: AuthenticationError("wrong key", status=401))
    with pytest.raises(ProviderError, match="wrong key"):
        await build(model)
    assert len(model.begun) == 1


async def test_the_same_call_goes_on_and_pays_for_nothing_twice(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "runs.db")
    stop = asyncio.Event()

    def count(notice: TopicExpanded) -> None:
        if notice.done == 5:
            stop.set()

    model = Writer(sloppy)
    config = Topics(prompt="everything", degree=4, depth=3, mode="graph", window=4)
    with pytest.raises(BuildStoppedError, match="the same command continues"):
        await build_topics(
            config, model=model, journal=journal, seed=1, dataset="test", on_notice=count, stop=stop
        )
    before = len(model.begun)
    assert before >= 5
    assert model.ended == [path for path in model.begun if path in model.ended], "what was begun was finished"
    graph = await build_topics(config, model=model, journal=journal, seed=1, dataset="test")
    fresh = Writer(sloppy)
    whole = await build_topics(config, model=fresh, journal=open_journal("memory:"), seed=1, dataset="test")
    assert msgspec.json.encode(graph) == msgspec.json.encode(whole)
    assert len(model.begun) == len(fresh.begun)
    await build_topics(config, model=model, journal=journal, seed=1, dataset="test")
    assert len(model.begun) == len(fresh.begun)
    deeper = await build_topics(
        Topics(prompt="everything", degree=4, depth=4, mode="graph"),
        model=model, journal=journal, seed=1, dataset="test",
    )  # fmt: skip
    assert len(list(deeper.leaves())) > len(list(graph.leaves()))
    with pytest.raises(ConfigError, match="degree was 4 and is 5"):
        await build_topics(
            Topics(prompt="everything", degree=5, depth=3, mode="graph"),
            model=model, journal=journal, seed=1, dataset="test",
        )  # fmt: skip


async def test_no_level_waits_for_another() -> None:
    """The reference waits for all topics of a level before it begins the next."""
    model = Writer(delay=lambda facts: 1e9 if facts["path"][-1] == "tx0 word" else 0.0)
    building = asyncio.ensure_future(build(model, degree=3, depth=4, window=4))
    end = time.monotonic() + 60
    others = 1 + 2 + 2 * 3 + 2 * 9
    while len(model.ended) < others:
        assert time.monotonic() < end, model.ended
        await asyncio.sleep(0.01)
    assert max(map(len, model.ended)) == 4, "other branches are complete, while one topic takes for ever"
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building


async def test_the_window_is_kept() -> None:
    """The reference expands all topics of a tree at the same time."""
    busy = most = 0

    class Counting(Writer):
        async def infer(self, *arguments: Any) -> Any:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            try:
                return await super().infer(*arguments)
            finally:
                busy -= 1

    await build(Counting(delay=lambda facts: 0.02), degree=5, depth=3, window=6)
    assert most == 6


@pytest.mark.sets(0)
async def test_thousands_of_topics_need_one_run_for_each_branch() -> None:
    model = Writer(keeps_requests=False)
    graph = await build(model, degree=17, depth=3, window=64)
    assert len(graph.topics) == 1 + 17 + 17**2 + 17**3
    assert len(model.begun) == 1 + 17 + 17**2


@pytest.mark.parametrize(
    ("text", "other", "is_same"),
    [
        ("Error handling in Python", "Python error-handling", True),
        ("Sorting lists", "Sorting a List", True),
        ("Sorting lists", "Sorting tuples", False),
        ("C++ templates", "C# templates", False),
        ("C", "C++", False),
        ("Chapter 1 of algebra", "Chapter 2 of algebra", False),
        ("Java", "JavaScript", False),
        ("Queries with joins", "Queries without joins", False),
        ("机器学习入门", "机器学习入门", True),
        ("机器学习入门", "机器翻译", False),
        ("…", "—", False),
    ],
)
def test_which_topics_are_near_duplicates(text: str, other: str, is_same: bool) -> None:
    assert (similarity(words_of(text), words_of(other)) >= 0.85) is is_same
