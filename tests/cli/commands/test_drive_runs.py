"""`treadle run`: its output, its exit codes, and its error messages."""

import json
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import Cli, Oracle, Started
from tests.cli.scripted import Script, call_once, say

TASK = "files:csv_sum-0001"
TOOLS = '''
from treadle import tool

@tool(effect="pure")
def lookup(word: str) -> str:
    """Look a word up."""
    return f"{word} means something"
'''


@pytest.fixture(scope="module", autouse=True)
def run_against_nothing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A run whose server is down. It starts before the other tests, because its retries take a while."""
    process = Cli(tmp_path_factory.mktemp("down")).start(
        "run", "hi", "-m", "m", "--base-url", "http://127.0.0.1:9/v1"
    )
    yield process
    process.kill()
    process.communicate()


def test_task_over_http_completes(cli: Cli, oracle: Oracle) -> None:
    result = cli("run", "--task", TASK, "--model", "openai:oracle", "--base-url", oracle.url)
    assert result.code == 0, result
    assert "● list_files()" in result.out
    assert "Answer: " in result.out
    assert "completed · " in result.out
    assert "reward 1" in result.out
    assert "\x1b" not in result.out
    assert result.err == ""


def test_text_with_tools_of_a_file(cli: Cli, script: Script) -> None:
    cli.write("tools.py", TOOLS)
    server = script(call_once("lookup", word="warp"))
    result = cli("run", "What is a warp?", "-m", "m", "--base-url", server.url, "--tools", "tools.py", "-q")
    assert (result.code, result.out) == (0, "done: warp means something\n"), result
    assert [tool["function"]["name"] for tool in server.requests[0]["tools"]] == ["lookup"]


def test_settings_reach_the_server(cli: Cli, script: Script) -> None:
    server = script(lambda body: say("hi"))
    options = [
        "--temperature",
        "0.5",
        "--max-output-tokens",
        "7",
        "--seed",
        "3",
        "--instructions",
        "Be brief.",
    ]
    env = {"OPENAI_API_KEY": "sk-environment"}
    result = cli("run", "-", "-m", "m", "--base-url", server.url, *options, text="from stdin", env=env)
    assert result.code == 0, result
    body = server.requests[0]
    assert (body["temperature"], body["seed"]) == (0.5, 3)
    assert 7 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    assert [(m["role"], m["content"]) for m in body["messages"]] == [
        ("system", "Be brief."),
        ("user", "from stdin"),
    ]
    assert server.headers[0]["authorization"] == "Bearer sk-environment"


def test_json_ends_with_a_summary(cli: Cli) -> None:
    result = cli("run", "--task", TASK, "--model", "oracle", "--json", "--run-id", "mine")
    assert result.code == 0, result
    *events, summary = result.lines
    durable = [event for event in events if "seq" in event]
    assert [event["seq"] for event in durable] == list(range(1, len(durable) + 1))
    assert any(event["type"] == "text_delta" for event in events)
    assert summary["type"] == "summary"
    assert (summary["run_id"], summary["stop_reason"], summary["reward"]) == ("mine", "completed", 1.0)
    assert summary["files"] == {"added": [], "changed": [], "deleted": []}
    shown = cli("show", "mine", "--json")
    assert shown.lines == durable


def test_mount_is_read_and_out_is_written(cli: Cli, script: Script) -> None:
    cli.write("data/a.txt", "one")
    server = script(call_once("write_file", file_path="sub/b.txt", content="two"))
    base = ["run", "go", "-m", "m", "--base-url", server.url, "--mount", "data"]
    result = cli(*base, "--out", "out")
    assert result.code == 0, result
    assert "+ sub/b.txt" in result.out
    assert "1 changed file written to 'out'" in result.err
    assert [str(path.relative_to(cli.folder)) for path in sorted(cli.folder.rglob("*.txt"))] == [
        "data/a.txt",
        "out/sub/b.txt",
    ]
    assert (cli.folder / "out/sub/b.txt").read_text() == "two"
    unchanged = cli("run", "hi", "-m", "mock:echo", "--mount", "data", "--out", "other")
    assert "no file was changed, so nothing is written to 'other'" in unchanged.err
    assert not (cli.folder / "other").exists()
    again = cli(*base, "--out", "out")
    assert again.code == 2
    assert "--out 'out' exists and is not empty" in again.err
    mounted = cli(*base, "--out", "data")
    assert mounted.code == 2
    assert "never written to" in mounted.err


def test_limit_has_its_own_exit_code(cli: Cli) -> None:
    result = cli("run", "--task", TASK, "--model", "oracle", "--max-steps", "1")
    assert result.code == 3, result
    assert "the limit max_steps is reached" in result.out
    assert "max_steps · 2 steps" in result.out


def test_deadline_stops_a_model_that_does_not_answer(cli: Cli, script: Script) -> None:
    never = threading.Event()
    server = script(lambda body: never.wait(60) and 500)
    result = cli("run", "hi", "-m", "m", "--base-url", server.url, "--deadline", "0.2")
    never.set()
    assert result.code == 3, result
    assert "deadline · 0 steps" in result.out


def test_refused_key_fails_and_names_the_way_on(cli: Cli, script: Script) -> None:
    server = script(lambda body: 401)
    result = cli("run", "hi", "-m", "m", "--base-url", server.url, "--run-id", "mine")
    assert result.code == 1, result
    assert "no such key" in result.out
    assert "fault: user" in result.out
    assert "treadle resume mine" in result.err


def test_secrets_stay_out_of_the_journal(cli: Cli, script: Script) -> None:
    server = script(lambda body: say("hi"))
    url = server.url.replace("http://", "http://user:hunter2@")
    cli("run", "hi", "-m", "m", "--base-url", url, "--api-key", "sk-secret")
    kept = b"".join(path.read_bytes() for path in (cli.folder / ".treadle").iterdir())
    assert b"run_started" in kept
    assert b"hunter2" not in kept
    assert b"sk-secret" not in kept


MISUSES = [
    (["run", "hi"], "no model is given; pass --model"),
    (["run", "hi", "-m", "opnai:x"], "unknown provider 'opnai'"),
    (["run", "hi", "-m", "openai:x"], "OPENAI_API_KEY"),
    (["run", "-m", "oracle"], "there is nothing to do"),
    (["run", "hi", "-m", "oracle"], "the model 'oracle' solves the tasks of a task set"),
    (["run", "hi", "--task", TASK, "-m", "oracle"], "a text or --task, not both"),
    (["run", "--task", "files:csv_sum-9999", "-m", "oracle"], "has no task 'csv_sum-9999'; near ids"),
    (["run", "--task", "nope:1", "-m", "oracle"], "unknown task set 'nope'"),
    (["run", "--task", TASK, "-m", "oracle:often"], "'often' is not a rate of mistakes"),
    (
        ["run", "--task", TASK, "-m", "oracle", "--max-steps", "-1"],
        "'--max-steps': '-1' should be greater than or equal to 0",
    ),
    (
        ["run", "--task", TASK, "-m", "oracle", "--max-steps", "0"],
        "--max-steps 0 allows no step: give 1 or more, or no --tools",
    ),
    (
        ["run", "hi", "-m", "mock:echo", "--max-steps", "few"],
        "'--max-steps': 'few' should be a valid integer. See",
    ),
    (["run", "--task", TASK, "-m", "oracle", "--mount", "."], "brings its own files"),
    (["run", "hi", "-m", "m", "--base-url", "ftp://x"], "--base-url 'ftp://x' is not a URL"),
    (["run", "hi", "-m", "m", "--base-url", "http://[x"], "--base-url 'http://[x' is not a URL"),
    (
        ["run", "hi", "-m", "m", "--base-url", "http://x/v1", "--mount", "nowhere"],
        "cannot mount 'nowhere': there is no",
    ),
    (
        ["run", "hi", "-m", "m", "--base-url", "http://x/v1", "-t", "none.py"],
        "there is no file 'none.py'",
    ),
    (["run", "hi", "-m", "m", "--base-url", "http://x/v1", "-t", "broken.py"], "broken.py"),
    (["run", "hi", "--level", "total"], "total"),
]
"""Arguments, and a part of the error message."""


def test_misuse_is_one_clear_line(cli: Cli) -> None:
    cli.write("broken.py", "import not_a_module_of_anybody\n")
    results = cli.run_all(arguments for arguments, _ in MISUSES)
    for (arguments, message), result in zip(MISUSES, results, strict=True):
        assert result.code == 2, (arguments, result)
        assert message in result.err, arguments
        assert "Traceback" not in result.err, arguments
        assert result.out == "", arguments


def test_broken_tools_file_names_its_line(cli: Cli) -> None:
    cli.write("broken.py", "x = 1\nimport not_a_module_of_anybody\n")
    result = cli("run", "hi", "-m", "m", "--base-url", "http://x/v1", "-t", "broken.py")
    assert "No module named 'not_a_module_of_anybody'" in result.err
    assert "line 2" in result.err


def test_debug_shows_the_traceback(cli: Cli) -> None:
    assert "Traceback" in cli("--debug", "run", "hi").err
    assert "Traceback" in cli("run", "hi", env={"TREADLE_DEBUG": "1"}).err


def test_debug_shows_where_a_tool_failed(cli: Cli) -> None:
    cli.write("boom.py", "def boom() -> str:\n    \"Fail.\"\n    return {}['x']\n")
    quiet = cli("run", "call boom {}", "-m", "mock:echo", "-t", "boom.py")
    assert ("KeyError: 'x'" in quiet.out, quiet.err) == (True, ""), quiet
    shown = cli("--debug", "run", "call boom {}", "-m", "mock:echo", "-t", "boom.py")
    assert "KeyError: 'x'" in shown.out
    assert "the tool 'boom' failed" in shown.err
    assert 'boom.py", line 3, in boom' in shown.err


def test_estimated_tokens_are_marked(cli: Cli, script: Script) -> None:
    base = ["run", "hi", "-m", "m", "--base-url"]
    silent = script(lambda body: {**say("hello"), "usage": None})
    assert re.search(r"1 step · about [1-9]\d* tokens \(", cli(*base, silent.url).out)
    assert "about" not in cli(*base, script(lambda body: say("hello")).url).out


def test_an_answer_without_text_is_named(cli: Cli, script: Script) -> None:
    server = script(lambda body: say(" "))
    done = cli("run", "hi", "-m", "m", "--base-url", server.url)
    assert "the model's answer has no text" in done.out, done
    assert "no text" not in cli("run", "hi", "-m", "mock:echo").out


def test_journal_of_another_program(cli: Cli) -> None:
    with sqlite3.connect(cli.folder / "other.db") as db:
        db.execute("CREATE TABLE mine(x)")
    result = cli("run", "--task", TASK, "-m", "oracle", "--journal", "other.db")
    assert result.code == 1, result
    assert "'other.db' is a database of another program, not a Treadle journal" in result.err


def test_journal_from_the_environment_in_a_new_folder(cli: Cli) -> None:
    result = cli("run", "--task", TASK, "-m", "oracle", "-q", env={"TREADLE_JOURNAL": "deep/er/j.db"})
    assert result.code == 0, result
    assert (cli.folder / "deep/er/j.db").exists()
    assert not (cli.folder / ".treadle").exists()


def test_run_id_that_is_taken(cli: Cli) -> None:
    first = ["run", "--task", TASK, "-m", "oracle", "-q", "--run-id", "mine"]
    assert cli(*first).code == 0
    result = cli(*first)
    assert result.code == 1, result
    assert "run 'mine' exists already" in result.err


def test_what_steers_a_terminal_is_made_harmless(cli: Cli, script: Script) -> None:
    server = script(lambda body: say("\x1b[2Jwiped \x9b31m [bold]not markup[/bold]"))
    result = cli("run", "hi", "-m", "m", "--base-url", server.url)
    assert "�[2Jwiped" in result.out
    assert "[bold]not markup[/bold]" in result.out
    assert "\x1b" not in result.out


def test_output_is_json_for_every_outcome(cli: Cli, script: Script) -> None:
    server = script(lambda body: 401)
    result = cli("run", "hi", "-m", "m", "--base-url", server.url, "--json")
    assert result.code == 1
    assert result.lines[-1]["stop_reason"] == "error"
    assert result.lines[-1]["fault"] == "user"
    assert json.dumps(result.lines[-1]["error"]).count("no such key") == 1


def test_fixture_folder_is_clean(tmp_path: Path, cli: Cli) -> None:
    assert list(tmp_path.iterdir()) == []
    assert cli("runs").code == 1
    assert list(tmp_path.iterdir()) == []


def test_server_that_is_down(run_against_nothing: Started) -> None:
    out, err = run_against_nothing.communicate(timeout=120)
    assert run_against_nothing.returncode == 1, (out, err)
    assert "attempt 1 failed: cannot connect to http://127.0.0.1:9" in out
    assert "(gave up after 6 attempts)" in out
    assert "fault: infrastructure" in out
    assert "treadle resume " in err


def test_a_schema_is_a_file_or_written_out(cli: Cli) -> None:
    schema = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
    cli.write("schema.json", schema)
    for given in (schema, "schema.json"):
        assert cli("run", "Bonn", "-m", "mock:echo", "-q", "--schema", given).out == '{"city":"Bonn"}\n'


def test_what_is_piped_in_follows_the_text(cli: Cli) -> None:
    done = cli("run", "Summarise.", "-m", "mock:echo", "-q", text="one\ntwo\n")
    assert done.out == "You said: Summarise.\n\n<stdin>\none\ntwo\n</stdin>\n"
    assert cli("run", "Hello.", "-m", "mock:echo", "-q", text="").out == "You said: Hello.\n"
    assert cli("run", "-", "-m", "mock:echo", "-q", text="only this\n").out == "You said: only this\n"
    assert cli("run", "Hello.", "-m", "mock:echo", "-q").out == "You said: Hello.\n"


def test_a_pipe_that_stays_open_is_told(cli: Cli) -> None:
    reader, writer = os.pipe()
    process = cli.start("run", "Hello.", "-m", "mock:echo", "-q", stdin=reader)
    assert process.stderr is not None
    assert "add </dev/null" in process.stderr.readline()
    os.write(writer, b"late")
    os.close(writer)
    os.close(reader)
    out, _ = process.communicate()
    assert "late" in out


def test_an_agent_of_a_program_runs(cli: Cli) -> None:
    cli.write(
        "own.py",
        """
from treadle import Agent, ScriptedModel, tool
from treadle.models import call

@tool(effect="pure")
def look() -> str:
    "Look."
    return "seen"

def make():
    return Agent(ScriptedModel([[call("look")], "done"]), tools=[look], instructions="Be brief.", journal="own.db")

clerk = make()
""",
    )
    for name in ("clerk", "make"):
        done = cli("run", "hi", "--agent", f"own.py:{name}", "--run-id", name, "--max-steps", "7")
        assert done.code == 0, done
        assert "● look()" in done.out
        started = cli("show", name, "--json").lines[0]
        assert (started["agent"]["instructions"], started["agent"]["policy"]["max_steps"]) == ("Be brief.", 7)
    assert not (cli.folder / "own.db").exists(), "the run is in the journal of the command"
    wrong = cli("run", "hi", "--agent", "own.py:clrk")
    assert (wrong.code, "did you mean 'clerk'" in wrong.err) == (2, True), wrong
    for options in (["--tools", "files"], ["--temperature", "1"], ["--mount", "."], ["--persona", "p.yaml"]):
        both = cli("run", "hi", "--agent", "own.py:clerk", *options)
        assert (both.code, f"leave out {options[0]}" in both.err or "settings of models" in both.err) == (
            2,
            True,
        )
