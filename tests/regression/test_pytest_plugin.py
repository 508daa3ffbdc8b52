"""The plugin in a pytest of its own, found by its entry point."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.forks.process import FORKS

pytest_plugins = "pytester"
ROOT = Path(__file__).parents[2]
AGENT = '''
from treadle import Agent, ScriptedModel, tool
from treadle.models.scripted import call

@tool(effect="pure")
async def rate(currency: str) -> float:
    """The price of one euro."""
    return 11.6

model = ScriptedModel([[call("rate", {"currency": "NOK"})], "It is 11.6."], name="small")
clerk = Agent(model, instructions="Answer in one sentence.", tools=[rate], journal="memory:")
'''
TEST = """
import pytest
from agents import clerk

def test_by_hand(treadle_run):
    assert treadle_run("euro", clerk).requests == 2

@pytest.mark.treadle_run("euro", agent=clerk)
def test_marked():
    pass

async def in_a_coroutine(treadle_run):
    treadle_run("euro")

def test_in_a_coroutine(treadle_run):
    import asyncio
    asyncio.run(in_a_coroutine(treadle_run))
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with a recording and tests, in an environment where the plugin is installed."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    installed = pytester.mkdir("site") / "treadle_points-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: treadle-points\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    paths = [str(installed.parent), str(pytester.path), str(ROOT / "src")]
    monkeypatch.setenv("PYTHONPATH", ":".join(paths))
    for name in ("PYTEST_ADDOPTS", "CI"):  # pytest prints longer summaries in CI
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(agents=AGENT)
    pytester.makefile(".toml", treadle='[test]\nagent = "agents.py:clerk"')
    pytester.mkdir("tests")
    (pytester.path / "tests/test_agent.py").write_text(TEST)
    command = ("-m", "treadle", "test", "record", "--text", "A euro?", "--name", "euro")
    made = FORKS.start(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = made.communicate()
    assert made.returncode == 0, said
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    others = [
        f"no:{name}"
        for name in ("cacheprovider", "hypothesispytest", "asyncio", "xdist", "anyio", "pyreqwest")
    ]
    options = [word for name in others for word in ("-p", name)]
    return project.runpytest_subprocess(*options, *arguments)


def change(project: pytest.Pytester, before: str, after: str) -> None:
    path = project.path / "agents.py"
    path.write_text(path.read_text().replace(before, after))


def test_recordings_are_tests(project: pytest.Pytester) -> None:
    found = run(project, "-v")
    found.assert_outcomes(passed=4)
    found.stdout.fnmatch_lines(["*agent_runs/euro.run.json::euro PASSED*"])
    run(project, "tests/agent_runs/euro.run.json").assert_outcomes(passed=1)


def test_a_difference_fails_each_way_to_replay(project: pytest.Pytester) -> None:
    change(project, "one sentence", "French")
    found = run(project)
    found.assert_outcomes(failed=3, errors=1)
    text = found.stdout.str()
    assert text.count("  + Answer in French.") == 4
    assert re.search(
        r"^FAILED tests/agent_runs/euro\.run\.json::euro - euro: request 1 of 2", text, re.MULTILINE
    )
    assert "euro.run.json:" in text
    # The code of the plugin and of Treadle is not shown.
    assert "def check_recording" not in text
    assert "def replay" not in text
    assert "pytest --treadle-update" in text


@pytest.mark.sets(0)
def test_a_difference_is_accepted(project: pytest.Pytester) -> None:
    change(project, "one sentence", "French")
    run(project, "tests/agent_runs", "--treadle-update").assert_outcomes(passed=1)
    run(project).assert_outcomes(passed=4)


@pytest.mark.sets(0)
def test_a_missing_recording_and_a_broken_one(project: pytest.Pytester) -> None:
    (project.path / "tests/test_agent.py").write_text(
        'def test_it(treadle_run):\n    treadle_run("nobody")\n'
    )
    (project.path / "tests/agent_runs/euro.run.json").write_text("{")
    found = run(project)
    found.assert_outcomes(failed=2)
    found.stdout.fnmatch_lines(["*is no recording: *", "*nobody: there is no recording*"])


@pytest.mark.sets(0)
def test_a_mistake_in_the_configuration_has_no_traceback(project: pytest.Pytester) -> None:
    (project.path / "treadle.toml").write_text('[test]\nignore = ["("]')
    found = run(project, "tests/agent_runs")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["test.ignore has '(', which is no regular expression: *"])
    found.stdout.no_fnmatch_line("*regression_suite.py*")


@pytest.mark.sets(0)
def test_an_agent_may_be_a_function_that_returns_it(project: pytest.Pytester) -> None:
    (project.path / "tests/test_agent.py").write_text(
        "from agents import clerk\n"
        "async def later():\n    return clerk\n"
        "def test_made(treadle_run):\n    assert treadle_run('euro', lambda: clerk).requests == 2\n"
        "def test_later(treadle_run):\n    treadle_run('euro', later)\n"
        "def test_other(treadle_run):\n    treadle_run('euro', 'agents.py:clerk')\n"
    )
    found = run(project, "tests/test_agent.py")
    found.assert_outcomes(passed=1, failed=2)
    found.stdout.fnmatch_lines(
        [
            "*euro: the agent of the test is an async function; give one without async",
            "*euro: the agent of the test is 'agents.py:clerk'; name a treadle.Agent, or a function that *",
        ]
    )


def test_the_plugin_alone_imports_nothing_of_treadle(project: pytest.Pytester) -> None:
    (project.path / "tests/test_agent.py").write_text(
        "import sys\ndef test_it():\n"
        "    names = [name for name in sys.modules if name.startswith('treadle.')]\n"
        "    assert names == ['treadle.regression', 'treadle.regression.pytest_plugin']\n"
        "    assert 'msgspec' not in sys.modules\n"
    )
    run(project, "tests/test_agent.py").assert_outcomes(passed=1)
