"""`treadle show` says how each turn of a session ended, whose fault it was, and which model answered."""

import re

from tests.cli.command import Cli

from treadle import Agent, Policy, ProviderError, ScriptedModel, open_journal


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
