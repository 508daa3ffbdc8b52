"""`treadle dataset convert` and `pairs`, and the formats of `treadle export`."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.cli.command import Cli
from tests.export.test_deepfabric import foreign
from tests.export.test_files import example, load, save

from treadle import Agent, ScriptedModel, open_journal
from treadle.core.events import ToolCompleted
from treadle.export import FORMATS
from treadle.export.row_files import detect_format
from treadle.models import call
from treadle.models.scripted import Answer


def test_rows_go_there_and_back(cli: Cli) -> None:
    save(cli.folder / "rows.jsonl", "treadle", example("a"), example("b"))
    done = cli("dataset", "convert", "rows.jsonl", "--format", "sharegpt", "-o", "s.jsonl")
    assert done.code == 0, done
    assert done.err.splitlines() == [
        "2 rows lost effects, limits and output schemas of tools",
        "2 rows converted from treadle to sharegpt, and written to 's.jsonl'",
    ]
    back = cli("dataset", "convert", "s.jsonl", "--format", "treadle")
    assert back.err == "2 rows converted from sharegpt to treadle\n"
    assert [line["lineage"]["run_id"] for line in back.lines] == ["a", "b"]
    first = json.loads((cli.folder / "rows.jsonl").read_text().splitlines()[0])
    assert back.lines[0]["messages"] == first["messages"]


def test_what_is_lost_is_said_for_each_kind(cli: Cli) -> None:
    plain = foreign() | {"structured_data": {"a": 1}}
    plain["metadata"]["mood"] = "good"
    (cli.folder / "d.jsonl").write_text(json.dumps(plain) + "\n" + json.dumps(foreign()) + "\n")
    done = cli("dataset", "convert", "d.jsonl", "--format", "openai", "-o", "o.jsonl", "--json")
    assert done.code == 0, done
    assert done.lines == [
        {
            "from": "deepfabric",
            "rows": 2,
            "not_read": {"the key 'structured_data'": 1, "the key 'mood' in 'metadata'": 1},
            "lost": {"reasoning": 2, "lineage": 2},
            "left_out": {},
        }
    ]
    kept = cli(
        "dataset", "convert", "d.jsonl", "--format", "openai", "-o", "o.jsonl", "--json", "--reasoning"
    )
    assert kept.lines[0]["lost"] == {}


def test_a_key_without_a_value_is_nothing_that_is_lost(cli: Cli) -> None:
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    (cli.folder / "c.jsonl").write_text(json.dumps({"messages": said, "score": None}) + "\n")
    done = cli("dataset", "convert", "c.jsonl", "--format", "sharegpt", "-o", "s.jsonl", "--json")
    assert (done.code, done.lines[0]["rows"], done.lines[0]["not_read"]) == (0, 1, {}), done


def test_rows_that_contradict_themselves_are_left_out_and_counted(cli: Cli) -> None:
    """Rules out that rows whose results moved to other calls are taken in silence."""
    bad = foreign()
    bad["tool_context"]["executions"].reverse()
    (cli.folder / "d.jsonl").write_text(
        "".join(json.dumps(raw) + "\n" for raw in (foreign(), bad, bad, bad, bad))
    )
    done = cli("dataset", "convert", "d.jsonl", "--format", "trl", "-o", "t.jsonl")
    assert done.code == 1
    assert (
        "line 2 left out: its parts contradict each other: execution 1 of tool_context has other" in done.err
    )
    assert "and 1 more row left out for such reasons" in done.err
    assert "1 row converted from deepfabric to trl" in done.err
    assert len((cli.folder / "t.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("name", FORMATS.names())
def test_runs_are_exported_in_all_formats(cli: Cli, name: str) -> None:
    answers: list[Answer] = [[call("list_files", {})], '{"n": 1}']
    with open_journal(str(cli.folder / "runs.db")) as journal:
        agent = Agent(ScriptedModel(answers), tools=["files"], journal=journal)
        run_id = asyncio.run(agent.run("go")).run_id
    done = cli("export", "--all", "-f", name, "-o", "out", "-j", "runs.db")
    assert (done.code, done.err) == (0, "1 row of 1 run written to 'out'\n")
    assert detect_format(cli.folder / "out") == name
    (row,) = load(cli.folder / "out", name)
    assert (row.lineage.run_id == run_id) is (name not in ("openai", "xlam"))
    # xlam has the calls and not the answer.
    assert row.messages[-1].content.replace(" ", "") == ("" if name == "xlam" else '{"n":1}')
    printed = cli("export", "last", "-f", name, "-j", "runs.db")
    path = cli.folder / "out"
    whole = next(path.iterdir()) if path.is_dir() else path
    assert printed.out.encode() == whole.read_bytes()


def test_parquet_is_written_and_read(cli: Cli) -> None:
    pytest.importorskip("pyarrow")
    save(cli.folder / "rows.jsonl", "treadle", example("a"), example("b"))
    assert cli("dataset", "convert", "rows.jsonl", "--format", "trl", "-o", "t.parquet").code == 0
    back = cli("dataset", "convert", "t.parquet", "--format", "deepfabric")
    assert [line["final_answer"] for line in back.lines] == ["done", "done"]


def test_sessions_are_a_folder(cli: Cli) -> None:
    (cli.folder / "dataset").mkdir()
    save(cli.folder / "dataset" / "rows.jsonl", "treadle", example("a"), example("b"))
    assert cli("dataset", "convert", "dataset", "--format", "hf_trace", "-o", "traces").code == 0
    assert sorted(path.name for path in (cli.folder / "traces").iterdir()) == ["a.jsonl", "b.jsonl"]
    back = cli("dataset", "convert", "traces", "--format", "treadle")
    assert [line["lineage"]["run_id"] for line in back.lines] == ["a", "b"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["none.jsonl", "--format", "trl"], "there is no file 'none.jsonl'"),
        (["a.jsonl", "--format", "tlr"], "did you mean 'trl'?"),
        (["a.jsonl", "--format", "trl", "-o", "a.jsonl"], "--out 'a.jsonl' is the file to read"),
        (["a.jsonl", "--format", "trl", "--json"], "give --out for the rows"),
        (["text.jsonl", "--format", "trl"], "give --from"),
    ],
)
def test_misuse_is_explained(cli: Cli, words: list[str], says: str) -> None:
    save(cli.folder / "a.jsonl", "openai", example())
    (cli.folder / "text.jsonl").write_text('{"text": "a"}\n')
    done = cli("dataset", "convert", *words)
    assert done.code == 2, done
    assert says in done.err


def fork_twice(path: Path) -> list[str]:
    """Record a run and a fork of it, which parts after the first result, and return their ids."""

    async def record() -> list[str]:
        with open_journal(str(path)) as journal:
            answers: list[Answer] = [[call("list_files", {})], "good"]
            first = await Agent(ScriptedModel(answers), tools=["files"], journal=journal).run("go")
            events = journal.read(first.run_id)
            at = next(event.seq for event in events if isinstance(event.body, ToolCompleted))
            agent = Agent(ScriptedModel(["bad"]), tools=["files"], journal=journal)
            return [first.run_id, (await agent.fork(first.run_id, at=at)).run_id]

    return asyncio.run(record())


def test_forks_of_a_dataset_become_pairs(cli: Cli) -> None:
    (cli.folder / "d").mkdir()
    good, bad = fork_twice(cli.folder / "d" / "journal.db")
    without = cli("dataset", "pairs", "d/journal.db")
    assert (without.code, without.out) == (0, ""), without
    assert "2 runs left out: it has no reward" in without.err
    for name, run_id in (("rows", good), ("rejected", bad)):
        assert cli("export", run_id, "-f", "treadle", "-o", f"d/{name}.jsonl", "-j", "d/journal.db").code == 0
    done = cli("dataset", "pairs", "d", "-o", "pairs.jsonl")
    assert (done.code, done.err) == (0, "1 pair written to 'pairs.jsonl'\n"), done
    (pair,) = [json.loads(line) for line in (cli.folder / "pairs.jsonl").read_text().splitlines()]
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == ("good", "bad")


def test_a_misspelt_key_of_a_row_is_told(cli: Cli) -> None:
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    cli.write("a.jsonl", json.dumps({"mesages": said}) + "\n")
    refused = cli("dataset", "convert", "a.jsonl", "--format", "trl", "-o", "-")
    assert refused.code == 2
    assert "its first row has the key 'mesages'; did you mean 'messages'?" in refused.err
    # Nothing is suggested that would not help.
    cli.write("c.jsonl", json.dumps({"question": "a", "answer": "b", "contents": []}) + "\n")
    assert (
        "in no known format; give --from"
        in cli("dataset", "convert", "c.jsonl", "--format", "trl", "-o", "-").err
    )
    cli.write("b.jsonl", json.dumps({"messages": said, "tool": [{"name": "f"}]}) + "\n")
    done = cli("dataset", "convert", "b.jsonl", "--format", "trl", "-o", "-")
    assert "1 row lost the key 'tool' (did you mean 'tools'?), which is not read from openai" in done.err
