"""The commands on a journal: runs, show, resume, fork, replay, verify, export, import, tasks."""

import asyncio
import json
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.command import Cli
from tests.cli.scripted import Script, call_once, say
from tests.forks.process import FORKS

from treadle import Agent, ScriptedModel, open_journal

SHOUT = '''
from treadle import tool

@tool(effect="pure")
def shout(text: str) -> str:
    """Shout."""
    return text.upper()
'''
NAP = '''
import time
from treadle import tool

@tool(effect="pure")
def nap() -> None:
    """Sleep."""
    time.sleep(60)
'''
DIES = """
import os
from treadle import Agent, ScriptedModel
for name in ("mine", "sample"):
    labels = {} if name == "mine" else {"evaluation": "e"}
    if not os.fork():
        agent = Agent(ScriptedModel(lambda request: os._exit(9)), journal="done/runs.db")
        agent.run_sync("hi", run_id=name, metadata=labels)
    os.wait()
"""
TASK = "files:csv_sum-0001"
OTHER = "files:config_fix-0002"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_runs_of_a_job_are_continued_by_the_command_that_began_it(cli: Cli) -> None:
    (cli.folder / "done").mkdir()
    assert FORKS.run("-c", DIES, cwd=cli.folder).returncode == 0
    told = cli("runs", "--journal", "done/runs.db").err
    assert "◐ 1 unfinished; continue with: treadle resume --all --journal done/runs.db" in told
    began = "continue with the command that began it, with --out"
    of_job = f"◐ 1 unfinished of an evaluation (treadle eval); {began} {cli.folder}/done\n"
    assert of_job in told
    resumed = cli("resume", "--all", "--journal", "done/runs.db", "--model", "mock:echo", "--json")
    assert [line["run_id"] for line in resumed.lines] == ["mine"]
    assert resumed.err == of_job
    assert cli("resume", "--all", "--journal", "done/runs.db").err == of_job
    assert cli("resume", "sample", "--journal", "done/runs.db", "--model", "mock:echo", "-q").code == 0


def test_a_run_whose_process_died_is_whole(cli: Cli) -> None:
    (cli.folder / "done").mkdir()
    assert FORKS.run("-c", DIES, cwd=cli.folder).returncode == 0
    checked = cli("check", "--journal", "done/runs.db")
    assert (checked.code, "2 runs whole" in checked.out + checked.err) == (0, True), checked


@pytest.fixture(scope="module")
def journal_of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the journal of the finished runs `first` and `second`. The second contains mistakes."""
    cli = Cli(tmp_path_factory.mktemp("two"))
    assert cli("run", "--task", TASK, "-m", "oracle", "-q", "--run-id", "first").code == 0
    assert cli("run", "--task", OTHER, "-m", "oracle:0.5", "-q", "--run-id", "second").code == 0
    return cli.folder / ".treadle"


@pytest.fixture
def two_runs(cli: Cli, journal_of_two: Path) -> Cli:
    """The command, in a folder with a copy of that journal."""
    shutil.copytree(journal_of_two, cli.folder / ".treadle")
    return cli


def test_runs_lists_the_newest_first(two_runs: Cli) -> None:
    lines = two_runs("runs", "--json").lines
    assert [(line["run_id"], line["status"], line["stop_reason"]) for line in lines] == [
        ("second", "finished", "completed"),
        ("first", "finished", "completed"),
    ]
    assert lines[1]["task"] == TASK
    assert lines[1]["reward"] == 1.0
    table = two_runs("runs").out
    assert table.index("second") < table.index("first")
    assert "● completed" in table
    assert TASK in table
    assert len(two_runs("runs", "--json", "--limit", "1").lines) == 1
    assert two_runs("runs", "--status", "unfinished", "--json").lines == []
    wrong = two_runs("runs", "--status", "lost")
    assert wrong.code == 2
    assert "there is no status 'lost'" in wrong.err


def test_show_tells_the_whole_run(two_runs: Cli) -> None:
    out = two_runs("show", "first").out
    for text in (
        "task " + TASK,
        "tools: read_file",
        "step 1",
        "● list_files()",
        "reward 1 (check)",
        "completed ·",
    ):
        assert text in out
    assert two_runs("show").out.startswith("run second")
    assert two_runs("show", "fir").out == out
    events = two_runs("show", "first", "--events").out.splitlines()
    numbers = [int(line.split()[0]) for line in events]
    assert numbers == list(range(1, len(events) + 1))
    assert events[0].split()[3] == "run_started"


def test_the_last_line_of_a_result_is_not_counted_twice(cli: Cli, script: Script) -> None:
    server = script(call_once("python", code="print(1)"))
    done = cli("run", "hi", "-m", "m", "--base-url", server.url, "-t", "python")
    assert "  1\n" in done.out, done
    assert "lines" not in done.out


def test_show_tells_what_is_under_way_and_what_was_left(cli: Cli, script: Script) -> None:
    cli.write("nap.py", NAP)
    server = script(call_once("nap"))
    process = cli.start("run", "rest", "-m", "m", "--base-url", server.url, "-t", "nap.py", "--run-id", "r")
    wait_until(lambda: "○ nap()  no result yet\n\nrunning · " in cli("show", "r").out)
    process.kill()
    process.communicate()
    assert "○ nap()  no result yet\n\nunfinished · " in cli("show", "r").out


def test_run_that_is_not_there(two_runs: Cli) -> None:
    commands = ["show", "resume", "fork", "replay", "verify", "export"]
    for result in two_runs.run_all((command, "third") for command in commands):
        assert result.code == 2, result
        assert "there is no run 'third' in this journal; the newest is 'second'" in result.err
        assert result.out == ""


def test_journal_that_is_not_there(cli: Cli) -> None:
    commands = ["show", "resume", "fork", "replay", "verify", "export"]
    for result in cli.run_all([("runs",), *((command, "last") for command in commands)]):
        assert result.code == 1, result
        assert "there is no journal at '.treadle/runs.db'" in result.err
    assert list(cli.folder.iterdir()) == []


def test_runs_or_all(two_runs: Cli) -> None:
    commands = ["resume", "replay", "verify", "export"]
    for result in two_runs.run_all((command,) for command in commands):
        assert result.code == 2, result
        assert "--all" in result.err
    for result in two_runs.run_all((command, "first", "--all") for command in commands):
        assert result.code == 2, result
        assert "not both" in result.err


def test_resume_of_a_run_that_is_over(two_runs: Cli) -> None:
    result = two_runs("resume", "first")
    assert result.code == 0
    assert (
        "run first is finished (completed); continue it in a new run with: treadle fork first --text TEXT"
        in result.err
    )


def test_resume_after_an_error_uses_what_the_run_was_started_with(cli: Cli, script: Script) -> None:
    is_broken = threading.Event()
    is_broken.set()
    server = script(lambda body: 401 if is_broken.is_set() else call_once("list_files")(body))
    cli.write("data/a.txt", "one")
    base = ["run", "go", "-m", "m", "--base-url", server.url, "--mount", "data", "--temperature", "0.5"]
    assert cli(*base, "--run-id", "mine").code == 1
    assert cli("resume", "--all").err == "no run is unfinished\n"
    is_broken.clear()
    result = cli("resume", "--all", "--failed", "--json")
    assert result.code == 0, result
    assert result.lines[0]["output"] == 'done: ["a.txt"]'
    assert server.requests[-1]["temperature"] == 0.5


def test_resume_of_what_needs_no_driving_asks_for_no_part_of_the_agent(cli: Cli) -> None:
    with open_journal(cli.folder / "runs.db") as journal:
        agent = Agent(ScriptedModel(["one", "two"]), journal=journal)
        agent.run_sync("hi", run_id="over")

        async def talk() -> str:
            async with agent.session() as session:
                return (await session.send("hi")).run_id

        run_id = asyncio.run(talk())
        events = len(journal.read(run_id))
    over = cli("resume", "over", "-j", "runs.db", "-q")
    assert (over.code, over.out) == (0, "one\n"), over
    talk_again = cli("resume", run_id, "-j", "runs.db")
    assert talk_again.code == 0, talk_again
    assert f"continue it with: treadle chat --session {run_id} --journal runs.db" in talk_again.err
    with open_journal(cli.folder / "runs.db") as journal:
        assert len(journal.read(run_id)) == events


def test_fork_goes_another_way(cli: Cli, script: Script) -> None:
    server = script(lambda body: say(f"answer {len(body['messages'])} of {body['model']}"))
    base = ["-m", "one", "--base-url", server.url, "-q"]
    assert cli("run", "hi", *base, "--run-id", "mine").out == "answer 1 of one\n"
    forked = cli("fork", "mine", "--text", "and now?", "--json")
    assert forked.code == 0, forked
    assert forked.lines[-1]["output"] == "answer 3 of one"
    assert forked.lines[0]["parent"] == {"run_id": "mine", "seq": forked.lines[0]["parent"]["seq"]}
    # At its first event the turn is open, so the fork's model answers it.
    seq = next(line["seq"] for line in cli("show", "mine", "--json").lines if line["type"] == "turn_started")
    shown = cli("show", forked.lines[-1]["run_id"], "--events").out
    assert re.search(r"1 +\d+\.\d+ s  run_started +openai:one\n +2 +0\.000 s  turn_started", shown), shown
    assert re.search(r"run_resumed +openai:one\n", shown), shown
    other = cli("fork", "mine", "--at", str(seq), "-m", "two", "--base-url", server.url, "-q")
    assert other.out == "answer 1 of two\n", other
    for arguments, message in (
        (("--at", "999"), "--at 999: run 'mine' has the events 1 to "),
        (("--at", "0"), "'--at': '0' should be greater than or equal to 1"),
        (("--at", "2", "--text", "x"), "--text opens a new turn, and the turn is still open at event 2"),
        ((), "give --text TEXT for the next turn, or an earlier --at SEQ"),
    ):
        refused = cli("fork", "mine", *arguments)
        assert (refused.code, message in refused.err) == (2, True), refused


def test_a_dash_is_standard_output(two_runs: Cli) -> None:
    for form in ("openai", "journal"):
        written = two_runs("export", "first", "--format", form, "-o", "-")
        assert written.out == two_runs("export", "first", "--format", form).out, written
        assert written.lines
    two_runs("export", "first", "-f", "treadle", "-o", "rows.jsonl")
    assert two_runs("dataset", "convert", "rows.jsonl", "--format", "trl", "-o", "-").lines
    assert not (two_runs.folder / "-").exists()


def test_fork_keeps_the_tools_of_a_task(two_runs: Cli) -> None:
    seq = next(
        line["seq"]
        for line in two_runs("show", "first", "--json").lines
        if line["type"] == "inference_completed"
    )
    result = two_runs("fork", "first", "--at", str(seq), "--json")
    assert result.code == 0, result
    assert result.lines[-1]["reward"] == 1.0


def test_replay_is_exact_and_finds_a_change(two_runs: Cli) -> None:
    result = two_runs("replay", "--all")
    assert result.code == 0, result
    assert "2 of 2 runs exact" in result.out
    changed = two_runs("replay", "first", "--max-steps", "1", "--json")
    assert changed.code == 1
    divergence = changed.lines[0]["divergence"]
    event = two_runs("show", "first", "--json").lines[divergence["seq"] - 1]
    assert (event["type"], event["step"]) == ("inference_started", 2)
    assert divergence["actual"].startswith("message_injected(message=user: 'You have reached the limit")
    assert f"seq {divergence['seq']}" in two_runs("replay", "first", "--max-steps", "1").out


def test_journal_format_comes_back_as_it_went(two_runs: Cli) -> None:
    assert two_runs("export", "--all", "--format", "journal", "-o", "all.jsonl").code == 0
    exported = (two_runs.folder / "all.jsonl").read_bytes()
    assert {json.loads(line)["run_id"] for line in exported.splitlines()} == {"first", "second"}
    imported = two_runs("import", "all.jsonl", "-j", "new/other.db")
    assert imported.out.split() == ["first", "second"], imported
    again = two_runs("export", "--all", "--format", "journal", "-j", "new/other.db")
    assert again.out.encode() == exported
    shown = two_runs("show", "second", "-j", "new/other.db").out
    assert shown.replace("from elsewhere, and not trusted\n", "") == two_runs("show", "second").out
    assert "not trusted" in shown
    twice = two_runs("import", "all.jsonl")
    assert (twice.code, twice.out) == (0, imported.out)
    assert "2 runs of the file are in the journal already" in twice.err
    (two_runs.folder / "other.jsonl").write_bytes(
        re.sub(rb',"export":\{[^}]*\}', b"", exported).replace(b'"at":1', b'"at":2')
    )
    other = two_runs("import", "other.jsonl")
    assert other.code == 1
    assert "run 'first' is in this journal already, and its event 1 differs" in other.err
    assert two_runs("replay", "--all", "-j", "new/other.db").code == 0


def test_import_of_what_is_no_journal(cli: Cli) -> None:
    cli.write("rows.jsonl", '{"messages": []}\n')
    result = cli("import", "rows.jsonl")
    assert result.code == 1, result
    assert "rows.jsonl: line 1: not a line of a Treadle journal" in result.err
    missing = cli("import", "none.jsonl")
    assert missing.code == 2
    assert "cannot read 'none.jsonl'" in missing.err


def test_export_for_training(two_runs: Cli) -> None:
    for name in ("openai", "trl"):
        result = two_runs("export", "--all", "--format", name, "-o", f"{name}.jsonl")
        assert result.code == 0, result
        rows = [json.loads(line) for line in (two_runs.folder / f"{name}.jsonl").read_text().splitlines()]
        assert rows[0]["messages"][1]["role"] == "user"
        assert len(rows) + result.err.count(" left out: ") == 2
    wrong = two_runs("export", "--all", "--format", "parchment")
    assert wrong.code == 2
    assert "there is no format 'parchment'" in wrong.err
    assert not [path.name for path in two_runs.folder.iterdir() if path.name.endswith(".part")]


def test_verify_runs_the_calls_again(two_runs: Cli) -> None:
    result = two_runs("verify", "--all", "--json")
    assert result.code == 0, result
    assert all(line["matched"] + line["skipped"] == line["calls"] > 0 for line in result.lines)
    assert two_runs("export", "--all", "--format", "journal", "-o", "all.jsonl").code == 0
    text = (two_runs.folder / "all.jsonl").read_text()
    assert two_runs("verify", "all.jsonl").code == 0
    lines = [json.loads(line) for line in text.splitlines()]
    damaged = next(
        line for line in lines if line["type"] == "tool_completed" and not line["result"].get("is_error")
    )
    damaged["result"]["content"] = "made up"
    for line in lines:
        del line["export"]  # the checksums, which would tell too
    two_runs.write("damaged.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    found = two_runs("verify", "damaged.jsonl")
    assert found.code == 1, found
    assert "differs first" in found.out or "differs second" in found.out


def test_tasks_are_listed_and_shown(cli: Cli) -> None:
    assert "files  22,000 tasks" in cli("tasks").out
    result = cli("tasks", "files", "--limit", "3")
    assert result.out.split() == ["files:csv_sum-0000", "files:config_fix-0000", "files:log_slowest-0000"]
    assert "3 of 22,000 tasks" in result.err
    shown = cli("tasks", TASK).out
    assert "› I need one number from the CSV files in orders/" in shown
    assert "README.md  " in shown
    assert "turns: " not in shown
    assert "turns: up to 100; the first message is below" in cli("tasks", "shop:cancel-easy-0000").out
    found = cli("tasks", TASK, "--json").lines[0]
    assert (found["tools"], found["max_turns"]) == (["files"], 1)
    assert cli("tasks", "nope").code == 2


def test_runs_are_listed_by_status_model_and_task(cli: Cli, script: Script) -> None:
    is_broken = threading.Event()
    server = script(lambda body: 401 if is_broken.is_set() else say("hi"))
    base = ("-m", "m", "--base-url", server.url, "-q")
    for run_id in ("a1", "a2", "a22"):
        cli("run", "hi", *base, "--run-id", run_id)
    is_broken.set()
    cli("run", "hi", *base, "--run-id", "b")
    is_broken.clear()
    cli("run", "--task", TASK, "-m", "oracle", "-q", "--run-id", "c")
    cli("chat", "-m", "m", "--base-url", server.url, text="hi\n")
    session = cli("runs", "--json", "--limit", "1").lines[0]
    assert (session["status"], session["turns"], session["input"]) == ("open", 1, "hi")

    def ids(*options: str) -> list[str]:
        return [line["run_id"] for line in cli("runs", "--json", *options).lines]

    assert ids("--status", "open") == [session["run_id"]]
    assert ids("--status", "finished") == ["c", "b", "a22", "a2", "a1"]
    assert ids("--status", "error") == ["b"]
    assert ids("--status", "completed", "--limit", "2") == ["c", "a22"]
    assert ids("--status", "completed", "--limit", "2", "--after", "a22") == ["a2", "a1"]
    assert ids("--task", "files") == ids("--task", TASK) == ids("--model", "oracle") == ["c"]
    assert ids("--task", "files:other") == ids("--status", "unfinished") == ids("--status", "waiting") == []
    more = cli("runs", "--limit", "2")
    assert "list the next with: treadle runs --after c --limit 2" in more.err, more
    assert "more runs" not in cli("runs", "--limit", "6").err


def test_a_run_that_was_cancelled_waits_for_nothing(cli: Cli) -> None:
    asking = 'call ask_user {"question": "Which?"}'
    assert cli("run", asking, "-m", "mock:echo", "--tools", "ask", "--run-id", "r").code == 4
    assert "? waiting" in cli("runs").out
    assert cli("cancel", "r").code == 0
    assert "○ cancelled" in cli("runs").out
    assert cli("runs", "--json").lines[0]["stop_reason"] == "cancelled"


def test_a_run_is_found_by_the_beginning_of_its_id(cli: Cli) -> None:
    for run_id in ("a1", "a22", "a2"):
        cli("run", "--task", TASK, "-m", "oracle", "-q", "--run-id", run_id)
    assert cli("show", "a1", "--json").lines[0]["run_id"] == "a1"
    assert cli("show", "a2", "--json").lines[0]["run_id"] == "a2"
    assert cli("show", "last", "--json").lines[0]["run_id"] == "a2"
    several = cli("show", "a")
    assert (several.code, "begins with 'a' ('a1', 'a22', 'a2')" in several.err) == (2, True), several
    absent = cli("show", "b")
    assert (absent.code, "there is no run 'b' in this journal; the newest is 'a2'" in absent.err) == (2, True)


def test_slim_makes_a_journal_smaller(two_runs: Cli) -> None:
    done = two_runs("journal", "slim")
    assert done.code == 0
    assert "bytes before, " in done.err
    assert two_runs("check").code == 0


def test_backup_copies_a_journal_and_says_how_to_use_the_copy(two_runs: Cli) -> None:
    done = two_runs("backup", "copy.db")
    assert done.code == 0, done
    assert re.search(r"2 runs \([\d,]+ bytes\) written to 'copy.db'", done.err)
    assert "treadle runs --journal copy.db" in done.err
    listed = [two_runs("runs", "--json", "-j", path) for path in (".treadle/runs.db", "copy.db")]
    assert listed[0].out == listed[1].out
    again = two_runs("backup", "copy.db")
    assert again.code != 0
    assert "'copy.db' exists already, and a backup overwrites nothing" in again.err


def test_closed_sessions_are_exported_with_all_runs(cli: Cli) -> None:
    """They wait for their next turn and were left out, as if they were not finished."""

    async def make() -> None:
        with open_journal(cli.folder / "runs.db") as journal:
            agent = Agent(ScriptedModel(["One.", "Two.", "Three."]), journal=journal)
            await agent.run("a", run_id="run")
            async with agent.session("closed") as session:
                await session.send("b")
                await session.send("c")
            async with agent.session("empty"):
                pass

    asyncio.run(make())
    for form in ("openai", "trl"):
        done = cli("export", "--all", "-j", "runs.db", "--format", form)
        assert [line.count("One.") + line.count("Three.") for line in done.out.splitlines()] == [1, 1]
        assert (done.code, "1 run left out: not finished" in done.err) == (0, True), done


def test_a_report_of_a_name_that_is_nothing_says_that_it_is_no_path_either(cli: Cli) -> None:
    done = cli("report", "nothing")
    assert (done.code, "there is no file or folder 'nothing' either" in done.err) == (1, True), done
    cli("run", "hi", "--model", "mock:echo")
    done = cli("report", "nothing")
    assert "there is no run 'nothing' in this journal" in done.err
    assert "; there is no such file or folder either" in done.err
