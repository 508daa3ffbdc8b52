"""Environments of verifiers, which play their tasks themselves."""

import os
from pathlib import Path

import pytest

from treadle.core.errors import ConfigError
from treadle.evals.evaluation import evaluate
from treadle.journal.registry import open_journal
from treadle.runs.task import task_set
from treadle.server.gateway.programs import ProgramWorkers
from treadle.tasks.foreign.played.played_set import open_verifiers


def test_an_environment_needs_its_package():
    try:
        import verifiers  # noqa: F401
    except ImportError:
        with pytest.raises(
            ConfigError, match=r"pip install verifiers, or name the Python .* TREADLE_VERIFIERS"
        ):
            task_set("verifiers:gsm8k")
    with pytest.raises(ConfigError, match="give the name of an environment"):
        task_set("verifiers:")


@pytest.fixture
def installed(monkeypatch):
    """The environment of verifiers, with published environments."""
    place = os.environ.get("TREADLE_VERIFIERS")
    if not place or not (Path(place) / "bin" / "python").exists():
        pytest.skip(
            "it needs `python -m tests.environments verifiers FOLDER`; TREADLE_VERIFIERS is the folder"
        )
    monkeypatch.setenv("TREADLE_VERIFIERS_PYTHON", str(Path(place) / "bin" / "python"))
    # The chat loop of verifiers is started with uv.
    monkeypatch.setenv("PATH", f"{Path(place) / 'bin'}:{os.environ['PATH']}")
    open_verifiers.cache_clear()


PUBLISHED = {
    "marble-v1": "0",
    "glossary": "0",
    "scratchpad": "0",
    "kuhn_poker": "0",
    "color_codeword": "0",
    "code_golf": "0",
    "interception": "2",
    "bash_interception?agent.harness.id=bash": "0",
    "grayscale_interception": "0",
}
"""Environments that need no key, with one task of each."""


@pytest.mark.full
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", PUBLISHED)
async def test_published_environments_play_their_tasks(tmp_path, name):
    given = {"tasks": [f"verifiers:{name}:{PUBLISHED[name]}"], "models": ["mock:echo"]}
    done = await evaluate(workers=ProgramWorkers(), path=tmp_path, retries={"attempts": 1}, **given)
    assert done.end.reason == "done", done.end
    (sample,) = done.results.samples
    with open_journal(tmp_path / "runs.db") as journal:
        inner = [info for info in journal.runs() if info.caller_run_id == sample.run_id]
    assert inner
    assert sample.details.score is not None


@pytest.mark.full
@pytest.mark.usefixtures("installed")
def test_an_environment_whose_data_or_packages_are_missing_says_so():
    with pytest.raises(ConfigError, match=r"ModuleNotFoundError.*install the package of the environment"):
        task_set("verifiers:no-such-environment")
