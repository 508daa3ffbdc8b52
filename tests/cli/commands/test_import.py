"""`treadle import`: an import that is interrupted leaves no half of a run, and goes on when it is started again."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Cli
from tests.conftest import IS_FULL

from treadle import open_journal

Json = Any
RUNS = 600
STARTED = {"type": "run_started", "at": 1.0, "version": "2.0", "agent": {"model": {"name": "openai:m"}}}
TURN = {"type": "turn_started", "at": 1.0, "turn": 1, "message": {"role": "user", "content": "hi"}}
OVER = {"type": "run_finished", "at": 2.0, "stop_reason": "completed"}


def write_runs(cli: Cli, *more: str) -> bytes:
    """Write an exported journal of many runs, with lines `more` at its end, and return its content."""
    lines = [
        json.dumps({"run_id": f"r{number:04}", "seq": seq, **body}, separators=(",", ":"))
        for number in range(RUNS)
        for seq, body in enumerate((STARTED, TURN, OVER), 1)
    ]
    return cli.write("runs.jsonl", "".join(line + "\n" for line in [*lines, *more])).read_bytes()


def exported(cli: Cli, journal: str) -> bytes:
    """Return all runs of a journal as lines, without their checksums."""
    lines = cli("export", "--all", "--format", "journal", "--journal", journal).out.encode().splitlines()
    return b"".join(re.sub(rb',"export":\{[^}]*\}', b"", line) + b"\n" for line in lines)


@pytest.mark.full
def test_a_killed_import_goes_on(cli: Cli) -> None:
    content = write_runs(cli)
    seen = set()
    for number, wanted in enumerate(range(0, RUNS, 10 if IS_FULL else 100)):
        path = cli.folder / f"{number}.db"
        importing = cli.start("import", "runs.jsonl", "--journal", path.name)
        while importing.poll() is None:
            if path.exists() and path.stat().st_size:
                with open_journal(path) as journal:
                    if len(journal.runs()) >= wanted:
                        break
            time.sleep(0.001)
        importing.send_signal(signal.SIGKILL)
        importing.communicate()
        with open_journal(path) as journal:
            kept = journal.runs()
        assert all(info.events == 3 for info in kept)
        seen.add(len(kept))
        again = cli("import", "runs.jsonl", "--journal", path.name)
        assert (again.code, len(again.out.split())) == (0, RUNS), again
        assert f"{len(kept)} run" in again.err or not kept
        assert exported(cli, path.name) == content
    assert any(0 < count < RUNS for count in seen), seen


def test_an_import_onto_a_full_disk_goes_on(cli: Cli) -> None:
    content = write_runs(cli)
    command = f"ulimit -f 400; exec {Path(sys.executable).with_name('treadle')} import runs.jsonl"
    full = subprocess.run(
        ["bash", "-c", command], cwd=cli.folder, env=cli.env, capture_output=True, text=True
    )
    assert full.returncode == 1, full
    assert full.stderr.startswith("error: "), full
    assert "the same command again" in full.stderr, full
    assert "Traceback" not in full.stderr
    kept = len(cli("runs", "--limit", "0", "--json").lines)
    assert 0 < kept < RUNS
    assert cli("import", "runs.jsonl").code == 0
    assert exported(cli, ".treadle/runs.db") == content


def test_an_empty_file_is_a_mistake(cli: Cli) -> None:
    """Rules out that a file that was never written is imported in silence."""
    cli.write("runs.jsonl", "")
    done = cli("import", "runs.jsonl")
    assert (done.code, "'runs.jsonl' is empty" in done.err) == (2, True), done


def test_a_bad_last_line_leaves_nothing(cli: Cli) -> None:
    write_runs(cli, '{"run_id": "r0000", "seq": 4, "type": "run_fin')
    refused = cli("import", "runs.jsonl")
    assert refused.code == 1
    assert f"line {3 * RUNS + 1}: not a line of a Treadle journal" in refused.err
    assert cli("runs").out == ""


def test_hostile_ids_do_not_control_the_terminal(cli: Cli) -> None:
    name = "a\x1b]0;pwned\x07\x9b2J\u202eb\u2066[bold]../../x"
    call = {"call_id": name, "name": name, "arguments": json.dumps({name: name}, ensure_ascii=False)}
    said = {"role": "assistant", "content": name, "reasoning": name, "tool_calls": [call]}
    completion = {"message": said, "finish_reason": "tool_calls"}
    spec = {"name": name, "parameters": {"type": "object"}, "description": name, "effect": "once"}
    part = {"kind": "image", "mime_type": "image/png", "name": name, "uri": name}
    result = {"call_id": name, "name": name, "content": name, "is_error": True, "artifacts": [part]}
    agent = {"model": {"name": "openai:" + name}, "tools": [{"name": "mcp:" + name}], "files": name}
    task = {"task_set": name, "task_id": name}
    bodies: list[Json] = [
        {**STARTED, "agent": agent, "tools": [spec], "task": task, "parent": {"run_id": name, "seq": 1}},
        {**TURN, "message": {"role": "user", "content": name}},
        {"type": "inference_failed", "step": 1, "error": name, "error_type": name, "fault": "infrastructure"},
        {"type": "inference_completed", "step": 1, "completion": completion},
        {"type": "approval_requested", "call_id": name},
        {"type": "approval_decided", "call_id": name, "is_approved": True, "reason": name, "arguments": "{}"},
        {"type": "tool_started", "step": 1, "call_id": name, "name": name, "effect": "once", "attempt": 2},
        {"type": "tool_completed", "step": 1, "result": result},
        {"type": "question_asked", "question_id": name, "text": name},
        {"type": "question_answered", "question_id": name, "text": name},
        {"type": "run_paused", "reason": name},
        {"type": "turn_completed", "turn": 1, "stop_reason": "error", "error": name, "output": name},
        {"type": "rewarded", "reward": 1.0, "name": name, "detail": name},
        {**OVER, "stop_reason": "error", "error": name},
    ]
    lines = [
        json.dumps({"run_id": name, "seq": seq, "at": 1.0, **body}) + "\n"
        for seq, body in enumerate(bodies, 1)
    ]
    cli.write("bad.jsonl", "".join(lines))
    commands = (
        ("import", "bad.jsonl"),
        ("import", "bad.jsonl"),
        ("runs",),
        ("show", "last"),
        ("show", "last", "--events"),
        ("replay", "last"),
        ("verify", "last"),
        ("approve", "last"),
        ("resume", "last"),
        ("fork", "last", "--text", "more"),
        ("chat", "--session", "last"),
        ("export", "last", "-f", "openai", "-o", "rows.jsonl"),
    )
    for command in commands:
        result = cli(*command)
        said = result.out + result.err
        assert not set("\x1b\x07\x9b\u202e\u2066") & set(said), (command, result)
        assert "Traceback" not in said
    assert sorted(set(os.listdir(cli.folder)) - {"state"}) == [".treadle", "bad.jsonl", "rows.jsonl"]
    assert not (cli.folder.parent / "x").exists()
