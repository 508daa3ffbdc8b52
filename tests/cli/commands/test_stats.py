"""`treadle stats`, and the telemetry of the commands that drive runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Cli
from tests.telemetry.test_turn_log import answer, look

from treadle import Agent, ScriptedModel, open_journal
from treadle.core.errors import ServerError
from treadle.core.types import Completion, FinishReason, Message, Role
from treadle.models import call
from treadle.telemetry import read_turn_records

TASK = "files:csv_sum-0001"


@pytest.fixture
def path(tmp_path: Path) -> str:
    with open_journal(tmp_path / "runs.db") as journal:

        def agent(*answers: Any, name: str) -> Agent:
            return Agent(ScriptedModel(answers, name=name), tools=[look], journal=journal)

        agent(answer("", call("look")), answer("ok"), name="p:a").run_sync("go")
        agent(answer("ok", cost=None), name="p:b").run_sync("go")
        agent(ServerError("down"), name="p:b").run_sync("go")
    return str(tmp_path / "runs.db")


def test_the_command_prints_tables(cli: Cli, path: str) -> None:
    done = cli("stats", "--journal", path)
    assert done.code == 0, done
    lines = done.out.splitlines()
    text = " ".join(lines[0].split())
    assert text.startswith(
        "3 runs · 3 turns, 1 failed · 3 inferences · 360 tokens · 50% cached · cost $1.0000 + 1 unknown"
    )
    of_b = next(line for line in lines if line.startswith("p:b"))
    assert "unknown" in of_b
    assert "$0" not in of_b
    assert "1 ServerError" in of_b
    assert any(line.split()[:2] == ["look", "1"] for line in lines)


def test_tokens_that_no_server_reported_are_not_called_0(cli: Cli, tmp_path: Path) -> None:
    with open_journal(tmp_path / "runs.db") as journal:
        silent = Completion(Message(Role.ASSISTANT, "ok"), FinishReason.STOP)
        Agent(ScriptedModel([silent], name="p:silent"), journal=journal).run_sync("go")
        Agent(ScriptedModel([answer("ok")], name="p:told"), journal=journal).run_sync("go")
    done = cli("stats", "--journal", str(tmp_path / "runs.db"))
    assert " tokens" in done.out
    assert "+ 1 unknown tokens" in done.out
    [found] = [line.split() for line in done.out.splitlines() if line.startswith("p:silent")]
    assert found[1:6] == ["1", "unknown", "-", "unknown", "unknown"]
    [told] = [line for line in done.out.splitlines() if line.startswith("p:told")]
    assert "unknown" not in told


def test_the_command_filters_and_gives_json(cli: Cli, path: str) -> None:
    (told,) = cli("stats", "--journal", path, "--model", "p:a", "--json").lines
    assert (told["runs"], list(told["models"]), told["cost_usd"]) == (1, ["p:a"], 1.0)
    (told,) = cli("stats", "--journal", path, "--status", "failed", "--json").lines
    assert (told["runs"], told["cost_usd"]) == (1, 0.0)
    assert "no such runs" in cli("stats", "--journal", path, "--model", "x").err
    assert "fialed" in cli("stats", "--journal", path, "--status", "fialed").err


def test_commands_write_the_turn_log_of_treadle_toml(cli: Cli) -> None:
    (cli.folder / "treadle.toml").write_text(
        '[telemetry]\nturn_log = "log/turns.jsonl"\nopen_telemetry = true\n'
    )
    assert cli("run", "--task", TASK, "-m", "oracle", "-q", "--run-id", "first").code == 0
    assert cli("fork", "first", "--at", "3", "-q", "--run-id", "second", "-m", "oracle").code == 0
    lines = (cli.folder / "log" / "turns.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["first/1", "second/1"]
    with open_journal(cli.folder / ".treadle" / "runs.db") as journal:
        (record,) = read_turn_records(journal.read("first"))
    assert json.loads(lines[0])["input_tokens"] == record.input_tokens


def test_a_misspelt_setting_is_named(cli: Cli) -> None:
    (cli.folder / "treadle.toml").write_text("[telemetry]\nturnlog = 1\n")
    done = cli("run", "hello", "-m", "mock:echo")
    assert done.code == 2
    assert "turn_log" in done.err
