"""The files of recordings: their form, what is left out of them, and what cannot be one."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.regression.test_replay_agent import ANSWERS, make_agent, record
from tests.test_golden import GOLDEN

from treadle import Agent, RunNotFoundError, ScriptedModel
from treadle.core.errors import ConfigError, ProviderError
from treadle.core.types import ToolSpec
from treadle.models.config.recipe import load_config
from treadle.models.config.tables import RegressionTable
from treadle.models.scripted import call
from treadle.regression.recorded_runs import (
    RecordedRun,
    Redaction,
    find_recordings,
    read_recording,
    write_recording,
)
from treadle.regression.regression_suite import Suite, run_recording, slug
from treadle.regression.replay_agent import replay_recording
from treadle.runs.task import load_task
from treadle.tools.schema.validation import ArgumentChecker

KEY = "sk-abcdefghijklmnop1234"


async def make(tmp_path: Path, **options: Any) -> RecordedRun:
    agent = make_agent(ANSWERS, **options)
    return await record(agent, await agent.run("A euro?"), tmp_path)


async def test_a_recording_reads_as_the_run_that_was_written(tmp_path: Path) -> None:
    agent = make_agent(ANSWERS, files={"a.txt": "one"})
    run = await agent.run("A euro?")
    recorded = await record(agent, run, tmp_path)
    assert recorded.run.messages == run.messages
    assert recorded.run.files == {"a.txt": b"one"}
    assert recorded.name == "euro"


async def test_each_event_has_its_line(tmp_path: Path) -> None:
    recorded = await make(tmp_path)
    lines = recorded.path.read_text().splitlines()
    assert len(recorded.lines) == len(recorded.events)
    for event in recorded.events:
        at = recorded.line_of(event.seq)
        assert lines[at - 1] == " {"
        assert f'"seq": {event.seq},' in lines[at + 1]


async def test_a_person_may_edit_a_recording(tmp_path: Path) -> None:
    recorded = await make(tmp_path)
    recorded.path.write_text(recorded.path.read_text().replace("11.6 NOK", "12 NOK"))
    assert (await read_recording(recorded.path)).run.output == "A euro is 12 NOK."


async def test_secrets_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "correct-horse-battery")
    agent = make_agent(
        [f"The key is {KEY}, the token correct-horse-battery, the code 4711."], instructions=KEY
    )
    run = await agent.run("Which?")
    path = tmp_path / "secret.run.json"
    write_recording(agent.journal, run.run_id, path, Redaction([r"\b4711\b"]))
    assert "The key is ***, the token ***, the code ***." in path.read_text()
    assert KEY not in path.read_text()
    recorded = await read_recording(path)
    monkeypatch.delenv("MY_API_TOKEN")
    suite = Suite.of_config(load_config(), {"redact": [r"\b4711\b"]})
    # Today's agent has the real key in its prompt.
    assert (await run_recording(suite, recorded.path, agent)).divergence is None


async def test_a_file_with_a_secret_is_refused(tmp_path: Path) -> None:
    agent = make_agent(["Done."], files={".env": f"KEY={KEY}"})
    run = await agent.run("Go.")
    with pytest.raises(ConfigError, match=r"the file '\.env' of the run has a secret"):
        write_recording(agent.journal, run.run_id, tmp_path / "a.run.json", Redaction())


async def test_a_secret_that_came_later_is_named_with_its_line(tmp_path: Path) -> None:
    recorded = await make(tmp_path)
    recorded.path.write_text(recorded.path.read_text().replace("11.6 NOK", KEY))
    found = await run_recording(Suite.of_config(load_config()), recorded.path, make_agent([]))
    assert found.error is not None
    assert "looks like a secret, at line" in found.error


async def test_a_run_that_has_not_ended_is_no_recording(tmp_path: Path) -> None:
    agent = make_agent([[call("ask_user", {"question": "Which?"})]], tools=["ask"])
    waiting = await agent.run("Go.")
    with pytest.raises(ConfigError, match="has not ended; finish it with `treadle resume"):
        write_recording(agent.journal, waiting.run_id, tmp_path / "a.run.json", Redaction())
    failing = make_agent([ProviderError("the server is down")])
    failed = await failing.run("Go.")
    with pytest.raises(ConfigError, match=r"ended with 'error' \(the server is down\)"):
        write_recording(failing.journal, failed.run_id, tmp_path / "a.run.json", Redaction())
    with pytest.raises(RunNotFoundError):
        write_recording(failing.journal, "nobody", tmp_path / "a.run.json", Redaction())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is no recording"),
        ("{}", "it is not a list of events"),
        ("[]", "it is not a list of events"),
        ('[{"type": "run_started"}]', "event 1: "),
    ],
)
async def test_other_files_are_no_recordings(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "a.run.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        await read_recording(path)


async def test_a_missing_recording_says_how_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="treadle test record RUN"):
        await read_recording(tmp_path / "a.run.json")


async def test_versions_of_events(tmp_path: Path) -> None:
    recorded = await make(tmp_path)
    text = recorded.path.read_text()
    recorded.path.write_text(text.replace('"version": "2.8"', '"version": "2.3"'))
    older = await read_recording(recorded.path)
    assert (
        await run_recording(Suite.of_config(load_config()), older.path, make_agent([]))
    ).divergence is None
    recorded.path.write_text(text.replace('"version": "2.8"', '"version": "3.0"'))
    with pytest.raises(ConfigError, match="written by a newer Treadle"):
        await read_recording(recorded.path)


class Described:
    """A tool as a journal describes it."""

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec
        self.find_fault = ArgumentChecker(spec.parameters).find_fault

    async def call(self, arguments: dict[str, Any], context: Any) -> str:
        raise AssertionError("no tool is called")


WITHOUT_ANSWERS = ("failed",)
"""The journal with a turn that has no answer."""
DIFFERENT = ("lost_steps",)
"""The journal in which answers that were lost count as steps, and a replay loses none."""
USABLE = [path for path in GOLDEN if path.stem not in (*WITHOUT_ANSWERS, *DIFFERENT)]


def as_recording(path: Path, folder: Path) -> Path:
    file = folder / "old.run.json"
    file.write_text(json.dumps([json.loads(line) for line in path.read_bytes().splitlines()]))
    return file


@pytest.mark.parametrize("name", WITHOUT_ANSWERS)
async def test_old_journals_without_answers_are_refused(name: str, tmp_path: Path) -> None:
    path = next(path for path in GOLDEN if path.stem == name)
    with pytest.raises(ConfigError, match=r"record a run whose turns have ended|has not ended"):
        await read_recording(as_recording(path, tmp_path))


@pytest.mark.parametrize("path", USABLE, ids=lambda path: f"{path.parent.name}-{path.stem}")
async def test_journals_of_older_versions_are_replayed(path: Path, tmp_path: Path) -> None:
    recorded = await read_recording(as_recording(path, tmp_path))
    spec = recorded.started.spec
    tools = [Described(tool) for tool in recorded.run.state.tools]
    schema = None if spec.schema is None else dict(spec.schema)
    agent = Agent(
        ScriptedModel([], name=spec.model.name),
        instructions=spec.instructions,
        tools=[
            tool for tool in tools if tool.spec.name not in ("read_result", "read_message", "final_answer")
        ],
        policy=spec.policy,
        schema=schema,
        journal="memory:",
    )
    found = await replay_recording(recorded, agent)
    assert found.divergence is None, str(found.divergence)
    assert found.requests > 0


async def test_recordings_are_found_by_name(tmp_path: Path) -> None:
    await make(tmp_path / "billing")
    await make(tmp_path)
    (tmp_path / "other.json").write_text("{}")
    names = [path.relative_to(tmp_path).as_posix() for path in find_recordings(tmp_path, lambda name: True)]
    assert names == ["billing/euro.run.json", "euro.run.json"]
    assert len(find_recordings(tmp_path, lambda name: "bill" in name)) == 1


async def test_an_agent_of_a_program_must_be_named(tmp_path: Path) -> None:
    recorded = await make(tmp_path)
    found = await run_recording(Suite.of_config(load_config()), recorded.path)
    assert found.error is not None
    assert "name the agent, as --agent file.py:NAME" in found.error


async def test_a_recording_of_the_oracle_needs_no_agent(tmp_path: Path) -> None:
    task = load_task("files:csv_sum-0001")
    agent = Agent(load_config().model("oracle", task=task), journal="memory:")
    recorded = await record(agent, await agent.run(task), tmp_path)
    found = await run_recording(Suite(table=RegressionTable()), recorded.path)
    assert (found.error, found.divergence) == (None, None)
    assert found.requests == recorded.run.steps


def test_slugs() -> None:
    assert slug("What is a euro in NOK?") == "what-is-a-euro-in-nok"
    assert slug("???") == "run"


def test_a_pattern_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match=r"test\.redact has '\('"):
        Redaction(["("])
