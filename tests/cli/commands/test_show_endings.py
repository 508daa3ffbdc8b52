"""`treadle show` says how each turn of a session ended, whose fault it was, and which model answered."""

import re

from tests.cli.command import Cli

from treadle import Agent, Policy, ProviderError, ScriptedModel, open_journal
from treadle.core.errors import ServerError, TransportError
from treadle.models import RetryModel


def test_a_turn_of_a_session_that_failed_is_told(cli: Cli) -> None:
    with open_journal(cli.folder / "runs.db") as journal:
        agent = Agent(ScriptedModel(["one", ProviderError("no power"), "three"]), journal=journal)
        with agent.session("s") as session:
            for text in ("a", "b", "c"):
                session.send_sync(text)
        late = Agent(ScriptedModel(["never"]), policy=Policy(deadline_seconds=0), journal=journal)
        late.run_sync("d", run_id="late")
    cli("label", "s", "--remark", "look at turn 2", "-j", "runs.db")
    shown = cli("show", "s", "-j", "runs.db").out
    told = "-- the turn ended: error (no power; fault: infrastructure)\n"
    assert told in shown.partition("› b")[2].partition("› c")[0]
    assert "-- remark: look at turn 2\n" in shown
    assert "fault" not in cli("show", "late", "-j", "runs.db").out


def test_attempts_that_failed_in_the_same_way_are_told_once(cli: Cli) -> None:
    """The error of a server that is away was told once for each attempt, and once more at the end."""

    def model(*errors: Exception | str) -> RetryModel:
        return RetryModel(ScriptedModel(errors), max_attempts=3, min_delay_seconds=0)

    away, busy = TransportError("away"), ServerError("busy", status=503)
    with open_journal(cli.folder / "runs.db") as journal:
        Agent(model(away, away, away), journal=journal).run_sync("a", run_id="dead")
        Agent(model(away, busy, busy), journal=journal).run_sync("a", run_id="mixed")
        Agent(model(away, away, "here"), journal=journal).run_sync("a", run_id="back")
        with Agent(model(away, away, away), journal=journal).session("s") as session:
            session.send_sync("a")
    dead = cli("show", "dead", "-j", "runs.db").out
    told = "3 attempts failed: away (gave up after 3 attempts); fault: infrastructure"
    assert dead.count("away") == 1
    assert f"\n{told}\n" in dead
    mixed = cli("show", "mixed", "-j", "runs.db").out
    assert mixed.index("attempt failed: away\n") < mixed.index(
        "2 attempts failed: busy (gave up after 3 attempts);"
    )
    back = cli("show", "back", "-j", "runs.db").out
    assert back.index("2 attempts failed: away\n") < back.index("here")
    assert f"-- the turn ended: error ({told})\n" in cli("show", "s", "-j", "runs.db").out


def test_the_model_that_answered_in_place_of_another_is_told(cli: Cli) -> None:
    cli.write(
        "treadle.toml",
        """
[models.fast]
model = "vllm:m"
base_url = "http://127.0.0.1:9/v1"
fallback = ["good"]

[models.good]
model = "mock:echo"
""",
    )
    done = cli("run", "hi", "-m", "fast")
    failed = re.search(r"^vllm:m failed: cannot connect.*; another model is asked$", done.out, re.MULTILINE)
    assert failed, done
    assert "answered by mock:echo\n" in done.out
    shown = cli("show", "last").out
    assert failed[0][:40] in shown
    assert "\nstep 1 · mock:echo · " in shown
