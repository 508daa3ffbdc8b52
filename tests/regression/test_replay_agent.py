"""Recordings of real runs, replayed against agents that are the same or differ in one thing."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from tests.tasks.test_harbor_steps import write_steps

from treadle import Agent, Policy, ScriptedModel, load_task, open_journal, tool
from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.inbox import GiveResult
from treadle.core.judgement import Judgement
from treadle.core.spec import PartSpec
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import Completion, FinishReason, Message, Role
from treadle.models.config.recipe import load_config
from treadle.models.scripted import call
from treadle.regression.recorded_parts import ToolReplay
from treadle.regression.recorded_runs import RecordedRun, Redaction, read_recording, write_recording
from treadle.regression.replay_agent import Replayed, ReplaySettings, replay_recording
from treadle.routing.judging import PatternJudge
from treadle.runs.run import Run
from treadle.tools.client_tools import ClientTools
from treadle.tools.context import ToolContext

LIVE = ReplaySettings(tools=ToolReplay.LIVE)
READ_ONLY = ReplaySettings(tools=ToolReplay.LIVE_READ_ONLY)


@tool(effect="pure")
async def rate(currency: str) -> float:
    """The price of one euro."""
    return {"USD": 1.09, "NOK": 11.6}[currency]


@tool(effect="once")
async def send(text: str) -> str:
    """Send a letter."""
    return f"sent {text}"


def make_agent(answers: list[Any], **options: Any) -> Agent[Any]:
    options = {
        "instructions": "Answer in one sentence.",
        "tools": [rate, send],
        "journal": "memory:",
        **options,
    }
    return Agent(ScriptedModel(answers), **options)


ANSWERS = [
    [call("rate", {"currency": "NOK"}), call("rate", {"currency": "USD"})],
    [call("send", {"text": "hi"})],
    "A euro is 11.6 NOK.",
]


async def record(agent: Agent[Any], run: Run[Any], folder: Path) -> RecordedRun:
    path = folder / "euro.run.json"
    await asyncio.to_thread(write_recording, agent.journal, run.run_id, path, Redaction())
    return await read_recording(path)


@pytest.fixture
async def recorded(tmp_path: Path) -> RecordedRun:
    agent = make_agent(ANSWERS)
    return await record(agent, await agent.run("A euro in NOK?"), tmp_path)


def names_of(found: Replayed) -> list[str]:
    assert found.divergence is not None
    return [item.what for item in found.divergence.differences if not item.is_hint]


async def test_the_same_agent_makes_the_same_requests(recorded: RecordedRun) -> None:
    for settings in (ReplaySettings(), READ_ONLY, LIVE):
        found = await replay_recording(recorded, make_agent([]), settings)
        assert found.divergence is None
        assert (found.requests, found.differing) == (3, 0)


async def test_a_changed_prompt_is_the_first_difference(recorded: RecordedRun) -> None:
    found = await replay_recording(recorded, make_agent([], instructions="Answer in French."))
    assert names_of(found) == ["the system prompt"]
    assert found.requests == 1
    assert "  - Answer in one sentence.\n  + Answer in French." in str(found.divergence)
    assert recorded.events[found.divergence.seq - 1].type == "inference_started"  # type: ignore[union-attr]


async def test_a_changed_tool_is_named(recorded: RecordedRun) -> None:
    @tool(effect="pure", name="rate")
    async def other(currency: str, day: str = "today") -> float:
        """The price of one euro."""
        return 1.0

    found = await replay_recording(recorded, make_agent([], tools=[other, send]))
    assert names_of(found) == ["the parameters of the tool 'rate'"]
    found = await replay_recording(recorded, make_agent([], tools=[send]))
    assert names_of(found) == ["the tool 'rate', which is gone"]
    found = await replay_recording(recorded, make_agent([], tools=[send, rate]))
    assert names_of(found) == ["the order of the tools"]


async def test_a_changed_model_is_named_with_what_else_differs(recorded: RecordedRun) -> None:
    agent = Agent(ScriptedModel([], name="other"), instructions="Hi.", tools=[rate, send], journal="memory:")
    assert names_of(await replay_recording(recorded, agent)) == ["the model", "the system prompt"]


async def test_a_recording_of_another_agent_is_told(recorded: RecordedRun) -> None:
    other = make_agent([], instructions="You cook.", tools=["files"])
    found = await replay_recording(recorded, other)
    assert "this looks like a recording of another agent" in str(found.divergence)
    found = await replay_recording(recorded, make_agent([], instructions="You cook."))
    assert "another agent" not in str(found.divergence)


async def test_a_changed_result_of_a_live_tool_is_shown(recorded: RecordedRun) -> None:
    @tool(effect="pure", name="rate")
    async def other(currency: str) -> float:
        """The price of one euro."""
        return 2.0

    agent = make_agent([], tools=[other, send])
    assert (await replay_recording(recorded, agent)).divergence is None
    found = await replay_recording(recorded, agent, READ_ONLY)
    assert names_of(found) == [
        'the result of rate({"currency":"NOK"})',
        'the result of rate({"currency":"USD"})',
    ]
    assert found.requests == 2


async def test_calls_with_an_effect_are_made_only_live(recorded: RecordedRun) -> None:
    sent: list[str] = []

    @tool(effect="once", name="send")
    async def other(text: str) -> str:
        """Send a letter."""
        sent.append(text)
        return f"sent {text}"

    agent = make_agent([], tools=[rate, other])
    for settings in (ReplaySettings(), READ_ONLY):
        assert (await replay_recording(recorded, agent, settings)).divergence is None
        assert not sent
    assert (await replay_recording(recorded, agent, LIVE)).divergence is None
    assert sent == ["hi"]


async def test_a_limit_that_ends_the_turn_earlier_is_shown(recorded: RecordedRun) -> None:
    found = await replay_recording(recorded, make_agent([], policy=Policy(max_tool_calls=2)))
    assert found.divergence is not None
    assert "the policy's max_tool_calls" in [
        item.what for item in found.divergence.differences if item.is_hint
    ]
    assert (await replay_recording(recorded, make_agent([], policy=Policy(max_steps=7)))).divergence is None


async def test_a_difference_is_accepted_by_the_run_of_today(recorded: RecordedRun) -> None:
    agent = make_agent([], instructions="Answer in French.")
    found = await replay_recording(recorded, agent, ReplaySettings(is_accepting=True))
    assert (found.requests, found.differing) == (3, 3)
    write_recording(found.journal, recorded.run_id, recorded.path, Redaction())
    again = await read_recording(recorded.path)
    assert again.run.output == "A euro is 11.6 NOK."
    assert (await replay_recording(again, agent)).divergence is None


async def test_a_recording_with_too_few_answers_is_not_accepted(recorded: RecordedRun) -> None:
    agent = make_agent([], schema={"type": "object", "properties": {"nok": {"type": "number"}}})
    found = await replay_recording(recorded, agent)
    assert names_of(found)[0] == "the schema of the answer"
    with pytest.raises(ConfigError, match="--update --live"):
        await replay_recording(recorded, agent, ReplaySettings(is_accepting=True))


async def test_parallel_results_in_another_order_are_equal(tmp_path: Path) -> None:
    order = {"NOK": 0.02, "USD": 0.0}

    @tool(effect="pure", name="rate")
    async def slow(currency: str) -> float:
        """The price of one euro."""
        await asyncio.sleep(order[currency])
        return {"USD": 1.09, "NOK": 11.6}[currency]

    agent = make_agent(ANSWERS, tools=[slow, send])
    recorded = await record(agent, await agent.run("A euro in NOK?"), tmp_path)
    done = [body.call_id for body in recorded.bodies_of(e.ToolCompleted)][:2]
    order |= {"NOK": 0.0, "USD": 0.02}
    found = await replay_recording(recorded, make_agent([], tools=[slow, send]), LIVE)
    assert found.divergence is None
    bodies = [event.body for event in found.journal.read(recorded.run_id)]
    assert [body.call_id for body in bodies if isinstance(body, e.ToolCompleted)][:2] == done[::-1]


async def test_a_session_is_replayed_turn_by_turn(tmp_path: Path) -> None:
    agent = make_agent([*ANSWERS, "Yes."])
    async with agent.session() as session:
        await session.send("A euro in NOK?")
        run = await session.send("Sure?")
    recorded = await record(agent, run, tmp_path)
    found = await replay_recording(recorded, make_agent([]))
    assert found.divergence is None
    assert found.requests == 4
    found = await replay_recording(recorded, make_agent([]), ReplaySettings(is_accepting=True))
    write_recording(found.journal, recorded.run_id, recorded.path, Redaction())


async def test_a_message_that_steers_comes_at_the_same_request(tmp_path: Path) -> None:
    @tool(effect="pure", name="rate")
    async def steered(currency: str) -> float:
        """The price of one euro."""
        stream.steer("Be short.")
        return 11.6

    agent = make_agent([[call("rate", {"currency": "NOK"})], "In short: 11.6."], tools=[steered])
    stream = agent.stream("A euro in NOK?")
    events = [event async for event in stream]
    recorded = await record(agent, Run.load(events[0].run_id, agent.journal), tmp_path)
    assert recorded.bodies_of(e.MessageInjected)
    found = await replay_recording(recorded, make_agent([], tools=[steered]))
    assert found.divergence is None, str(found.divergence)
    assert found.requests == 2


async def test_questions_and_approvals_are_answered_as_recorded(tmp_path: Path) -> None:
    answers = [[call("ask_user", {"question": "Which?"})], [call("send", {"text": "hi"})], "Done."]
    policy = Policy(approve={"send": "ask"})
    options: dict[str, Any] = {"tools": ["ask", send], "policy": policy}
    agent = make_agent(answers, asker=lambda question: "NOK", approver=lambda request: False, **options)
    run = await agent.run("Send it.")
    recorded = await record(agent, run, tmp_path)
    assert recorded.bodies_of(e.QuestionAnswered)
    assert recorded.bodies_of(e.ApprovalDecided)
    found = await replay_recording(recorded, make_agent([], **options))
    assert found.divergence is None, str(found.divergence)
    assert found.requests == 3


async def test_an_approval_that_nobody_gave_is_shown(recorded: RecordedRun) -> None:
    found = await replay_recording(recorded, make_agent([], policy=Policy(approve={"send": "ask"})))
    assert names_of(found) == ["the end"]
    assert "waits for an answer or an approval" in str(found.divergence)


async def test_files_of_recorded_calls_are_there_for_live_ones(tmp_path: Path) -> None:
    answers = [
        [call("write_file", {"file_path": "a.txt", "content": "two"})],
        [call("read_file", {"file_path": "a.txt"})],
        "Two.",
    ]
    options: dict[str, Any] = {"tools": ["files"], "files": {"b.txt": "one"}}
    agent = make_agent(answers, **options)
    recorded = await record(agent, await agent.run("Write."), tmp_path)
    for settings in (ReplaySettings(), READ_ONLY, LIVE):
        found = await replay_recording(recorded, make_agent([], **options), settings)
        assert found.divergence is None, str(found.divergence)
        assert Run.load(recorded.run_id, found.journal).files == {"a.txt": b"two", "b.txt": b"one"}


async def test_a_compacted_context_is_compacted_as_recorded(tmp_path: Path) -> None:
    agent = make_agent([f"Answer {number}. " + "word " * 300 for number in range(6)])
    async with agent.session() as session:
        for number in range(4):
            run = await session.send(f"Question {number}. " + "word " * 300)
        await session.compact()
        run = await session.send("And now?")
    recorded = await record(agent, run, tmp_path)
    assert recorded.bodies_of(e.ContextCompacted)
    found = await replay_recording(recorded, make_agent([]))
    assert found.divergence is None, str(found.divergence)


async def test_a_sub_agent_is_not_asked(tmp_path: Path) -> None:
    child = Agent(ScriptedModel(["Eleven."]), journal="memory:")
    answers = [[call("agent", {"task": "How much?"})], "Eleven."]
    agent = make_agent(answers, tools=[child.as_tool()])
    recorded = await record(agent, await agent.run("Ask it."), tmp_path)
    other = Agent(ScriptedModel([]), journal="memory:")
    for settings in (ReplaySettings(), LIVE):
        found = await replay_recording(recorded, make_agent([], tools=[other.as_tool()]), settings)
        assert found.divergence is None, str(found.divergence)


async def test_what_differs_each_time_can_be_ignored(tmp_path: Path) -> None:
    agent = make_agent(["Hi."], instructions="It is 2026-01-01.")
    recorded = await record(agent, await agent.run("Hi."), tmp_path)
    later = make_agent([], instructions="It is 2026-02-02.")
    assert names_of(await replay_recording(recorded, later)) == ["the system prompt"]
    settings = ReplaySettings(normalize=lambda text: re.sub(r"\d{4}-\d\d-\d\d", "…", text))
    assert (await replay_recording(recorded, later, settings)).divergence is None


async def test_the_clock_and_the_id_of_the_run_are_the_recorded_ones(tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []

    def tell(context: Any) -> str:
        seen.append((context.run_id, agent.clock.time()))
        return f"You are run {context.run_id}."

    agent = make_agent(["Hi."], instructions=tell)
    recorded = await record(agent, await agent.run("Hi."), tmp_path)
    assert (await replay_recording(recorded, agent)).divergence is None
    assert seen[0][0] == seen[1][0]
    replayed = (await replay_recording(recorded, agent)).journal.read(recorded.run_id)
    assert replayed[0].body.at == recorded.events[0].body.at


async def test_a_replay_remembers_nothing(tmp_path: Path) -> None:
    with open_journal(tmp_path / "runs.db") as journal:
        agent = make_agent(["I shall remember.", "Blue."], tools=[], journal=journal, memory=True)
        await agent.run("My colour is blue.")
        run = await agent.run("Which is my colour?")
        recorded = await record(agent, run, tmp_path)
        assert recorded.bodies_of(e.TurnStarted)[0].recalled is not None
        assert agent.known is not None
        assert agent.known.memory is not None
        before = len(agent.known.memory.store.entries(limit=99))
        assert (await replay_recording(recorded, agent)).divergence is None
        assert len(agent.known.memory.store.entries(limit=99)) == before


async def test_a_task_is_replayed_with_its_tools(tmp_path: Path) -> None:
    task = load_task("files:csv_sum-0001")
    agent = Agent(load_config().model("oracle", task=task), journal="memory:")
    recorded = await record(agent, await agent.run(task), tmp_path)
    for settings in (ReplaySettings(), READ_ONLY, LIVE):
        found = await replay_recording(recorded, agent, settings)
        assert found.divergence is None, str(found.divergence)


async def test_what_a_user_changed_between_turns_is_there_again(tmp_path: Path) -> None:
    task = write_steps(tmp_path)
    agent = Agent(load_config().model("oracle", task=task), journal="memory:")
    run = await agent.run(task)
    recorded = await record(agent, run, tmp_path)
    for settings in (ReplaySettings(), LIVE):
        found = await replay_recording(recorded, agent, settings)
        assert found.divergence is None, str(found.divergence)
        assert Run.load(run.run_id, found.journal).files == run.files


async def test_a_call_that_was_not_run_then_has_no_result(tmp_path: Path) -> None:
    agent = make_agent(ANSWERS, policy=Policy(max_tool_calls=2))
    recorded = await record(agent, await agent.run("A euro in NOK?"), tmp_path)
    assert recorded.run.stop_reason == "max_tool_calls"
    found = await replay_recording(recorded, make_agent([], policy=Policy(max_tool_calls=9)))
    assert found.divergence is not None
    assert "has no result of this call" in str(found.divergence)


async def test_results_may_differ_as_their_tool_says(tmp_path: Path) -> None:
    times = iter(["2026-01-01 10:00:00", "2026-02-02 11:11:11"])

    def make_tool(may_differ: list[str]) -> Any:
        @tool(effect="pure", name="now", may_differ=may_differ)
        async def now() -> str:
            """The time."""
            return next(times)

        return now

    answers = [[call("now")], "Ten."]
    agent = make_agent(answers, tools=[make_tool(["timestamps"])])
    recorded = await record(agent, await agent.run("When?"), tmp_path)
    found = await replay_recording(recorded, make_agent([], tools=[make_tool(["timestamps"])]), LIVE)
    assert found.divergence is None, str(found.divergence)
    times = iter(["2026-02-02 11:11:11"])
    assert names_of(await replay_recording(recorded, make_agent([], tools=[make_tool([])]), LIVE)) == [
        "the result of now({})"
    ]
    # The rule is for the tool's results alone.
    dated = {"tools": [make_tool(["timestamps"])], "instructions": "It is 2026-03-03 10:00:00."}
    agent = make_agent(answers, **{**dated, "instructions": "It is 2026-01-01 10:00:00."})
    times = iter(["10:00:00"])
    recorded = await record(agent, await agent.run("When?"), tmp_path)
    assert names_of(await replay_recording(recorded, make_agent([], **dated), LIVE)) == ["the system prompt"]


async def test_exact_tokens_are_left_out(tmp_path: Path) -> None:
    tokens = TokenRecord(prompt_token_ids=[1, 2], token_ids=[3], tokenizer="t")
    answer = Completion(Message(Role.ASSISTANT, "Hi."), FinishReason.STOP, tokens=tokens)
    agent = make_agent([answer])
    recorded = await record(agent, await agent.run("Hi."), tmp_path)
    assert "token_ids" not in recorded.path.read_text()
    assert (await replay_recording(recorded, make_agent([]))).divergence is None


class SlowJudge:
    """A judge that asks somebody."""

    part = PartSpec(name="slow", missing="it is an object of the program")

    def __init__(self) -> None:
        self.asked = 0

    async def judge(self, message: str, facts: object = None) -> Judgement:
        self.asked += 1
        return await PatternJudge().judge(message)


async def test_a_judge_that_asks_somebody_is_not_asked(tmp_path: Path) -> None:
    judge = SlowJudge()
    agent = make_agent(["Hi."], judge=judge)
    recorded = await record(agent, await agent.run("Hi there, sum up the report."), tmp_path)
    assert judge.asked == 1
    found = await replay_recording(recorded, make_agent([], judge=judge))
    assert found.divergence is None, str(found.divergence)
    assert judge.asked == 1
    assert (
        found.journal.read(recorded.run_id)[1].body.judgement
        == recorded.bodies_of(e.TurnStarted)[0].judgement
    )  # type: ignore[union-attr]


async def test_tools_that_need_deps_are_not_called(tmp_path: Path) -> None:
    @tool(effect="pure", name="rate")
    async def needy(currency: str, context: ToolContext[dict[str, float]]) -> float:
        """The price of one euro."""
        return context.deps[currency]

    answers = [[call("rate", {"currency": "NOK"})], "Eleven."]
    agent = make_agent(answers, tools=[needy])
    recorded = await record(agent, await agent.run("A euro?", deps={"NOK": 11.6}), tmp_path)
    assert (await replay_recording(recorded, make_agent([], tools=[needy]))).divergence is None
    with pytest.raises(ConfigError, match="needs deps"):
        await replay_recording(recorded, make_agent([], tools=[needy]), LIVE)
    found = await replay_recording(recorded, make_agent([], tools=[needy], deps={"NOK": 12.0}), LIVE)
    assert names_of(found) == ['the result of rate({"currency":"NOK"})']


class Euro(Struct):
    nok: float


@pytest.mark.parametrize("mode", ["native", "tool", "text"])
async def test_answers_that_fit_a_schema(tmp_path: Path, mode: str) -> None:
    class Shaped(ScriptedModel):
        output_mode = mode

    wrong, right = '{"nok": "x"}', '{"nok": 11.6}'
    texts = (
        [[call("final_answer", wrong)], [call("final_answer", right)]] if mode == "tool" else [wrong, right]
    )

    def make(answers: list[Any]) -> Agent[Any]:
        return Agent(Shaped(answers), tools=[rate], schema=Euro, journal="memory:")

    agent = make([[call("rate", {"currency": "NOK"})], *texts])
    run = await agent.run("A euro?")
    assert run.value == Euro(11.6), run
    recorded = await record(agent, run, tmp_path)
    found = await replay_recording(recorded, make([]))
    assert found.divergence is None, str(found.divergence)
    assert found.requests == 3


async def test_files_that_the_user_sent(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG" * 9_000)
    agent = make_agent(["A picture.", "Another."])
    async with agent.session() as session:
        await session.send("What is it?", attach=[tmp_path / "a.png"])
        run = await session.send("And this?", attach=[tmp_path / "a.png"])
    recorded = await record(agent, run, tmp_path)
    found = await replay_recording(recorded, make_agent([]), ReplaySettings(is_accepting=True))
    assert found.divergence is None, str(found.divergence)
    write_recording(found.journal, recorded.run_id, recorded.path, Redaction())
    assert (await read_recording(recorded.path)).run.messages == recorded.run.messages


async def test_calls_that_another_program_makes(tmp_path: Path) -> None:
    tools = [ClientTools([{"name": "where", "description": "The place.", "parameters": {"type": "object"}}])]
    agent = make_agent([[call("where")], "In Oslo."], tools=tools)
    waiting = await agent.run("Where am I?")
    (call_id,) = waiting.external_calls
    agent.journal.post(waiting.run_id, GiveResult(call_id, "Oslo"))
    recorded = await record(agent, await agent.resume(waiting.run_id), tmp_path)
    for settings in (ReplaySettings(), LIVE):
        found = await replay_recording(recorded, make_agent([], tools=tools), settings)
        assert found.divergence is None, str(found.divergence)
        assert found.requests == 2


async def test_a_run_that_was_interrupted_and_resumed(tmp_path: Path) -> None:
    begun = asyncio.Event()

    @tool(effect="idempotent", name="send")
    async def slow(text: str) -> str:
        """Send a letter."""
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(60)
        return f"sent {text}"

    agent = make_agent(ANSWERS, tools=[rate, slow])
    task = asyncio.ensure_future(agent.run("A euro in NOK?", run_id="r"))
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    recorded = await record(agent, await agent.resume("r"), tmp_path)
    assert recorded.bodies_of(e.RunResumed)
    assert len(recorded.bodies_of(e.ToolStarted)) == 4
    for settings in (ReplaySettings(), LIVE):
        found = await replay_recording(recorded, make_agent([], tools=[rate, slow]), settings)
        assert found.divergence is None, str(found.divergence)
        types = [event.type for event in found.journal.read("r")]
        assert types.count("tool_started") == 3


async def test_a_fork_is_a_recording_too(tmp_path: Path) -> None:
    agent = make_agent([*ANSWERS, "Yes."])
    run = await agent.run("A euro in NOK?")
    recorded = await record(agent, await agent.fork(run.run_id, text="Sure?"), tmp_path)
    found = await replay_recording(recorded, make_agent([]))
    assert found.divergence is None, str(found.divergence)
    assert found.requests == 4


async def test_a_persona_that_changed_is_shown(tmp_path: Path) -> None:
    persona = {"name": "Ada", "role": "a careful assistant"}
    agent = make_agent(["Hi."], persona=persona, instructions=None)
    recorded = await record(agent, await agent.run("Hi."), tmp_path)
    assert (
        await replay_recording(recorded, make_agent([], persona=persona, instructions=None))
    ).divergence is None
    bold = make_agent([], persona={**persona, "role": "a bold assistant"}, instructions=None)
    assert names_of(await replay_recording(recorded, bold)) == ["the system prompt"]
