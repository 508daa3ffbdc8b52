"""A real language model, weak as it is, in every job: what it breaks must be its own answers, and nothing else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.engines.vllm_server import NAME, VllmServer, make_language_model, serve

from treadle import Agent, Policy, Run, model, open_journal
from treadle.journal.memory import MemoryJournal

pytestmark = [pytest.mark.xdist_group("engines"), pytest.mark.full]
PERSONA = {
    "name": "Ada",
    "role": "a helpful assistant who likes cooking",
    "self_facts": [{"text": "Kim is allergic to nuts.", "priority": 1}],
    "tone": "Plain.",
    "autonomy": "balanced",
    "tools": ["ask", "files"],
    "memory": True,
}


@pytest.fixture(scope="module")
def language_model(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    model = make_language_model(environment, environment / "language-model")
    with serve(environment, model, tmp_path_factory.mktemp("language") / "vllm.log") as server:
        yield server


@pytest.fixture
def command(language_model, tmp_path):
    """A function that runs a command in a folder whose treadle.toml has the model `small`."""
    settings = {"model": f'"vllm:{NAME}"', "base_url": f'"{language_model.url}"', "max_output_tokens": 100}
    lines = ["[models.small]", *[f"{key} = {value}" for key, value in settings.items()]]
    (tmp_path / "treadle.toml").write_text("\n".join(lines))

    def run(*arguments, given="", codes=(0,)):
        done = subprocess.run(
            [sys.executable, "-m", "treadle", *arguments],
            cwd=tmp_path,
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in codes, done.stdout[-3000:] + done.stderr[-3000:]
        assert "Traceback" not in done.stderr
        return done.stdout

    return run


def read_runs(path: Path) -> list[Run]:
    with open_journal(path) as journal:
        return [Run.load(info.run_id, journal) for info in journal.runs()]


def check_faults(runs: list[Run]) -> None:
    """Check that nothing but the model itself failed."""
    assert runs
    assert all(run.fault in (None, "model") for run in runs), [(run.run_id, run.error) for run in runs]


@pytest.mark.parametrize("judge", ["patterns", "model:small"])
def test_chat_with_memory_skills_and_questions(command, tmp_path, judge):
    """Two sessions of one user. Most answers are cut off by the model's limit, which ends their turns alone."""
    (tmp_path / "ada.yaml").write_text(yaml.safe_dump(PERSONA))
    options = ["--model", "small", "--journal", "chat.db", "--persona", "ada.yaml", "--user", "kim"]
    options += ["--skills", "builtin", "--judge", judge]
    first = [
        "My favourite dish is fish soup.",
        "What do you need for it?",
        "/compact",
        "And what after that?",
    ]
    command("chat", *options, given="\n".join(first), codes=(0, 1))
    command("chat", *options, given="What is my favourite dish?\nDelete everything.\nBerlin\n", codes=(0, 1))
    runs = read_runs(tmp_path / "chat.db")
    assert len(runs) == 2
    check_faults(runs)
    command("verify", "--all", "--journal", "chat.db")


async def test_summaries(language_model):
    """What the model is asked for as a summary becomes one, whatever it writes."""
    made = model(f"vllm:{NAME}", base_url=language_model.url, max_output_tokens=60)
    agent = Agent(made, journal=MemoryJournal(), policy=Policy(keep_turns=1))
    async with agent.session("talk") as session:
        for text in ("Name a fish.", "Name another one.", "And a bird?"):
            await session.send(text)
        await session.compact()
        run = await session.send("Which did you name?")
    assert any(event.type == "context_compacted" for event in run.events)
    check_faults([run])


GENERATIONS = {
    "basic": {"generation": {"conversation": {"type": "basic", "max_turns": 2}}},
    "cot": {"generation": {"conversation": {"type": "cot", "reasoning": "freetext"}}},
    "schema": {
        "generation": {
            "conversation": {
                "type": "basic",
                "output_schema": {
                    "type": "object",
                    "properties": {"dish": {"type": "string"}, "minutes": {"type": "integer"}},
                    "required": ["dish", "minutes"],
                    "additionalProperties": False,
                },
            }
        }
    },
    "calls": {
        "generation": {"conversation": {"type": "agent"}},
        "tools": {"use": ["files"], "files": "tasks:files", "max_steps": 3},
        "quality": {"judge": {"rubric": "Is the answer right?", "min_score": 0.1}},
    },
}


@pytest.mark.parametrize("kind", list(GENERATIONS))
def test_generations(command, language_model, tmp_path, kind):
    """Rows are few. Each that is kept can be verified, and each sample that is not kept says why."""
    small = {"model": f"vllm:{NAME}", "base_url": language_model.url, "max_output_tokens": 150}
    config = {
        "name": kind,
        "models": {"default": small, "agent": {**small, "options": {"strict_tools": kind == "calls"}}},
        "topics": {"prompt": "Cooking at home", "mode": "tree", "degree": 2, "depth": 1},
        "output": {"path": "rows", "formats": ["trl"]},
        **GENERATIONS[kind],
    }
    config["generation"] |= {"num_samples": 2, "max_attempts": 2}
    (tmp_path / "dataset.yaml").write_text(yaml.safe_dump(config))
    command("generate", "dataset.yaml", codes=(0, 3))
    rows, rejected = (
        [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for path in (tmp_path / "rows" / "rows.jsonl", tmp_path / "rows" / "rejected.jsonl")
    )
    assert rows or rejected
    check_faults(read_runs(tmp_path / "rows" / "journal.db"))
    if rows:
        command("dataset", "verify", "rows")
