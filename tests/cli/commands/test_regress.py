"""`treadle test`: recordings made, replayed, accepted and reported by real processes."""

import json
import re
from xml.etree import ElementTree

import pytest
from tests.cli.command import Cli

AGENT = '''
import sys
from treadle import Agent, tool

@tool(effect="pure")
async def exchange_rate(currency: str) -> float:
    """The price of one euro."""
    return {"USD": 1.09, "NOK": 11.6}[currency]

clerk = Agent("mock:echo", instructions="Answer in one sentence.", tools=[exchange_rate])

def make_clerk():
    return clerk

number = 3
'''
TEXT = 'call exchange_rate {"currency": "NOK"}'


@pytest.fixture
def project(cli: Cli) -> Cli:
    cli.write("agents.py", AGENT)
    cli.write("treadle.toml", '[test]\nagent = "agents.py:clerk"\n')
    made = cli("test", "record", "--text", TEXT, "--name", "euro")
    assert made.code == 0, made
    assert made.out == "tests/agent_runs/euro.run.json\n"
    return cli


def change(cli: Cli, before: str, after: str) -> None:
    cli.write("agents.py", (cli.folder / "agents.py").read_text().replace(before, after))


def test_the_same_agent_passes(project: Cli) -> None:
    found = project("test")
    assert found.code == 0, found
    assert "pass  euro  2 requests as recorded" in found.out
    assert project("test", "--agent", "agents.py:make_clerk", "-k", "eur").code == 0


def test_a_changed_prompt_is_shown_and_accepted(project: Cli) -> None:
    change(project, "one sentence", "French")
    found = project("test")
    assert found.code == 1
    assert "FAIL  euro  request 1 of 2 differs: the system prompt" in found.out
    assert "  - Answer in one sentence.\n        + Answer in French." in found.out
    assert " \n" not in found.out
    assert "accept it with: treadle test --update" in found.err
    accepted = project("test", "--update")
    assert accepted.code == 0
    assert "+ Answer in French." in accepted.out
    assert "1 updated" in accepted.out
    assert project("test").code == 0


def test_a_changed_tool_and_result(project: Cli) -> None:
    change(project, "currency: str", "currency: str, day: str = 'today'")
    assert "the parameters of the tool 'exchange_rate'" in project("test").out
    change(project, "currency: str, day: str = 'today'", "currency: str")
    change(project, "11.6", "12.0")
    assert project("test").code == 0
    found = project("test", "--tools", "live-read-only")
    assert found.code == 1
    assert 'the result of exchange_rate({"currency": "NOK"})\n        - 11.6\n        + 12.0' in found.out


def test_reports_for_programs(project: Cli) -> None:
    change(project, "one sentence", "French, 100 %")
    project.write("tests/agent_runs/broken.run.json", "{")
    found = project("test", "--junit", "out.xml", env={"GITHUB_ACTIONS": "true"})
    assert found.code == 1
    errors = [line for line in found.out.splitlines() if line.startswith("::error ")]
    assert errors[0].startswith(
        "::error file=tests/agent_runs/broken.run.json,line=1,title=treadle test%3A broken::"
    )
    place, _, message = errors[1].partition("::request")
    line = int(place.partition("line=")[2].partition(",")[0])
    text = (project.folder / "tests/agent_runs/euro.run.json").read_text().splitlines()
    assert '"type": "inference_started"' in "".join(text[line - 1 : line + 4])
    assert "%0A  + Answer in French, 100 %25." in message
    suite = ElementTree.parse(project.folder / "out.xml").getroot()[0]
    assert {key: suite.get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "2",
        "failures": "1",
        "errors": "1",
    }
    assert [case.get("name") for case in suite] == ["broken", "euro"]
    assert "::error" not in project("test", "--annotate", "none", env={"GITHUB_ACTIONS": "true"}).out


def test_json(project: Cli) -> None:
    change(project, "one sentence", "French")
    (line,) = project("test", "--json").lines
    assert (line["name"], line["has_failed"], line["error"]) == ("euro", True, None)
    assert line["path"] == "tests/agent_runs/euro.run.json"
    assert line["divergence"]["differences"][0]["what"] == "the system prompt"


def test_runs_of_a_journal_are_recorded(project: Cli) -> None:
    run = project("run", TEXT, "--model", "mock:echo", "--tools", "agents.py:exchange_rate", "--json")
    assert run.code == 0, run
    made = project("test", "record", "last", "--name", "rate")
    assert made.code == 0, made
    again = project("test", "record", "last", "--name", "rate")
    assert again.code == 2
    assert "--force" in again.err
    assert project("test", "record", "last", "--name", "rate", "--force").code == 0
    # Without a named agent, it is made as the recording says, if that may import files.
    project.write("treadle.toml", "")
    refused = project("test", "-k", "rate")
    assert refused.code == 1
    assert "name the agent, or pass --trust" in refused.out
    assert "import the file" in refused.out
    assert project("test", "-k", "rate", "--trust").code == 0
    # The model is not asked, and the toolset changes nothing outside of the sandbox.
    assert project("run", "call list_files {}", "--model", "mock:echo", "--tools", "files").code == 0
    assert project("test", "record", "last", "--name", "files").code == 0
    assert project("test", "-k", "files").code == 0


def test_a_task_set_in_a_file_needs_trust(project: Cli) -> None:
    task = "SimpleTask(task_id='one', input='say hi', tools=['files'])"
    project.write("sets.py", f"from treadle.runs.task import SimpleTask\ndef tasks():\n    return [{task}]\n")
    run = project("run", "--task", "sets.py:tasks:one", "--model", "mock:echo")
    assert run.code == 0, run
    assert project("test", "record", "last", "--name", "task").code == 0
    refused = project("test", "-k", "task", "--agent", "agents.py:clerk")
    assert refused.code == 1
    assert "load the task set 'sets.py:tasks'" in refused.out
    assert (
        "request 1 of 1 differs" in project("test", "-k", "task", "--agent", "agents.py:clerk", "--trust").out
    )
    # So does a folder of tasks, whose images would be built.
    place = "tests/agent_runs/task.run.json"
    project.write(place, (project.folder / place).read_text().replace("sets.py:tasks", "harbor:./tasks"))
    refused = project("test", "-k", "task", "--agent", "agents.py:clerk")
    assert "load the task set 'harbor:./tasks'" in refused.out
    trusted = project("test", "-k", "task", "--agent", "agents.py:clerk", "--trust")
    assert "there is no folder './tasks'" in trusted.out + trusted.err


def test_a_model_without_its_key_is_not_asked(project: Cli) -> None:
    change(project, '"mock:echo"', '"openai:gpt-5-mini"')
    found = project("test")
    assert found.code == 1
    assert "  - mock:echo\n        + openai:gpt-5-mini" in found.out
    live = project("test", "--live")
    assert live.code == 2
    assert "no API key for 'gpt-5-mini'" in live.err


def test_live_scores_and_thresholds(project: Cli) -> None:
    found = project("test", "--live", "--samples", "2", "--min-score", "0.9")
    assert found.code == 0, found
    assert "scores 1.00, 1.00" in found.out
    assert "at least min_score 0.9" in found.out
    missing = project("test", "--live", "--must-not-drop")
    assert missing.code == 2
    assert "treadle test --live --update" in missing.err
    assert project("test", "--live", "--update").code == 0
    assert json.loads((project.folder / "tests/agent_runs/scores.json").read_text()) == {"euro": [1.0]}
    kept = project("test", "--live", "--must-not-drop")
    assert kept.code == 0
    assert "p = 1 over 1 recording\n" in kept.out
    change(project, '"mock:echo"', '"mock:mediocre"')
    low = project("test", "--live", "--min-score", "0.9", "--annotate", "github")
    assert low.code == 1
    assert "\nFAIL  mean score" in low.out
    assert "below min_score 0.9" in low.out
    assert "1 threshold not reached, " in low.out
    assert "::error title=treadle test::mean score" in low.out


@pytest.mark.parametrize(
    ("arguments", "told", "code"),
    [
        (["test", "-k", "nobody"], "no recordings with 'nobody' in their names", 2),
        (["test", "missing"], "there are no recordings in 'missing'", 2),
        (["test", "--agent", "agents.py:nobody"], "there is no 'nobody' in it", 2),
        (["test", "--agent", "agents.py:number"], "name a treadle.Agent, or a function that returns one", 2),
        (["test", "--agent", "nofile.py:clerk"], "nofile.py", 2),
        (["test", "--agent", "clerk"], "write it as file.py:NAME", 2),
        (["test", "--tools", "some"], "give one of recorded, live-read-only, live", 2),
        (["test", "--min-score", "2"], "--min-score", 2),
        (["test", "--min-score", "0"], "--min-score is about scores, which only --live has; add --live", 2),
        (["test", "--samples", "3"], "--samples is about scores, which only --live has", 2),
        (["test", "--must-not-drop"], "--must-not-drop is about scores, which only --live has", 2),
        (["test", "record", "x", "--name", "../x"], "there is no run 'x'", 2),
        (["test", "record", "--text", "hi", "--name", "../x"], "'../x' is no name of a recording in", 2),
        (["test", "record", "--text", "hi", "--name", "/x"], "'/x' is no name of a recording in", 2),
        (["test", "record", "--text", "hi", "--name", "a/"], "'a/' is no name of a recording in", 2),
        (["test", "record"], "give a run, such as 'last', or --text", 2),
        (["test", "record", "x", "--text", "y"], "not both", 2),
        (["test", "record", "nobody"], "there is no run 'nobody'", 2),
    ],
)
def test_wrong_usage(project: Cli, arguments: list[str], told: str, code: int) -> None:
    found = project(*arguments)
    assert found.code == code, found
    assert told in found.out + found.err, found
    assert "Traceback" not in found.err


def test_recordings_in_folders_have_names_of_their_own(project: Cli) -> None:
    for team in ("one", "two"):
        made = project("test", "record", "--text", f"say {team}", "--name", f"{team}/greeting")
        assert made.out == f"tests/agent_runs/{team}/greeting.run.json\n", made
    found = project("test", "-k", "two/", "--json").lines
    assert [line["name"] for line in found] == ["two/greeting"]
    assert project("test", "--live", "--update").code == 0
    stored = json.loads((project.folder / "tests/agent_runs/scores.json").read_text())
    assert sorted(stored) == ["euro", "one/greeting", "two/greeting"]
    # A pattern is for names in all folders, or in one.
    project.write("treadle.toml", '[test.agents]\n"greet*" = "agents.py:clerk"\n"two/*" = "agents.py:nobody"')
    assert project("test", "-k", "greeting").code == 0


def test_a_pattern_that_is_no_regular_expression_is_told_once(project: Cli) -> None:
    for key in ("ignore", "redact"):
        project.write("treadle.toml", f'[test]\nagent = "agents.py:clerk"\n{key} = ["("]')
        found = project("test")
        assert (found.code, found.out) == (2, ""), found
        assert f"test.{key} has '(', which is no regular expression" in found.err


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("return clerk", "return [][100]", 2),  # of another size, or Python takes the file for unchanged
        ('"Answer in one sentence."', "lambda: [][1]", 1),
    ],
)
def test_code_of_an_agent_that_fails(project: Cli, before: str, after: str, code: int) -> None:
    change(project, before, after)
    found = project("test", "--agent", "agents.py:make_clerk")
    assert found.code == code
    assert "IndexError: list index out of range" in (found.out if code == 1 else found.err)
    assert "Traceback" not in found.err


def test_an_agent_that_cannot_be_imported(project: Cli) -> None:
    project.write("mine.py", AGENT)
    project.write("agents.py", "import treadle\n1 / 0\n")
    assert project("test", "record", "--text", TEXT, "--name", "other", "--agent", "mine.py:clerk").code == 0
    told = r"error: .*agents\.py.*ZeroDivisionError.*agents\.py, line 2\) \(needed for 1 of 2 recordings\)\n"
    project.write(
        "treadle.toml", '[test]\nagent = "mine.py:clerk"\n[test.agents]\neuro = "agents.py:clerk"\n'
    )
    found = project("test")
    assert (found.code, found.out) == (2, ""), found
    assert re.fullmatch(told, found.err), found


def test_agents_by_the_names_of_recordings(project: Cli) -> None:
    project.write(
        "treadle.toml", '[test]\nagent = "agents.py:nobody"\n[test.agents]\n"eu*" = "agents.py:clerk"\n'
    )
    assert project("test").code == 0


def test_patterns_that_fit_no_recording_are_told(project: Cli) -> None:
    project.write(
        "treadle.toml",
        '[test]\nagent = "agents.py:clerk"\n[test.agents]\n"eruo" = "agents.py:clerk"\n"e*" = "agents.py:clerk"\n',
    )
    told = "warning: the pattern 'eruo' in [test.agents] fits no recording; did you mean 'euro'?\n"
    found = project("test")
    assert (found.code, found.err) == (0, told)
    assert project("test", "-k", "euro").err == ""
