"""`treadle demo` in a short form."""

import json
import os
import shlex
import shutil
import signal
from pathlib import Path

from tests.cli.command import Cli
from tests.cli.scripted import Script, call_once


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


def test_runs_are_killed_resumed_replayed_exported_and_verified(cli: Cli) -> None:
    result = cli("demo", "--tasks", "12", "--kill-after", "4", "--parallel-runs", "6")
    assert result.code == 0, result
    assert "kill -9" in result.out
    assert "interrupted" in result.out
    assert "12 completed" in result.out
    assert "12 of 12 exact" in result.out
    assert "no stored answers were paid for twice" in result.out
    assert "\x1b" not in result.out
    assert "✗" not in result.out
    runs = cli("runs", "--journal", "demo/demo.db", "--json", "--limit", "0").lines
    assert [run["stop_reason"] for run in runs] == ["completed"] * 12
    assert all(run["reward"] == 1.0 for run in runs)
    rows = [json.loads(line) for line in (cli.folder / "demo/rows.jsonl").read_text().splitlines()]
    # This format cannot express a call whose arguments are not JSON.
    left_out = 12 - len(rows)
    assert left_out < 6
    assert ("left out" in result.out) is bool(left_out)
    printed = [line.strip() for line in result.out.splitlines() if line.startswith("  treadle ")]
    ours = [shlex.split(line)[1:] for line in printed if "demo.db" in line or "oracle" in line]
    assert [words[0] for words in ours] == ["runs", "show", "replay", "run"]
    codes = [done.code for done in cli.run_all(ours)]
    assert codes == [0, 0, 1, 0], "a limit of 4 steps changes some run"
    shutil.rmtree(cli.folder / ".treadle")
    kinds = [
        event["type"]
        for run in runs
        for event in cli("show", run["run_id"], "--json", "-j", "demo/demo.db").lines
    ]
    assert "run_resumed" in kinds
    assert "run_paused" not in kinds
    assert _processes_of(cli.folder) == []
    assert {path.name for path in cli.folder.iterdir()} - {"state"} == {"demo"}


def test_own_model_and_tools(cli: Cli, script: Script) -> None:
    cli.write("mine.py", 'def shout(text: str) -> str:\n    """Shout."""\n    return text.upper()\n')
    cli.write("prompts.txt", "one\n\ntwo\nthree\n")
    server = script(call_once("shout", text="hey"))
    own = ["--model", "m", "--base-url", server.url, "--tools", "mine.py"]
    result = cli("demo", *own, "--prompts", "prompts.txt", "--kill-after", "0")
    assert result.code == 0, result
    assert "3 completed" in result.out
    assert "3 of 3 exact" in result.out
    assert [tool["function"]["name"] for tool in server.requests[0]["tools"]] == ["shout"]
    assert "--tools needs --prompts" in cli("demo", *own).err
    assert cli("demo", "--prompts", "prompts.txt").code == 2


def test_interrupt_leaves_no_process(cli: Cli) -> None:
    process = cli.start("demo", "--tasks", "300", "--parallel-runs", "2")
    assert process.stdout is not None
    for line in process.stdout:
        if "worker" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert _processes_of(cli.folder) == []


def test_killed_demo_takes_its_processes_along(cli: Cli) -> None:
    process = cli.start("demo", "--tasks", "300", "--parallel-runs", "2")
    assert process.stdout is not None
    for line in process.stdout:
        if "worker" in line:
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


def test_worker_that_fails_says_why(cli: Cli) -> None:
    own = ["--model", "nobody:m", "--tasks", "2"]
    result = cli("demo", *own)
    assert result.code == 1, result
    assert "unknown provider 'nobody'" in result.err
    assert "Traceback" not in result.err


def test_folder_that_cannot_be_written(cli: Cli) -> None:
    cli.write("taken", "")
    result = cli("demo", "--out", "taken")
    assert result.code == 2, result
    assert "cannot write to --out 'taken'" in result.err
