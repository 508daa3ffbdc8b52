"""`treadle demo` in a short form: a dataset that is killed, continued and verified, and the processes of it."""

import json
import os
import re
import shlex
import signal
from pathlib import Path

import pytest
from tests.cli.command import Cli
from tests.viewer.pages import IS_BUILT, read_answers


def _processes_of(folder: Path) -> list[str]:
    """Return the processes whose working directory is `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").resolve() == folder.resolve():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def _are_objects(arguments: list[str]) -> bool:
    """Return whether OpenAI accepts the arguments of all calls of a row."""
    try:
        return all(isinstance(json.loads(text or "{}"), dict) for text in arguments)
    except ValueError:
        return False


def test_a_dataset_is_killed_continued_and_verified(cli: Cli) -> None:
    result = cli("demo", "--rows", "12", "--kill-after", "4", "--window", "6")
    assert result.code == 0, result
    assert "kill -9" in result.out
    assert result.out.count("$ treadle generate demo/dataset.yaml") == 2
    assert "12 of 12" in result.out
    assert "from before the kill: none lost, none of all 12 there twice" in result.out
    assert "answers of a model that were paid for twice: none" in result.out
    assert "\x1b" not in result.out
    assert "✗" not in result.out
    folder = cli.folder / "demo/dataset"
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    infos = [row["lineage"]["sample"] for row in rows]
    assert len({info["sample_id"] for info in infos}) == 12
    assert all(info["is_from_teacher"] for info in infos)
    exported = [*folder.glob("train.openai.jsonl"), *folder.glob("test.openai.jsonl")]
    calls = [
        [call["arguments"] for said in row["messages"] for call in said.get("tool_calls", ())] for row in rows
    ]
    lines = [json.loads(line) for path in exported for line in path.read_text().splitlines()]
    left_out = [int(number) for number in re.findall(r"\.openai\.jsonl lacks (\d+) row", result.out)]
    assert len(lines) == 12 - sum(left_out), "each row is written, or counted as left out"
    assert len(lines) >= sum(map(_are_objects, calls))
    written = [call for line in lines for said in line["messages"] for call in said.get("tool_calls", ())]
    assert _are_objects([call["function"]["arguments"] for call in written])
    page = folder / "report.html"
    if IS_BUILT:
        assert len(read_answers(page.read_text())["/v1/view/datasets/0"]["rows"]["heads"]) >= 12
    assert page.exists() is IS_BUILT
    assert _processes_of(cli.folder) == []
    assert {path.name for path in cli.folder.iterdir()} - {"state"} == {"demo"}


@pytest.mark.full
def test_the_commands_to_try_next_work(cli: Cli) -> None:
    result = cli("demo", "--rows", "4", "--kill-after", "0")
    assert result.code == 0, result
    assert "kill -9" not in result.out
    printed = [
        shlex.split(line.strip())[1:] for line in result.out.splitlines() if line.startswith("  treadle ")
    ]
    ours = [words for words in printed if "openai:gpt-5-mini" not in words]
    assert [words[0] for words in ours] == ["dataset", "dataset", "generate", "run"]
    assert [done.code for done in cli.run_all(ours)] == [0, 0, 0, 0]
    assert len((cli.folder / "demo/more/rows.jsonl").read_text().splitlines()) == 20
    again = cli("demo", "--rows", "2", "--kill-after", "0")
    assert "2 of 2" in again.out, again


def test_interrupt_leaves_no_process(cli: Cli) -> None:
    process = cli.start("demo", "--rows", "300", "--window", "2")
    assert process.stdout is not None
    for line in process.stdout:
        if "$ treadle generate" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert _processes_of(cli.folder) == []


def test_killed_demo_takes_its_processes_along(cli: Cli) -> None:
    process = cli.start("demo", "--rows", "300", "--window", "2")
    assert process.stdout is not None
    for line in process.stdout:
        if "leaf topics" in line:
            break
    children = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _is_child(entry, process.pid)
    ]
    assert len(children) == 2
    process.kill()
    process.communicate()
    for pid in children:
        while _is_alive(pid):
            os.sched_yield()


def _is_child(entry: Path, parent: int) -> bool:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent
    except OSError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.sets(0)
def test_worker_that_fails_says_why(cli: Cli) -> None:
    cli.write("treadle.toml", "[models.broken]\n")
    result = cli("demo", "--rows", "2")
    assert result.code == 1, result
    assert "process" in result.err
    assert "treadle.toml" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("taken", ["taken", "taken/dataset/mine.txt", "taken/dataset.yaml"])
def test_folder_that_cannot_be_used(cli: Cli, taken: str) -> None:
    cli.write(taken, "mine")
    result = cli("demo", "--out", "taken")
    assert result.code == 2, result
    assert "--out 'taken'" in result.err
    assert (cli.folder / taken).read_text() == "mine"
