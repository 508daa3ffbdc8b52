"""Rollouts of programs: an agent over OpenAI's SDK that knows nothing of Treadle, and programs that fail."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forks.process import ForkServer, command_of
from tests.models.answers import answer
from tests.models.server import Reply, serve
from tests.rollout.test_engines import Engine, sampled_ids

from treadle import Agent, Run, open_journal
from treadle.core import events as e
from treadle.core.errors import ConfigError, ProviderError
from treadle.jobs.attempt import AttemptFailedError, check_ended
from treadle.journal.run_info import RunFilter
from treadle.rollout import RolloutResult, Rollouts
from treadle.rollout.rollout_folder import read_groups, read_stored
from treadle.rollout.rollouts_view import find_facts
from treadle.server.gateway.programs import ProgramWorkers

IS_FULL = bool(os.environ.get("TREADLE_FULL"))
AGENT = Path(__file__).parents[2] / "examples" / "rollout" / "file_agent.py"
ASK = """
import json, os, sys, urllib.request
def ask(text):
    said = [{"role": "user", "content": item} for item in (text, os.environ["TREADLE_TASK"])]
    body = {"model": "any", "messages": said}
    head = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), head)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
"""


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def sdk() -> ForkServer:
    """A server of processes that have imported OpenAI's SDK, which takes longer than all that a program does."""
    pytest.importorskip("openai")
    return ForkServer("openai.resources.chat.completions", "openai.resources.responses")


@pytest.fixture
def forks(sdk: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `command_of` make commands that run in such a process."""
    for name, value in sdk.variables().items():
        monkeypatch.setenv(name, value)


def roll(path: Path, engine: Engine, command: list[str], **options: Any) -> RolloutResult:
    given = {
        "tasks": ["files:csv_sum-*"],
        "groups": 2,
        "group_size": 2,
        "window": 4,
        "path": path,
        "retries": {"attempts": 2, "delay_seconds": 0.0},
        **options,
    }
    model = {"model": "vllm:oracle:0.4", "base_url": engine.url}
    return asyncio.run(Rollouts(model=model, workers=ProgramWorkers(command), **given).run())


def write(path: Path, text: str) -> list[str]:
    """Write a program, and return the command that starts it."""
    path.mkdir(exist_ok=True)
    (path / "program.py").write_text(ASK + text)
    return [sys.executable, str(path / "program.py")]


def test_the_tokens_of_a_program_are_those_that_the_engine_sampled(
    tmp_path: Path, engine: Engine, forks: None
) -> None:
    command = [sys.executable, str(AGENT)] if IS_FULL else command_of(AGENT)
    groups, sinks = 2 if IS_FULL else 1, [f"tokens:{tmp_path}/rows.jsonl"]
    result = roll(tmp_path, engine, command, groups=groups, sinks=sinks)
    assert result.end.reason == "done"
    assert sampled_ids(tmp_path) == sorted(tuple(answer.token_ids) for answer in engine.app.sampled)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    names = {f"rollout-{group}-{number}" for group in range(1, groups + 1) for number in range(2)}
    assert {row["run_id"] for row in rows} == names
    made = read_groups(tmp_path, read_stored(tmp_path))
    assert None not in [one.reward for group in made for one in group.rollouts]
    facts = [fact for group in made for fact in find_facts(group).rollouts]
    assert all(fact.steps > 1 and sum(count for count, _ in fact.calls.values()) > 0 for fact in facts)
    with open_journal(tmp_path / "runs.db") as journal:
        for info in journal.runs():
            assert asyncio.run(Agent("mock:echo", journal=journal).replay(info.run_id)).is_exact
        outer = [info for info in journal.runs() if info.caller_run_id is None]
        inner = [info for info in journal.runs() if info.caller_run_id is not None]
        assert len(outer) == len(inner) == 2 * groups
        assert sum(info.output_tokens for info in outer) == sum(info.output_tokens for info in inner)


def test_a_program_may_lead_several_conversations_and_grade_itself(tmp_path: Path, engine: Engine) -> None:
    command = write(
        tmp_path / "own",
        """
ask("first"); ask("second")
assert json.load(open(os.environ["TREADLE_TASK_FILE"]))["input"] == os.environ["TREADLE_TASK"]
open("made.txt", "w").write("x")
print("my answer")
print(json.dumps({"reward": 0.25}))
""",
    )
    roll(tmp_path / "out", engine, command, groups=1)
    (group,) = read_groups(tmp_path / "out", read_stored(tmp_path / "out"))
    assert [one.reward for one in group.rollouts] == [0.25, 0.25]
    for one in group.rollouts:
        assert one.steps == 2
        assert [item.content for item in one.messages if item.role == "user"][::2] == ["first", "second"]
    assert [len(one.trajectories) for one in group.rollouts] == [2, 2]
    with open_journal(tmp_path / "out" / "runs.db") as journal:
        run = Run.load("rollout-1-0", journal)
        assert run.output == "my answer"
        assert run.files["made.txt"] == b"x"


def test_a_task_without_a_check_is_graded_by_other_rewards(tmp_path: Path) -> None:
    tasks, out = tmp_path / "quiz.py", tmp_path / "out"
    tasks.write_text(
        "from treadle.tasks import SimpleTask\nQUIZ = [SimpleTask(task_id='sum', input='What is 1 + 1?')]\n"
    )
    workers = ProgramWorkers(write(tmp_path / "own", "ask('hi'); print('two')"))
    rewards = {"final_answer": {"answer": "two"}}
    given = {"tasks": [f"{tasks}:QUIZ"], "groups": 1, "group_size": 1, "rewards": rewards, "path": out}
    asyncio.run(Rollouts(model="mock:echo", workers=workers, **given).run())
    (group,) = read_groups(out, read_stored(out))
    assert [one.reward for one in group.rollouts] == [1.0]


def test_the_calls_of_a_program_are_scored(tmp_path: Path, engine: Engine) -> None:
    """The run of the program has none itself, so that a broken rule was kept and each reward for calls was 1."""
    command = write(
        tmp_path / "own",
        """
said = [{"role": "user", "content": os.environ["TREADLE_TASK"]}]
tool = {"name": "list_files", "description": "Lists files.", "parameters": {"type": "object", "properties": {}}}
def send(**more):
    body = {"model": "any", "messages": said, "tools": [{"type": "function", "function": tool}]}
    head = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), head)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
said += [first := send(), {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "[]"}]
send()
said[2]["content"] = "[1]"  # a second branch, which has the first answer too
send()
""",
    )
    rewards = {"tool_use": 1.0, "policy": {"never": ["list_files"]}}
    roll(tmp_path / "out", engine, command, groups=1, group_size=1, rewards=rewards)
    with open_journal(tmp_path / "out" / "runs.db") as journal:
        bodies = [event.body for event in journal.read("rollout-1-0")]
        answers = [
            event.body.completion.message
            for info in journal.runs(RunFilter(is_finished=False))
            for event in journal.read(info.run_id)
            if isinstance(event.body, e.InferenceCompleted)
        ]
    details = {body.name: body.detail for body in bodies if isinstance(body, e.Rewarded)}
    count = len({call.call_id for answer in answers for call in answer.tool_calls})
    assert {name: details[name] for name in rewards} == {
        "tool_use": f"{count} of {count} calls are well-formed and not repeated",
        "policy": "'list_files' was called, which is forbidden",
    }


@pytest.mark.parametrize("value", ["NaN", "Infinity", "null", "true", '"0.5"', "[1]"])
def test_a_printed_reward_that_is_no_number_is_an_error_and_no_answer(
    value: str, tmp_path: Path, engine: Engine
) -> None:
    """The check of the task graded the answer in its place, so that a broken reward trained on zeros."""
    command = write(tmp_path / "own", f"""ask("hi"); print('{{"note": 1, "reward": {value}}}')""")
    with pytest.raises(ProviderError, match=r"the program's reward is .*; write a number"):
        roll(tmp_path / "out", engine, command, groups=1, group_size=1)


def test_a_command_with_an_open_quotation_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"the command .* is not a command line: No closing quotation"):
        ProgramWorkers("python 'agent.py")


@pytest.mark.parametrize(
    ("ending", "reason"), [("sys.exit(75)", "exited with 75"), ("os.kill(os.getpid(), 9)", "signal 9")]
)
def test_what_is_not_the_models_fault_is_tried_again_and_never_graded(
    ending: str, reason: str, tmp_path: Path, engine: Engine
) -> None:
    command = write(tmp_path / "own", f"ask('hi'); {ending}")
    result = roll(tmp_path / "out", engine, command, groups=1, group_size=1, max_dropped=1)
    assert result.end.reason == "failures"
    assert reason in str(result.end.error)
    with open_journal(tmp_path / "out" / "runs.db") as journal:
        assert journal.runs(RunFilter(run_ids=["rollout-1-0"]))[0].reward is None


def test_a_program_that_fails_after_it_asked_is_graded_as_it_is(tmp_path: Path, engine: Engine) -> None:
    command = write(tmp_path / "own", "ask('hi'); raise KeyError('x')")
    roll(tmp_path / "out", engine, command, groups=1, group_size=1)
    (group,) = read_groups(tmp_path / "out", read_stored(tmp_path / "out"))
    assert [one.reward for one in group.rollouts] == [0.0]


def test_a_small_file_after_one_that_is_too_large_is_kept(tmp_path: Path, engine: Engine) -> None:
    left = "open('a', 'wb').truncate(50_000_001); open('b', 'w').write('small')"
    command = write(tmp_path / "own", f"ask('hi'); {left}")
    assert roll(tmp_path / "out", engine, command, groups=1, group_size=1).end.reason == "done"
    with open_journal(tmp_path / "out" / "runs.db") as journal:
        files = Run.load("rollout-1-0", journal).state.sandbox.files
    assert "b" in files
    assert "a" not in files


def test_a_program_that_never_asks_stops_the_work(tmp_path: Path, engine: Engine) -> None:
    command = write(tmp_path / "own", "raise KeyError('no such thing')")
    with pytest.raises(ProviderError, match="no such thing"):
        roll(tmp_path / "out", engine, command, groups=1)


def test_a_missing_file_of_a_command_is_named_without_the_folder_of_the_run(
    tmp_path: Path, engine: Engine
) -> None:
    with pytest.raises(ProviderError, match=r"open file 'nothere\.py'.*looked for in '") as caught:
        roll(tmp_path / "out", engine, f"{sys.executable} nothere.py", groups=1)
    assert "treadle-program" not in str(caught.value)


def test_a_program_that_takes_too_long_is_stopped(tmp_path: Path, engine: Engine) -> None:
    command = write(tmp_path / "own", "ask('hi'); import time; time.sleep(600)")
    given = {"agent": {"deadline_seconds": 1.0}, "groups": 1, "group_size": 1, "max_dropped": 1}
    result = roll(tmp_path / "out", engine, command, **given)
    assert result.end.reason == "max_items"
    assert "deadline" in result.progress.reasons
    with open_journal(tmp_path / "out" / "runs.db") as journal:
        (info,) = journal.runs(RunFilter(stop_reason="deadline"))
        run = Run.load(info.run_id, journal)
    with pytest.raises(
        AttemptFailedError, match=f"run {run.run_id}'s program was killed when its deadline passed"
    ):
        check_ended(run)


def test_the_limits_of_a_rollout_hold_for_its_program(tmp_path: Path, engine: Engine) -> None:
    command = write(
        tmp_path / "own",
        """
made = 0
try:
    while True:
        ask(f"number {made}"); made += 1
except urllib.error.HTTPError as error:
    print(made, error.code, json.load(error)["error"]["code"])
""",
    )
    roll(tmp_path / "out", engine, command, groups=1, group_size=1, agent={"max_steps": 3})
    with open_journal(tmp_path / "out" / "runs.db") as journal:
        assert Run.load("rollout-1-0", journal).output == "3 402 budget_exceeded"


def test_a_command_that_does_not_exist_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not begin with a program"):
        ProgramWorkers("no-such-program --x")
    with pytest.raises(ConfigError, match="needs workers"):
        Rollouts(model="oracle", tasks=["files"], command="python x.py", path=tmp_path)


def test_a_program_may_ask_by_the_responses_api(tmp_path: Path, engine: Engine, forks: None) -> None:
    """It is the default of openai-agents, and others use it with models of OpenAI."""
    command = write(
        tmp_path / "own",
        """
import openai
create = (client := openai.OpenAI()).responses.create
tools = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
said = 'call weather {"city": "Bø"}'
first = create(model="any", input=said, tools=tools, tool_choice="auto", instructions="Be brief.")
(call,) = first.output
given = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
second = create(model="any", input=[given], previous_response_id=first.id, tools=tools)
question = {"role": "user", "content": "thanks"}
whole = [{"role": "user", "content": said}, call.to_dict(), given, *second.output, question]
with client.responses.stream(model="any", input=whole, tools=tools) as stream:
    kinds = [event.type for event in stream]
    third = stream.get_final_response()
branch = create(model="any", input="a branch", previous_response_id=second.id)
refused = []
for more in ({"previous_response_id": "resp_nope_1_0"}, {"background": True}, {"conversation": "conv_1"}):
    try:
        create(model="any", input="x", **more)
    except openai.APIStatusError as error:
        refused.append(error.status_code)
print(json.dumps([call.name, call.arguments, second.output_text.strip(), third.output_text, branch.output_text,
    kinds[:3], kinds[-1], third.usage.total_tokens > 0, refused]))
""",
    )
    command = command_of(Path(command[-1]))
    model = {"model": "openai:echo", "base_url": engine.url, "api_key_env": ""}
    asyncio.run(
        Rollouts(
            model=model,
            workers=ProgramWorkers(command),
            tasks=["files:csv_sum-*"],
            groups=1,
            group_size=1,
            path=tmp_path / "out",
        ).run()
    )
    with open_journal(tmp_path / "out" / "runs.db") as journal:
        said = json.loads(Run.load("rollout-1-0", journal).output)
        begun = [info.steps for info in journal.runs() if info.caller_run_id is not None]
    assert said[:3] == ["weather", '{"city": "Bø"}', "weather: rain"]
    assert "thanks" in said[3]
    assert "a branch" in said[4]
    events = ["response.created", "response.in_progress", "response.output_item.added"]
    assert said[5:] == [events, "response.completed", True, [404, 400, 400]]
    assert sorted(begun) == [1, 3]  # the branch, and the conversation however it was sent


def test_a_program_may_give_tools_that_take_a_text(tmp_path: Path, engine: Engine, forks: None) -> None:
    command = write(
        tmp_path / "own",
        """
import openai
create = (client := openai.OpenAI()).responses.create
other = {"type": "function", "name": "other", "parameters": {"type": "object"}}
only = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "patch"}]}
given = {"model": "any", "tools": [{"type": "custom", "name": "patch"}, other], "tool_choice": only}
first = create(input='call patch {"input": "a line"}', **given)
(call,) = first.output
output = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "patched"}
second = create(input=[output], previous_response_id=first.id, **given)
with client.responses.stream(input='call patch {"input": "a line"}', **given) as stream:
    texts = [event.input for event in stream if event.type == "response.custom_tool_call_input.done"]
    again = stream.get_final_response().output[0]
print(json.dumps([call.type, call.input, second.output_text, texts, again.input]))
""",
    )
    command = command_of(Path(command[-1]))
    model = {"model": "openai:echo", "base_url": engine.url, "api_key_env": ""}
    given: Any = {"tasks": ["files:csv_sum-*"], "groups": 1, "group_size": 1, "path": tmp_path / "out"}
    asyncio.run(Rollouts(model=model, workers=ProgramWorkers(command), **given).run())
    with open_journal(tmp_path / "out" / "runs.db") as journal:
        said = json.loads(Run.load("rollout-1-0", journal).output)
    assert said == ["custom_tool_call", "a line", "patch: patched", ["a line"], "a line"]


async def test_what_a_program_asks_is_written_as_its_engine_reads_it(tmp_path: Path) -> None:
    tool = {"name": "weather", "input_schema": {"type": "object"}}
    asks = {
        "messages": {"tools": [tool], "tool_choice": {"type": "any"}, "max_tokens": 9},
        "responses": {
            "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}}],
            "tool_choice": {"type": "function", "name": "weather"},
            "reasoning": {"effort": "low"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        },
    }
    command = write(
        tmp_path / "own",
        f"""
for path, body in {asks!r}.items():
    body |= {{"model": "any", "messages" if path == "messages" else "input": [{{"role": "user", "content": "x"}}]}}
    head = {{"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}}
    url = os.environ["OPENAI_BASE_URL"] + "/" + path
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head))
""",
    )
    async with serve(lambda _: Reply(answer())) as server:
        model = {"model": "openai:far", "base_url": server.base_url, "api_key_env": ""}
        given: Any = {"tasks": ["files:csv_sum-*"], "groups": 1, "group_size": 1, "path": tmp_path / "out"}
        await Rollouts(model=model, workers=ProgramWorkers(command), **given).run()
        first, second = [request.json() for request in server.requests if request.body]
    assert first["tool_choice"] == "required"
    assert second["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert second["reasoning_effort"] == "low"
    named = {"name": "n", "schema": {"type": "object"}}
    assert second["response_format"] == {"type": "json_schema", "json_schema": named}
