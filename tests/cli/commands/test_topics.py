"""`treadle topics`: building with a real server, files, and what is only in Python."""

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Cli, Oracle, RealCli
from tests.cli.scripted import Script, say

from treadle import open_journal
from treadle.core.events import InferenceCompleted
from treadle.datagen.topics.topic_files import TopicFormat, draw_mermaid, load_topics, save_topics
from treadle.datagen.topics.topic_graph import find_topic, prune
from treadle.datagen.topics.topics_view import make_topics_view
from treadle.testbed.request_facts import read_facts

IS_FULL = bool(os.environ.get("TREADLE_FULL"))
BUILD = ("topics", "build", "--prompt", "Office work", "--degree", "4", "--depth", "3", "--mode", "graph")


def facts_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a request, which the first user message has."""
    facts = read_facts(next(item["content"] for item in body["messages"] if item["role"] == "user"))
    assert facts is not None
    return facts


def write_topics(body: dict[str, Any], slow: str = "", seconds: float = 0.0) -> Any:
    """Answer with as many subtopics as are asked for."""
    facts = facts_of(body)
    path = facts["path"]
    if slow and path[-1].startswith(slow):
        time.sleep(seconds)
    taken = {item["topic"] for item in facts["existing"]}
    names = [f"{len(path)}{path[-1][:12].split()[0]}n{index} word" for index in range(50)]
    chosen = [name for name in names if name not in taken][: facts["count"]]
    links = [item["id"] for item in facts["existing"]][-1:]
    return say(json.dumps({"subtopics": [{"topic": name, "connections": links} for name in chosen]}))


def completed(journal: Path) -> Counter[str]:
    """Return the number of answers of each run that were paid for."""
    opened = open_journal(journal)
    found: Counter[str] = Counter()
    for info in opened.runs():
        found[info.run_id] = sum(
            isinstance(event.body, InferenceCompleted) for event in opened.read(info.run_id)
        )
    opened.close()
    return found


def test_topics_from_a_root_to_a_picture(cli: Cli) -> None:
    done = cli(*BUILD, "--model", "mock:teacher")
    assert done.code == 0, done
    assert "85 topics, 64 of them leaves" in done.err
    graph = load_topics(cli.folder / "topics.json")
    assert len(list(graph.leaves())) == 64
    first = graph.topics[graph.root.children[0]]

    done = cli("topics", "show", "topics.json", "--depth", "1")
    assert [line[:3] for line in done.out.splitlines()] == ["Off", "├──", "├──", "├──", "└──"]
    done = cli("topics", "show", "topics.json", "--leaves", "--json")
    assert [line["path"] for line in done.lines] == [list(leaf.path) for leaf in graph.leaves()]

    pruned = prune(graph, drop=[find_topic(graph, first.text.upper()).topic_id])
    assert len(graph.topics) - len(pruned.topics) == 21
    kept = find_topic(graph, f"office work > {first.text}").topic_id
    assert len(prune(graph, keep=[kept], max_depth=2).topics) == 6

    for format in ("deepfabric-tree", "deepfabric-graph"):
        assert save_topics(graph, cli.folder / format, TopicFormat(format))
        done = cli("topics", "show", format, "--json")
        assert {line["topic_id"] for line in done.lines} == set(graph.topics)

    counts = Counter({leaf.topic_id: 1 for leaf in list(graph.leaves())[:40]})
    view = make_topics_view(graph, counts)
    assert (view.is_counted, sum(line.rows for line in view.lines)) == (True, 40)
    assert "flowchart LR" in draw_mermaid(graph)
    for words in ("topics import", "topics prune", "topics draw"):
        done = cli(*words.split(), "topics.json", "-o", "x")
        assert (done.code, done.out, "docs/topics.md" in done.err) == (2, "", True), done


def test_a_configuration_and_its_folder(cli: Cli) -> None:
    cli.write(
        "d.yaml",
        "name: demo\nmodels: {default: 'mock:teacher'}\ntopics: {prompt: Office work, degree: 2, depth: 2}\n"
        "output: {path: data}\ntools: {use: [files]}\n",
    )
    done = cli("topics", "build", "d.yaml", "--degree", "3", "--json")
    assert done.code == 0, done
    assert [line["event"] for line in done.lines] == ["topic_expanded"] * 4 + ["topics_written"]
    assert done.lines[-1]["leaves"] == 9
    assert {item.name for item in (cli.folder / "data").iterdir()} >= {"topics.json", "journal.db"}
    assert cli("topics", "build", "d.yaml", "--degree", "3").code == 0
    done = cli("topics", "build", "d.yaml")
    assert (done.code, "degree was 3 and is 2" in done.err) == (2, True)


def test_a_build_that_is_killed_goes_on_and_pays_for_nothing_twice(cli: Cli, script: Script) -> None:
    """The reference begins again, and pays again."""
    answered = 0

    def answer(body: dict[str, Any]) -> Any:
        nonlocal answered
        answered += 1
        time.sleep(0.01)
        return write_topics(body)

    server = script(answer)
    build = (*BUILD, "--model", "openai:m", "--base-url", server.url, "--window", "4")
    cli.env["OPENAI_API_KEY"] = "key"
    for count in (1, 6, 12, 15) if not IS_FULL else range(1, 22):
        process = cli.start(*build)
        end = time.monotonic() + 60
        while answered < count and process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        assert not (cli.folder / "topics.json").exists()
    done = cli(*build)
    assert done.code == 0, done
    paid = completed(cli.folder / "topics.db")
    assert len(paid) == 1 + 4 + 16
    assert set(paid.values()) == {1}
    graph = load_topics(cli.folder / "topics.json")
    assert len(graph.topics) == 1 + 4 + 16 + 64
    before = len(server.requests)
    assert cli(*build).code == 0
    assert len(server.requests) == before
    fresh = cli(*build, "-o", "fresh.json")
    assert fresh.code == 0, fresh
    assert (cli.folder / "fresh.json").read_bytes() == (cli.folder / "topics.json").read_bytes()


def test_the_first_ctrl_c_finishes_what_has_begun(real_cli: RealCli, script: Script) -> None:
    server = script(lambda body: write_topics(body, "2", 0.3))
    real_cli.env["OPENAI_API_KEY"] = "key"
    build = (*BUILD, "--model", "openai:m", "--base-url", server.url, "--window", "2")
    process = real_cli.start(*build)
    end = time.monotonic() + 60
    while len(server.requests) < 6 and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "the same command continues" in err
    paid = completed(real_cli.folder / "topics.db")
    assert set(paid.values()) == {1}, "what had begun was finished"
    assert len(paid) == len(server.requests)


def test_a_server_that_fails_now_and_then_costs_no_topics(cli: Cli, tmp_path: Path) -> None:
    oracle = Oracle(tmp_path, "--failure-rate", "0.3")
    cli.env["OPENAI_API_KEY"] = "key"
    try:
        build = (*BUILD, "--model", "openai:teacher", "--base-url", oracle.url)
        done = cli(*build, "-o", "faulty.json")
        assert done.code == 0, done
    finally:
        oracle.stop()
    assert cli(*BUILD, "--model", "mock:teacher").code == 0
    faulty, whole = load_topics(cli.folder / "faulty.json"), load_topics(cli.folder / "topics.json")
    assert faulty.topics == whole.topics, "failures change nothing in the graph"


def test_a_server_that_is_down_is_an_error(cli: Cli, script: Script) -> None:
    server = script(lambda body: 400)
    cli.env["OPENAI_API_KEY"] = "key"
    done = cli(*BUILD, "--model", "openai:m", "--base-url", server.url)
    assert done.code == 1
    assert "refuses requests for topics" in done.err
    assert not (cli.folder / "topics.json").exists()


def test_a_failed_topic_is_tried_again_by_the_same_command(cli: Cli, script: Script) -> None:
    is_up = False

    def answer(body: dict[str, Any]) -> Any:
        if not is_up and facts_of(body)["path"][-1].startswith("1Officen2"):
            return say("no JSON")
        return write_topics(body)

    server = script(answer)
    cli.env["OPENAI_API_KEY"] = "key"
    build = (*BUILD, "--model", "openai:m", "--base-url", server.url)
    done = cli(*build)
    assert done.code == 1, done
    assert "1 failed" in done.err
    assert "1Officen2 word: " in cli("topics", "show", "topics.json", "--failed").out
    assert not list(prune(load_topics(cli.folder / "topics.json"), is_without_failed=True).failed())
    is_up, before = True, len(server.requests)
    done = cli(*build)
    assert (done.code, "failed" in done.err) == (0, False), done
    assert len(server.requests) - before == 1 + 4, "only the failed topic, and those below it"
    assert len(load_topics(cli.folder / "topics.json").topics) == 85


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("build",), "give the root topic with --prompt"),
        (("build", "--prompt", " ", "--model", "mock:teacher"), "give the root topic"),
        (("build", "--prompt", "x", "--base-url", "http://x"), "--base-url goes with --model"),
        (("build", "--prompt", "x", "--model", "mock:teecher"), "no model 'mock:teecher'"),
        (("build", "--prompt", "x", "--model", "mock:teacher", "-o", "t.json"), "'t.json' exists; --force"),
        (("build", "absent.yaml"), "absent.yaml"),
        (("show", "absent.json"), "cannot read the topics of 'absent.json'"),
        (("show", "bad.jsonl"), "bad.jsonl:2: 'path' is 3"),
    ],
)
def test_mistakes_are_told_in_a_line(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    paths = [["Animals", "Dogs", "Food"], ["Animals", "Cats", "Food"]]
    cli.write("t.json", "".join(json.dumps({"path": path}) + "\n" for path in paths))
    cli.write("bad.jsonl", '{"path": ["a", "b"]}\n{"path": 3}\n')
    done = cli("topics", *arguments)
    assert done.code == 2, done
    assert message in done.err
    assert done.err.count("\n") == 1
