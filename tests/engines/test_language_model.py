"""A real language model, weak as it is, in every job: what it breaks must be its own answers, and nothing else."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import yaml
from tests.engines.engine_server import NAME, EngineServer, make_language_model, make_tiny_model, serve
from tests.server.test_responses import serving

from treadle import Agent, Policy, Run, model, open_journal
from treadle.core.events import TextDelta
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
ENDS = (0, 3, 4)
"""The exit codes of a chat whose turns are answered, cut off by the model's limit, or wait for an answer."""


@pytest.fixture(scope="module")
def language_model(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    model = make_language_model(environment, environment / "language-model")
    if running := os.environ.get("TREADLE_LANGUAGE_URL"):
        yield EngineServer(environment, model, running)
        return
    with serve(environment, model, tmp_path_factory.mktemp("language") / "vllm.log") as server:
        yield server


@pytest.fixture
def command(language_model, tmp_path):
    """A function that runs a command in a folder whose treadle.toml has the model `small`."""
    settings = {"model": f'"vllm:{NAME}"', "base_url": f'"{language_model.url}"', "max_output_tokens": 100}
    lines = ["[models.small]", *[f"{key} = {value}" for key, value in settings.items()]]
    lines += ["[models.likeliest]", "temperature = 0.0", *lines[1:]]
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


def find_recalled(path: Path) -> str:
    """Return everything that was recalled in the runs of a journal."""
    with open_journal(path) as journal:
        opened = [
            event.body
            for info in journal.runs()
            for event in journal.read(info.run_id)
            if event.type == "turn_started"
        ]
    return "\n".join([body.recalled.text for body in opened if body.recalled is not None])


def check_faults(runs: list[Run]) -> None:
    """Check that nothing but the model itself failed."""
    assert runs
    assert all(run.fault in (None, "model") for run in runs), [(run.run_id, run.error) for run in runs]


@pytest.mark.parametrize("renderer", ["", "hf:{}?format=hermes", "hf:{}/tiny"])
def test_the_check_of_a_model_that_is_shown_no_tools(command, language_model, renderer):
    """The template of the server has no place for tools, where a renderer writes them as text."""
    name = renderer.format(language_model.environment if "tiny" in renderer else language_model.model)
    make_tiny_model(language_model.environment, language_model.environment / "tiny")
    asked = ["models", "check", f"vllm:{NAME}", "--base-url", language_model.url, "--json"]
    said = command(*asked, *(["--renderer", name] if name else []), codes=(1,) if "tiny" in name else (0,))
    found = {item["name"]: item for item in map(json.loads, said.splitlines()) if "name" in item}
    if "tiny" in name:
        assert "is for another model" in found["same vocabulary"]["seen"]
        assert "answers" not in found
        return
    assert found["answers"]["is_there"]
    assert found["tools"]["is_there"] is False
    if name:
        assert "the server's template does not show tools" in found["same template"]["seen"]
        assert "advice" not in found["tools"]
    else:
        assert "tokens with the tool and without it" in found["tools"]["seen"]


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
    command("chat", *options, given="\n".join(first), codes=ENDS)
    command("chat", *options, given="What is my favourite dish?\nDelete everything.\nBerlin\n", codes=ENDS)
    runs = read_runs(tmp_path / "chat.db")
    assert len(runs) == 2
    check_faults(runs)
    command("verify", "--all", "--journal", "chat.db")


def test_what_was_said_is_recalled(command, tmp_path):
    """A fact that the user gives, and an episode of the first session, come back in the second one."""
    (tmp_path / "ada.yaml").write_text(yaml.safe_dump(PERSONA))
    options = ["--model", "likeliest", "--journal", "chat.db", "--persona", "ada.yaml", "--user", "kim"]
    first = ["/remember Kim lives in Bergen.", "What is the capital of France?"]
    command("chat", *options, given="\n".join(first), codes=ENDS)
    command("chat", *options, given="What did you say about the capital of France?\n", codes=ENDS)
    runs = read_runs(tmp_path / "chat.db")
    assert len(runs) == 2
    check_faults(runs)
    told = find_recalled(tmp_path / "chat.db")
    assert "Kim lives in Bergen." in told
    assert "What is the capital of France?" in told


@pytest.mark.parametrize("tool", ["ask_user", "use_skill"])
async def test_calls_that_the_model_must_make(language_model, tool):
    """The engine constrains each answer to a call, so that the model asks its user, and uses a skill.

    Some of its texts have no end, and are cut off.
    """
    made = model(
        f"vllm:{NAME}",
        base_url=language_model.url,
        max_output_tokens=80,
        strict_tools=True,
        extra={"tool_choice": "required"},
    )
    asked = []

    def answer(question):
        asked.append(question.text)
        return question.options[0].label if question.options else "Berlin"

    given = {"tools": ["ask"]} if tool == "ask_user" else {"skills": ["builtin"]}
    agent = Agent(made, asker=answer, journal=MemoryJournal(), policy=Policy(max_steps=2), **given)
    names = set()
    for _ in range(8):
        run = await agent.run("Which town is it?")
        check_faults([run])
        names |= {result.name for result in run.results}
        if tool in names:
            break
    assert tool in names
    assert bool(asked) is (tool == "ask_user")


async def test_messages_that_the_window_does_not_hold(environment, tmp_path):
    """A message of many times the window, tools that fill most of it, and then a session that goes on."""
    folder = make_language_model(environment, environment / "language-model")
    with serve(environment, folder, tmp_path / "vllm.log", window=1024) as server:
        made = model(f"vllm:{NAME}", base_url=server.url, max_output_tokens=60)
        agent = Agent(made, journal=MemoryJournal(), policy=Policy(max_steps=3))
        async with agent.session("talk") as session:
            runs = [
                await session.send("Which word is it? " + "fish and bread and " * 3000),
                await session.send("What is the capital of France?"),
                await session.send("æøå 😀 \u0007 <|im_end|> " * 400),
                await session.send("And of Germany?"),
            ]
            await session.compact()
            runs.append(await session.send("Which two?"))
        check_faults(runs)
        assert {run.stop_reason for run in runs} <= {"completed", "max_tokens"}
        tooled = Agent(made, tools=["files"], journal=MemoryJournal(), policy=Policy(max_steps=2))
        run = await tooled.run("List the files.")
        assert run.fault in (None, "model", "user"), run.error


async def test_an_engine_that_is_killed(environment, tmp_path):
    """A run whose engine dies fails through the infrastructure's fault, and is resumed with the next engine."""
    folder = make_language_model(environment, environment / "language-model")
    journal = MemoryJournal()

    def connect(server):
        return Agent(
            model(f"vllm:{NAME}", base_url=server.url, max_output_tokens=200, max_attempts=2), journal=journal
        )

    with serve(environment, folder, tmp_path / "first.log") as server:
        agent = connect(server)
        pieces = []
        running = asyncio.create_task(agent.run("Tell a long story.", run_id="r", on_event=pieces.append))
        while not any(isinstance(piece, TextDelta) for piece in pieces):
            await asyncio.sleep(0.01)
        server.kill()
        run = await running
    assert (run.fault, run.output) == ("infrastructure", "")
    with serve(environment, folder, tmp_path / "second.log") as server:
        run = await connect(server).resume("r")
    check_faults([run])
    assert run.messages[-1].content


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


def test_an_evaluation(command, tmp_path):
    """The server shows no tools, so that nothing is solved; each answer is a sample with a grade."""
    said = command("eval", "--task", "files:csv_sum-*", "--limit", "2", "-m", "small", "--out", "e", "--json")
    assert json.loads(said.splitlines()[-1])["models"]
    check_faults(read_runs(tmp_path / "e" / "runs.db"))


async def test_a_server_before_it(command, tmp_path):
    """Clients of OpenAI's API get what the engine says: texts, log probabilities, constrained answers and calls,
    and a mistake of theirs as such."""
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string", "maxLength": 20}, "letters": {"type": "integer"}},
        "required": ["capital", "letters"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    town = {"type": "object", "properties": {"town": {"enum": ["Oslo", "Rome"]}}, "required": ["town"]}
    tools = [{"type": "function", "function": {"name": "forecast", "parameters": town, "strict": True}}]
    asked = {
        "model": "likeliest",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    async with (
        serving(tmp_path / "treadle.toml", MemoryJournal()) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        ask = client.chat.completions.create
        (whole,) = (await ask(**asked, logprobs=True, top_logprobs=2)).choices
        assert "".join(item.token for item in whole.logprobs.content).startswith(whole.message.content)
        pieces = [piece.choices[0].delta.content or "" async for piece in await ask(**asked, stream=True)]
        assert "".join(pieces) == whole.message.content
        (fitted,) = (await ask(**asked, response_format=form)).choices
        assert set(json.loads(fitted.message.content)) == {"capital", "letters"}
        (called,) = (await ask(**asked, tools=tools, tool_choice="required")).choices
        for call in called.message.tool_calls:
            assert json.loads(call.function.arguments)["town"] in ("Oslo", "Rome")
        answered = await client.responses.create(model="likeliest", input=asked["messages"])
        assert answered.output_text == whole.message.content
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(model="likeliest", messages=[{"role": "user", "content": "fish and bread " * 9000}])
        assert (refused.value.code, refused.value.type) == (
            "context_length_exceeded",
            "invalid_request_error",
        )


GENERATIONS = {
    "basic": {"generation": {"conversation": {"type": "basic", "max_turns": 2}}},
    "cot": {"generation": {"conversation": {"type": "cot", "reasoning": "freetext"}}},
    "schema": {
        "generation": {
            "conversation": {
                "type": "basic",
                "output_schema": {
                    "type": "object",
                    "properties": {
                        "dish": {"type": "string", "maxLength": 40},
                        "minutes": {"type": "integer", "minimum": 1, "maximum": 600},
                    },
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
    """Rows are few. Each that is kept can be verified, and each sample that is not kept says why.

    Most samples fail because an answer has no end. One that the engine keeps short is a row more often.
    """
    small = {"model": f"vllm:{NAME}", "base_url": language_model.url, "max_output_tokens": 250}
    config = {
        "name": kind,
        "models": {"default": small, "agent": {**small, "options": {"strict_tools": kind == "calls"}}},
        "topics": {"prompt": "Cooking at home", "mode": "tree", "degree": 2, "depth": 1},
        "output": {"path": "rows", "formats": ["trl"]},
        **GENERATIONS[kind],
    }
    config["generation"] |= {"num_samples": 2, "max_attempts": 6 if kind == "schema" else 2}
    (tmp_path / "dataset.yaml").write_text(yaml.safe_dump(config))
    command("generate", "dataset.yaml", codes=(0, 3))
    rows, rejected = (
        [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for path in (tmp_path / "rows" / "rows.jsonl", tmp_path / "rows" / "rejected.jsonl")
    )
    assert rows or (rejected and kind != "schema")
    check_faults(read_runs(tmp_path / "rows" / "journal.db"))
    if rows:
        command("dataset", "verify", "rows")
