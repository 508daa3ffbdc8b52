"""Single-turn agents: a scenario, a session of the agent, and a row."""

import asyncio
import contextlib

import pytest
from tests.datagen.conversations.cast import (
    NOTES,
    SCENARIO,
    Cast,
    facts_of,
    make_studio,
    read_notes,
    spec,
    texts,
    think,
)

from treadle import ScriptedModel, ToolContext, tool
from treadle.core.errors import ServerError
from treadle.core.prompts.transcript import check_transcript
from treadle.core.types import Fault, Request, Role
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.conversations.make import make_sample
from treadle.datagen.conversations.studio import Studio
from treadle.datagen.scenarios.environment import Environments
from treadle.datagen.scenarios.scenario import Environment, Kind
from treadle.journal.memory import MemoryJournal
from treadle.models.scripted import call


def studio_with(tools, agent, **config) -> tuple[Studio, Cast]:
    """Return a studio whose agent has these functions as tools, and no files."""
    cast = Cast(agent)
    made = GenerationConfig.model_validate({"topics": {"prompt": "Files"}, **config})
    environments = Environments(Environment(), tuple(tools))
    return Studio(made, {"default": cast.model}, MemoryJournal(), environments), cast


def replay(*steps):
    """Return an agent that answers its n-th request with the n-th step."""
    return lambda request: steps[sum(item.role is Role.ASSISTANT for item in request.messages)]


async def test_a_sample_is_a_row_of_its_run():
    studio = make_studio(NOTES)
    made = await make_sample(studio, spec())
    assert made.error is None
    assert made.row is not None
    assert texts(made.row.messages) == ["What is in notes.txt?", "I read the file.", "milk", "It says: milk"]
    info = made.row.lineage.sample
    assert info is not None
    assert (info.sample_id, info.kind, info.kinds, info.turns) == ("s000001", "single", ("single",), 1)
    assert info.persona == "Ana Lima, baker, novice; style: brief"
    assert set(info.tool_hashes) == {item.name for item in made.row.tools}
    assert made.usage.total_tokens == info.input_tokens + info.output_tokens > 0
    labels = {run.run_id: run.labels for run in studio.journal.runs()}
    assert labels["s000001-1"] == {"dataset": "dataset", "part": "sample", "sample_id": "s000001"}
    assert labels["s000001-1-scenario"]["part"] == "scenario"


async def test_the_same_call_twice_is_made_twice():
    """Rules out that a repeated call is skipped, and later results belong to the wrong calls."""
    count = 0

    @tool
    async def tick() -> str:
        nonlocal count
        count += 1
        return f"tick {count}"

    @tool
    async def read(name: str) -> str:
        return f"content of {name}"

    agent = replay(
        think("", call("tick")),
        think("", call("tick"), call("read", {"name": "b"})),
        think("", call("tick"), call("tick")),
        "done",
    )
    made = await make_sample(studio_with([tick, read], agent)[0], spec())
    assert made.row is not None
    calls = {call.call_id: call for message in made.row.messages for call in message.tool_calls}
    results = [message for message in made.row.messages if message.role is Role.TOOL]
    shown = [(calls[item.call_id or ""].name, item.content) for item in results]
    ticks = [content for name, content in shown if name == "tick"]
    assert sorted(ticks) == ["tick 1", "tick 2", "tick 3", "tick 4"]
    assert ("read", "content of b") in shown
    assert not check_transcript(made.row.messages)


async def test_a_step_of_repeated_calls_only_keeps_its_calls():
    """Rules out an assistant message with an empty list of calls, and two assistant messages in a row."""
    again = think("again", call("read_file", {"file_path": "notes.txt"}))
    made = await make_sample(make_studio(NOTES, Cast(replay(again, again, again, "done"))), spec())
    assert made.row is not None
    roles = [message.role for message in made.row.messages if message.role is not Role.SYSTEM]
    assert roles == ["user", *["assistant", "tool"] * 3, "assistant"]
    assert all(message.tool_calls for message in made.row.messages if message.content == "again")


async def test_calls_beside_a_final_text_are_made():
    """Rules out that calls in a step that sounds final are dropped."""
    write = call("write_file", {"file_path": "out.txt", "content": "x"})
    agent = replay(think("All done, here is the answer.", write), "Written.")
    made = await make_sample(make_studio(NOTES, Cast(agent)), spec())
    assert made.row is not None
    assert texts(made.row.messages)[2].startswith("wrote 1 byte")


async def test_calls_of_a_step_run_at_the_same_time():
    """Rules out that the calls of one step run one after another."""
    met = asyncio.Barrier(3)

    @tool
    async def meet(name: str) -> str:
        await met.wait()
        return name

    agent = replay(think("", *[call("meet", {"name": item}) for item in "abc"]), "done")
    async with asyncio.timeout(20):
        made = await make_sample(studio_with([meet], agent)[0], spec(kind=Kind.PARALLEL))
    assert made.row is not None
    assert texts(made.row.messages)[2:5] == ["a", "b", "c"]
    assert made.row.lineage.sample is not None
    assert made.row.lineage.sample.kinds == ("parallel",)


async def test_empty_results_and_empty_arguments_are_allowed():
    """Rules out that an empty file or an empty text as an argument makes the sample fail."""
    agent = replay(
        think("", call("write_file", {"file_path": "empty.txt", "content": ""})),
        think("", call("read_file", {"file_path": "empty.txt"})),
        "It is empty.",
    )
    made = await make_sample(make_studio(NOTES, Cast(agent)), spec())
    assert made.row is not None
    assert texts(made.row.messages)[4] == ""
    assert made.row.lineage.tool_errors == ()


async def test_limits_are_told_and_enforced():
    """Rules out that the agent does not know its limits, and that a row shows more calls than were made."""
    one = think("", call("read_file", {"file_path": "notes.txt"}))
    two = think("", *[call("read_file", {"file_path": "notes.txt"})] * 2)

    def agent(request: Request):
        return "done" if not request.tools else [one, two, one][min(len(request.messages) // 2 - 1, 2)]

    cast = Cast(agent)
    studio = make_studio({"tools": {**NOTES["tools"], "max_calls": 2, "max_steps": 5}}, cast)
    made = await make_sample(studio, spec())
    system = cast.asked["agent"][0].messages[0].content
    assert "at most 2 tool calls" in system
    assert "at most 5 times" in system
    facts = facts_of(cast.asked["scenario"][0])
    assert facts is not None
    assert facts["limits"] == {"max_calls": 2, "max_steps": 5}
    assert made.row is not None
    assert made.row.lineage.stop_reason == "max_tool_calls"
    assert made.row.lineage.sample.instructions == system
    assert not any("at most" in item.content for item in made.row.messages)
    assert [item.role for item in made.row.messages].count(Role.USER) == 1
    assert made.row.untrained == (2,)
    results = [item for item in made.row.messages if item.role is Role.TOOL]
    assert [item.content for item in results if not item.is_error] == ["milk", "milk"]
    assert not check_transcript(made.row.messages)


async def test_the_writer_sees_the_files():
    """Rules out that requests are written without a look at the files, and name files that do not exist."""
    cast = Cast(scenarios=[{**SCENARIO, "message": "Summarise budget.csv."}, SCENARIO])
    made = await make_sample(make_studio(NOTES, cast), spec())
    facts = facts_of(cast.asked["scenario"][0])
    assert facts is not None
    assert facts["files"] == [{"path": "notes.txt", "size_bytes": 4, "head": "milk"}]
    assert [item["name"] for item in facts["tools"]][:2] == ["read_file", "write_file"]
    assert "There is no file 'budget.csv'" in cast.asked["scenario"][1].messages[-1].content
    assert made.scenario is not None
    assert made.scenario.message == SCENARIO["message"]


async def test_a_message_that_a_filter_would_find_too_short_is_written_again():
    """A weak writer repeats a word of its facts. The agent is not asked before the message can be kept."""
    cast = Cast(scenarios=[{**SCENARIO, "message": "scenario"}, SCENARIO])
    made = await make_sample(make_studio(NOTES, cast), spec())
    assert "The message 'scenario' is too short" in cast.asked["scenario"][1].messages[-1].content
    assert made.scenario is not None
    assert made.scenario.message == SCENARIO["message"]
    for filters in ({"length": {"min_user_words": 1}}, {"length": False}):
        short = Cast(scenarios=[{**SCENARIO, "message": "scenario"}])
        made = await make_sample(make_studio({**NOTES, "quality": {"filters": filters}}, short), spec())
        assert made.scenario is not None
        assert made.scenario.message == "scenario"


async def test_a_scenario_that_stays_unusable_is_a_fault_of_the_sample():
    cast = Cast(scenarios=[{**SCENARIO, "message": "Read {{file}}."}])
    made = await make_sample(make_studio(NOTES, cast), spec())
    assert made.row is None
    assert made.scenario is None
    assert made.error is not None
    assert "'{{file}}' is a placeholder" in made.error
    assert made.fault is Fault.MODEL
    assert len(cast.asked["scenario"]) == 3


async def test_a_server_that_fails_is_no_fault_of_the_sample():
    """The same attempt then continues where the server failed."""
    broken = True

    def agent(request: Request):
        if broken and request.messages[-1].role is Role.TOOL:
            return ServerError("the server is down")
        return read_notes(request)

    cast = Cast(agent)
    studio = make_studio(NOTES, cast)
    made = await make_sample(studio, spec())
    assert made.fault is Fault.INFRASTRUCTURE
    assert made.error is not None
    assert "the server is down" in made.error
    broken = False
    made = await make_sample(studio, spec())
    assert made.row is not None
    assert texts(made.row.messages)[-1] == "It says: milk"
    assert len(cast.asked["scenario"]) == 1
    assert len(cast.asked["agent"]) == 3  # the call, the failure, the answer


async def test_a_cancelled_sample_is_continued():
    waiting = asyncio.Event()

    @tool(effect="pure")
    async def wait(seconds: int) -> str:
        if not waiting.is_set():
            waiting.set()
            await asyncio.sleep(3600)
        return "waited"

    studio, cast = studio_with([wait], replay(think("I wait.", call("wait", {"seconds": 1})), "done"))
    task = asyncio.ensure_future(make_sample(studio, spec()))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    made = await make_sample(studio, spec())
    assert made.row is not None
    assert texts(made.row.messages) == [SCENARIO["message"], "I wait.", "waited", "done"]
    assert [len(cast.asked[role]) for role in ("scenario", "agent")] == [1, 2]


async def test_feedback_reaches_the_writer_and_the_agent_and_not_the_row():
    cast = Cast()
    studio = make_studio(NOTES, cast)
    first = await make_sample(studio, spec())
    made = await make_sample(studio, spec(), 2, ["the answer names a file that nobody read"])
    facts = facts_of(cast.asked["scenario"][1])
    assert facts is not None
    assert facts["feedback"] == ["the answer names a file that nobody read"]
    system = cast.asked["agent"][-1].messages[0].content
    assert "nobody read" in system
    assert made.row is not None
    assert first.row is not None
    assert made.row.messages[0] == first.row.messages[0]
    assert made.row.lineage.sample is not None
    assert made.row.lineage.sample.instructions == system
    assert first.row.lineage.sample is not None
    assert "nobody read" not in str(first.row.lineage.sample.instructions)
    assert made.run_id == "s000001-2"
    both = first.usage.total_tokens + made.usage.total_tokens
    info = made.row.lineage.sample
    assert info.input_tokens + info.output_tokens == both > made.usage.total_tokens


@pytest.mark.parametrize(
    ("output", "expected"),
    [({"system_message": "Be nice."}, "Be nice."), ({"include_system_message": False}, None)],
)
async def test_the_row_may_show_another_system_message_and_says_so(output, expected):
    cast = Cast()
    made = await make_sample(make_studio({**NOTES, "output": output}, cast), spec())
    assert made.row is not None
    first = made.row.messages[0]
    assert (first.content if first.role is Role.SYSTEM else None) == expected
    assert made.row.lineage.sample is not None
    assert made.row.lineage.sample.instructions == cast.asked["agent"][0].messages[0].content


async def test_the_check_of_a_task_grades_the_sample():
    config = {"tools": {"use": ["files"], "files": "tasks:files"}}
    cast = Cast(lambda request: "Answer: 42", [{**SCENARIO, "message": "Do what the task says."}])
    studio = make_studio(config, cast)
    made = await make_sample(studio, spec(kind=Kind.CHAINED))
    facts = facts_of(cast.asked["scenario"][0])
    assert facts is not None
    assert made.dialogue is not None
    environment = made.dialogue.environment
    assert facts["task"] == {"reference": environment.task, "input": environment.task_input}
    assert "last line is `Answer: `" in cast.asked["agent"][0].messages[0].content
    assert made.row is not None
    assert made.row.lineage.task == environment.task
    assert made.row.lineage.reward == 0.0
    free = await make_sample(studio, spec(kind=Kind.REFUSAL, number=2))
    assert free.dialogue is not None
    assert free.dialogue.environment.files
    assert free.row is not None
    assert (free.dialogue.environment.task, free.row.lineage.reward) == (None, None)


async def test_samples_do_not_share_what_they_write():
    """Rules out that the files of one sample are seen by another."""

    def agent(request: Request):
        if request.messages[-1].role is Role.TOOL:
            return request.messages[-1].content
        if sum(item.role is Role.TOOL for item in request.messages):
            return "done"
        return think("", call("list_files"), call("write_file", {"file_path": "new.txt", "content": "1"}))

    studio = make_studio(NOTES, Cast(agent))
    made = await asyncio.gather(*[make_sample(studio, spec(number=number)) for number in range(1, 9)])
    listed = [texts(item.row.messages)[2] for item in made if item.row is not None]
    assert len(listed) == 8
    assert set(listed) <= {'["notes.txt"]', '["new.txt","notes.txt"]'}
    assert studio.environments.draw(spec()).files == {"notes.txt": b"milk"}


async def test_samples_close_what_their_tools_hold():
    """Rules out that each sample leaves a session or a connection behind."""
    opened: list[str] = []
    closed: list[str] = []

    @contextlib.asynccontextmanager
    async def connect(run_id: str):
        opened.append(run_id)
        yield run_id
        closed.append(run_id)

    @tool
    async def use(context: ToolContext) -> str:
        return await context.scope.get("connection", lambda: connect(context.run_id))

    studio, _ = studio_with([use], replay(think("", call("use")), "done"))
    for number in range(1, 4):
        assert (await make_sample(studio, spec(number=number))).row is not None
    assert opened == closed == ["s000001-1", "s000002-1", "s000003-1"]


async def test_a_model_of_its_own_for_each_role():
    studio = make_studio(NOTES, models={"agent": ScriptedModel(read_notes, name="strong")})
    made = await make_sample(studio, spec())
    assert made.row is not None
    assert made.row.lineage.sample is not None
    assert made.row.lineage.sample.models == {"agent": "strong", "scenarios": "scripted"}
