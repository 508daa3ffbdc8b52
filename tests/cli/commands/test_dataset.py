"""The commands `treadle dataset`, on datasets that `treadle generate` made and on small ones."""

import asyncio
import json
from pathlib import Path
from shutil import copytree

import pytest
from msgspec.structs import replace
from tests.cli.command import Cli
from tests.datagen.dataset import made

from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.entries import read_entries
from treadle.datagen.generation import generate
from treadle.datagen.quality.protocol import FilterVerdict
from treadle.viewer.bundle import is_built

BASE = {"models": {"default": "mock:teacher"}, "seed": 5}
AGENTS = {
    **BASE,
    "name": "agents",
    "topics": {"prompt": "Work with files", "degree": 3, "depth": 2},
    "generation": {"num_samples": 14, "conversation": {"max_turns": 2}},
    "tools": {"use": ["files"], "files": "tasks:files"},
    "output": {"splits": {"train": 0.7, "test": 0.3}},
}


def generated(path: Path, raw: dict[str, object]) -> Path:
    asyncio.run(generate(GenerationConfig.model_validate(raw), DatasetFolder(path)))
    return path


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated(tmp_path_factory.mktemp("generated") / "agents", AGENTS)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    made.plain_folder(tmp_path / "d", 20)
    return Cli(tmp_path)


def test_a_generated_dataset_is_confirmed(agents: Path, cli: Cli) -> None:
    """All rows that say that they are verified are confirmed."""
    claimed = sum(
        entry.row.lineage.sample is not None and entry.row.lineage.sample.is_verified
        for entry in read_entries(agents)
    )
    assert claimed > 5
    done = cli("dataset", "verify", str(agents))
    assert done.code == 0, done
    assert done.out.startswith(f"14 rows: {claimed} of {claimed} that claim to be verified are confirmed")


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": {"num_samples": 4, "conversation": {"type": "basic", "max_turns": 2}}, "tools": {}},
        {
            "generation": {"num_samples": 4, "conversation": {"type": "cot", "reasoning": "freetext"}},
            "tools": {},
        },
        {"output": {"include_system_message": False}, "generation": {"num_samples": 4}},
        {"output": {"system_message": "You are kind."}, "generation": {"num_samples": 4}},
    ],
    ids=["basic", "cot", "no system message", "another system message"],
)
def test_every_form_of_conversation_is_confirmed(
    tmp_path: Path, cli: Cli, changes: dict[str, object]
) -> None:
    path = generated(tmp_path / "g", {**AGENTS, **changes})
    found = cli("dataset", "verify", str(path), "--json")
    assert found.code == 0, found
    assert len(found.lines) == 4
    # The rows are compared with their runs, whatever they are shown with.
    rows = DatasetFolder(path).rows.read_text("utf-8").replace('"content":"', '"content":"Not ', 1)
    DatasetFolder(path).rows.write_text(rows, "utf-8")
    assert cli("dataset", "verify", str(path)).code == 1


@pytest.mark.xdist_group("training")
@pytest.mark.parametrize("parquet", [False, True])
def test_datasets_finds_the_splits_through_the_card(tmp_path: Path, parquet: bool) -> None:
    """The folder, as it is uploaded, is loaded by configuration and split, without a loss of arguments."""
    datasets = pytest.importorskip("datasets")
    output = {"splits": {"train": 0.7, "test": 0.3}, "formats": ["treadle", "openai"], "parquet": parquet}
    path = generated(tmp_path / "g", {**AGENTS, "output": output})
    if parquet:
        loaded = datasets.load_dataset(str(path), "openai", cache_dir=str(tmp_path / "cache"))
        assert {name: len(rows) for name, rows in loaded.items()} == {
            name: len((path / f"{name}.openai.jsonl").read_bytes().splitlines()) for name in ("train", "test")
        }
        row = loaded["train"][0]
        assert (
            row["messages"]
            == json.loads((path / "train.openai.jsonl").read_bytes().splitlines()[0])["messages"]
        )
    configs = datasets.get_dataset_config_names(str(path))
    assert set(configs) == {"treadle", "openai"}
    assert set(datasets.get_dataset_split_names(str(path), "openai")) == {"train", "test"}


def test_verify_names_the_row_and_what_differs(agents: Path, cli: Cli) -> None:
    path = cli.folder / "damaged"
    copytree(agents, path)
    lines = DatasetFolder(path).rows.read_bytes().splitlines(keepends=True)
    number = next(index for index, line in enumerate(lines) if b'"role":"tool","content":"' in line)
    row_id = json.loads(lines[number])["lineage"]["sample"]["sample_id"]
    lines[number] = lines[number].replace(
        b'"role":"tool","content":"', b'"role":"tool","content":"made up ', 1
    )
    DatasetFolder(path).rows.write_bytes(b"".join([*lines[:number], lines[number], *lines[number + 2 :]]))
    done = cli("dataset", "verify", str(path))
    assert done.code == 1
    assert f"row {row_id} (run {row_id}-1): 1 problem" in done.err
    assert "is not that of its run" in done.out
    assert "the rows lack s0000" in done.err


def test_show_has_messages_calls_results_and_verdicts(cli: Cli) -> None:
    shown = cli("dataset", "show", "d", "2")
    assert shown.code == 0, shown
    for text in (
        "row s000002",
        "› What is in file 2?",
        '● read_file(path="a.txt")',
        "  tea, 3 EUR",
        "✓ transcript",
    ):
        assert text in shown.out
    rejected = cli("dataset", "show", "d", "s000021", "--rejected")
    assert "✗ grounding: the answer names 4 EUR, which no result has" in rejected.out
    assert cli("dataset", "show", "d", "last").out == cli("dataset", "show", "d", "20").out
    (raw,) = cli("dataset", "show", "d", "s000003-1", "--json").lines
    assert raw["lineage"]["run_id"] == "s000003-1"
    for which, said in (
        ("21", "there are 20 rows"),
        ("s00003", "did you mean"),
        ("0", "there are 20 rows"),
    ):
        missing = cli("dataset", "show", "d", which)
        assert (missing.code, said in missing.err) == (2, True), missing
    cli.write("none/rows.jsonl", "")
    missing = cli("dataset", "show", "none")
    assert (missing.code, missing.err) == (2, "error: 'none' has no rows\n")


def test_show_marks_what_is_not_trained_on(cli: Cli, tmp_path: Path) -> None:
    row = replace(made.plain_row(1), untrained=(0,))
    shown = cli("dataset", "show", str(made.write_rows(tmp_path / "rows.jsonl", [row])), "1").out
    assert shown.index("(these calls are not trained on)") < shown.index("● read_file")
    assert "this answer is not trained on" not in shown


def test_stats_count_what_is_there(cli: Cli) -> None:
    (found,) = cli("dataset", "stats", "d", "--json").lines
    assert (found["rows"], found["topics"], found["rejected"]) == (20, 4, 2)
    assert found["tools"] == {"read_file": 20}
    assert found["rejections"] == {"grounding": 2}
    assert found["kinds_planned"]["parallel"] == 7
    assert (found["verified"], found["verified_share"]) == (20, 1.0)
    assert found["calls"] == {"total": 20, "mean": 1.0, "least": 1, "median": 1, "p95": 1, "most": 1}
    shown = cli("dataset", "stats", "d").out
    assert "20 rows · 4 topics · 2,400 tokens · $0" in shown
    assert "verified: 20 of 20 rows with calls" in shown


def test_files_of_other_formats_are_read(cli: Cli) -> None:
    assert cli("dataset", "split", "d", "--splits", "all=1", "--format", "trl").code == 0
    (found,) = cli("dataset", "stats", "d/all.trl.jsonl", "--json").lines
    assert (found["rows"], found["topics"], found["tools"]) == (20, 4, {"read_file": 20})
    assert "What is in file 7?" in cli("dataset", "show", "d/all.trl.jsonl", "7").out


def test_split_says_what_it_achieved(cli: Cli) -> None:
    done = cli("dataset", "split", "d", "--splits", "train=0.9,test=0.1")
    assert done.code == 0, done
    assert "wanted" in done.out
    assert "the largest group of topics has 5 rows" in done.err
    (found,) = cli("dataset", "split", "d", "--splits", "a=0.5,b=0.5", "--out", "halves", "--json").lines
    assert [(item["name"], item["rows"], item["topics"]) for item in found["splits"]] == [
        ("a", 10, 2),
        ("b", 10, 2),
    ]
    wrong = cli("dataset", "split", "d", "--splits", "train")
    assert (wrong.code, "'train' is not NAME=SHARE" in wrong.err) == (2, True), wrong
    wrong = cli("dataset", "split", "d/rows.jsonl")
    assert (wrong.code, "--out" in wrong.err) == (2, True), wrong


def test_merge_counts_what_it_leaves_out(cli: Cli) -> None:
    done = cli("dataset", "merge", "d", "d/rows.jsonl", "--out", "m")
    assert done.code == 0, done
    assert "rows.jsonl: 0 of 20 rows, 20 left out as the same sample" in done.out
    assert cli("dataset", "stats", "m", "--json").lines[0]["rows"] == 20
    refused = cli("dataset", "verify", "m")
    assert (refused.code, "the journals stayed with its sources" in refused.err) == (2, True), refused


@pytest.mark.skipif(not is_built(), reason="the viewer is not built")
def test_report_is_written(cli: Cli) -> None:
    done = cli("dataset", "report", "d")
    assert (done.code, done.out) == (0, "d/report.html\n"), done
    assert cli("dataset", "report", "d/rows.jsonl", "--out", "r.html").code == 0
    assert (cli.folder / "r.html").stat().st_size > 10_000


def test_a_damaged_line_is_named(cli: Cli) -> None:
    with (cli.folder / "d" / "rows.jsonl").open("a") as file:
        file.write('{"format":"treadle/1","messages":[]}\n')
    for command in ("stats", "split", *(["report"] if is_built() else [])):
        done = cli("dataset", command, "d")
        assert (done.code, "line 21 of 'd/rows.jsonl'" in done.err) == (1, True), done
    absent = cli("dataset", "stats", "absent")
    assert (absent.code, "there is no file 'absent'" in absent.err) == (2, True), absent


def test_a_cost_that_is_not_known_is_not_zero(cli: Cli) -> None:
    """Rules out `$0` for rejected samples beside rows of unknown cost."""
    folder = DatasetFolder(cli.folder / "d")
    made.write_rows(folder.rows, [made.plain_row(1, cost_usd=None)])
    folder.rejected.write_bytes(
        made.encode(made.plain_row(2, cost_usd=None), FilterVerdict("grounding", False, "no"))
    )
    shown = cli("dataset", "stats", "d").out
    assert "120 tokens · cost unknown\n" in shown
    assert "spent on rejected samples: 120 tokens, cost unknown\n" in shown
    made.write_rows(folder.rows, [made.plain_row(1, cost_usd=None), made.plain_row(3, cost_usd=0.25)])
    assert "$0.2500 (without 1 row of unknown cost)\n" in cli("dataset", "stats", "d").out


def test_a_file_with_a_fault_is_named_among_several(cli: Cli) -> None:
    line = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
    (cli.folder / "more.jsonl").write_text(f"{line}\nnot JSON\n")
    merged = cli("dataset", "merge", "d", "more.jsonl", "--out", "m")
    assert merged.code == 1, merged
    assert "'more.jsonl': line 2 is not JSON" in merged.err


def test_a_split_that_occurs_twice_is_a_mistake(cli: Cli) -> None:
    found = cli("dataset", "split", "d", "--splits", "train=0.9,train=0.1")
    assert found.code == 2, found
    assert "'train' occurs twice" in found.err
    for share in ("nan", "inf"):
        found = cli("dataset", "split", "d", "--splits", f"train={share},test=1")
        assert found.code == 2, found
        assert f"'train': {share}" in found.err


def test_conversations_without_tools_have_no_kind_in_the_progress(cli: Cli) -> None:
    (cli.folder / "c.yaml").write_text(
        "models: {default: mock:teacher}\ntopics: {prompt: Tea, degree: 2, depth: 1}\n"
        "generation: {num_samples: 2, conversation: {type: basic}}\n"
    )
    found = cli("generate", "c.yaml", "--out", "basic")
    assert found.code == 0, found
    (told,) = [line for line in (found.out + found.err).splitlines() if "2 of 2 rows" in line]
    assert told.endswith(" s")


def test_pairs_say_why_there_are_none_and_take_rollouts(cli: Cli) -> None:
    made = (
        "rollout",
        "--task",
        "files:csv_sum-0001",
        "-n",
        "1",
        "--group-size",
        "2",
        "--model",
        "oracle",
        "-q",
    )
    assert cli(*made, "--out", "r").code == 0
    for out in ((), ("--out", "pairs.jsonl")):
        found = cli("dataset", "pairs", "r", *out)
        assert found.code == 0, found
        assert "no two runs were forked from each other" in found.err
    report = cli("report", "r", "d", "--out", "both.html")
    assert report.code == 2, report
    assert "give one or two journals, datasets" in report.err
    assert cli("report", "d", "d", "d").code == 2
    (cli.folder / "c.yaml").write_text("a: b")
    assert "not 'c.yaml'" in cli("report", "c.yaml", "-j", "r/runs.db").err


def test_the_folder_of_another_kind_of_job_is_known(cli: Cli) -> None:
    rollout = (
        "rollout",
        "--task",
        "files:csv_sum-0001",
        "-n",
        "1",
        "--group-size",
        "1",
        "--model",
        "oracle",
        "-q",
    )
    assert cli(*rollout, "--out", "r").code == 0
    (cli.folder / "c.yaml").write_text(
        "models: {default: mock:teacher}\ntopics: {prompt: a}\ntools: {use: [files]}\n"
    )
    found = cli("generate", "c.yaml", "--out", "r")
    assert found.code == 2, found
    assert "the folder has 'runs.db', perhaps the journal of another kind of job" in found.err
    # A file of the other kind would hide what the folder holds.
    assert not (cli.folder / "r" / "rows.jsonl").exists()
    assert cli("report", "r", "--out", "r.html").code == 0
